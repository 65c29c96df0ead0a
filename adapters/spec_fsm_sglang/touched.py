"""What of SGLang 0.5.23 the adapter touches: hooked, overridden, called, read and written.

`compat` checks both tables before a server is on. A test derives them from the adapter's source and
fails where something is touched and not listed. What only the testbed, the demo and the bench
touch is not here: they run in no server.
"""

from __future__ import annotations

_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_COMPONENTS = "sglang.srt.managers.scheduler_components"
_RESULTS = f"{_COMPONENTS}.batch_result_processor.SchedulerBatchResultProcessor"
_METRICS = f"{_COMPONENTS}.metrics_reporter.SchedulerMetricsReporter"
_STATE = f"{_COMPONENTS}.internal_state.SchedulerInternalStateController"
_DECODE_GRAPHS = (
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
)

_SERVER_ARGS = "sglang.srt.server_args"
_OVERRIDES = "sglang.srt.arg_groups.overrides"
_BATCH = "sglang.srt.managers.schedule_batch"
_FORWARD = "sglang.srt.model_executor.forward_batch_info"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_WEIGHTS = f"{_COMPONENTS}.weight_updater.SchedulerWeightUpdaterManager"
_WEIGHT_MESSAGES = (
    "update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor",
    "update_weights_from_ipc", "end_weight_update",
)
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_CHECKER = f"{_COMPONENTS}.invariant_checker.SchedulerInvariantChecker"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_CACHE = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
_CONTEXT = "sglang.srt.runtime_context"
_MOE = "sglang.srt.layers.moe.utils"
_POOL = "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool"

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
    f"{_SCHEDULER}._reqs_finishing_inflight": ("self", "batch"),
    "sglang.srt.managers.schedule_batch.Req.next_output_finishes_by_length": ("self",),
    "sglang.srt.managers.schedule_batch.Req.set_finish_with_abort": (
        "self", "error_msg", "status_code", "err_type",
    ),
    "sglang.srt.layers.sampler.apply_custom_logit_processor": (
        "logits", "sampling_batch_info", "num_tokens_in_batch",
    ),
    "sglang.srt.speculative.eagle_worker_common.eagle_sample": (
        "verify_input", "batch", "logits_output", "grammar_mask", "uno_target_max_top_k",
        "watermark_state", "watermark_full_mask",
    ),
    f"{_BATCH}.ScheduleBatch.release_req": (
        "self", "idx", "remaing_req_count", "offload_kv",
    ),
    f"{_BATCH}.ScheduleBatch.filter_batch": (
        "self", "reqs_to_exclude", "keep_indices",
    ),
    f"{_SCHEDULER}.update_running_batch": ("self", "batch"),
    f"{_SCHEDULER}.run_batch": ("self", "batch", "pp_proxy_tensors"),
    f"{_SCHEDULER}._forward_isolation": ("self", "batch", "overlap"),
    f"{_SCHEDULER}.process_batch_result": ("self", "batch", "result"),
    f"{_SCHEDULER}.run_event_loop": ("self",),
    f"{_SCHEDULER}.process_pending_chunked_abort": ("self",),
    f"{_SCHEDULER}._release_aborted_request": ("self", "req"),
    f"{_SCHEDULER}.send_abort_output": ("self", "abort_req", "req"),
    "sglang.srt.managers.scheduler._make_abort_req": ("req", "finished_reason"),
    "sglang.srt.managers.schedule_batch.release_req": (
        "req", "remaing_req_count", "req_to_token_pool", "token_to_kv_pool_allocator",
        "tree_cache", "hisparse_coordinator", "offload_kv",
    ),
    "sglang.srt.mem_cache.common.release_kv_cache": ("req", "tree_cache", "checkpoint"),
    "sglang.srt.disaggregation.utils.prepare_abort": ("req", "error_message", "status_code"),
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
    "sglang.srt.lora.backend.base_backend.BaseLoRABackend.init_cuda_graph_moe_buffers": (
        "self", "max_bs", "max_loras", "compute_dtype", "moe_layer", "prefill",
    ),
    "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len": (),
    "sglang.srt.mem_cache.allocation_sizing.get_alloc_reserve_per_decode": (),
    "sglang.srt.mem_cache.allocation_sizing.get_alloc_page_size": (),
    f"{_STATE}.get_internal_state": ("self", "recv_req"),
    f"{_STATE}.set_internal_state": ("self", "recv_req"),
    f"{_TOKENIZER}._calculate_spec_decoding_metrics": (
        "self", "meta_info", "recv_obj", "i",
    ),
    f"{_SCHEDULER}._apply_war_barrier": ("self",),
    "sglang.srt.entrypoints.warmup.warmup": ("name",),
    f"{_RUNNER}._get_attention_backend": (
        "self", "init_new_workspace",
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
    # The cache that serves; the one a scheduler has is looked at again when it is there.
    f"{_CACHE}.checkpoint": ("self", "req", "up_to", "kwargs"),
    f"{_CACHE}.on_release": ("self", "req", "checkpointed"),
    f"{_POOL}.set_kv_buffer": (
        "self", "layer", "loc_info", "cache_k", "cache_v", "k_scale", "v_scale",
        "layer_id_override", "dcp_kv_mask",
    ),
    f"{_POOL}.get_kv_size_bytes": ("self",),
    # Start-up.
    "sglang.srt.arg_groups.pipeline.run_resolution_pipeline": ("server_args",),
    f"{_CONTEXT}._configure_context": ("context", "server_args", "role", "ranks"),
    f"{_CONTEXT}.get_context": (),
    f"{_CONTEXT}.get_exec": (),
    f"{_CONTEXT}.get_parallel": (),
    f"{_CONTEXT}.get_schedule": (),
    f"{_CONTEXT}.publish_role": (),
    f"{_OVERRIDES}.declare_resolution": ("server_args", "source", "fields"),
    f"{_OVERRIDES}.resolving_view": ("server_args",),
    f"{_OVERRIDES}.model_config_of": ("server_args",),
    "sglang.srt.arg_groups.moe_hook.validate_deepep_v2_dispatch_token_budget": ("server_args",),
    "sglang.srt.arg_groups.moe_hook.validate_flashinfer_a2a_token_budget": ("server_args",),
    "sglang.srt.arg_groups.mega_moe_hook.validate_mega_moe_token_budget_for_model": (
        "server_args",
    ),
    "sglang.srt.configs.hybrid_arch.mambaish_config": ("model_config",),
    "sglang.srt.utils.hf_transformers_utils.get_config": (
        "model", "trust_remote_code", "revision", "model_override_args", "model_config_parser",
        "kwargs",
    ),
    "sglang.srt.plugins.load_plugins": (),
    "sglang.srt.plugins.hook_registry.HookRegistry.register": (
        "target", "hook", "hook_type", "source",
    ),
    "sglang.srt.plugins.hook_registry.HookRegistry._apply_target": ("target", "hooks"),
    f"{_SERVER_ARGS}.prepare_server_args": ("argv",),
    f"{_SERVER_ARGS}.ServerArgs.resolve_once": ("self",),
    f"{_SERVER_ARGS}.ServerArgs.resolved_dict": ("self",),
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.from_string": ("name",),
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.is_eagle3": ("self",),
    "sglang.srt.entrypoints.engine._wait_for_scheduler_ready": (
        "scheduler_pipe_readers", "scheduler_procs",
    ),
    "sglang.srt.entrypoints.http_server.launch_server": (
        "server_args", "init_tokenizer_manager_func", "run_scheduler_process_func",
        "run_detokenizer_process_func", "execute_warmup_func", "launch_callback",
    ),
    "sglang.srt.utils.kill_process_tree": (
        "parent_pid", "include_parent", "skip_pid", "wait_timeout",
    ),
    f"{_SCHEDULER}.get_init_info": ("self",),
    f"{_TOKENIZER}.generate_request": ("self", "obj", "request"),
    f"{_TOKENIZER}.get_internal_state": ("self",),
    f"{_TOKENIZER}.set_internal_state": ("self", "obj"),
    # The scheduler's parts.
    f"{_METRICS}.report_decode_stats": (
        "self", "can_run_cuda_graph", "running_batch", "num_generated_tokens",
    ),
    f"{_BATCH}.ScheduleBatch.is_empty": ("self",),
    f"{_BATCH}.Req.finished": ("self",),
    f"{_CHECKER}._requests_owning_rows": ("self",),
    f"{_CHECKER}._get_total_uncached_sizes": ("self",),
    f"{_CHECKER}._check_full_pool": ("self", "ps", "uncached"),
    f"{_COMPONENTS}.pool_stats_observer.SchedulerPoolStatsObserver.get_pool_stats": ("self",),
    "sglang.srt.mem_cache.allocator.TokenToKVPoolAllocator.get_all_free_pages": ("self",),
    # The worker and its runners.
    f"{_EAGLE}.EAGLEWorkerV2.init_attention_backends": ("self",),
    "sglang.srt.speculative.spec_utils.draft_tp_context": ("layout",),
    f"{_MOE}.speculative_moe_backend_context": (),
    f"{_MOE}.speculative_moe_a2a_backend_context": (),
    f"{_FORWARD}.ForwardBatch.init_new": (
        "batch", "model_runner", "capture_hidden_mode", "return_hidden_states_before_norm",
        "extend_position_info", "spec_mrope_positions", "kv_loc_plan", "write_cols",
    ),
    f"{_FORWARD}.ForwardMode.is_decode": ("self",),
    f"{_FORWARD}.ForwardMode.is_extend": ("self", "include_draft_extend_v2"),
    f"{_FORWARD}.ForwardMode.is_idle": ("self",),
    f"{_RUNNER}.forward": (
        "self", "forward_batch", "skip_attn_backend_init", "pp_proxy_tensors",
        "reinit_attn_backend", "split_forward_count",
    ),
    f"{_RUNNER}.sample": ("self", "logits_output", "forward_batch"),
    "sglang.srt.model_executor.graph_shared_output.GraphSharedOutput": ("device", "max_rows"),
    "sglang.srt.model_executor.cuda_graph_config.check_cuda_graph_backend": ("phase", "backend"),
}
"""Dotted name -> the parameters it must have, in order."""

