"""Paged attention on CPU: decode and extend, over a KV pool addressed through `req_to_token`.

Requests are padded to a common length, masked, and handed to torch's scaled dot product attention
in chunks, so that no Python loop runs over requests and memory stays bounded. The heads of one
GQA group are laid along the query axis: they share keys, values and mask.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from spec_fsm_sglang.cpu_ops.cache import ragged_rows

MAX_CHUNK_CELLS = 1 << 22  # K (or V) numbers gathered at once, 16 MiB in fp32


class _Pool(NamedTuple):
    """Where keys and values lie: k, v are [slots, Hkv, D], `rows` is `req_to_token`."""

    k: Tensor
    v: Tensor
    rows: Tensor


class _Limits(NamedTuple):
    """Scale of the scores, their soft cap (0: none), and keys a query sees (0: all)."""

    scaling: float
    logit_cap: float
    window: int


def _refuse(**unsupported: bool) -> None:
    names = [name for name, present in unsupported.items() if present]
    if names:
        raise NotImplementedError(
            f"the CPU reference attention does not do {', '.join(names)}; "
            "install a real sgl_kernel for CPU to use this model"
        )


def _chunks(seq_lens: Tensor, cells_per_key: int) -> list[Tensor]:
    """Request numbers in groups whose padded keys fit the budget, near lengths together."""
    n, longest = seq_lens.numel(), int(seq_lens.max()) if seq_lens.numel() else 0
    if n * longest * cells_per_key <= MAX_CHUNK_CELLS:
        return [torch.arange(n)] if n else []
    order = torch.argsort(seq_lens, descending=True)
    lens = seq_lens[order].tolist()
    groups, first = [], 0
    while first < n:
        size = max(1, MAX_CHUNK_CELLS // max(1, lens[first] * cells_per_key))
        groups.append(order[first : first + size])
        first += size
    return groups


def _gather(buffer: Tensor, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows `slots` [b, L] of a [slots, Hkv, D] buffer, as a new tensor [b, L, Hkv, D]."""
    rows = buffer.index_select(0, slots.flatten())
    return rows.view(*slots.shape, *buffer.shape[1:]).to(dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, limits: _Limits) -> Tensor:
    """Attention of q [b, Q, Hq, D] on k, v [b, L, Hkv, D]; mask [b, Q, L] is True where seen."""
    b, n_q, heads, dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    q = q.view(b, n_q, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(b, kv_heads, -1, dim)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    mask = mask[:, None, None].expand(b, 1, group, n_q, -1).flatten(2, 3)
    if limits.logit_cap > 0:
        scores = (q @ k.transpose(-1, -2)).float() * limits.scaling
        scores = limits.logit_cap * torch.tanh(scores / limits.logit_cap)
        out = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1).to(v.dtype) @ v
    else:
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=limits.scaling)
    out = out.view(b, kv_heads, group, n_q, v.shape[-1])
    return out.permute(0, 3, 1, 2, 4).reshape(b, n_q, heads, v.shape[-1])


def _seen(q_pos: Tensor, keys: int, window: int) -> Tensor:
    """Causal mask [b, Q, keys] for queries at absolute positions q_pos [b, Q]."""
    key = torch.arange(keys)
    seen = key <= q_pos[:, :, None]
    if window > 0:
        seen &= key > q_pos[:, :, None] - window
    return seen


