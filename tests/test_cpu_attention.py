"""The CPU attention operators against attention in plain loops, one query at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_fsm_sglang.cpu_ops import attention

HEADS, DIM = 4, 16
WIDTH = 96


class Pool:
    """A KV pool of shuffled slots, `req_to_token` over it, and requests of ragged lengths."""

    def __init__(self, b: int, kv_heads: int, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.random = random
        rows = b + 3
        self.k = torch.randn(rows * WIDTH, kv_heads, DIM, generator=random)
        self.v = torch.randn(rows * WIDTH, kv_heads, DIM, generator=random)
        slots = torch.randperm(rows * WIDTH, generator=random)
        self.req_to_token = slots.view(rows, WIDTH).to(torch.int32)
        self.req = torch.randperm(rows, generator=random)[:b]
        self.lens = torch.randint(1, WIDTH + 1, (b,), generator=random)

    def normal(self, *shape: int) -> Tensor:
        """Numbers from the pool's own generator."""
        return torch.randn(*shape, generator=self.random)

    def keys(self, i: int) -> tuple[Tensor, Tensor]:
        """Keys and values of request i, [len, Hkv, D]."""
        slots = [int(s) for s in self.req_to_token[self.req[i], : int(self.lens[i])]]
        return self.k[slots], self.v[slots]


