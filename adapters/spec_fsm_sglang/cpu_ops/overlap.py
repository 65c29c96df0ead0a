"""Overlap scheduling of EAGLE on CPU, which SGLang 0.5.23 turns off.

Two things stand in its way: a rule that switches it off, and one Triton kernel in the relay
between launches. Everything else of SGLang's overlap runs on CPU as it is, with one result in
flight, so it can be tested there.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def gather_spec_extras(
    indices: Tensor,
    topk_p_buf: Tensor,
    topk_index_buf: Tensor,
    output_tokens_buf: Tensor,
    hidden_states_buf: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Rows `indices` [b] of the relay's buffers: topk_p, topk_index, bonus tokens, hidden states.

    Stands for the Triton kernel of this name; the interpreter takes 5 ms a request for it.
    """
    rows = [buffer[indices] for buffer in (topk_p_buf, topk_index_buf, output_tokens_buf)]
    hidden = None if hidden_states_buf is None else hidden_states_buf[indices]
    return rows[0], rows[1], rows[2], hidden


def allow_overlap() -> None:
    """Lets this process schedule EAGLE with overlap on CPU. Needs `cpu_ops.enable()` before.

    Call it in every process of a server (a plugin is loaded in each), before `ServerArgs` is
    built. Raises AttributeError when SGLang has neither of the two names: an unknown version.
    """
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.managers import overlap_utils

    for module, name, own in (
        (speculative_hook, "_disable_overlap_schedule_for_cpu", _leave_as_asked),
        (overlap_utils, "gather_spec_extras", gather_spec_extras),
    ):
        getattr(module, name)
        setattr(module, name, own)


def _leave_as_asked(server_args: Any) -> None:
    """Instead of switching overlap off: `--disable-overlap-schedule` still does."""
