"""The CPU reference operators against references in plain loops, one request at a time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.cpu_ops import attention, cache, hooks, server, tree

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


def ragged(b: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`req_to_token`, request rows, and start and end columns; some ranges are empty."""
    random = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 10_000, (b + 3, WIDTH), generator=random, dtype=torch.int32)
    req = torch.randperm(b + 3, generator=random)[:b]
    start = torch.randint(0, WIDTH // 2, (b,), generator=random)
    end = start + torch.randint(0, 9, (b,), generator=random)
    return table, req, start, end


@pytest.mark.parametrize("b", [1, 64])
def test_extend_cache_locs_are_packed_in_request_order(b: int) -> None:
    """The slots of every range follow one another; cells past the last keep what they held."""
    table, req, start, end = ragged(b)
    out = torch.full((9 * b,), -7)
    cache.assign_extend_cache_locs_cpu(req, table, start, end, out, WIDTH)
    expected = [int(table[req[i], c]) for i in range(b) for c in range(int(start[i]), int(end[i]))]
    assert out.tolist() == expected + [-7] * (9 * b - len(expected))


@pytest.mark.parametrize("b", [1, 64])
def test_slots_are_written_into_the_rows_they_belong_to(b: int) -> None:
    """Writing packed slots changes exactly the cells of each request's range."""
    table, req, start, end = ragged(b, seed=1)
    packed = torch.arange(int((end - start).sum())) + 20_000
    expected, at = table.clone(), 0
    for i in range(b):
        for column in range(int(start[i]), int(end[i])):
            expected[req[i], column] = packed[at]
            at += 1
    cache.assign_req_to_token_pool_cpu(req, table, start, end, packed, WIDTH)
    assert torch.equal(table, expected)


@pytest.mark.parametrize("b", [1, 64])
def test_draft_cache_locs_are_the_slots_after_the_committed_ones(b: int) -> None:
    """A request's topk * steps draft slots are the table's cells from its length on."""
    table, req, start, _ = ragged(b)
    out = torch.empty(b * 4 * 3, dtype=torch.int64)
    cache.assign_draft_cache_locs_contiguous_cpu(req, table, start, out, WIDTH, 4, 3)
    expected = [int(table[req[i], int(start[i]) + c]) for i in range(b) for c in range(12)]
    assert out.tolist() == expected


@pytest.mark.parametrize(("b", "topk", "steps"), [(1, 1, 3), (64, 4, 2), (5, 3, 4)])
def test_draft_metadata_gives_each_branch_its_prefix_and_its_own_slots(
    b: int, topk: int, steps: int
) -> None:
    """Branch k reads the committed prefix, then only the draft slots that are its own."""
    table, req, lens, _ = ragged(b)
    rows = cache.build_draft_decode_metadata_cpu(table, req, lens, topk, steps, WIDTH)
    assert rows.shape[0] == b * topk
    for i in range(b):
        for k in range(topk):
            n = int(lens[i])
            own = [int(table[req[i], n + k * steps + s]) for s in range(steps)]
            expected = [int(table[req[i], c]) for c in range(n)] + own
            assert rows[i * topk + k, : n + steps].tolist() == expected


def test_bonus_token_is_the_last_accepted() -> None:
    """Of each request's row of accepted tokens the one at its accept length is taken."""
    tokens = torch.arange(64 * 3, dtype=torch.int32)
    lens = torch.arange(64, dtype=torch.int32) % 3 + 1
    bonus = torch.empty(64, dtype=torch.int32)
    cache.fill_bonus_tokens_cpu(tokens, lens, bonus, 3)
    assert bonus.tolist() == [3 * i + i % 3 for i in range(64)]


def test_accepted_slots_are_packed() -> None:
    """The slots of accepted nodes move to the front in order; -1 marks a rejected one."""
    index = torch.tensor([[0, 2, -1], [3, -1, -1], [6, 7, 8]], dtype=torch.int32)
    out = torch.full((9,), -7)
    cache.fill_accept_out_cache_loc_cpu(index, torch.arange(100, 109), out)
    assert out.tolist() == [100, 102, 103, 106, 107, 108, -7, -7, -7]


@pytest.mark.parametrize("selected", [False, True])
def test_input_ids_rotate_within_each_request(selected: bool) -> None:
    """Every request moves left by one and ends in its new token; an empty one stays as it is."""
    lens = torch.tensor([4, 1, 0, 3], dtype=torch.int32)
    starts = torch.tensor([0, 4, 5, 5], dtype=torch.int32)
    ids = torch.arange(10, 18)
    new = torch.tensor([[90], [91], [92], [93]])
    select = torch.tensor([1, 4, 0, 7]) if selected else None
    cache.rotate_input_ids_cpu(ids, starts, lens, new, select)
    if selected:
        assert ids.tolist() == [11, 90, 13, 13, 91, 16, 17, 93]
    else:
        assert ids.tolist() == [11, 12, 13, 90, 91, 16, 17, 93]


def test_kv_rows_move_in_every_layer_as_if_at_once() -> None:
    """Overlapping moves read every source before anything is written, in buffers of any stride."""
    buffers = [torch.randn(20, 3, 4), torch.randn(20, 2, 8, dtype=torch.float64)]
    before = [buffer.clone() for buffer in buffers]
    src, tgt = torch.tensor([3, 4, 5, 19]), torch.tensor([2, 3, 4, 5])
    cache.copy_all_layer_kv_cache_cpu(
        torch.tensor([b.data_ptr() for b in buffers], dtype=torch.uint64),
        torch.tensor([b[0].nbytes for b in buffers]),
        tgt,
        src,
    )
    for now, old in zip(buffers, before, strict=True):
        expected = old.clone()
        for s, t in zip(src.tolist(), tgt.tolist(), strict=True):
            expected[t] = old[s]
        assert torch.equal(now, expected)


class Tree:
    """Random draft trees as the draft grows them, and their structure found by plain search.

    Candidates are numbered as SGLang does: topk children of the root, then for each later step
    topk children of each of the topk best candidates of the step before.
    """

    def __init__(self, b: int, topk: int, steps: int, d: int, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.b, self.topk, self.steps, self.d = b, topk, steps, d
        parent_list, selected = [], []
        self.parents: list[list[int]] = []  # node -> parent node, -1 for the root
        for _ in range(b):
            score, parent = {}, {}
            for c in range(topk):
                score[c], parent[c] = float(torch.rand(1, generator=random)), -1
            kept, origins = list(range(topk)), [-1, *range(topk)]
            for step in range(1, steps):
                base = topk + (step - 1) * topk * topk
                for p, origin in enumerate(kept):
                    for j in range(topk):
                        c = base + p * topk + j
                        parent[c] = origin
                        score[c] = score[origin] * float(torch.rand(1, generator=random))
                new = range(base, base + topk * topk)
                kept = sorted(new, key=lambda c: -score[c])[:topk]
                origins += kept
            chosen = sorted(sorted(score, key=lambda c: -score[c])[: d - 1])
            node = {c: i + 1 for i, c in enumerate(chosen)} | {-1: 0}
            self.parents.append([-1] + [node[parent[c]] for c in chosen])
            selected.append(chosen)
            parent_list.append(origins[: 1 + topk * (steps - 1)] if steps > 1 else [])
        self.selected = torch.tensor(selected)
        self.parent_list = torch.tensor(parent_list, dtype=torch.int64).view(b, -1)
        self.lens = torch.randint(1, 500, (b,), generator=random)

    def build(self) -> dict[str, Tensor]:
        """What the operator makes of these trees."""
        shape = (self.b, self.d)
        out = {
            "mask": torch.ones(self.b * self.d * self.d, dtype=torch.bool),
            "positions": torch.empty(self.b * self.d, dtype=torch.int64),
            "index": torch.full(shape, -1),
            "next": torch.full(shape, -1),
            "sibling": torch.full(shape, -1),
        }
        tree.build_tree_kernel_efficient_cpu(
            self.parent_list, self.selected, self.lens, *out.values(),
            self.topk, self.steps, self.d, tree.QLEN_ONLY,
        )
        return out

    def children(self, i: int, node: int) -> list[int]:
        """The node's children in tree i, in order."""
        return [n for n, parent in enumerate(self.parents[i]) if parent == node]

    def path(self, i: int, node: int) -> list[int]:
        """The node and its ancestors."""
        return [] if node < 0 else [node, *self.path(i, self.parents[i][node])]


TREES = [(1, 4, 2, 16), (64, 4, 2, 16), (64, 1, 3, 4), (3, 3, 4, 20), (5, 4, 1, 5)]


@pytest.mark.parametrize(("b", "topk", "steps", "d"), TREES)
def test_tree_structure_equals_a_plain_search(b: int, topk: int, steps: int, d: int) -> None:
    """Mask, positions, first children and siblings are those of the tree the draft grew."""
    trees = Tree(b, topk, steps, d)
    out = trees.build()
    mask, positions = out["mask"].view(b, d, d), out["positions"].view(b, d)
    assert out["index"].flatten().tolist() == list(range(b * d))
    for i in range(b):
        for node in range(d):
            path = trees.path(i, node)
            assert mask[i, node].nonzero().flatten().tolist() == sorted(path)
            assert positions[i, node] == trees.lens[i] + len(path) - 1
            children = trees.children(i, node)
            assert out["next"][i, node] == (children[0] if children else -1)
            siblings = [n for n in trees.children(i, trees.parents[i][node]) if n > node]
            assert out["sibling"][i, node] == (siblings[0] if node and siblings else -1)


def test_tree_refuses_other_masks() -> None:
    """Only the mask that the CPU attention reads is built."""
    empty = torch.empty(0)
    with pytest.raises(NotImplementedError, match="QLEN_ONLY"):
        tree.build_tree_kernel_efficient_cpu(*[empty] * 8, 1, 1, 1, 0)


@pytest.mark.parametrize(("b", "topk", "steps", "d"), TREES)
def test_greedy_verify_walks_the_tree_the_target_agrees_with(
    b: int, topk: int, steps: int, d: int
) -> None:
    """From the root on, the child that carries the target's token is accepted, till none does."""
    trees = Tree(b, topk, steps, d, seed=1)
    out = trees.build()
    random = torch.Generator().manual_seed(2)
    candidates = torch.randint(0, 3, (b, d), generator=random)
    target = torch.randint(0, 3, (b, d), generator=random)
    predicts = torch.full((b * d,), -5, dtype=torch.int32)
    accepted = torch.full((b, steps + 1), -1, dtype=torch.int32)
    count = torch.empty(b, dtype=torch.int32)
    tree.verify_tree_greedy_cpu(
        predicts, accepted, count, candidates, out["index"], out["next"], out["sibling"],
        target.flatten(),
    )
    expected_predicts = [-5] * (b * d)
    for i in range(b):
        walk = [0]
        while len(walk) <= steps:
            want = target[i, walk[-1]]
            hits = [n for n in trees.children(i, walk[-1]) if candidates[i, n] == want]
            if not hits:
                break
            walk.append(hits[0])
        for node in walk:
            expected_predicts[i * d + node] = int(target[i, node])
        assert accepted[i].tolist() == [i * d + n for n in walk] + [-1] * (steps + 1 - len(walk))
        assert count[i] == len(walk) - 1
    assert predicts.tolist() == expected_predicts
    if b == 64:
        assert set(count.tolist()) == set(range(steps + 1))


def test_relay_rows_and_last_slots() -> None:
    """The two Triton functions' replacements pick the rows and slots that indexing picks."""
    rows = torch.tensor([4, 0, 4])
    buffers = [torch.randn(6, 4), torch.randint(0, 9, (6, 4)), torch.randint(0, 9, (6,))]
    hidden = torch.randn(6, 8)
    for got, buffer in zip(
        hooks.gather_spec_extras(rows, *buffers, hidden), [*buffers, hidden], strict=True
    ):
        assert got is not None
        assert got.tolist() == [buffer[r].tolist() for r in (4, 0, 4)]
    assert hooks.gather_spec_extras(rows, *buffers, None)[3] is None
    table, req, start, _ = ragged(64)
    start[5] = 0
    last = hooks.get_last_loc(table, req, start)
    expected = [int(table[req[i], n - 1]) if n else -1 for i, n in enumerate(start.tolist())]
    assert last.tolist() == expected


def test_server_flags_name_the_backend_unless_the_caller_did() -> None:
    """Device and both phases' backends are added; a backend or device given is left alone."""
    both = ["--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"]
    assert server.as_flags(["--model-path", "x"]) == ["--device", "cpu", *both]
    assert server.as_flags(["--device=cpu"]) == both
    assert server.as_flags(["--device", "cpu", "--attention-backend", "torch_native"]) == []
    assert server.as_fields() == {
        "device": "cpu",
        "prefill_attention_backend": "intel_amx",
        "decode_attention_backend": "intel_amx",
    }


STAND_IN = """
from spec_fsm_sglang import cpu_ops
assert cpu_ops.enable() and cpu_ops.enable()
import subprocess, sys, torch, sgl_kernel
assert sgl_kernel.__file__.startswith(str(cpu_ops.SITE)), sgl_kernel.__file__
assert hasattr(torch.ops.sgl_kernel, "extend_attention_cpu")
assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")  # SGLang's test for AMX
from sgl_kernel import fused_experts
try:
    fused_experts(1)
except NotImplementedError as error:
    assert "fused_experts" in str(error)
else:
    raise AssertionError("an unknown operator must raise")
child = "import sgl_kernel, importlib.metadata as m; print(sgl_kernel.__file__); "
child += "print([e.value for e in m.entry_points(group='sglang.srt.plugins')])"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
"""


def test_stand_in_is_found_here_and_in_child_processes() -> None:
    """After `enable()` this process and its children import the stand-in and see its plugin."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", STAND_IN], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(cpu_ops.SITE) in done.stdout
    assert "spec_fsm_sglang.cpu_ops.hooks:activate" in done.stdout
