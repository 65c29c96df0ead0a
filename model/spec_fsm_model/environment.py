"""What a server may do around the machine, act by act.

An act is what an engine does between two looks at it: a boundary with some load, a launch, a
result, a request that comes or goes.  Which launch comes next is asked of the code that runs
(`planner`); whatever else can happen may happen at any time.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from spec_fsm._rules import Arg, max_gap
from spec_fsm.invariants import insertion_covered
from spec_fsm.modes import Action, Event, Mode, Phase, Pin
from spec_fsm.ops import INT
from spec_fsm_model.claims import Broken
from spec_fsm_model.deeds import NO_ARG, Deeds, grown, kept_rows, oldest_without, put, takes_part
from spec_fsm_model.planner import LOADS
from spec_fsm_model.rules import Refused
from spec_fsm_model.world import NOTHING, Cached, Request, Stage, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Act(NamedTuple):
    """One act.  row: index of the request it is about, -1 for none.  what: its variant."""

    name: str
    row: int = -1
    what: str = ""

    def __str__(self) -> str:
        row = "" if self.row < 0 else f" row {self.row}"
        return f"{self.name}{row}{f' ({self.what})' if self.what else ''}"


class Environment(Deeds):
    """All that can happen next in a world, within `bounds`, under `rules`."""

    def successors(self, world: World) -> Iterator[tuple[Act, World | Broken]]:
        """Every act that is possible, with the world after it or the claim it breaks."""
        for act, deed in self._acts(world):
            try:
                after: World | Broken = self.canonical(deed())
            except Broken as error:
                after = error
            yield act, after

    def _acts(self, world: World) -> Iterator[tuple[Act, Callable[[], World]]]:
        # A row whose last token was processed leaves before anything else happens.
        for i, r in enumerate(world.rows):
            if r.ending == 1 and not r.flying:
                yield self._leave(world, i, Event.FINISHED)
                return
        yield from self._operator(world)
        if world.flights:
            yield from self._results(world)
        yield from self._requests(world)
        yield from self._launches(world)

    # -- operator, load, caches -----------------------------------------------------------

    def _operator(self, world: World) -> Iterator[tuple[Act, Callable[[], World]]]:
        for name, load in LOADS.items():
            yield Act("boundary", what=f"load {name}"), partial(self._boundary, world, load)
        for pin in Pin:
            if self.bounds.pins and pin is not world.policy.pin:
                policy = world.policy._replace(pin=pin)
                yield Act("pin", what=pin.name), partial(world._replace, policy=policy)
        # Not under a prompt that is being computed: the engine sees to that, it has joined no row.
        if not any(r.stage != Stage.RUNNING and r.settled.committed for r in world.rows):
            yield Act("flush the prefix cache"), partial(self._cache_flushed, world)
        yield Act("load new weights"), partial(self._weights_changed, world)

    def _boundary(self, world: World, load: int) -> World:
        event, waiting, policy = self.planner.due(world.policy, world.mode, load)
        world = world._replace(policy=policy)
        if event is None:
            return world
        try:
            return self.follow(world._replace(state=world.state._replace(dwell=waiting)), event)
        except Refused:
            return world  # held; the next boundary asks again

    def _cache_flushed(self, world: World) -> World:
        try:
            after = self.follow(world, Event.CACHE_FLUSHED)
        except Refused as error:
            if world.running:
                return world
            raise Broken("CACHE", f"refused without a row: {error}") from None
        if world.running:
            raise Broken("CACHE", f"{len(world.running)} rows live")
        return after._replace(cached=Cached())

    def _weights_changed(self, world: World) -> World:
        rows = world.rows
        stale = [i for i in kept_rows(world) if not rows[i].launched.seeded]
        oldest = oldest_without(world, stale)
        forget = self.table.row_effect(world.mode, Event.WEIGHTS_CHANGED)
        after = self.fact(world, Event.WEIGHTS_CHANGED, Arg(lost=len(stale), oldest=oldest))
        if not forget:
            return after

        def forgets(r: Request, i: int) -> Request:
            if r.stage != Stage.RUNNING:
                return r
            point = max(r.base, world.state.f_launched) if i in stale else r.point
            settled = r.settled if world.flights else self.table.row(forget, r.settled, NO_ARG)
            launched = self.table.row(forget, r.launched, NO_ARG)
            return r._replace(point=point, launched=launched, settled=settled)

        after = after._replace(rows=tuple(forgets(r, i) for i, r in enumerate(rows)))
        if not world.flights:
            return after
        last = world.flights[-1]._replace(forget=forget)
        return after._replace(flights=(*world.flights[:-1], last))

    # -- requests -------------------------------------------------------------------------

    def _requests(self, world: World) -> Iterator[tuple[Act, Callable[[], World]]]:
        if len(world.rows) < self.bounds.rows:
            yield Act("admit a request"), partial(self._admit, world, 0)
            if world.cached.positions:
                # All of what is cached, but for the one position that a prefill has to compute.
                hit = min(world.cached.positions, self.bounds.origin - 1)
                yield Act("admit a request", what="prefix hit"), partial(self._admit, world, hit)
        for i, r in enumerate(world.rows):
            if r.stage != Stage.RUNNING:
                if r.stage == Stage.ADMITTED:
                    yield Act("prefill a chunk", i), partial(self._chunk, world, i)
                yield Act("prefill the rest", i), partial(self._prefill, world, i, 0)
                if self.bounds.in_flight:
                    ends = partial(self._prefill, world, i, 2)
                    yield Act("prefill the rest", i, "its only token"), ends
                yield self._leave(world, i, Event.ABORTED)
                yield self._leave(world, i, Event.RETRACTED)
                continue
            for event in (Event.FINISHED, Event.ABORTED, Event.RETRACTED):
                yield self._leave(world, i, event)
            if r.flying and not r.ending:
                ends = partial(put, world, i, r._replace(ending=1))
                yield Act("the last token is in flight", i), ends

    def _admit(self, world: World, hit: int) -> World:
        world = self.fact(world, Event.ADMITTED)
        covered = min(hit, world.cached.covered)
        row = NOTHING._replace(committed=hit, covered=covered, stashed=hit, reserved=hit)
        request = Request(Stage.ADMITTED, 0, 0, 0, 0, 0, row, row)
        return world._replace(rows=(*world.rows, request))

    def _chunk(self, world: World, i: int) -> World:
        effect = self.table.row_effect(world.mode, Event.PREFILLED_CHUNK)
        r = self._computed(world.rows[i], effect, 1)
        world = self._prefill_launch(world, Event.PREFILLED_CHUNK, r.settled.committed)
        # The chunk is cached too: a hit on it is a shorter one than on the whole prompt, later.
        return put(world, i, r._replace(stage=Stage.CHUNKED))

    def _prefill(self, world: World, i: int, ending: int) -> World:
        effect = self.table.row_effect(world.mode, Event.PREFILLED)
        r = self._computed(world.rows[i], effect, self.bounds.origin)
        row = r.settled
        world = self._prefill_launch(world, Event.PREFILLED, row.committed)
        r = r._replace(stage=Stage.RUNNING, base=world.state.t_launched, ending=ending)
        world = self.fact(put(world, i, r), Event.MERGED)
        return world._replace(cached=inserted(world.cached, row.committed, row.covered))

    def _computed(self, r: Request, effect: str, tokens: int) -> Request:
        """Target and draft computed `tokens` more of a prompt."""
        before, length = r.launched, r.launched.committed + tokens
        row = self.table.row(effect, before._replace(reserved=length), Arg(length=length))
        row = grown(row, before, tokens)
        if not insertion_covered(INT, row.covered, before.covered + tokens):
            text = f"{row.covered} count as covered, {before.covered} of the prefix are"
            raise Broken("I15", f"{text}, {tokens} were computed")
        return r._replace(launched=row, settled=row)

    def _prefill_launch(self, world: World, event: Event, length: int) -> World:
        allowed = self.allowed(world, Phase.PREFILL)
        world = self.fact(world, Event.LAUNCHED, Arg(allowed=allowed))
        return self.fact(world, event, Arg(length=length))

    def _leave(self, world: World, i: int, event: Event) -> tuple[Act, Callable[[], World]]:
        return Act(event.name.lower(), i), partial(self._left, world, i, event)

    def _left(self, world: World, i: int, event: Event) -> World:
        r = world.rows[i]
        rest = (*world.rows[:i], *world.rows[i + 1 :])
        if r.stage != Stage.RUNNING:
            world = self.fact(world, event, Arg(oldest=world.state.oldest))
            return world._replace(rows=rest)
        length = r.settled.committed - self.planner.settled_gap(r, world.state)
        cached = inserted(world.cached, length, min(length, r.settled.covered))
        world = world._replace(cached=cached)
        arg = Arg(known=1, lost=r.launched.lost, oldest=oldest_without(world, [i]))
        return self.fact(self.fact(world, event, arg)._replace(rows=rest), Event.FILTERED)

    # -- launches -------------------------------------------------------------------------

    def _launches(self, world: World) -> Iterator[tuple[Act, Callable[[], World]]]:
        if not any(takes_part(r) for r in world.rows):
            return
        if world.mode == Mode.DRAINING:
            if not world.flights:
                yield Act("go on after the drain"), partial(self.drained, world)
            return
        if len(world.flights) > self.bounds.in_flight:
            return
        # Asked only where a plan depends on it.
        seeds_due = self.bounds.seed_ahead > 0 and world.seeds_due
        plan = self.planner.plan(world.mode, max_gap(INT, world.state), seeds_due)
        if plan.action is Action.PLAIN:
            flush = f"flush {plan.flush_upper} to {plan.flush_lower}" if plan.flush_upper else ""
            yield Act("launch plain", what=flush), partial(self.plain, world, plan)
        elif plan.action is Action.SPECULATE:
            yield Act("launch speculative"), lambda: self.speculate(self._top_up(world))
        else:
            yield Act("launch reseed"), partial(self.reseed, world)
            if world.policy.failures < self.bounds.failures:
                yield Act("the reseed fails"), partial(self.fact, world, Event.RESEED_FAILED)

    def _results(self, world: World) -> Iterator[tuple[Act, Callable[[], World]]]:
        if world.flights[0].action == Action.PLAIN:
            yield Act("a plain result"), partial(self.settle, world, ())
            return
        rows = len([r for r in world.rows if r.flying & 1])
        # The fewest and the most tokens a row can accept, in every combination.
        for accepted in product((1, self.bounds.shape.num_steps + 1), repeat=rows):
            what = f"accepted {', '.join(str(n) for n in accepted) or 'by rows that left'}"
            yield Act("a speculative result", what=what), partial(self.settle, world, accepted)


def inserted(cached: Cached, positions: int, covered: int) -> Cached:
    """What the cache holds after a row left `positions` of its own there."""
    other = Cached(positions, covered)
    return max(cached, other, key=lambda c: (c.positions - c.covered, c.positions))


__all__ = ["Act", "Environment", "inserted"]
