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
          missing before that launch (`Lifecycle.plan_decode`; a test asks it).
SIT OUT   a row whose last token is in flight sits out at most one launch, and leaves before that
          launch settles or another is issued (`Lifecycle.plan_decode`, I7).
RESERVE   rows own `laws.reserve` slots beyond what they committed before a decode launch, and
          one is issued only while at most one is in flight (the engine; I5 alone leans on it).
ACCEPT    a verify accepts 1 to d tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import z3

from spec_fsm._rules import Arg, RowState
from spec_fsm.invariants import STATE_PREDICATES
from spec_fsm.modes import LEAVING, Event, Mode, Phase
from spec_fsm_model.prove_claims import gap
from spec_fsm_model.symbolic import Z3, Sat, Scene, Stage, arg, scene, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm._rules import State
    from spec_fsm._table import Edge
    from spec_fsm.ops import Term
    from spec_fsm_model.rules import Rules

SPECULATIVE = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND)
NOTHING = RowState(0, 0, 0, 0, 0, 0)
_SET = ("width", "slice_width", "dwell")
# The server does these in its own modes; no other mode needs an edge for them.
_ONLY_IN = {
    Event.DRAINED: (Mode.DRAINING,),
    Event.RESEEDED: (Mode.RESEEDING,),
    Event.RESEED_FAILED: (Mode.RESEEDING,),
    Event.SLICE_DONE: (Mode.RESEEDING,),
    Event.FLUSHED: (Mode.PLAIN,),
    Event.STASH_DROPPED: (Mode.PLAIN, Mode.RESEEDING),
}
PROMISES = {
    "NO HOLE": "A flush starts at or below what is covered.",
    "SLICE FITS": "What a reseed writes of a row fits one slice.",
    "CACHE": "The prefix cache is emptied while no row lives.",
    "DRAINED IS IDLE": "A drain that is over changes nothing but the mode.",
}
_FLUSHES = {1: (Mode.PLAIN, Event.FLUSHED), 2: (Mode.RESEEDING, Event.SLICE_DONE)}


