"""What of SGLang 0.5.23 has to change, besides `sgl_kernel`, for EAGLE to run on CPU as on a GPU.

Two functions call a Triton kernel without asking for the device (the Triton interpreter would do,
at 5 ms a request), and one rule switches overlap scheduling off. The stand-in's folder is also a
distribution with the entry point `sglang.srt.plugins`, so every process that finds the stand-in
loads these hooks, and no other.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

OVERLAP_ENV = "SPEC_FSM_CPU_OVERLAP"
"""Set to 1 (by `server.force_overlap`), it keeps overlap scheduling with speculation on CPU."""


def activate() -> None:
    """Entry point: registers the replacements; SGLang applies them when it has all its plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, function in _replacements().items():
        HookRegistry.register(target, function, HookType.REPLACE)


def _replacements() -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "sglang.kernels.ops.speculative.gather_spec_extras.gather_spec_extras": gather_spec_extras,
        "sglang.kernels.ops.memory.common.get_last_loc_triton": get_last_loc,
    }
    if os.environ.get(OVERLAP_ENV) == "1":
        rule = "sglang.srt.arg_groups.speculative_hook._disable_overlap_schedule_for_cpu"
        chosen[rule] = leave_overlap_as_asked
    return chosen


def gather_spec_extras(
    indices: Tensor,
    topk_p_buf: Tensor,
    topk_index_buf: Tensor,
    output_tokens_buf: Tensor,
    hidden_states_buf: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Rows `indices` [b] of the relay: topk_p, topk_index, bonus tokens, hidden states."""
    hidden = None if hidden_states_buf is None else hidden_states_buf[indices]
    return topk_p_buf[indices], topk_index_buf[indices], output_tokens_buf[indices], hidden


def get_last_loc(req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor) -> Tensor:
    """The slot of the last prefix token of each request, -1 for an empty prefix: [b]."""
    last = req_to_token[req_pool_indices, (prefix_lens - 1).clamp(min=0)].to(prefix_lens.dtype)
    return torch.where(prefix_lens > 0, last, -1)


def leave_overlap_as_asked(server_args: Any) -> None:
    """Instead of switching overlap off: `--disable-overlap-schedule` still does."""
