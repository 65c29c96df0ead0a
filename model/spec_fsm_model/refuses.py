"""What the table must refuse and what it must grant, said of the rows, never of its guards.

The searches only follow what an engine does when all is well: a flush that reaches the oldest
gap, a reseed that fits.  A guard nothing ever runs into could be missing.  So in every world the
table is also asked for what would be wrong there, and has to say no; and for the changes of mode
that nothing stands against, and has to say yes.  What is wrong is read off the rows one by one and
the launches in flight; the guards read the counters all rows share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from spec_fsm._rules import Arg, State
from spec_fsm.invariants import ROW_PREDICATES
from spec_fsm.modes import Action, Event, Mode, Phase
from spec_fsm.ops import INT
from spec_fsm_model.claims import Broken
from spec_fsm_model.rules import Refused, Table

if TYPE_CHECKING:
    from spec_fsm_model.world import World

Attempt = tuple[Event, State, Arg, str]
"""An event, the counters and the figures it comes with, and what would be wrong about it."""

_STATIC = (
    (Event.LAUNCHED, Arg(allowed=0), "a launch that the matrix does not allow"),
    (Event.PREFILLED, Arg(known=1, length=1), "a row that has joined already"),
    (Event.PREFILLED_CHUNK, Arg(known=1, length=1), "a chunk of a row that has joined already"),
)
_SPECULATIVE = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND)
_PAID_FOR = {Mode.SPEC: Event.LOAD_ROSE, Mode.PLAIN: Event.LOAD_FELL}
_WRITES = {Mode.PLAIN: Event.FLUSHED, Mode.RESEEDING: Event.SLICE_DONE}


def wrongly_answered(world: World, table: Table) -> Broken | None:
    """The first attempt the table does not refuse, or wish it does not grant, or None."""
    for event, state, arg, wrong in attempts(world):
        try:
            table.step(world.mode, event, state, arg)
        except Refused:
            continue
        return Broken("REFUSES", f"{event.name} in {world.mode.name} is accepted: {wrong}")
    for event in wishes(world):
        if text := _not_granted(world, event, table):
            return Broken("GRANTS", f"{event.name} in {world.mode.name} {text}")
    return wrong_launch(world, table.rules.allowed)


def _not_granted(world: World, event: Event, table: Table) -> str:
    try:
        mode, _ = table.step(world.mode, event, world.state._replace(dwell=0), Arg())
    except Refused as error:
        return f"is refused: {error}"
    return "changes nothing" if mode is world.mode else ""


def wishes(world: World) -> Iterator[Event]:
    """The changes of mode that nothing stands against, once the dwell is over."""
    mode, state, rows = world.mode, world.state, [r.launched for r in world.running]
    # A row that sits a launch out counts as missing one more until it leaves.
    known = not any(r.lost for r in rows) and not any(r.sat_out for r in world.rows)
    gap = max((r.committed - r.covered for r in rows), default=0)
    if mode in (Mode.SPEC, Mode.RESEEDING):
        yield Event.LOAD_ROSE
    if mode is Mode.DRAINING:
        yield Event.LOAD_FELL
        if not world.flights:
            yield Event.DRAINED
    if mode is Mode.PLAIN and known and gap < state.width:
        yield Event.LOAD_FELL
    if mode is Mode.RESEEDING:
        yield Event.RESEED_FAILED
        if known and gap <= state.slice_width:
            yield Event.RESEEDED


def attempts(world: World) -> Iterator[Attempt]:
    """Everything that would be wrong in this world."""
    mode, state = world.mode, world.state
    for event, arg, wrong in _STATIC:
        yield event, state, arg, wrong
    if mode in _PAID_FOR:
        waits = state._replace(dwell=1)
        yield _PAID_FOR[mode], waits, Arg(), "the dwell is not over"
    actions = [f.action for f in world.flights]
    if Action.PLAIN not in actions:
        yield Event.DECODED, state, Arg(), "no plain launch is in flight"
    if all(action is Action.PLAIN for action in actions):
        yield Event.SETTLED, state, Arg(), "no speculative launch is in flight"
    if mode is Mode.DRAINING and actions:
        yield Event.DRAINED, state, Arg(), f"{len(actions)} results are in flight"
    if mode in _WRITES:
        yield from _of_gaps(world)


def _of_gaps(world: World) -> Iterator[Attempt]:
    mode, state = world.mode, world.state
    kept = [r.launched for r in world.running if not r.launched.lost]
    lost = len(world.running) - len(kept)
    gap = max((row.committed - row.covered for row in kept), default=0)
    writes = _WRITES[mode]
    if gap:
        text = f"a gap of {gap} stays open at its oldest position"
        yield writes, state, Arg(upper=gap - 1), text
    text = "ages that are not there count as written"
    yield writes, state, Arg(upper=gap + 1, lower=-1), text
    yield writes, state, Arg(upper=gap + 1, lower=gap + 2), "it ends above where it begins"
    if mode is Mode.PLAIN:
        if lost or gap >= state.width:
            text = f"{lost} rows are lost, the widest gap is {gap} of {state.width}"
            yield Event.LOAD_FELL, state, Arg(), f"a rebuild that cannot end: {text}"
        if gap <= state.width:
            text = f"the widest gap is {gap} of {state.width}"
            yield Event.STASH_DROPPED, state, Arg(lost=1, oldest=state.t_launched), text
    elif lost or gap > state.slice_width:
        text = f"{lost} rows are lost, the widest gap is {gap}, a slice {state.slice_width}"
        yield Event.RESEEDED, state, Arg(), text


def wrong_launch(world: World, allowed: Mapping[Mode, frozenset[Phase]]) -> Broken | None:
    """A launch the matrix allows although a row would come to harm, or one it lacks."""
    mode, phases = world.mode, allowed[world.mode]
    if Phase.IDLE not in phases:
        return Broken("MATRIX", f"a rank without rows has nothing to launch in {mode.name}")
    if (Phase.FLUSH in phases) is not (Phase.SEED_EXTEND in phases):
        text = f"drafts of one layer and of several differ in {mode.name}"
        return Broken("MATRIX", f"{text}: one writes gaps by FLUSH, the other by SEED_EXTEND")
    for phase in sorted(phases):
        if world.running and (harm := _harm(world, phase)):
            return Broken("REFUSES", f"{phase.name} is allowed in {mode.name}: {harm}")
    return None


def _harm(world: World, phase: Phase) -> str:
    """What a launch of `phase` would do to the rows that decode, or empty."""
    mode = world.mode
    if phase is Phase.MIXED:
        return "a row that decodes would pass the stash"
    if mode is Mode.DRAINING and phase in (Phase.PLAIN_DECODE, *_SPECULATIVE):
        return "a drain would never end"
    if mode is Mode.SPEC and phase is Phase.PLAIN_DECODE:
        return "it opens a gap where none may be"
    if mode in (Mode.SPEC, Mode.DRAINING) and phase in (Phase.FLUSH, Phase.SEED_EXTEND):
        return "it writes what is there, where the prefix cache may read it"
    if phase in _SPECULATIVE:
        for r in world.running:
            if not r.sat_out and not ROW_PREDICATES["I8"](INT, r.launched):
                return f"a row is not covered and seeded: {r.launched}"
    return ""


__all__ = ["Attempt", "attempts", "wishes", "wrong_launch", "wrongly_answered"]