def decode_attention_cpu(  # noqa: PLR0913 - called by position from SGLang
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One query a row over `seq_lens` keys, its own included; stores `key`, `value` at `loc` first.

    query [n, Hq, D], key and value [n, Hkv, D] or None (already stored), output [n, Hq, Dv],
    written in place; `req_pool_indices` and `seq_lens` are [n]. `sliding_window_size` is the
    number of keys seen, 0 for all. Raises NotImplementedError for cross attention, sinks and
    scaled KV.
    """
    scaled = key_scale != 1.0 or value_scale != 1.0
    _refuse(cross_attention=is_cross_attn, sinks=sinks is not None, scaled_kv=scaled)
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    limits = _Limits(sm_scale, logit_cap, sliding_window_size)
    for rows in _chunks(seq_lens, k_buffer.shape[1] * k_buffer.shape[2]):
        lens = seq_lens[rows]
        longest = int(lens.max())
        slots = req_to_token[req_pool_indices[rows], :longest]
        seen = _seen(lens[:, None] - 1, longest, limits.window)
        # Cells past a row's length may hold anything: point them at slot 0.
        slots = torch.where(seen[:, 0], slots, 0)
        k, v = _gather(k_buffer, slots, query.dtype), _gather(v_buffer, slots, query.dtype)
        output[rows] = _attend(query[rows][:, None], k, v, seen, limits)[:, 0]


def extend_attention_cpu(  # noqa: PLR0913 - called by position from SGLang
    q_extend: Tensor,
    k_extend: Tensor | None,
    v_extend: Tensor | None,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of the last `extend_seq_lens` positions of each request over all `seq_lens` keys.

    q_extend [T, Hq, D] holds the requests' queries from `extend_start_loc` [b] on; k_extend,
    v_extend [T, Hkv, D] are their keys and values, read from the pool when None; the prefix
    always comes from the pool. o_extend [T, Hq, Dv] is written in place. `tree_mask` (bool,
    b * d * d cells, all lengths d) replaces the causal mask inside the extend part. Raises
    NotImplementedError for cross attention, sinks, scaled KV and encoder-only attention, and
    ValueError for a mask of another size.
    """
    scaled = key_scale != 1.0 or value_scale != 1.0
    _refuse(
        cross_attention=is_cross_attn, sinks=sinks is not None, scaled_kv=scaled,
        encoder_only=not is_causal,
    )
    b, d = seq_lens.numel(), int(max_len_extend)
    if tree_mask is not None and tree_mask.numel() < b * d * d:
        raise ValueError(f"tree mask of {tree_mask.numel()} cells, expected {b}*{d}*{d}")
    tree = None if tree_mask is None else tree_mask[: b * d * d].view(b, d, d).to(torch.bool)
    limits = _Limits(sm_scale, logit_cap, sliding_window_size)
    pool = _Pool(k_buffer, v_buffer, req_to_token)
    for rows in _chunks(seq_lens, k_buffer.shape[1] * k_buffer.shape[2]):
        _extend_chunk(
            (q_extend, k_extend, v_extend, o_extend), pool,
            (req_pool_indices[rows], seq_lens[rows], extend_seq_lens[rows].to(torch.int64),
             extend_start_loc[rows].to(torch.int64)),
            None if tree is None else tree[rows], limits,
        )


def _extend_chunk(
    tokens: tuple[Tensor, Tensor | None, Tensor | None, Tensor],
    pool: _Pool,
    requests: tuple[Tensor, Tensor, Tensor, Tensor],
    tree: Tensor | None,
    limits: _Limits,
) -> None:
    """`extend_attention_cpu` for some of the requests: pad, gather, mask, attend, unpad."""
    q, k_new, v_new, out = tokens
    req, seq_lens, q_lens, starts = requests
    prefix = seq_lens - q_lens
    n_q, n_k = int(q_lens.max()), int(seq_lens.max())
    row, offset = ragged_rows(q_lens)
    flat = starts[row] + offset

    slots = pool.rows[req, :n_k]
    inside = torch.arange(n_k) < seq_lens[:, None]
    slots = torch.where(inside, slots, 0)
    k, v = _gather(pool.k, slots, q.dtype), _gather(pool.v, slots, q.dtype)
    if k_new is not None and v_new is not None:
        k[row, prefix[row] + offset] = k_new.view(-1, *k.shape[2:])[flat]
        v[row, prefix[row] + offset] = v_new.view(-1, *v.shape[2:])[flat]

    seen = _seen(prefix[:, None] + torch.arange(n_q), n_k, limits.window)
    if tree is not None:
        cols = prefix[:, None] + torch.arange(n_q)
        seen.scatter_(2, cols[:, None, :].expand(-1, n_q, -1), tree[:, :n_q, :n_q])
    # Padding queries see key 0, so that no softmax is empty; their rows are dropped.
    seen[..., 0] |= torch.arange(n_q) >= q_lens[:, None]

    padded = q.new_zeros(len(q_lens), n_q, *q.shape[1:])
    padded[row, offset] = q[flat]
    out[flat] = _attend(padded, k, v, seen, limits)[row, offset].to(out.dtype)
