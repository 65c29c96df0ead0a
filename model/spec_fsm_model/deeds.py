"""Launches and results, each a handful of edges of the table, and how any edge is followed.

A *fact* (a result came, a row left) that the table refuses breaks ACCEPTED: what has happened
cannot be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spec_fsm import laws
from spec_fsm._rules import Arg
from spec_fsm.invariants import STATE_PREDICATES
from spec_fsm.modes import MODE_EVENTS, Action, Event, Mode, Phase
from spec_fsm.ops import INT
from spec_fsm_model.claims import Broken
from spec_fsm_model.planner import Planner
from spec_fsm_model.rules import RULES, Refused, Rules, Table
from spec_fsm_model.world import Canonical, Flight, Request, Stage, World

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec_fsm._rules import RowState
    from spec_fsm.plan import Plan
    from spec_fsm_model.world import Bounds

SPECULATIVE_PHASES = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND)
NO_ARG = Arg()
_ENDS_A_REBUILD = (Event.WEIGHTS_CHANGED, Mode.RESEEDING)


class Step(NamedTuple):
    """An edge of the table that an act followed."""

    source: Mode
    event: Event
    target: Mode

    def __str__(self) -> str:
        to = "" if self.source is self.target else f" -> {self.target.name}"
        return f"{self.event.name} in {self.source.name}{to}"


class Deeds:
    """What an engine does with a decode batch, on worlds, under `rules`.

    steps: the edges followed since the list was last cleared; for telling a story.
    """

    def __init__(self, bounds: Bounds, rules: Rules = RULES) -> None:
        self.bounds = bounds
        self.table = Table(rules, bounds.width)
        self.planner = Planner(bounds)
        self.canonical = Canonical(bounds)
        self.steps: list[Step] = []
        self._reserve = laws.reserve(bounds.shape)

    # -- following the table --------------------------------------------------------------

    def follow(self, world: World, event: Event, arg: Arg = NO_ARG) -> World:
        """Follow an edge; raises Refused, and Broken if it may not change the mode and does."""
        mode, state = self.table.step(world.mode, event, world.state, arg)
        self.steps.append(Step(world.mode, event, mode))
        policy = world.policy
        if mode != world.mode:
            if event not in MODE_EVENTS and (event, world.mode) != _ENDS_A_REBUILD:
                raise Broken("KINDS", f"{event.name} leads from {world.mode.name} to {mode.name}")
            policy = self.planner.fired(policy, event, mode)
        return world._replace(mode=mode, state=state, policy=policy)

    def fact(self, world: World, event: Event, arg: Arg = NO_ARG) -> World:
        """Follow the edge of something that has happened; raises Broken."""
        try:
            return self.follow(world, event, arg)
        except Refused as error:
            text = f"{event.name} happened in {world.mode.name} and is refused: {error}"
            raise Broken("ACCEPTED", text) from None

    def allowed(self, world: World, *phases: Phase) -> int:
        """1, `Arg.allowed`, if the mode has launches of these phases; else raises Broken."""
        allowed = self.table.rules.allowed[world.mode]
        for phase in phases:
            if phase not in allowed:
                raise Broken("MATRIX", f"{world.mode.name} launches {phase.name}")
        return 1

    def drained(self, world: World) -> World:
        """The drain is over and a decode batch waits."""
        effect = self.table.row_effect(world.mode, Event.DRAINED)
        return self._cover(self.fact(world, Event.DRAINED), effect, settled=True)

    def _cover(self, world: World, effect: str, *, settled: bool) -> World:
        """A mode event's row effect on every running row, in one view or in both."""

        def covers(r: Request) -> Request:
            # A row whose last token is in flight is in no launch any more: nothing rebuilds it.
            if not (takes_part(r) or (settled and r.stage == Stage.RUNNING)):
                return r
            view = self.table.row(effect, r.settled, NO_ARG) if settled else r.settled
            return r._replace(launched=self.table.row(effect, r.launched, NO_ARG), settled=view)

        return world._replace(rows=tuple(covers(r) for r in world.rows))

    def _top_up(self, world: World) -> World:
        """Every row owns `laws.reserve` slots beyond its settled length before a decode launch."""

        def tops(r: Request) -> Request:
            if not takes_part(r):
                return r
            reserved = max(r.settled.reserved, r.settled.committed + self._reserve)
            launched = r.launched._replace(reserved=reserved)
            return r._replace(launched=launched, settled=r.settled._replace(reserved=reserved))

        return world._replace(rows=tuple(tops(r) for r in world.rows))

    def speculate(self, world: World, carried: str = "") -> World:
        """A speculative round is launched; carried: the row effect of the reseed it carries."""
        allowed = self.allowed(world, *SPECULATIVE_PHASES)
        world = self.fact(world, Event.LAUNCHED, Arg(allowed=allowed, speculative=1))
        action = Action.RESEED if carried else Action.SPECULATE
        flight = Flight(action, world.state.f_launched, carried)
        return _take_off(world, flight)._replace(ahead=0)

    def reseed(self, world: World) -> World:
        """The rest of the gaps, the seeds and the first speculative round go out as one."""
        self.allowed(world, Phase.FLUSH, Phase.SEED_EXTEND)
        effect = self.table.row_effect(world.mode, Event.RESEEDED)
        world = self._cover(self.fact(world, Event.RESEEDED), effect, settled=False)
        return self.speculate(self._top_up(world), effect or "ROW_COVER")

    def plain(self, world: World, plan: Plan) -> World:
        """A plain launch, with what it drops from the stash and the flush it carries."""
        allowed, kept = self.allowed(world, Phase.PLAIN_DECODE), kept_rows(world)
        decode = self.table.row_effect(world.mode, Event.DECODED)
        world = self.fact(self._top_up(world), Event.LAUNCHED, Arg(allowed=allowed, plain=1))
        world = self._in_batch(world, decode, NO_ARG)
        world = self._drop(world, kept)
        flush = ""
        if plan.flush_upper:
            self.allowed(world, Phase.FLUSH)
            if plan.seeds:
                self.allowed(world, Phase.SEED_EXTEND)
            event = Event.FLUSHED if world.mode == Mode.PLAIN else Event.SLICE_DONE
            flush = self.table.row_effect(world.mode, event)
            arg = Arg(upper=plan.flush_upper, lower=plan.flush_lower)
            world = self.fact(world, event, arg)
            world = self._in_batch(world, flush, Arg(lower=plan.flush_lower))
        flight = Flight(Action.PLAIN, world.state.f_launched, flush, plan.flush_lower)
        return _take_off(world, flight)._replace(ahead=int(plan.seeds))

    def _in_batch(self, world: World, effect: str, arg: Arg) -> World:
        """A row effect on the launched view of the rows a launch holds."""
        rows = (
            r._replace(launched=self.table.row(effect, r.launched, arg)) if takes_part(r) else r
            for r in world.rows
        )
        return world._replace(rows=tuple(rows))

    def _drop(self, world: World, kept: Sequence[int]) -> World:
        """STASH_DROPPED for each row whose gap outgrew the stash, the oldest first.

        kept: rows that were not lost before this launch.
        """
        left = sorted(kept, key=lambda i: world.rows[i].base)
        while not STATE_PREDICATES["WITHIN_STASH"](INT, world.state):
            if not left:
                raise Broken("WITHIN_STASH", "no row is left to drop")
            i, state = left.pop(0), world.state
            oldest = min((world.rows[n].base for n in left), default=state.t_launched)
            effect = self.table.row_effect(world.mode, Event.STASH_DROPPED)
            world = self.fact(world, Event.STASH_DROPPED, Arg(lost=1, oldest=oldest))
            r = world.rows[i]
            launched = self.table.row(effect, r.launched, NO_ARG)
            point = max(r.base, state.f_launched)
            world = put(world, i, r._replace(point=point, launched=launched))
        return world

    # -- results --------------------------------------------------------------------------

    def settle(self, world: World, accepted: tuple[int, ...]) -> World:
        """The oldest result is processed; accepted: of each of its rows, for a speculative one."""
        flight = world.flights[0]
        plain = flight.action == Action.PLAIN
        event = Event.DECODED if plain else Event.SETTLED
        effect = self.table.row_effect(world.mode, event)
        reseed = 1 if flight.action == Action.RESEED else 0
        arg = Arg(point=flight.point, reseed=reseed, length=1)
        after = self.fact(world, event, arg)
        lengths = iter(accepted)
        rows = []
        for r in world.rows:
            if r.flying & 1:
                settle = self._settle_plain if plain else self._settle_speculative
                r = settle(r, flight, effect, Arg(length=0 if plain else next(lengths)))
            if flight.forget and r.stage == Stage.RUNNING:
                r = r._replace(settled=self.table.row(flight.forget, r.settled, NO_ARG))
            rows.append(r._replace(flying=r.flying >> 1))
        return after._replace(rows=tuple(rows), flights=world.flights[1:])

    def _settle_plain(self, r: Request, flight: Flight, effect: str, arg: Arg) -> Request:
        settled = grown(self.table.row(effect, r.settled, arg), r.settled, 1)
        return r._replace(settled=self.table.row(flight.carried, settled, Arg(lower=flight.lower)))

    def _settle_speculative(self, r: Request, flight: Flight, effect: str, arg: Arg) -> Request:
        settled = self.table.row(flight.carried, r.settled, NO_ARG)
        launched = grown(self.table.row(effect, r.launched, arg), r.launched, arg.length)
        settled = grown(self.table.row(effect, settled, arg), r.settled, arg.length)
        return r._replace(launched=launched, settled=settled)


