"""What must hold in every world that can be reached.

The predicates are `spec_fsm.invariants`' own.  AGREE is the model's: what the counters all rows
share say of the rows is what the table's row effects, applied row by row, say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_fsm._rules import max_gap
from spec_fsm.invariants import (
    INVARIANTS,
    ROW_PREDICATES,
    STATE_PREDICATES,
    insertion_covered,
)
from spec_fsm.modes import Mode
from spec_fsm.ops import INT
from spec_fsm_model.world import Stage

if TYPE_CHECKING:
    from spec_fsm._rules import RowState
    from spec_fsm_model.world import Request, World

SAYS: dict[str, str] = {
    "ORDER": "A result settles after its launch, and no count is negative.",
    "WITHIN_STASH": "No gap of a row that is not lost is wider than the stash.",
    "COVERED": "In SPEC and DRAINING no gap, no missing seed and no lost row is on the books.",
    "AGREE": "The shared counters say of the rows what the row effects made of them.",
    "ACCEPTED": "The table accepts every fact: what has happened cannot be refused.",
    "MATRIX": "The mode allows the phases of what its own plan launches.",
    "CACHE": "The prefix cache is emptied while no row lives, and always then.",
    "KINDS": "Only a mode event changes the mode, but new weights may end a rebuild.",
    "UNREADY": "A row whose prompt is not whole has no seed, no states, and nothing to lose.",
    "RING": "No row counts on states the stash has lost, or never had.",
    "GRANTS": "A change of mode that is asked for is made where nothing stands against it.",
    "REFUSES": "The table refuses what would be wrong of the rows and results there are.",
    **{i: INVARIANTS[i].says for i in ("I5", "I8", "I9", "I11", "I14", "I15")},
}
"""Every claim `model check` makes, by id."""


class Broken(Exception):
    """A claim does not hold.  claim: its id, a key of SAYS.  detail: what was seen instead."""

    def __init__(self, claim: str, detail: str) -> None:
        self.claim = claim
        self.detail = detail
        super().__init__(claim, detail)  # both: it travels between processes

    def __str__(self) -> str:
        return f"{self.claim}: {self.detail}"


def broken(world: World) -> Broken | None:
    """The first claim about a world that does not hold, or None."""
    speculates = world.mode in (Mode.SPEC, Mode.DRAINING)
    shared = ("ORDER", "WITHIN_STASH", "COVERED") if speculates else ("ORDER", "WITHIN_STASH")
    for claim in shared:
        if not STATE_PREDICATES[claim](INT, world.state):
            return Broken(claim, f"in {world.mode.name}: {world.state}")
    for request in world.rows:
        if (found := _row_broken(request, speculates, world.state.width)) is not None:
            return found
    positions, covered = world.cached
    if not insertion_covered(INT, positions, covered):
        return Broken("I15", f"{positions} positions cached, {covered} covered")
    return _disagreement(world)


def _row_broken(request: Request, speculates: bool, width: int) -> Broken | None:
    for view in (request.launched, request.settled):
        if not ROW_PREDICATES["I5"](INT, view):
            return Broken("I5", str(view))
        if view.committed - view.stashed > width:
            return Broken("RING", f"stash {width}: {view}")
    if request.stage is not Stage.RUNNING:
        row = request.launched
        ready = row.seeded or row.lost or row.stashed != row.committed
        return Broken("UNREADY", str(row)) if ready else None
    if speculates:
        # What is enqueued counts: the launch that reseeds settles one boundary later.  A row that
        # sat that launch out was not rebuilt; it leaves before another launch.
        return None if request.sat_out else _held("I8", request.launched)
    lost = request.settled._replace(lost=request.launched.lost)
    return (None if request.sat_out else _held("I14", request.launched)) or _held("I14", lost)


def _held(claim: str, row: RowState) -> Broken | None:
    return None if ROW_PREDICATES[claim](INT, row) else Broken(claim, str(row))


def _disagreement(world: World) -> Broken | None:
    state, rows = world.state, world.running
    kept = [r for r in rows if not r.launched.lost]
    figures = {
        "rows": (state.rows, len(rows)),
        "lost": (state.lost, len(rows) - len(kept)),
        "oldest": (state.oldest, min((r.base for r in kept), default=state.t_launched)),
    }
    # A row whose last token is in flight sits out one launch, in which the counters count it.
    # Until that token settles, and the row leaves, they may say more than the other rows miss.
    there = [r.launched for r in kept if not r.sat_out]
    gap = max((row.committed - row.covered for row in there), default=0)
    said = max_gap(INT, state)
    if said < gap or (said > gap and len(there) == len(kept)):
        figures["max_gap"] = (said, gap)
    for r in kept:
        if not r.sat_out:
            seed = int(INT.max(r.base, state.seed_launched) >= state.t_launched)
            if seed != r.launched.seeded:
                figures["seeded"] = (seed, r.launched.seeded)
    for name, (counted, actual) in figures.items():
        if counted != actual:
            return Broken("AGREE", f"{name} is {counted} by the counters, {actual} by the rows")
    return None


__all__ = ["SAYS", "Broken", "broken"]
