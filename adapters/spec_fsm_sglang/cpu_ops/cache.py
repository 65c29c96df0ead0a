"""Slot and token bookkeeping operators: which KV slot a draft or accepted token uses.

Each function has the name and the positional signature under which SGLang 0.5.23 imports it from
`sgl_kernel` on CPU, writes into the tensor SGLang passes for the result, and loops over no
requests. `req_to_token` is [requests, width] (int32), lengths and offsets are [b].
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def ragged_rows(lens: Tensor) -> tuple[Tensor, Tensor]:
    """Row number and offset inside the row of each cell of b ragged rows laid end to end.

    `lens` is [b], non-negative. Both results are int64 of length `lens.sum()`.
    """
    lens = lens.to(torch.int64)
    rows = torch.repeat_interleave(torch.arange(lens.numel()), lens)
    starts = torch.cumsum(lens, 0) - lens
    return rows, torch.arange(rows.numel()) - starts[rows]


def assign_extend_cache_locs_cpu(  # noqa: PLR0913 - called by position from SGLang
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Packs `req_to_token[req, start:end]` of each request, in order, into `out_cache_loc`."""
    rows, offsets = ragged_rows(end_offset - start_offset)
    locs = req_to_token[req_pool_indices[rows], start_offset[rows] + offsets]
    out_cache_loc[: rows.numel()] = locs.to(out_cache_loc.dtype)


def assign_req_to_token_pool_cpu(  # noqa: PLR0913 - called by position from SGLang
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Writes the packed `out_cache_loc` into `req_to_token[req, start:end]` of each request."""
    rows, offsets = ragged_rows(end_offset - start_offset)
    cells = (req_pool_indices[rows], start_offset[rows] + offsets)
    req_to_token[cells] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_draft_cache_locs_contiguous_cpu(  # noqa: PLR0913 - called by position from SGLang
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Copies the `topk * num_steps` slots from `seq_lens` on of each request to `out_cache_loc`.

    `out_cache_loc` is [b * topk * num_steps], request by request.
    """
    cols = seq_lens.to(torch.int64)[:, None] + torch.arange(topk * num_steps)
    locs = req_to_token[req_pool_indices[:, None], cols]
    out_cache_loc.copy_(locs.flatten())


def build_draft_decode_metadata_cpu(  # noqa: PLR0913 - called by position from SGLang
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """One table row per draft branch: the committed prefix, then that branch's own draft slots.

    Result: [b * topk, max(seq_lens) + num_steps], row `i * topk + k`; cells past
    `seq_lens[i] + num_steps` mean nothing. Branch k of a request owns the `num_steps` slots from
    `seq_lens[i] + k * num_steps` on (page size 1 or topk 1: SGLang refuses the rest on CPU).
    """
    seq_lens = seq_lens.to(torch.int64)
    width = int(seq_lens.max()) + num_steps if seq_lens.numel() else num_steps
    prefix = req_to_token[req_pool_indices, :width]
    if prefix.shape[1] < width:
        prefix = torch.nn.functional.pad(prefix, (0, width - prefix.shape[1]))
    table = prefix[:, None, :].repeat(1, topk, 1)
    steps = torch.arange(num_steps)
    dst = (seq_lens[:, None, None] + steps).expand(-1, topk, -1)
    src = seq_lens[:, None, None] + torch.arange(topk)[:, None] * num_steps + steps
    table.scatter_(2, dst, req_to_token[req_pool_indices[:, None, None], src])
    return table.flatten(0, 1)


def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """The last accepted token of each request; `accept_lens` [b] counts the bonus token."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Packs the slots of the accepted tokens; an `accept_index` of -1 marks none."""
    index = accept_index.flatten()
    kept = index[index > -1]
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept].to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shifts each request's tokens left by one and puts its new token at the end, in place.

    With `select_index` [b] the new token goes to that flat position instead of the last one.
    A request of length 0 is left alone.
    """
    starts, lens = extend_start_loc.to(torch.int64), extend_seq_lens.to(torch.int64)
    rows, offsets = ragged_rows((lens - 1).clamp(min=0))
    cells = starts[rows] + offsets
    input_ids[cells] = input_ids[cells + 1]
    last = starts + lens - 1 if select_index is None else select_index.to(torch.int64)
    some = lens > 0
    input_ids[last[some]] = topk_index.flatten()[: lens.numel()][some].to(input_ids.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copies slot `src_loc[i]` to `tgt_loc[i]` in every KV buffer, as if all at once.

    `data_ptrs` holds buffer addresses, `strides` the bytes of one slot in each of them.
    """
    if not src_loc.numel():
        return
    slots = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    src, tgt = src_loc.to(torch.int64), tgt_loc.to(torch.int64)
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        rows = torch.frombuffer(raw, dtype=torch.uint8).view(slots, stride)
        rows[tgt] = rows[src]
