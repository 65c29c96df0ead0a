"""Lengths on the host for attention backends that ask for them there.

Such backends get `seq_lens_cpu` with every batch, and the positions of a draft extend are made from
it. A rebuild extends from other positions than the batch's; what it needs to know of each row is in
the ledger, and asking the device instead would wait for everything that is in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spec_fsm_sglang.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from spec_fsm.ledger import Ledger


class HostLengths:
    """First positions of a draft extend, `[b]` int64 on the host.

    `ledger`: gives the lifecycle's ledger, which is the authority for what the stash's `covered`
    and `seeded` say on the device (I14). Costs O(b), in launches that rebuild.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger

    def flush_span(
        self, batch: ScheduleBatch, committed: torch.Tensor, upper: int, lower: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a flush of ages `[upper, lower)` begins and ends in each row.

        `committed`: `[b]` on the host. The ledger counts the flush of a plain launch before it is
        made, so a gap is told by the plain launches since the row was complete: `upper` reaches
        the oldest gap, and no gap is larger.
        """
        missing = self._missing(batch)
        return committed - missing.clamp(max=upper), committed - missing.clamp(max=lower)

    def seed_start(
        self, batch: ScheduleBatch, committed: torch.Tensor, missing: int
    ) -> torch.Tensor:
        """Where the extend that makes a seed begins, if no row misses more than `missing`.

        At a row's first missing position, at its last one where none is missing, or one after
        that where the row is seeded already. Counted as in `flush_span`.
        """
        ledger = self._ledger()
        seeded = torch.tensor([ledger.seeded(row_of(req)) for req in batch.reqs])
        back = self._missing(batch).clamp(min=1, max=max(1, missing))
        return committed - back.masked_fill(seeded, 0)

    def _missing(self, batch: ScheduleBatch) -> torch.Tensor:
        """Positions a row may miss, if a flush or seed that says how many at most bounds it."""
        ledger = self._ledger()
        lost = ledger.lost_rids
        gaps = []
        for req in batch.reqs:
            row = row_of(req)
            base = ledger.base(row)
            if base is None:
                gaps.append(0)  # it has ended and rides along
            elif row in lost:
                gaps.append(ledger.gap(row))
            else:
                gaps.append(ledger.t_launched - base)
        return torch.tensor(gaps, dtype=torch.int64)


__all__ = ["HostLengths"]
