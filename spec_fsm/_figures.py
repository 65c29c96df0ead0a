"""What can be read from a lifecycle, and the laws of single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_fsm._rules import RowState
from spec_fsm._runner import TableRunner
from spec_fsm.errors import ShapeViolation
from spec_fsm.invariants import ROW_PREDICATES
from spec_fsm.modes import Mode
from spec_fsm.ops import INT

if TYPE_CHECKING:
    from spec_fsm.ledger import Row


class Figures(TableRunner):
    """The reading half of `Lifecycle`."""

    @property
    def rows(self) -> int:
        """Rows that decode."""
        return self.ledger.rows

    @property
    def lost(self) -> int:
        """Rows whose gap outgrew the stash; while one lives, PLAIN stays."""
        return self.ledger.lost

    @property
    def unsettled(self) -> int:
        """Speculative launches whose result was not processed yet."""
        return self.ledger.unsettled

    @property
    def max_gap(self) -> int:
        """Largest gap of a row that is not lost, in positions, launches in flight included."""
        return self.ledger.max_gap

    def gap(self, rid: str) -> int:
        """Positions of `rid` without draft KV, launches in flight included; 0 if unknown."""
        return self.ledger.gap(rid)

    def seeded(self, rid: str) -> bool:
        """Whether the seed of `rid` is that of its last position; False if unknown."""
        return self.ledger.seeded(rid)

    def row(self, rid: str, committed: int, reserved: int) -> Row:
        """The figures of `rid` as of the settled launches, given its own two, in positions."""
        return self.ledger.row(rid, committed, reserved)

    def audit(self, rid: str, committed: int, reserved: int) -> Row:
        """`row`, held against I5, I8 (in SPEC and DRAINING) or I14 (in PLAIN and RESEEDING).

        O(1) a row and meant for samples, tests and strict runs.  Raises ShapeViolation.
        """
        row = self.ledger.row(rid, committed, reserved)
        figures = RowState(
            row.committed, row.covered, row.stashed, int(row.seeded), int(row.lost), reserved
        )
        speculates = self.mode in (Mode.SPEC, Mode.DRAINING)
        if speculates:
            # What is enqueued counts: the launch that reseeds settles one boundary later.
            gap = self.ledger.gap(rid)
            figures = figures._replace(covered=committed - gap, seeded=int(self.seeded(rid)))
        for invariant in ("I5", "I8" if speculates else "I14"):
            self.checks.count(invariant)
            if not ROW_PREDICATES[invariant](INT, figures):
                msg = f"row {rid!r} breaks a law of the ledger"
                error = ShapeViolation(msg, mode=self.mode, observed=row, invariant=invariant)
                self._violated(error)
        return row


__all__ = ["Figures"]