def one_query(q: Tensor, k: Tensor, v: Tensor, seen: list[int], cap: float = 0.0) -> Tensor:
    """Attention of q [Hq, D] on the keys numbered `seen`, head by head, in float64: [Hq, D]."""
    out = torch.empty_like(q)
    group = q.shape[0] // k.shape[1]
    for head in range(q.shape[0]):
        keys, values = k[seen, head // group].double(), v[seen, head // group].double()
        scores = keys @ q[head].double() * 0.25
        if cap:
            scores = cap * torch.tanh(scores / cap)
        out[head] = (torch.softmax(scores, 0) @ values).float()
    return out


def decode(pool: Pool, q: Tensor, **changes: object) -> Tensor:
    """The operator's output for q [b, Hq, D] over the pool's requests."""
    out = torch.full_like(q, torch.nan)
    args: dict[str, object] = {
        "query": q, "k_buffer": pool.k, "v_buffer": pool.v, "key_scale": 1.0, "value_scale": 1.0,
        "output": out, "key": None, "value": None, "loc": torch.zeros(len(q), dtype=torch.int64),
        "attn_logits": torch.empty(0), "req_to_token": pool.req_to_token,
        "req_pool_indices": pool.req, "seq_lens": pool.lens, "sm_scale": 0.25, "logit_cap": 0.0,
        "is_cross_attn": False, "sliding_window_size": 0, "encoder_lens": None, "sinks": None,
    }
    attention.decode_attention_cpu(**args | changes)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("b", [1, 64])
def test_decode_attention_equals_the_reference(b: int, kv_heads: int) -> None:
    """Ragged lengths and every GQA group size give each row the attention of its own keys."""
    pool = Pool(b, kv_heads)
    q = pool.normal(b, HEADS, DIM)
    out = decode(pool, q)
    for i in range(b):
        k, v = pool.keys(i)
        torch.testing.assert_close(out[i], one_query(q[i], k, v, list(range(len(k)))))


def test_decode_attention_stores_the_new_key_before_it_attends() -> None:
    """The row's own key and value are in the pool afterwards, and were attended to."""
    pool = Pool(8, 2)
    q, key, value = pool.normal(8, HEADS, DIM), pool.normal(8, 2, DIM), pool.normal(8, 2, DIM)
    loc = pool.req_to_token[pool.req, pool.lens - 1].to(torch.int64)
    out = decode(pool, q, key=key, value=value, loc=loc)
    assert torch.equal(pool.k[loc], key)
    assert torch.equal(pool.v[loc], value)
    for i in range(8):
        k, v = pool.keys(i)
        torch.testing.assert_close(out[i], one_query(q[i], k, v, list(range(len(k)))))


def test_decode_attention_keeps_to_window_and_cap() -> None:
    """A window leaves only the newest keys; the soft cap bounds the scores."""
    pool = Pool(16, 2)
    q = pool.normal(16, HEADS, DIM)
    windowed = decode(pool, q, sliding_window_size=5)
    capped = decode(pool, q, logit_cap=0.5)
    for i in range(16):
        k, v = pool.keys(i)
        n = len(k)
        torch.testing.assert_close(windowed[i], one_query(q[i], k, v, list(range(n))[-5:]))
        torch.testing.assert_close(capped[i], one_query(q[i], k, v, list(range(n)), cap=0.5))


def test_chunks_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that forces many chunks gives the rows, in their order, that one chunk gives."""
    pool = Pool(64, 2)
    q = pool.normal(64, HEADS, DIM)
    whole = decode(pool, q)
    monkeypatch.setattr(attention, "MAX_CHUNK_CELLS", 3 * WIDTH * 2 * DIM)
    assert len(attention._chunks(pool.lens, 2 * DIM)) > 10
    torch.testing.assert_close(decode(pool, q), whole)


def extend(pool: Pool, q_lens: list[int], **changes: object) -> tuple[Tensor, Tensor]:
    """Queries of `q_lens` tokens a request, whose keys are in the pool; queries and outputs."""
    total = sum(q_lens)
    q = pool.normal(total, HEADS, DIM)
    out = torch.full_like(q, torch.nan)
    lens = torch.tensor(q_lens, dtype=torch.int32)
    args: dict[str, object] = {
        "q_extend": q, "k_extend": None, "v_extend": None, "o_extend": out, "k_buffer": pool.k,
        "v_buffer": pool.v, "key_scale": 1.0, "value_scale": 1.0,
        "req_to_token": pool.req_to_token, "req_pool_indices": pool.req, "seq_lens": pool.lens,
        "extend_seq_lens": lens, "extend_start_loc": (lens.cumsum(0) - lens).to(torch.int32),
        "max_len_extend": max(q_lens), "sm_scale": 0.25, "logit_cap": 0.0, "is_cross_attn": False,
        "sliding_window_size": 0, "encoder_lens": None, "sinks": None, "tree_mask": None,
        "is_causal": True,
    }
    attention.extend_attention_cpu(**args | changes)  # type: ignore[arg-type]
    return q, out


@pytest.mark.parametrize("chunk", [attention.MAX_CHUNK_CELLS, 4 * WIDTH * 2 * DIM])
@pytest.mark.parametrize("b", [1, 64])
def test_extend_attention_is_causal_over_prefix_and_extend(
    b: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query sees the prefix and the extend tokens up to itself, with and without a prefix."""
    monkeypatch.setattr(attention, "MAX_CHUNK_CELLS", chunk)
    pool = Pool(b, 2)
    q_lens = [int(n) if i % 3 == 0 else max(1, int(n) // 3) for i, n in enumerate(pool.lens)]
    q, out = extend(pool, q_lens)
    at = 0
    for i, n in enumerate(q_lens):
        k, v = pool.keys(i)
        for j in range(n):
            seen = list(range(len(k) - n + j + 1))
            torch.testing.assert_close(out[at + j], one_query(q[at + j], k, v, seen))
        at += n


@pytest.mark.parametrize("b", [1, 64])
def test_extend_attention_follows_the_tree_mask(b: int) -> None:
    """With a mask, a draft token sees the whole prefix and of the tree only what it marks."""
    d = 7
    pool = Pool(b, 2)
    pool.lens = pool.lens.clamp(min=d)
    mask = torch.rand(b, d, d, generator=pool.random) < 0.4
    mask |= torch.eye(d, dtype=torch.bool)
    q, out = extend(pool, [d] * b, tree_mask=mask.flatten())
    for i in range(b):
        k, v = pool.keys(i)
        prefix = len(k) - d
        for j in range(d):
            seen = [*range(prefix), *(prefix + t for t in range(d) if mask[i, j, t])]
            torch.testing.assert_close(out[i * d + j], one_query(q[i * d + j], k, v, seen))


def test_extend_attention_takes_new_keys_from_its_arguments() -> None:
    """Given k and v of the extend tokens, their slots in the pool are not read (nor written)."""
    pool = Pool(8, 2)
    q_lens = [max(1, int(n) // 2) for n in pool.lens]
    q, expected = extend(pool, q_lens)
    flat = torch.cat([
        pool.req_to_token[pool.req[i], int(pool.lens[i]) - n : int(pool.lens[i])]
        for i, n in enumerate(q_lens)
    ]).to(torch.int64)
    k_new, v_new = pool.k[flat], pool.v[flat]
    pool.k[flat], pool.v[flat] = 9.0, 9.0
    _, out = extend(pool, q_lens, k_extend=k_new, v_extend=v_new, q_extend=q)
    torch.testing.assert_close(out, expected)
    assert (pool.k[flat] == 9.0).all()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sinks": torch.zeros(HEADS)}, "sinks"),
        ({"is_cross_attn": True}, "cross_attention"),
        ({"key_scale": 0.5}, "scaled_kv"),
        ({"is_causal": False}, "encoder_only"),
    ],
)
def test_extend_attention_refuses_what_it_does_not_do(
    change: dict[str, object], named: str
) -> None:
    """An option that would silently change the result raises and is named."""
    with pytest.raises(NotImplementedError, match=named):
        extend(Pool(2, 2), [1, 1], **change)


def test_extend_attention_refuses_a_mask_of_another_size() -> None:
    """A tree mask with too few cells for b trees of d nodes raises."""
    with pytest.raises(ValueError, match="tree mask of 9 cells"):
        extend(Pool(2, 2), [1, 1], tree_mask=torch.ones(9, dtype=torch.bool), max_len_extend=3)