ATTRIBUTES: dict[str, str] = {
    f"{_SERVER_ARGS}.ServerArgs": "max_running_requests tokenizer_worker_num warmups device "
    "skip_server_warmup model_path revision trust_remote_code json_model_override_args host port "
    "enable_http_worker_reuseport speculative_draft_model_path speculative_draft_model_revision "
    "speculative_algorithm speculative_eagle_topk encoder_only smg_grpc_mode use_ray "
    "cuda_graph_config disable_overlap_schedule dp_size max_total_tokens",
    f"{_CONTEXT}.RuntimeContext": "server_args resolved_server_args_dict",
    f"{_CONTEXT}.ParallelContext": "tp_group tp_rank dp_rank",
    "sglang.srt.distributed.parallel_state.GroupCoordinator": "world_size cpu_group",
    "sglang.srt.configs.model_config.ModelConfig": "is_hybrid_swa hidden_size",
    "sglang.srt.plugins.hook_registry.HookType": "AFTER AROUND",
    "sglang.srt.environ.Envs": "SGLANG_RUST_SERVER SGLANG_HTTP_SERVER_APP_PATH",
    _SCHEDULER: "model_worker result_queue running_batch last_batch tree_cache req_to_token_pool "
    "token_to_kv_pool_allocator page_size future_map invariant_checker pool_stats_observer "
    "max_running_requests chunked_req waiting_queue hisparse_coordinator cur_batch_for_debug "
    "forward_ct spec_algorithm",
    f"{_BATCH}.ScheduleBatch": "reqs forward_mode spec_info seq_lens seq_lens_cpu seq_lens_sum "
    "req_pool_indices batch_is_full chunked_req has_grammar enable_overlap input_ids out_cache_loc "
    "sampling_info chunked_req_next_prompt_token",
    f"{_BATCH}.Req": "rid finished_reason is_retracted grammar output_ids origin_input_ids "
    "extend_end prefix_len to_finish kv retracted_stain sampling_params",
    f"{_BATCH}.ReqKvInfo": "kv_committed_len kv_allocated_len cache_protected_len req_pool_idx "
    "holds_kv",
    f"{_BATCH}.FINISH_ABORT": "to_json",
    f"{_BATCH}.NextBatchPlan": "batch_to_run running_batch",
    "sglang.srt.managers.overlap_utils.FutureMap": "new_seq_lens_buf",
    "sglang.srt.managers.utils.GenerationBatchResult": "next_token_ids accept_lens logits_output "
    "grammar_retained_tokens next_draft_input extra_keep_alive_refs new_seq_lens "
    "speculative_num_draft_tokens",
    "sglang.srt.layers.logits_processor.LogitsProcessorOutput": "hidden_states "
    "next_token_logprobs",
    _RESULTS: "model_worker",
    _METRICS: "scheduler spec_num_forward_ct spec_total_num_forward_ct forward_ct_decode "
    "decode_log_interval current_scheduler_metrics_enabled metrics_collector",
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo": "has_custom_logit_processor",
    "sglang.srt.speculative.eagle_info.EagleVerifyInput": "draft_token_num",
    _WEIGHTS: "draft_worker tp_worker",
    _UPDATER: "get_model get_model_runner",
    "sglang.srt.lora.lora_manager.LoRAManager": "lora_backend max_bs_in_decode_cuda_graph",
    "sglang.srt.lora.backend.base_backend.BaseLoRABackend": "_moe_cg_buffer_init_args",
    _STATE: "scheduler",
    _CHECKER: "get_last_batch",
    "sglang.srt.managers.io_struct.GenerateReqInput": "input_ids sampling_params",
    "sglang.srt.managers.io_struct.SetInternalStateReq": "server_args",
    "sglang.srt.managers.io_struct.SetInternalStateReqOutput": "updated",
    _CACHE: "tree_core",
    "sglang.srt.mem_cache.unified_cache.unified_tree_core_interface.UnifiedTreeCoreInterface": (
        "is_eagle"
    ),
    "sglang.srt.mem_cache.memory_pool.ReqToTokenPool": "req_to_token",
    f"{_EAGLE}.EAGLEWorkerV2": "topk speculative_num_steps speculative_num_draft_tokens page_size "
    "device target_worker draft_worker speculative_algorithm last_shared_read_runner",
    f"{_EAGLE}.EagleDraftWorker": "draft_runner req_to_token_pool parallel_layout "
    "speculative_num_draft_tokens seed_dsa_topk_from_draft_extend cuda_graph_runner "
    "cuda_graph_runner_for_draft_extend",
    "sglang.srt.managers.tp_worker.TpModelWorker": "model_runner is_hybrid_swa "
    "weight_update_runners",
    _RUNNER: "device dtype model model_config token_to_kv_pool decode_cuda_graph_runner "
    "graph_shared_output init_new_workspace shared_read_done_event lora_manager attn_backend",
    _DECODE_GRAPHS: "captured_req_width capture_forward_mode capture_hidden_mode capture_bs "
    "max_bs raw_bs bs buffers seq_len_fill_value backend",
    "sglang.srt.model_executor.graph_shared_output.GraphSharedOutput": "max_rows",
    "sglang.srt.model_executor.cuda_graph_config.Phase": "DECODE",
    "sglang.srt.model_executor.cuda_graph_config.Backend": "DISABLED",
    f"{_FORWARD}.ForwardBatch": "forward_mode batch_size input_ids out_cache_loc spec_info "
    "capture_hidden_mode req_pool_indices seq_lens",
    f"{_FORWARD}.ForwardMode": "DECODE EXTEND TARGET_VERIFY DRAFT_EXTEND_V2",
    f"{_FORWARD}.CaptureHiddenMode": "NULL LAST FULL",
    "sglang.srt.speculative.spec_info.SpecInputType": "EAGLE_DRAFT EAGLE_VERIFY "
    "EAGLE_DRAFT_EXTEND",
    "sglang.srt.speculative.spec_info.SpecInput": "spec_input_type",
    "sglang.srt.speculative.eagle_info.EagleDraftInput": "bonus_tokens topk_p topk_index "
    "hidden_states future_indices num_tokens_per_req num_tokens_for_logprob_per_req",
    # The draft models whose first layer the bulk write mirrors.
    "sglang.srt.models.llama_eagle3.LlamaModel": "layers fc fc_norm input_norm embed_tokens "
    "num_aux_hidden_states is_mrope_enabled",
    "sglang.srt.models.llama_eagle3.LlamaDecoderLayer": "hidden_norm input_layernorm self_attn",
    "sglang.srt.models.llama_eagle.LlamaModel": "layers fc embed_tokens",
    "sglang.srt.models.llama.LlamaAttention": "qkv_proj rotary_emb attn head_dim kv_size q_size",
    "sglang.srt.layers.linear.LinearBase": "quant_method",
    "sglang.srt.layers.radix_attention.RadixAttention": "tp_k_head_num",
    "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod": "apply",
}
"""Dotted class -> the attributes that are read or written, separated by spaces."""

WATCHED = (
    "sglang.srt.arg_groups.pipeline.run_resolution_pipeline",
    "sglang.srt.runtime_context._configure_context",
)
"""The two functions that are hooked in every process before it is known whether a server is on."""

__all__ = ["ATTRIBUTES", "SIGNATURES", "WATCHED"]
