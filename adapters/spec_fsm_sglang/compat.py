"""What this adapter knows of SGLang, checked before it touches anything.

A release is supported when it is named here and every function that is hooked, overridden or
called still has the parameters it had when the adapter was written. A server whose options are
not supported yet is refused with one line. A refusal leaves SGLang as it was: speculating.
"""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from spec_fsm_sglang import touched
from spec_fsm_sglang.touched import ATTRIBUTES, SIGNATURES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SUPPORTED_VERSIONS = ("0.5.23",)

WATCHED = {name: SIGNATURES[name] for name in touched.WATCHED}
"""The functions that are hooked before anything else is looked at, with their parameters."""

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
    ("nnodes", lambda nodes: (nodes or 1) > 1, "a server of several nodes (--nnodes above 1)"),
    ("encoder_only", bool, "--encoder-only"),
    # It captures graphs anew in mid-serving, past `recapture_decode_cuda_graph`'s hook.
    ("elastic_ep_backend", bool, "elastic expert parallelism (--elastic-ep-backend)"),
    ("use_ray", bool, "--use-ray"),
    ("smg_grpc_mode", bool, "--smg-grpc-mode"),
    ("grpc_mode", bool, "--grpc-mode"),
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


def attribute_problem(attributes: Mapping[str, str] = ATTRIBUTES) -> str | None:
    """The first attribute that a class does not have any more, in one line; None if all are there.

    An attribute counts as there that the class or a base names, annotates, or assigns to an
    instance anywhere in its module: objects do not exist yet when this is asked.
    """
    for name, wanted in attributes.items():
        try:
            found = _attributes(pkgutil.resolve_name(name))
        except (AttributeError, ImportError) as error:
            return f"{name} is not there ({error})"
        for attribute in wanted.split():
            if attribute not in found:
                return f"{name} has no attribute {attribute}"
    return None


_ASSIGNED = re.compile(r"\bself\.(\w+)\b[^=\n()]*=(?!=)")
_UNPACKED = re.compile(r"^\s+self\.(\w+),$", re.MULTILINE)


def _attributes(cls: type) -> set[str]:
    found = set(dir(cls))
    for base in cls.__mro__:
        found |= set(vars(base).get("__annotations__", ()))
        module = sys.modules.get(base.__module__)
        if base.__module__.startswith("sglang.") and module is not None:
            source = inspect.getsource(module)
            found |= set(_ASSIGNED.findall(source)) | set(_UNPACKED.findall(source))
    return found


def option_problem(options: Mapping[str, Any]) -> str | None:
    """The first resolved server option that is not supported yet, or not there, in one line."""
    algorithm = options.get("speculative_algorithm")
    if algorithm not in ("EAGLE", "EAGLE3"):
        return f"--speculative-algorithm {algorithm} is not supported; supported: EAGLE, EAGLE3"
    for option, unsupported, shown in NOT_YET:
        if option not in options:
            return f"this SGLang has no option {option}, by which {shown} would be refused"
        if unsupported(options[option]):
            return f"{shown} is not supported yet"
    return None


def environment_problem() -> str | None:
    """What the environment asks of SGLang that is not supported yet, in one line."""
    from sglang.srt.environ import envs

    if envs.SGLANG_RUST_SERVER.get():
        return "SGLang's server in Rust (SGLANG_RUST_SERVER) is not supported yet"
    return None


DSA_DRAFT = "a DSA draft (its seed carries indexer positions) is not supported yet"
SWA_TARGET = "a sliding-window hybrid target is not supported yet"
RECURRENT_TARGET = "a target with recurrent state is not supported yet"


def configured_model_problem(server_args: Any) -> str | None:
    """What of the models is not supported yet, told by their configuration files, in one line.

    Asks what SGLang asks when it loads them; `model_problem` asks the loaded ones again.
    """
    from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
    from sglang.srt.configs.hybrid_arch import mambaish_config
    from sglang.srt.utils.hf_transformers_utils import get_config

    cfg, target = resolving_view(server_args), model_config_of(server_args)
    if target.is_hybrid_swa:
        return SWA_TARGET
    if mambaish_config(target) is not None:
        return RECURRENT_TARGET
    draft = get_config(
        cfg.speculative_draft_model_path or cfg.model_path,
        trust_remote_code=cfg.trust_remote_code,
        revision=cfg.speculative_draft_model_revision,
        model_override_args=json.loads(cfg.json_model_override_args or "{}"),
    )
    shares = getattr(draft, "index_share_for_mtp_iteration", False)
    indexes = getattr(draft, "index_topk", None) is not None
    return DSA_DRAFT if shares and indexes and cfg.speculative_eagle_topk == 1 else None


def model_problem(worker: Any) -> str | None:
    """What of the loaded models is not supported yet, in one line."""
    draft = worker.draft_worker
    if draft.seed_dsa_topk_from_draft_extend:
        return DSA_DRAFT
    if worker.target_worker.is_hybrid_swa:
        return SWA_TARGET
    if getattr(draft.req_to_token_pool, "mamba_allocator", None) is not None:
        return RECURRENT_TARGET
    return None


def scheduler_problem(scheduler: Any) -> str | None:
    """What of a complete scheduler is not what the adapter was written for, in one line.

    The classes were checked before; here the objects are of them. Of the prefix cache there are
    several classes, so what is called on it is looked at.
    """
    for path, name in LIVE.items():
        found, cls = scheduler, pkgutil.resolve_name(name)
        for part in path.split("."):
            found = getattr(found, part)
        if not isinstance(found, cls):
            return f"{path} of the scheduler is {type(found).__name__}, known is {cls.__name__}"
    cache = scheduler.tree_cache
    for method, wanted in (("checkpoint", {"req", "up_to"}), ("on_release", {"req"})):
        known = set(inspect.signature(getattr(cache, method)).parameters)
        if not wanted <= known:
            taken, asked = ", ".join(sorted(known)), ", ".join(sorted(wanted))
            return f"{type(cache).__name__}.{method} takes ({taken}), known is ({asked})"
    return None


LIVE = {
    "running_batch": "sglang.srt.managers.schedule_batch.ScheduleBatch",
    "req_to_token_pool": "sglang.srt.mem_cache.memory_pool.ReqToTokenPool",
    "model_worker.draft_worker": "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker",
    "model_worker.target_worker": "sglang.srt.managers.tp_worker.TpModelWorker",
    "model_worker.target_worker.model_runner": (
        "sglang.srt.model_executor.model_runner.ModelRunner"
    ),
    "model_worker.draft_worker.draft_runner": "sglang.srt.model_executor.model_runner.ModelRunner",
}
"""Object of a scheduler -> the class whose attributes were checked for it."""


__all__ = [
    "ATTRIBUTES",
    "NOT_YET",
    "SIGNATURES",
    "SUPPORTED_VERSIONS",
    "WATCHED",
    "attribute_problem",
    "configured_model_problem",
    "environment_problem",
    "model_problem",
    "option_problem",
    "scheduler_problem",
    "signature_problem",
    "version_problem",
]
