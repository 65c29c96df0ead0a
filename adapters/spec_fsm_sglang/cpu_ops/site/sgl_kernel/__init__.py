"""Stand-in for `sgl_kernel` on hosts where the real one cannot load: torch operators, CPU only."""

from spec_fsm_sglang.cpu_ops.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from spec_fsm_sglang.cpu_ops.library import register
from spec_fsm_sglang.cpu_ops.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

register()

__version__ = "0+spec.fsm.cpu"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]


def __getattr__(name: str) -> object:
    """Any other name imports, and raises only when it is called: SGLang imports many it skips."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(
            f"sgl_kernel.{name} is not among spec-fsm's CPU reference operators"
        )

    return missing
