"""The size of the stash, and what its ring forgets."""

from __future__ import annotations

import torch

from spec_fsm_sglang.stash import SHARE_OF_KV, WIDEST, Stash, fit


def test_width_that_is_named_is_kept() -> None:
    """A configured width wins over the share of the KV pool, and so does its flush interval."""
    sizes = fit(64, 16, kv_bytes=1, position_bytes=10**9)
    assert (sizes.width, sizes.flush_every) == (64, 16)


def test_unnamed_width_takes_at_most_its_share() -> None:
    """As many positions as 1 % of the KV pool holds, and never more bytes than that."""
    kv, position = 10**9, 10**5
    sizes = fit(None, 16, kv, position)
    assert sizes.width == 100
    assert sizes.width * position <= kv * SHARE_OF_KV < (sizes.width + 1) * position
    assert fit(None, 16, 10**15, 1).width == WIDEST


def test_narrow_ring_is_flushed_more_often() -> None:
    """Where the share is too small for the interval, the interval shrinks, so no row is lost."""
    sizes = fit(None, 16, 10**7, 10**4)
    assert (sizes.width, sizes.flush_every) == (10, 9)
    assert (fit(None, 16, 1, 1).width, fit(None, 16, 1, 1).flush_every) == (2, 1)
    assert fit(None, 0, 10**7, 10**4).flush_every == 0


def test_ring_keeps_the_last_positions() -> None:
    """Positions older than the width are overwritten; a record unseeds its rows alone."""
    stash = Stash(4, 3, 2, torch.float32, "cpu")
    rows = torch.tensor([2])
    stash.joined(torch.tensor([1, 2]), torch.tensor([5, 7]))
    for position in range(7, 12):
        hidden = torch.full((1, 2), float(position))
        stash.record(rows, torch.tensor([position]), hidden, torch.tensor([position + 100]))
    hidden, tokens = stash.read(rows, torch.tensor([[9, 10, 11]]))
    assert hidden[0, :, 0].tolist() == [9, 10, 11]
    assert tokens.tolist() == [[109, 110, 111]]
    assert stash.seeded.tolist() == [False, True, False, False]
    assert stash.covered.tolist() == [0, 5, 7, 0]
