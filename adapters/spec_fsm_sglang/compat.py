"""What this adapter knows of SGLang, checked before it touches anything.

A release is supported when it is named here and every function that is hooked, overridden or
called still has the parameters it had when the adapter was written. A server whose options are
not supported yet is refused with one line. A refusal leaves SGLang as it was: speculating.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SUPPORTED_VERSIONS = ("0.5.23",)

_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_COMPONENTS = "sglang.srt.managers.scheduler_components"
_RESULTS = f"{_COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"
_METRICS = f"{_COMPONENTS}.metrics_reporter.SchedulerMetricsReporter"
_STATE = f"{_COMPONENTS}.internal_state.SchedulerInternalStateController"
_WEIGHTS = f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
_WEIGHT_MESSAGES = (
    "update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor",
    "update_weights_from_ipc", "end_weight_update",
)
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_DECODE_GRAPHS = (
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
)

SIGNATURES: dict[str, tuple[str, ...]] = {
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker": ("self", "server_args"),
    f"{_EAGLE}.EAGLEWorkerV2.forward_batch_generation": (
        "self", "batch", "on_publish", "grammar_barrier", "pp_proxy_tensors",
    ),
    f"{_EAGLE}.EAGLEWorkerV2.init_cuda_graphs": ("self",),
    f"{_EAGLE}.EagleDraftWorker.draft": ("self", "batch", "with_topology"),
    f"{_EAGLE}.EagleDraftWorker._draft_extend_for_decode": (
        "self", "batch", "batch_result", "kv_loc_plan",
    ),
    f"{_SCHEDULER}.__init__": ("self", "server_args", "port_args"),
    f"{_SCHEDULER}.get_next_batch_to_run": ("self", "running_batch", "last_batch"),
    f"{_SCHEDULER}._poll_timeout_aborts": ("self",),
    f"{_SCHEDULER}.is_disable_overlap_for_batch": ("self", "batch", "last_batch"),
    f"{_SCHEDULER}._add_request_to_queue": ("self", "req", "is_retracted"),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.release_req": (
        "self", "idx", "remaing_req_count", "offload_kv",
    ),
    "sglang.srt.managers.schedule_batch.ScheduleBatch.filter_batch": (
        "self", "reqs_to_exclude", "keep_indices",
    ),
    f"{_SCHEDULER}.update_running_batch": ("self", "batch"),
    f"{_SCHEDULER}.run_batch": ("self", "batch", "pp_proxy_tensors"),
    f"{_SCHEDULER}._forward_isolation": ("self", "batch", "overlap"),
    f"{_RESULTS}._resolve_spec_v2_tokens": ("self", "result", "batch"),
    f"{_RESULTS}.advance_grammar_fsm": ("self", "result", "batch"),
    f"{_METRICS}.update_spec_metrics": (
        "self", "bs", "num_correct_drafts", "num_accept_tokens", "num_block_accept_tokens",
        "num_cap_tokens",
    ),
    f"{_SCHEDULER}.flush_cache": ("self", "empty_cache"),
    **{f"{_WEIGHTS}.{name}": ("self", "recv_req") for name in _WEIGHT_MESSAGES},
    f"{_UPDATER}.update_weights_from_disk": (
        "self", "model_path", "load_format", "weight_name_filter", "recapture_cuda_graph",
    ),
    f"{_UPDATER}.load_weights_from_distributed": ("self", "named_tensors"),
    f"{_UPDATER}.update_weights_from_tensor": ("self", "named_tensors", "load_format"),
    f"{_UPDATER}.update_weights_from_ipc": ("self", "recv_req"),
    f"{_UPDATER}.end_weight_update": ("self", "run_post_load"),
    f"{_RUNNER}.init_decode_cuda_graph": ("self",),
    "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len": (),
    "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode": (),
    "sglang.srt.mem_cache.allocation_sizing.get_alloc_page_size": (),
    f"{_STATE}.get_internal_state": ("self", "recv_req"),
    f"{_STATE}.set_internal_state": ("self", "recv_req"),
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics": (
        "self", "meta_info", "recv_obj", "i",
    ),
    "sglang.srt.managers.scheduler.Scheduler._apply_war_barrier": ("self",),
    "sglang.srt.entrypoints.warmup.warmup": ("name",),
    f"{_RUNNER}._get_attention_backend": (
        "self", "init_new_workspace",
    ),
    "sglang.srt.lora.backend.base_backend.BaseLoRABackend.init_cuda_graph_moe_buffers": (
        "self", "max_bs", "max_loras", "compute_dtype", "moe_layer", "prefill",
    ),
    f"{_DECODE_GRAPHS}.__init__": (
        "self", "model_runner", "attn_backend", "speculative_num_steps",
        "speculative_num_draft_tokens", "record_nolora_graph",
    ),
    f"{_DECODE_GRAPHS}.capture": ("self",),
    f"{_DECODE_GRAPHS}.capture_prepare": ("self", "size", "stream_idx", "num_tokens"),
    f"{_DECODE_GRAPHS}.get_spec_info": ("self", "num_tokens"),
    "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": (
        "self", "batch", "forward_batch", "pp_proxy_tensors", "is_verify",
        "skip_attn_backend_init", "capture_hidden_mode", "return_kv_loc_plan",
    ),
    "sglang.srt.mem_cache.radix_cache.RadixCache.checkpoint": ("self", "req", "up_to"),
    "sglang.srt.mem_cache.base_prefix_cache.BasePrefixCache.on_release": (
        "self", "req", "checkpointed",
    ),
    "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.set_kv_buffer": (
        "self", "layer", "loc_info", "cache_k", "cache_v", "k_scale", "v_scale",
        "layer_id_override", "dcp_kv_mask",
    ),
}
"""Dotted name -> the parameters it must have, in order."""

NOT_YET: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("speculative_adaptive", bool, "--speculative-adaptive"),
    ("speculative_use_rejection_sampling", bool, "--speculative-use-rejection-sampling"),
    ("enable_multi_layer_eagle", bool, "--enable-multi-layer-eagle"),
    ("attn_dp_size", lambda size: (size or 1) > 1, "DP attention (--attn-dp-size above 1)"),
    ("pp_size", lambda size: (size or 1) > 1, "pipeline parallelism (--pp-size above 1)"),
    ("dcp_size", lambda size: (size or 1) > 1, "decode context parallelism (--dcp-size above 1)"),
    ("attn_cp_size", lambda size: (size or 1) > 1, "context parallelism (--attn-cp-size above 1)"),
    (
        "disaggregation_mode",
        lambda mode: mode not in (None, "null"),
        "prefill-decode disaggregation (--disaggregation-mode)",
    ),
    ("enable_two_batch_overlap", bool, "--enable-two-batch-overlap"),
    ("enable_single_batch_overlap", bool, "--enable-single-batch-overlap"),
    ("enable_pdmux", bool, "--enable-pdmux"),
    ("enable_hierarchical_cache", bool, "--enable-hierarchical-cache"),
    ("enable_hisparse", bool, "--enable-hisparse"),
    ("enable_lmcache", bool, "--enable-lmcache"),
    ("enable_flexkv", bool, "--enable-flexkv"),
    ("enable_unified_cache_external_linker", bool, "--enable-unified-cache-external-linker"),
    ("enable_unified_memory", bool, "--enable-unified-memory"),
    ("enable_streaming_session", bool, "--enable-streaming-session"),
    ("enable_session_radix_cache", bool, "--enable-session-radix-cache"),
    ("enable_mixed_chunk", bool, "--enable-mixed-chunk"),
    ("enable_watermark", bool, "--enable-watermark"),
    ("dllm_algorithm", bool, "--dllm-algorithm"),
    ("speculative_draft_window_size", bool, "--speculative-draft-window-size"),
)
"""Resolved option, test for a value that is not supported yet, how the line names it."""


def version_problem(found: str | None = None) -> str | None:
    """Why this SGLang release is refused, in one line; None if it is supported."""
    found = version("sglang") if found is None else found
    if found in SUPPORTED_VERSIONS:
        return None
    return f"SGLang {found} is not supported; supported: {', '.join(SUPPORTED_VERSIONS)}"


def signature_problem(signatures: Mapping[str, tuple[str, ...]] = SIGNATURES) -> str | None:
    """The first function that is gone or has other parameters, in one line; None if all hold."""
    for name, expected in signatures.items():
        try:
            found = tuple(inspect.signature(pkgutil.resolve_name(name)).parameters)
        except (AttributeError, ImportError) as error:
            return f"{name} is not there ({error})"
        if found != expected:
            return f"{name} takes ({', '.join(found)}), known is ({', '.join(expected)})"
    return None


def option_problem(options: Mapping[str, Any]) -> str | None:
    """The first resolved server option that is not supported yet, in one line."""
    algorithm = options.get("speculative_algorithm")
    if algorithm not in ("EAGLE", "EAGLE3"):
        return f"--speculative-algorithm {algorithm} is not supported; supported: EAGLE, EAGLE3"
    for option, unsupported, shown in NOT_YET:
        if unsupported(options.get(option)):
            return f"{shown} is not supported yet"
    return None


def model_problem(worker: Any) -> str | None:
    """What of the loaded models is not supported yet, in one line."""
    draft = worker.draft_worker
    if draft.seed_dsa_topk_from_draft_extend:
        return "a DSA draft (its seed carries indexer positions) is not supported yet"
    if worker.target_worker.is_hybrid_swa:
        return "a sliding-window hybrid target is not supported yet"
    if getattr(draft.req_to_token_pool, "mamba_allocator", None) is not None:
        return "a target with recurrent state is not supported yet"
    return None


__all__ = [
    "NOT_YET",
    "SIGNATURES",
    "SUPPORTED_VERSIONS",
    "model_problem",
    "option_problem",
    "signature_problem",
    "version_problem",
]