def grown(row: RowState, before: RowState, tokens: int) -> RowState:
    """`row`, which has committed `tokens` more than `before`; raises Broken where it has not."""
    if row.committed != before.committed + tokens:
        text = f"{tokens} tokens computed, committed goes from {before.committed}"
        raise Broken("I9", f"{text} to {row.committed}")
    if row.stashed < before.stashed:
        raise Broken("RING", f"states from {before.stashed} were kept, from {row.stashed} count")
    return row


def put(world: World, i: int, request: Request) -> World:
    """`world` with its i-th request replaced."""
    return world._replace(rows=(*world.rows[:i], request, *world.rows[i + 1 :]))


def takes_part(r: Request) -> bool:
    """Whether a decode launch holds the row: it decodes, and its last token is not in flight."""
    return r.stage == Stage.RUNNING and not r.ending


def kept_rows(world: World, without: Iterable[int] = ()) -> list[int]:
    """Indices of the rows that decode and are not lost."""
    gone = set(without)
    return [
        i
        for i, r in enumerate(world.rows)
        if r.stage == Stage.RUNNING and not r.launched.lost and i not in gone
    ]


def oldest_without(world: World, gone: Iterable[int]) -> int:
    """What `State.oldest` is once the rows `gone` are lost or have left."""
    kept = kept_rows(world, gone)
    return min((world.rows[i].base for i in kept), default=world.state.t_launched)


def _take_off(world: World, flight: Flight) -> World:
    """`flight` is in flight, with every row that takes part; the others sit it out.

    A speculative launch changes nothing of a row that sits it out: covered and seeded, it stays so.
    After a plain one the counters count it as missing one more, and its seed.
    """
    bit, counts = 1 << len(world.flights), flight.action != Action.SPECULATE

    def takes(r: Request) -> Request:
        if takes_part(r):
            return r._replace(flying=r.flying | bit)
        if r.ending and counts:
            seeded = 0 if flight.action == Action.PLAIN else r.launched.seeded
            r = r._replace(sat_out=1, launched=r.launched._replace(seeded=seeded))
        # The result of its prefill is processed next.
        return r._replace(ending=1) if r.ending else r

    rows = tuple(takes(r) for r in world.rows)
    return world._replace(rows=rows, flights=(*world.flights, flight))


__all__ = [
    "NO_ARG",
    "SPECULATIVE_PHASES",
    "Deeds",
    "Step",
    "grown",
    "kept_rows",
    "oldest_without",
    "put",
    "takes_part",
]
