"""The CPU operators on slots, rows and buffers against plain loops over the requests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_fsm_sglang.cpu_ops import cache, hooks

WIDTH = 96


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
