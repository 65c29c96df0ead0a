"""Rows moved by the table's row effects one by one, for the lazy ledger to be held against."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spec_fsm import Row
from spec_fsm._rules import ROW_EFFECTS, Arg, RowState, State
from spec_fsm.ledger import Ledger
from spec_fsm.ops import INT

if TYPE_CHECKING:
    from collections.abc import Callable

NO_STATE = Ledger(8).state(4, 0)
RESERVE = 10_000


@dataclass
class TwoViews:
    """One row kept the long way: as of what was launched and as of what was settled."""

    launched: RowState
    settled: RowState


@dataclass
class Reference:
    """Every row, moved by the table's row effects alone; launches in flight replay theirs."""

    state: State
    rows: dict[str, TwoViews] = field(default_factory=dict)
    flights: deque[list[Callable[[], None]]] = field(default_factory=deque)

    def _apply(self, rows: list[TwoViews], view: str, effect: str, arg: Arg) -> None:
        for row in rows:
            figures = ROW_EFFECTS[effect](INT, self.state, getattr(row, view), arg)
            setattr(row, view, figures)

    def prefill(self, rid: str, length: int) -> None:
        """A row joins, the same in both views."""
        nothing = RowState(0, 0, 0, 0, 0)
        row = ROW_EFFECTS["ROW_PREFILL"](INT, self.state, nothing, Arg(length=length))
        self.rows[rid] = TwoViews(row, row)

    def launch(self, effects: list[tuple[str, Arg]], *, launched: bool = True) -> None:
        """Apply `effects` to the launched view now, to the settled view when it settles."""
        rows = list(self.rows.values())
        later: list[Callable[[], None]] = []
        for effect, arg in effects:
            if launched:
                self._apply(rows, "launched", effect, arg)
            later.append(lambda e=effect, a=arg: self._apply(rows, "settled", e, a))  # type: ignore[misc]
        self.flights.append(later)

    def speculate(self, accepted: int, *, reseed: bool = False) -> None:
        """A round whose accept length is known only when it settles, then in both views."""
        rows = list(self.rows.values())
        if reseed:
            self._apply(rows, "launched", "ROW_COVER", Arg())
        arg = Arg(length=accepted)

        def land() -> None:
            if reseed:
                self._apply(rows, "settled", "ROW_COVER", Arg())
            for view in ("launched", "settled"):
                self._apply(rows, view, "ROW_ACCEPT", arg)

        self.flights.append([land])

    def settle(self) -> None:
        """The oldest launch in flight reaches the settled view."""
        for effect in self.flights.popleft():
            effect()

    def forget_stash(self) -> None:
        """Launched rows lose it now, settled ones once what is in flight has settled."""
        rows = list(self.rows.values())
        self._apply(rows, "launched", "ROW_FORGET_STASH", Arg())

        def later() -> None:
            self._apply(rows, "settled", "ROW_FORGET_STASH", Arg())

        if self.flights:
            self.flights[-1].append(later)
        else:
            later()


def agree(ledger: Ledger, reference: Reference) -> None:
    """Every figure the ledger can give is the one the row effects gave."""
    for rid, row in reference.rows.items():
        launched, settled = row.launched, row.settled
        assert ledger.gap(rid) == launched.committed - launched.covered
        assert ledger.seeded(rid) is bool(launched.seeded)
        assert ledger.settled_gap(rid) == settled.committed - settled.covered
        assert ledger.row(rid, settled.committed, RESERVE) == Row(
            committed=settled.committed,
            reserved=RESERVE,
            covered=settled.covered,
            stashed=settled.stashed,
            seeded=bool(settled.seeded),
            lost=bool(launched.lost),
        )
    kept = [r.launched for r in reference.rows.values() if not r.launched.lost]
    assert ledger.rows == len(reference.rows)
    assert ledger.lost == len(reference.rows) - len(kept)
    assert ledger.lost_rids == {r for r, row in reference.rows.items() if row.launched.lost}
    assert ledger.max_gap == max((r.committed - r.covered for r in kept), default=0)
    assert ledger.in_flight == len(reference.flights)
