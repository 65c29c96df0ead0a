"""The two small things PLAIN does beside the forward, each one kernel on a GPU.

A plain server's decode step launches some twenty small kernels around its graph; every one more
costs a microsecond or two of GPU time a step, so what PLAIN adds is fused. Elsewhere the same is
done by torch operators, which are also what the kernels are tested against.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

_ROWS = 128
_COLUMNS = 2048


def decode_inputs(
    bonus_tokens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a plain launch takes from the relay: all `[b]`.

    Returns `input_ids` (int64), `out_cache_loc` (int64; the slot each request owns at its old
    `seq_lens`) and the new `seq_lens`, one more, in their own dtype.
    """
    if not seq_lens.is_cuda:
        slots = req_to_token[req_pool_indices, seq_lens].to(torch.int64)
        return bonus_tokens.to(torch.int64), slots, seq_lens + 1
    return decode_inputs_fused(bonus_tokens, req_pool_indices, seq_lens, req_to_token)


def decode_inputs_fused(
    bonus_tokens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`decode_inputs` as one kernel."""
    rows = seq_lens.shape[0]
    packed = torch.empty((2, rows), dtype=torch.int64, device=seq_lens.device)
    longer = torch.empty_like(seq_lens)
    _decode_inputs[(triton.cdiv(rows, _ROWS),)](
        bonus_tokens,
        req_pool_indices,
        seq_lens,
        req_to_token,
        req_to_token.stride(0),
        packed[0],
        packed[1],
        longer,
        rows,
        BLOCK=_ROWS,
    )
    return packed[0], packed[1], longer


def record(
    stash: Any,
    req_pool_indices: torch.Tensor,
    positions: torch.Tensor,
    hidden_states: torch.Tensor,
    next_tokens: torch.Tensor,
) -> None:
    """Write one plain step into the ring of `stash`; see `Stash.record`."""
    if hidden_states.is_cuda:
        record_fused(stash, req_pool_indices, positions, hidden_states, next_tokens)
        return
    column = positions.to(torch.int64) % stash.width
    stash.hidden[req_pool_indices, column] = hidden_states
    stash.tokens[req_pool_indices, column] = next_tokens.to(torch.int64)
    stash.seeded.index_fill_(0, req_pool_indices.to(torch.int64), False)


def record_fused(
    stash: Any,
    req_pool_indices: torch.Tensor,
    positions: torch.Tensor,
    hidden_states: torch.Tensor,
    next_tokens: torch.Tensor,
) -> None:
    """`record` as one kernel; `hidden_states` `[b, hidden_size]` has contiguous rows."""
    rows, size = hidden_states.shape
    _record[(rows, triton.cdiv(size, _COLUMNS))](
        req_pool_indices,
        positions,
        hidden_states,
        hidden_states.stride(0),
        next_tokens,
        stash.hidden,
        stash.tokens,
        stash.seeded.view(torch.uint8),
        stash.width,
        size,
        BLOCK=_COLUMNS,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _decode_inputs(  # type: ignore[no-untyped-def]  # noqa: PLR0913 -- a kernel's arguments
    bonus, pool, lens, table, table_stride, ids, slots, longer, rows, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    length = tl.load(lens + row, mask=inside, other=0)
    index = tl.load(pool + row, mask=inside, other=0).to(tl.int64)
    slot = tl.load(table + index * table_stride + length, mask=inside, other=0)
    token = tl.load(bonus + row, mask=inside, other=0)
    tl.store(ids + row, token.to(tl.int64), mask=inside)
    tl.store(slots + row, slot.to(tl.int64), mask=inside)
    tl.store(longer + row, length + 1, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _record(  # type: ignore[no-untyped-def]  # noqa: PLR0913 -- a kernel's arguments
    pool,
    positions,
    hidden,
    hidden_stride,
    next_tokens,
    ring,
    tokens,
    seeded,
    width,
    size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    index = tl.load(pool + row).to(tl.int64)
    entry = index * width + tl.load(positions + row).to(tl.int64) % width
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    values = tl.load(hidden + row.to(tl.int64) * hidden_stride + column, mask=inside)
    tl.store(ring + entry * size + column, values, mask=inside)
    if part == 0:
        tl.store(tokens + entry, tl.load(next_tokens + row).to(tl.int64))
        tl.store(seeded + index, 0)


__all__ = ["decode_inputs", "decode_inputs_fused", "record", "record_fused"]