@dataclass(frozen=True)
class Step:
    """One way an edge is followed; edge is None for the end of a plain launch without a flush.

    happened: what must be so for the event to be a fact; None if it is a wish that may be refused.
    promises: what must hold of the step itself, by name.
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

    @property
    def name(self) -> str:
        """Mode, event and variant."""
        event = "LAUNCH ENDS" if self.event is None else self.event.name
        variant = f" ({self.variant})" if self.variant else ""
        return f"{event} in {self.before.mode.name}{variant}"


class Steps:
    """Makes the steps of `rules`."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.reads: list[tuple[str, Any, Any]] = []
        """What was read of the rules: the name of the mapping, the key, the value."""

    def of(self, mode: Mode, event: Event) -> Iterator[Step]:
        """All ways the edge of `event` in `mode` is followed; none if there is no such edge."""
        edge = self._edge(mode, event)
        if edge is not None:
            yield from self.along(edge)

    def along(self, edge: Edge) -> Iterator[Step]:
        """All ways an edge is followed."""
        event = edge.event
        if event is Event.LAUNCHED:
            yield from self._launches(edge)
        elif event in (Event.SETTLED, Event.DECODED):
            yield self._settled(edge) if event is Event.SETTLED else self._decoded(edge)
        elif event in (Event.FLUSHED, Event.SLICE_DONE):
            yield self._flushed(edge)
        elif event is Event.STASH_DROPPED:
            yield from (self._dropped(edge, other) for other in (False, True))
        elif event in (Event.PREFILLED, Event.PREFILLED_CHUNK):
            yield from (self._prefilled(edge, other) for other in (False, True))
        elif event in LEAVING:
            yield from (self._left(edge, other) for other in (False, True))
        elif event is Event.WEIGHTS_CHANGED:
            yield self._weights(edge)
        else:
            yield self._plain_edge(edge)

    def ends(self, mode: Mode) -> Iterator[Step]:
        """A plain launch of `mode` that carries no flush ends; RESEEDING has none (SLICE)."""
        if mode is Mode.PLAIN:
            before = scene(mode, Stage.IN_PLAIN)
            after = self._close(before, before.state, 0, 0)
            contract = [STATE_PREDICATES["WITHIN_STASH"](Z3, before.state)]
            yield Step(None, "", before, after, arg(), contract, {})

    # -- reading the rules ----------------------------------------------------------------

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

    def _begin(self, edge: Edge, stage: Stage = Stage.BOUNDARY) -> tuple[Scene, Arg, Scene]:
        """The scene before, what the event brings, and the scene with the counters moved."""
        before, brings = scene(edge.source, stage), arg()
        state = self._effects(edge, before.state, brings)
        after = replace(before.at(edge.target, Stage.BOUNDARY), state=state)
        return before, brings, after

    # -- the mode, the operator, the batch ------------------------------------------------

    def _plain_edge(self, edge: Edge) -> Step:
        """An edge that brings nothing: mode events, CACHE_FLUSHED, and what only is noted."""
        before, a, after = self._begin(edge)
        guards = self._guards(edge, before.state, a)
        s, r, happened, promises = before.state, before.row, None, {}
        contract: list[Term] = []
        covers = edge.row_effect is not None
        launched = self._on_row(edge, s, r.launched, a)
        if edge.event is Event.DRAINED:
            happened = z3.And(s.unsettled == 0, s.t_settled == s.t_launched)
            settled = self._on_row(edge, s, r.settled, a)
            row = r._replace(launched=launched, settled=settled)
            after = replace(after, row=select(r.running, row, r))
            promises = {"DRAINED IS IDLE": _same(before, after)}
        elif edge.event is Event.RESEEDED:
            happened = gap_of_all(before) <= s.slice_width
            contract = [r.sat == Sat.NO]
            row = r._replace(launched=launched)
            after = replace(after.at(edge.target, Stage.IN_RESEED), row=select(r.running, row, r))
            promises = {"SLICE FITS": self._fits(before)}
        elif edge.event is Event.CACHE_FLUSHED:
            happened = s.rows == 0
            promises = {"CACHE": z3.And(z3.Not(r.running), before.others == 0)}
        elif edge.event in (Event.ADMITTED, Event.FILTERED, Event.MERGED):
            happened = z3.BoolVal(True)
        elif covers:
            after = replace(after, row=select(r.running, r._replace(launched=launched), r))
        if edge.event is Event.RESEED_FAILED:
            happened = z3.BoolVal(True)
        return Step(edge.event, "", before, after, a, contract, guards, edge, happened, promises)

    @staticmethod
    def _fits(s: Scene) -> Term:
        """What is left to write of the row fits one slice."""
        kept = z3.And(s.row.running, z3.Not(s.row.counted))
        return Z3.imp(kept, gap(s) <= s.state.slice_width)

    def _weights(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        if edge.row_effect is None:
            contract = [a.lost == 0, a.oldest == s.oldest]
            return Step(edge.event, "", before, after, a, contract, guards, edge, z3.BoolVal(True))
        launched = self._on_row(edge, s, r.launched, a)
        newly = z3.And(r.running, r.launched.lost == 0, launched.lost == 1)
        more = z3.Int("others that are lost now")
        idle = z3.And(s.t_settled == s.t_launched, s.unsettled == 0)
        settled = select(idle, self._on_row(edge, s, r.settled, a), r.settled)
        row = r._replace(
            launched=launched,
            settled=settled,
            counted=z3.Or(r.counted, newly),
            point=z3.If(newly, Z3.max(r.base, s.f_launched), r.point),
            lost_at=z3.If(newly, s.t_launched, r.lost_at),
            forgot=z3.If(newly, True, r.forgot),
        )
        forget = z3.Store(before.flights.forget, s.t_launched, 1 + edge.source)
        flights = before.flights._replace(forget=select(idle, before.flights.forget, forget))
        after = replace(
            after,
            row=select(r.running, row, r),
            flights=flights,
            others_lost=before.others_lost + more,
        )
        contract = [
            more >= 0,
            more <= before.others - before.others_lost,
            a.lost == more + z3.If(newly, 1, 0),
            *_oldest(before, after, a),
        ]
        happened = z3.BoolVal(True)
        return Step(edge.event, "", before, after, a, contract, guards, edge, happened)

    # -- requests -------------------------------------------------------------------------

    def _prefilled(self, edge: Edge, other: bool) -> Step:
        before, a, after = self._begin(edge)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        contract = [a.length >= 1]
        joins = edge.event is Event.PREFILLED
        if other:
            known = z3.Bool("the other row decodes")
            contract += [a.known == z3.If(known, 1, 0), Z3.imp(known, before.others >= 1)]
            others = before.others + z3.If(known, 0, 1) if joins else before.others
            after, happened = replace(after, others=others), z3.Not(known)
        else:
            reserved = z3.Int("reserved now")
            contract += [a.known == z3.If(r.running, 1, 0), reserved >= a.length]
            row = self._on_row(edge, s, r.launched._replace(reserved=reserved), a)
            new = r._replace(launched=row, settled=row)
            if joins:
                new = new._replace(
                    running=True, base=s.t_launched, counted=False, sat=0, flying=0, forgot=False
                )
            # A row that decodes already is left as it is: the guard has to refuse it.
            after, happened = replace(after, row=select(r.running, r, new)), z3.Not(r.running)
        variant = "another row" if other else ""
        return Step(edge.event, variant, before, after, a, contract, guards, edge, happened)

    def _left(self, edge: Edge, other: bool) -> Step:
        before, a, after = self._begin(edge)
        r = before.row
        if other:
            known, lost = z3.Bools("the_other_decodes the_other_is_lost")
            kept = before.others - before.others_lost
            contract = [
                Z3.imp(lost, z3.And(known, before.others_lost >= 1)),
                Z3.imp(z3.And(known, z3.Not(lost)), kept >= 1),
            ]
            after = replace(
                after,
                others=before.others - z3.If(known, 1, 0),
                others_lost=before.others_lost - z3.If(lost, 1, 0),
            )
        else:
            known, lost, contract = r.running, z3.And(r.running, r.counted), []
            gone = r._replace(
                running=False, counted=False, sat=0, flying=0, launched=NOTHING, settled=NOTHING
            )
            after = replace(after, row=gone)
        contract += [a.known == z3.If(known, 1, 0), a.lost == z3.If(lost, 1, 0)]
        contract += _oldest(before, after, a)
        guards = self._guards(edge, before.state, a)
        variant, happened = "another row" if other else "", z3.BoolVal(True)
        return Step(edge.event, variant, before, after, a, contract, guards, edge, happened)

    # -- launches -------------------------------------------------------------------------

    def _launches(self, edge: Edge) -> Iterator[Step]:
        yield self._launch(edge, "prefill", (Phase.PREFILL,), Stage.BOUNDARY)
        yield self._launch(edge, "plain", (Phase.PLAIN_DECODE,), Stage.BOUNDARY)
        yield self._launch(edge, "plain, sat out", (Phase.PLAIN_DECODE,), Stage.BOUNDARY)
        yield self._launch(edge, "speculative", SPECULATIVE, Stage.BOUNDARY)
        yield self._launch(edge, "reseed", SPECULATIVE, Stage.IN_RESEED)
        yield self._launch(edge, "reseed, sat out", SPECULATIVE, Stage.IN_RESEED)

    def _launch(self, edge: Edge, kind: str, phases: tuple[Phase, ...], stage: Stage) -> Step:
        before, a, after = self._begin(edge, stage)
        plain, speculative = int(kind.startswith("plain")), int(phases is SPECULATIVE)
        allowed_phases = self._read("allowed", edge.source)
        allowed = int(all(p in allowed_phases for p in phases))
        contract = [a.allowed == allowed, a.plain == plain, a.speculative == speculative]
        if plain or speculative:
            contract += self._before_decode(before)
            row, flights = before.row, before.flights
            topped = self._topped(before)
            if "sat out" in kind:
                sat = Sat.PLAIN if plain else Sat.RESEED
                topped = row._replace(sat=z3.If(row.running, int(sat), row.sat))
                contract.append(row.running)
                contract.append(self._last_token_in_flight(before))
            elif plain:
                decode = self._edge(edge.source, Event.DECODED)
                launched = self._on_row(decode, after.state, topped.launched, Arg())
                topped = topped._replace(launched=launched)
            else:
                topped = topped._replace(flying=row.flying + 1)
            if speculative:
                reseeds = 1 if stage is Stage.IN_RESEED else flights.reseeds
                flights = flights._replace(spec_point=after.state.f_launched, reseeds=reseeds)
            row = select(before.row.running, topped, before.row)
            then = Stage.IN_PLAIN if plain else Stage.BOUNDARY
            after = replace(after.at(edge.target, then), row=row, flights=flights)
        guards = self._guards(edge, before.state, a)
        happened = z3.BoolVal(True) if self._planned(edge.source, kind) else None
        return Step(edge.event, kind, before, after, a, contract, guards, edge, happened)

    @staticmethod
    def _planned(mode: Mode, kind: str) -> bool:
        """Whether the server launches this in a mode: a decode launch is its mode's."""
        if kind == "prefill":
            return True
        if kind.startswith("plain"):
            return mode in (Mode.PLAIN, Mode.RESEEDING)
        return mode is Mode.SPEC

    @staticmethod
    def _before_decode(s: Scene) -> list[Term]:
        """SIT OUT, and RESERVE's half about overlap."""
        flying = s.state.unsettled + s.state.t_launched - s.state.t_settled
        return [s.row.sat == Sat.NO, flying <= 1]

    @staticmethod
    def _last_token_in_flight(s: Scene) -> Term:
        return z3.And(s.state.t_settled < s.state.t_launched, s.row.base < s.state.t_launched)

    @staticmethod
    def _topped(s: Scene) -> Any:
        """The row with the slots a decode launch may need (RESERVE)."""
        r = s.row
        reserved = Z3.max(r.settled.reserved, r.settled.committed + s.sizes.reserve)
        return r._replace(
            launched=r.launched._replace(reserved=reserved),
            settled=r.settled._replace(reserved=reserved),
        )

    def _dropped(self, edge: Edge, other: bool) -> Step:
        before, a, after = self._begin(edge, Stage.IN_PLAIN)
        after = after.at(edge.target, Stage.IN_PLAIN)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        if other:
            contract = [before.others - before.others_lost >= 1]
            after = replace(after, others_lost=before.others_lost + 1)
        else:
            contract = [r.running, z3.Not(r.counted), r.base == s.oldest]
            row = r._replace(
                launched=self._on_row(edge, s, r.launched, a),
                counted=True,
                point=Z3.max(r.base, s.f_launched),
                lost_at=s.t_launched,
                forgot=False,
            )
            after = replace(after, row=row)
        contract += [a.lost == 1, *_oldest(before, after, a)]
        happened = z3.Not(STATE_PREDICATES["WITHIN_STASH"](Z3, s))
        variant = "another row" if other else ""
        return Step(edge.event, variant, before, after, a, contract, guards, edge, happened)

    def _flushed(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge, Stage.IN_PLAIN)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        contract = [STATE_PREDICATES["WITHIN_STASH"](Z3, s)]
        if edge.source is Mode.RESEEDING:
            contract.append(a.lower <= gap_of_all(before) - 2)
        held = z3.And(r.running, r.sat != Sat.PLAIN)
        row = r._replace(launched=self._on_row(edge, s, r.launched, a))
        after = replace(after, row=select(held, row, r))
        kind = 1 if edge.event is Event.FLUSHED else 2
        closed = self._close(after, after.state, kind, a.lower)
        kept = z3.And(held, r.launched.lost == 0)
        hole = r.launched.committed - a.upper <= r.launched.covered
        planned = z3.And(a.upper >= gap_of_all(before), a.lower >= 0, a.lower <= a.upper)
        return Step(
            edge.event,
            "",
            before,
            closed,
            a,
            contract,
            guards,
            edge,
            planned,
            {"NO HOLE": Z3.imp(kept, hole)},
        )

    @staticmethod
    def _close(s: Scene, state: State, kind: int, lower: Term) -> Scene:
        """The plain launch is complete: it is in flight, with its flush and its point."""
        f, tick = s.flights, state.t_launched
        flights = f._replace(
            point=z3.Store(f.point, tick, state.f_launched),
            flush=z3.Store(f.flush, tick, kind),
            lower=z3.Store(f.lower, tick, lower),
            forget=z3.Store(f.forget, tick, 0),
        )
        return replace(s.at(s.mode, Stage.BOUNDARY), state=state, flights=flights)

    # -- results --------------------------------------------------------------------------

    def _settled(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r, f = before.state, before.row, before.flights
        cover = self._edge(Mode.RESEEDING, Event.RESEEDED)
        carried = self._on_row(cover, s, r.settled, Arg())
        settled = select(f.reseeds == 1, carried, r.settled)
        row = r._replace(
            launched=self._on_row(edge, s, r.launched, a),
            settled=self._on_row(edge, s, settled, a),
            flying=r.flying - 1,
        )
        held = z3.And(r.running, r.flying == s.unsettled)
        after = replace(after, row=select(held, row, r), flights=f._replace(reseeds=z3.IntVal(0)))
        contract = [
            s.t_settled == s.t_launched,
            r.sat == Sat.NO,
            a.point == f.spec_point,
            a.reseed == f.reseeds,
            a.length >= 1,
            a.length <= before.sizes.num_draft_tokens,
        ]
        guards, happened = self._guards(edge, s, a), s.unsettled > 0
        return Step(edge.event, "", before, after, a, contract, guards, edge, happened)

    def _decoded(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r, f = before.state, before.row, before.flights
        tick = s.t_settled + 1
        settled = self._on_row(edge, s, r.settled, a)
        flush = z3.Select(f.flush, tick)
        brings = Arg(lower=z3.Select(f.lower, tick))
        for kind, key in _FLUSHES.items():
            written = self._on_row(self._edge(*key), s, settled, brings)
            settled = select(flush == kind, written, settled)
        settled = select(r.base < tick, settled, r.settled)
        forgot = z3.Select(f.forget, tick)
        for mode in Mode:
            stale = self._on_row(self._edge(mode, Event.WEIGHTS_CHANGED), s, settled, Arg())
            settled = select(forgot == 1 + mode, stale, settled)
        after = replace(after, row=select(r.running, r._replace(settled=settled), r))
        contract = [
            Z3.imp(r.sat == Sat.PLAIN, tick < s.t_launched),
            a.point == z3.Select(f.point, tick),
        ]
        guards, happened = self._guards(edge, s, a), s.t_settled < s.t_launched
        return Step(edge.event, "", before, after, a, contract, guards, edge, happened)


def can_happen(steps: Steps, mode: Mode, event: Event) -> list[Step]:
    """The ways an event without an edge could happen: as if it had one, without guard or effect."""
    if event in _ONLY_IN and mode not in _ONLY_IN[event]:
        return []
    some = next(iter(steps.rules.edges.values()))
    bare = replace(
        some, source=mode, event=event, target=mode, guards=(), effects=(), row_effect=None
    )
    return [step for step in steps.along(bare) if step.happened is not None]


def initial() -> tuple[Scene, list[Term]]:
    """A server that was just started, and what is known of it."""
    start = scene(Mode.SPEC, Stage.BOUNDARY)
    s, r = start.state, start.row
    zeros = [t for name, t in zip(s._fields, s, strict=True) if name not in _SET]
    zeros += [*r.launched, *r.settled, r.base, r.sat, r.flying, r.point, r.lost_at]
    zeros += [start.others, start.others_lost, start.flights.reseeds]
    facts = [*(z == 0 for z in zeros), z3.Not(r.running), z3.Not(r.counted)]
    sizes = start.sizes
    chosen = [s.width >= 2, s.slice_width >= 2, s.dwell >= 0, sizes.num_draft_tokens >= 2]
    laws = [sizes.need >= sizes.num_draft_tokens, sizes.reserve >= 2 * sizes.need]
    return start, [*facts, *chosen, *laws]


def gap_of_all(s: Scene) -> Term:
    """The largest gap of a row that is not lost, by the counters."""
    return gap(replace(s, row=s.row._replace(base=s.state.oldest)))


def _oldest(before: Scene, after: Scene, a: Arg) -> list[Term]:
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


def _same(before: Scene, after: Scene) -> Term:
    """Counters and row are the same in both scenes."""
    pairs = [*zip(before.state, after.state, strict=True)]
    for view in ("launched", "settled"):
        pairs += zip(getattr(before.row, view), getattr(after.row, view), strict=True)
    return z3.And(*(a == b for a, b in pairs if a is not b))


__all__ = [
    "NOTHING",
    "PROMISES",
    "SPECULATIVE",
    "Step",
    "Steps",
    "can_happen",
    "gap_of_all",
    "initial",
]
