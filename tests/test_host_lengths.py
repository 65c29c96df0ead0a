"""Where a rebuild extends from, told on the host by the ledger, is where the device would say."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_fsm.ledger import Ledger
from spec_fsm_sglang.host_lengths import HostLengths

WIDTH = 12


class Rows:
    """Committed and covered positions of each request, moved one by one as the device does."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.flushes = self.draw.choice((0.4, 0.03))  # a row is lost where they are rare
        self.ledger = Ledger(WIDTH)
        self.host = HostLengths(lambda: self.ledger)
        self.committed: dict[str, int] = {}
        self.covered: dict[str, int] = {}
        self.seeded: dict[str, bool] = {}

    def join(self) -> None:
        """A prefill: complete and seeded."""
        rid = f"r{self.draw.random()}"
        self.ledger.join(rid)
        self.committed[rid] = self.covered[rid] = self.draw.randint(1, 30)
        self.seeded[rid] = True

    def leave(self) -> None:
        """Any request ends."""
        if self.committed:
            rid = self.draw.choice(list(self.committed))
            self.ledger.leave(rid)
            for figures in (self.committed, self.covered, self.seeded):
                del figures[rid]

    def plain(self) -> None:
        """A plain launch; sometimes it carries a flush, which the ledger has counted by then."""
        self.ledger.launch_plain()
        for rid in self.committed:
            self.committed[rid] += 1
            self.seeded[rid] = False
        upper = self.ledger.max_gap
        if upper and self.draw.random() < self.flushes:
            lower = self.draw.randrange(upper)
            self.ledger.flush(lower)
            self.compare(upper, lower)
            lost = self.ledger.lost_rids
            for rid, committed in self.committed.items():
                if rid not in lost:
                    self.covered[rid] = max(self.covered[rid], committed - lower)

    def compare(self, upper: int, lower: int) -> None:
        """What the device computes from `covered` against what the host is told."""
        reqs = [SimpleNamespace(spec_fsm_row=rid) for rid in self.committed]
        batch: Any = SimpleNamespace(reqs=reqs)
        committed = torch.tensor(list(self.committed.values()))
        covered = torch.tensor(list(self.covered.values()))
        first, end = self.host.flush_span(batch, committed, upper, lower)
        assert torch.equal(first, torch.maximum(covered, committed - upper))
        assert torch.equal(end, torch.maximum(covered, committed - lower))
        seeded = torch.tensor(list(self.seeded.values()))
        for missing in (upper, 0):
            start = torch.maximum(covered, committed - max(1, missing))
            wanted = torch.where(seeded, committed, torch.minimum(start, committed - 1))
            found = self.host.seed_start(batch, committed, missing)
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("seed", range(40))
def test_host_and_device_extend_from_the_same_positions(seed: int) -> None:
    """On random histories of joins, leaves, plain launches, flushes and rows that are lost."""
    rows = Rows(seed)
    for _ in range(150):
        act = rows.draw.choice((rows.join, rows.leave, rows.plain, rows.plain, rows.plain))
        act()
        if rows.committed and rows.ledger.max_gap:
            rows.compare(rows.ledger.max_gap, 0)


def test_a_row_that_has_ended_is_extended_from_its_end() -> None:
    """It rides along once more, unknown to the ledger; nothing below its end is written."""
    host = HostLengths(lambda: Ledger(WIDTH))
    batch: Any = SimpleNamespace(reqs=[SimpleNamespace(spec_fsm_row="gone")])
    first, end = host.flush_span(batch, torch.tensor([9]), 5, 0)
    assert (first.item(), end.item()) == (9, 9)
    assert host.seed_start(batch, torch.tensor([9]), 5).item() == 8
