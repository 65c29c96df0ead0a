"""What is proved to hold in every scene: the claims, and what their induction leans on.

The predicates are `spec_fsm.invariants`' own, read over z3 terms.  The other clauses say how the
row and the counters belong together; none repeats a rule.  A clause that speaks of launches in
flight is stated for one arbitrary tick, TICK, and so for each.

`WITHIN_STASH` is not true in the middle of a plain launch: LAUNCHED makes every gap one wider, and
STASH_DROPPED of the same launch then drops the rows this was too much for.  It is stated with a
width of one more there (Stage.IN_PLAIN), and proved again where that launch ends.  In RESEEDING no
row may be dropped, so the bound is one tighter throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import z3

from spec_fsm.invariants import (
    INVARIANTS,
    ROW_PREDICATES,
    STATE_PREDICATES,
    insertion_covered,
)
from spec_fsm.modes import Mode
from spec_fsm_model.prove_support import (
    SPECULATES,
    SUPPORT,
    Clause,
    gap,
    plain_flying,
    settled_gap,
)
from spec_fsm_model.symbolic import Z3, Sat, Scene, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm._rules import RowState
    from spec_fsm.ops import Term

_SAYS = {i: INVARIANTS[i].says for i in ("I5", "I8", "I14", "I15")}


def _order(s: Scene, _: Term) -> Term:
    return STATE_PREDICATES["ORDER"](Z3, s.state)


def _within_stash(s: Scene, _: Term) -> Term:
    spare = int(s.stage is Stage.IN_PLAIN) - int(s.mode is Mode.RESEEDING)
    return STATE_PREDICATES["WITHIN_STASH"](Z3, s.state._replace(width=s.state.width + spare))


def _covered(s: Scene, _: Term) -> Term:
    return STATE_PREDICATES["COVERED"](Z3, s.state) if s.mode in SPECULATES else True


def _i5(view: str) -> Callable[[Scene, Term], Term]:
    return lambda s, _: ROW_PREDICATES["I5"](Z3, getattr(s.row, view))


def _i8(s: Scene, _: Term) -> Term:
    if s.mode not in SPECULATES:
        return True
    # A row that sat the reseed out was not rebuilt; it leaves before another launch (SIT OUT).
    there = z3.And(s.row.running, s.row.sat != Sat.RESEED)
    return Z3.imp(there, ROW_PREDICATES["I8"](Z3, s.row.launched))


def _i14(view: str) -> Callable[[Scene, Term], Term]:
    def term(s: Scene, _: Term) -> Term:
        if s.mode in SPECULATES:
            return True
        row: RowState = getattr(s.row, view)
        held = ROW_PREDICATES["I14"](Z3, row._replace(lost=s.row.launched.lost))
        # A row that sat a launch out needs nothing any more.
        there = z3.And(s.row.running, s.row.sat == Sat.NO) if view == "launched" else s.row.running
        return Z3.imp(there, held)

    return term


def _i15(s: Scene, _: Term) -> Term:
    row = s.row.settled
    held = insertion_covered(Z3, row.committed - settled_gap(s), row.covered)
    return Z3.imp(s.row.running, held)


def _agree_gap(s: Scene, _: Term) -> Term:
    r = s.row
    there = z3.And(r.running, z3.Not(r.counted), r.sat == Sat.NO)
    return Z3.imp(there, r.launched.committed - r.launched.covered == gap(s))


def _agree_seeded(s: Scene, _: Term) -> Term:
    r = s.row
    there = z3.And(r.running, z3.Not(r.counted), r.sat == Sat.NO)
    seed = Z3.max(r.base, s.state.seed_launched) >= s.state.t_launched
    return Z3.imp(there, (r.launched.seeded == 1) == seed)


def _agree_lost(s: Scene, _: Term) -> Term:
    r = s.row
    lost = r.launched.lost == 1
    if s.stage is not Stage.IN_PLAIN:
        return Z3.imp(r.running, r.counted == lost)
    # Until it is dropped, a row the launch was too much for is lost, and not on the books.
    outgrown = z3.And(r.sat != Sat.PLAIN, s.state.width < gap(s))
    return Z3.imp(r.running, lost == z3.Or(r.counted, outgrown))


def _agree_oldest(s: Scene, _: Term) -> Term:
    r = s.row
    kept = z3.And(r.running, z3.Not(r.counted))
    return z3.And(Z3.imp(kept, s.state.oldest <= r.base), r.base <= s.state.t_launched)


def _agree_alone(s: Scene, _: Term) -> Term:
    return Z3.imp(s.state.rows == s.state.lost, s.state.oldest == s.state.t_launched)


def _agree_rows(s: Scene, _: Term) -> Term:
    return s.state.rows == s.others + z3.If(s.row.running, 1, 0)


def _agree_lost_rows(s: Scene, _: Term) -> Term:
    counted = z3.If(z3.And(s.row.running, s.row.counted), 1, 0)
    return s.state.lost == s.others_lost + counted


def _agree_settled(s: Scene, _: Term) -> Term:
    row = s.row.settled
    return Z3.imp(s.row.running, row.committed - row.covered == settled_gap(s))


def _agree_flights(s: Scene, _: Term) -> Term:
    plain = s.state.t_launched - s.state.t_settled
    return z3.And(plain == s.flights.plain, s.state.unsettled == s.flights.speculative)


def _room(s: Scene, _: Term) -> Term:
    row = s.row.settled
    flying = plain_flying(s) + s.row.flying
    room = row.committed + flying * s.sizes.need <= row.reserved
    return Z3.imp(s.row.running, z3.And(flying <= s.sizes.ahead + 1, room))


def _none_speculates(s: Scene, _: Term) -> Term:
    return True if s.mode in SPECULATES else z3.And(s.flights.speculative == 0, s.row.flying == 0)


CLAUSES = (
    Clause("ORDER", "A result settles after its launch, no count is negative.", True, _order),
    Clause("WITHIN_STASH", "No gap of a row that is not lost outgrows.", True, _within_stash),
    Clause("COVERED", "In SPEC and DRAINING nothing is missing.", True, _covered),
    Clause("I5 launched", _SAYS["I5"], True, _i5("launched"), reserved=True),
    Clause("I5 settled", _SAYS["I5"], True, _i5("settled"), reserved=True),
    Clause("I8", _SAYS["I8"], True, _i8),
    Clause("I14 launched", _SAYS["I14"], True, _i14("launched")),
    Clause("I14 settled", _SAYS["I14"], True, _i14("settled")),
    Clause("I15", _SAYS["I15"], True, _i15),
    Clause("AGREE gap", "The counters' gap of the row is the row's.", True, _agree_gap),
    Clause("AGREE seeded", "The counters' seed of the row is its.", True, _agree_seeded),
    Clause("AGREE lost", "A row is lost where it is on the books so.", True, _agree_lost),
    Clause("AGREE oldest", "No row that is not lost is older.", True, _agree_oldest),
    Clause("AGREE alone", "Without such a row `oldest` is now.", True, _agree_alone),
    Clause("AGREE rows", "`rows` counts the rows.", True, _agree_rows),
    Clause("AGREE lost rows", "`lost` counts the lost rows.", True, _agree_lost_rows),
    Clause("AGREE flights", "The counters count what is in flight.", True, _agree_flights),
    Clause("AGREE settled", "The settled gap is the row's.", True, _agree_settled),
    Clause("ROOM", "What is in flight fits the reserve.", True, _room, reserved=True),
    Clause("DRAINED OUT", "No speculation outlives a drain.", True, _none_speculates),
    *SUPPORT,
)
"""The invariant; its conjunction is what is shown to be inductive."""

__all__ = ["CLAUSES"]
