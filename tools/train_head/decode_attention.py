"""Attention of one new token a row over a padded KV cache, reading only the part that is filled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton  # type: ignore[import-untyped]
    from triton import language as tl
except ImportError:  # no Triton where torch is built for CPUs only
    triton = None

BLOCK = 64
GROUP = 16  # query heads of one KV head, padded to what the matrix units take


def decode_attention(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Attend from ``q`` [b, kv_heads, group, dim] to ``keys``, ``values`` [b, kv_heads, n, dim].

    Row i sees places 0 to ``positions[i]`` (int64 [b]). Returns the shape of ``q``.
    """
    if q.is_cuda:
        return _by_triton(q.contiguous(), keys, values, positions)
    seen = torch.arange(keys.shape[2], device=q.device)[None] <= positions[:, None]
    mask = seen[:, None, None].expand(-1, q.shape[1], q.shape[2], -1)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def _by_triton(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    batch, kv_heads, group, dim = q.shape
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("the cache must be contiguous")
    out = torch.empty_like(q)
    _kernel[(batch, kv_heads)](
        q, keys, values, positions, out, keys.shape[2], dim**-0.5,
        heads=kv_heads, group=group, dim=dim, padded=GROUP, block=BLOCK, num_warps=4,
    )  # fmt: skip
    return out


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _kernel(  # type: ignore[no-untyped-def]  # noqa: PLR0913
        q_at, k_at, v_at, positions, out_at, length, scale,
        heads: tl.constexpr, group: tl.constexpr, dim: tl.constexpr,
        padded: tl.constexpr, block: tl.constexpr,
    ):  # fmt: skip
        row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        count = tl.load(positions + row) + 1
        g, d = tl.arange(0, padded), tl.arange(0, dim)
        here = ((row * heads + head) * group + g)[:, None] * dim + d[None]
        q = tl.load(q_at + here, mask=(g < group)[:, None], other=0.0)
        base = (row * heads + head) * length * dim
        top = tl.full([padded], float("-inf"), tl.float32)
        total = tl.zeros([padded], tl.float32)
        out = tl.zeros([padded, dim], tl.float32)
        for start in range(0, count, block):
            n = start + tl.arange(0, block)
            at = base + n[:, None] * dim + d[None]
            inside = (n < count)[:, None]
            k = tl.load(k_at + at, mask=inside, other=0.0)
            v = tl.load(v_at + at, mask=inside, other=0.0)
            scores = tl.dot(q, tl.trans(k)) * scale
            scores = tl.where((n < count)[None], scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, axis=1))
            weights = tl.exp(scores - new_top[:, None])
            shrink = tl.exp(top - new_top)
            total = total * shrink + tl.sum(weights, axis=1)
            out = out * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
            top = new_top
        out = out / total[:, None]
        tl.store(out_at + here, out.to(q.dtype), mask=(g < group)[:, None])
