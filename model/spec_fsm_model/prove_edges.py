"""Every edge of a table as a step of a scene: what its event brings, and what it does.

Guards, effects and row effects are those of the `Rules` given, evaluated over z3 terms.  What
stands here is what an engine adds, the same that `deeds` and `environment` do with integers: which
view of which row an edge's row effect is about, in which order results come, and what an event may
bring (`contract`).  A contract never says what a guard says: a result that is not in flight, a row
that joins twice or a launch the mode has no phase for are left to the guards.

Contracts, and who else holds them:

FIFO      results come in launch order, and plain launches in flight are older than speculative ones
          (`Ledger.settle` refuses any other order).
POINT     a result brings the flush point its launch was issued with.
OLDEST    `Arg.oldest` is the tick of the oldest row that is neither lost nor gone afterwards, and
          now without one (`Ledger.oldest_without`).
DROP      a launch drops the oldest rows, and flushes only once nothing is left to drop
          (`Ledger.launch_plain` does both at once).
SLICE     each plain launch of RESEEDING carries a slice, and it leaves less missing than was
          missing before that launch, or nothing (`Lifecycle.plan_decode`; a test asks it).
SIT OUT   any row may sit any speculative launch out.  One that sits out a plain launch or a
          reseed, its last token being in flight, leaves before that launch settles or another is
          issued (`Lifecycle.plan_decode` and `settled`, I7).
HELD      a result is of the rows its launch held: of a reseed's, those it rebuilt.
RESERVE   rows own slots for `ahead` + 1 launches beyond what they committed before a decode launch,
          and one is issued only while at most `ahead` are in flight (the engine; `laws.reserve` is
          that of `ahead` 1, which the adapter's checks hold each launch to).  Only the clauses that
          say so, I5 and ROOM, count on it; the others hold for any number of launches in flight.
ACCEPT    a verify accepts 1 to d tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import z3

from spec_fsm_model.prove_support import gap
from spec_fsm_model.symbolic import Z3, Scene, Stage, arg, scene

if TYPE_CHECKING:
    from spec_fsm._rules import Arg, RowState, State
    from spec_fsm._table import Edge
    from spec_fsm.modes import Event, Mode, Phase
    from spec_fsm.ops import Term
    from spec_fsm_model.rules import Rules

TRUE = z3.BoolVal(True)
PROMISES = {
    "NO HOLE": "A flush starts at or below what is covered.",
    "SLICE FITS": "What a reseed writes of a row fits one slice.",
    "RESEED FIRST": "The launch that reseeds is the oldest speculative one in flight.",
    "MATRIX": "The mode allows the phases that a flush or a reseed launches.",
    "CACHE": "The prefix cache is emptied while no row lives.",
    "OLD WEIGHTS": "A row that needs what was stashed under the old weights is lost.",
    "DRAINED IS IDLE": "A drain that is over changes nothing but the mode.",
}


@dataclass(frozen=True)
class Step:
    """One way an edge is followed; edge is None for the end of a plain launch without a flush.

    happened: what must be so for the event to be a fact; None if it is a wish that may be refused.
    promises: what must hold of the step itself, by name.  reserve: the contract RESERVE.
    """

    event: Event | None
    variant: str
    before: Scene
    after: Scene
    brings: Arg
    contract: list[Term]
    guards: dict[str, Term]
    edge: Edge | None = None
    happened: Term | None = None
    promises: dict[str, Term] = field(default_factory=dict)
    reserve: Term = TRUE

    @property
    def name(self) -> str:
        """Mode, event and variant."""
        event = "LAUNCH ENDS" if self.event is None else self.event.name
        variant = f" ({self.variant})" if self.variant else ""
        return f"{event} in {self.before.mode.name}{variant}"


class Reading:
    """Reads `rules` over z3 terms, and remembers what it read."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.reads: list[tuple[str, Any, Any]] = []
        """What was read of the rules: the name of the mapping, the key, the value."""

    def _read(self, what: str, key: Any) -> Any:
        found = getattr(self.rules, what).get(key)
        self.reads.append((what, key, found))
        return found

    def _guards(self, edge: Edge, s: State, a: Arg) -> dict[str, Term]:
        guards = {name: self._read("guards", name)(Z3, s, a) for name in edge.guards}
        return {n: z3.BoolVal(g) if isinstance(g, bool) else g for n, g in guards.items()}

    def _effects(self, edge: Edge, s: State, a: Arg) -> State:
        for name in edge.effects:
            s = self._read("effects", name)(Z3, s, a)
        return s

    def _on_row(self, edge: Edge | None, s: State, r: RowState, a: Arg) -> RowState:
        """The row effect of an edge; the row as it is without one."""
        if edge is None or edge.row_effect is None:
            return r
        row: RowState = self._read("row_effects", edge.row_effect)(Z3, s, r, a)
        return row

    def _edge(self, mode: Mode, event: Event) -> Edge | None:
        edge: Edge | None = self._read("edges", (mode, event))
        return edge

    def _allows(self, mode: Mode, *phases: Phase) -> Term:
        """Whether the matrix has launches of these phases in a mode."""
        allowed = self._read("allowed", mode)
        return z3.BoolVal(all(phase in allowed for phase in phases))

    def _begin(self, edge: Edge, stage: Stage = Stage.BOUNDARY) -> tuple[Scene, Arg, Scene]:
        """The scene before, what the event brings, and the scene with the counters moved."""
        before, brings = scene(edge.source, stage), arg()
        state = self._effects(edge, before.state, brings)
        after = replace(before.at(edge.target, Stage.BOUNDARY), state=state)
        return before, brings, after


def nothing_flies(s: Scene) -> Term:
    """No result is in flight."""
    return z3.And(s.flights.plain == 0, s.flights.speculative == 0)


def gap_of_all(s: Scene) -> Term:
    """The largest gap of a row that is not lost, by the counters."""
    return gap(replace(s, row=s.row._replace(base=s.state.oldest)))


def oldest_after(before: Scene, after: Scene, a: Arg) -> list[Term]:
    """OLDEST, for an event after which some rows are gone or lost."""
    r = after.row
    kept = z3.And(r.running, z3.Not(r.counted))
    none = z3.And(z3.Not(kept), after.others == after.others_lost)
    now = before.state.t_launched
    return [
        before.state.oldest <= a.oldest,
        a.oldest <= now,
        Z3.imp(kept, a.oldest <= r.base),
        Z3.imp(none, a.oldest == now),
    ]


def unchanged(before: Scene, after: Scene) -> Term:
    """Counters and row are the same in both scenes."""
    pairs = [*zip(before.state, after.state, strict=True)]
    for view in ("launched", "settled"):
        pairs += zip(getattr(before.row, view), getattr(after.row, view), strict=True)
    return z3.And(*(a == b for a, b in pairs if a is not b))


__all__ = [
    "PROMISES",
    "TRUE",
    "Reading",
    "Step",
    "gap_of_all",
    "nothing_flies",
    "oldest_after",
    "unchanged",
]
