"""The state the model explores: a server's mode, counters, rows and launches in flight.

It is a value, and finite: what only ever grows is kept relative, or saturates where nothing can
tell the difference any more.

- Ticks count from the last settled plain launch (`t_settled` is 0), positions of a row from its
  settled length, which reads `Bounds.origin`.  Rules look at differences only.
- Points in time older than the stash by three ticks, and gaps that much wider than it, read as
  just that old and that wide.  No rule compares with anything beyond the width plus what can be
  in flight; `tests/test_model_explore.py` holds guards and effects to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from spec_fsm._rules import RowState, State, unseeded
from spec_fsm.laws import Shape
from spec_fsm.modes import Action, Mode, Pin
from spec_fsm.ops import INT, Ops, Term

SHAPE = Shape(topk=1, num_steps=1, num_draft_tokens=2)
NOTHING = RowState(0, 0, 0, 0, 0, 0)


class Stage(IntEnum):
    """How far a request has come."""

    ADMITTED = 0
    """It has a row, nothing of it is computed."""
    CHUNKED = 1
    """A part of its prompt is computed."""
    RUNNING = 2
    """It decodes."""


@dataclass(frozen=True)
class Bounds:
    """What a search is bounded by; everything else is free.

    rows: requests that live at once (any number over time).  in_flight: results that may be
    unprocessed when the next launch is issued: 1 with overlap scheduling, 0 without.  failures:
    reseeds that fail in a row.  width, flush_every, slice_width, seed_ahead: the stash, see
    StashConfig.  pins: whether the operator pins modes.  skew: 0 for one rank; else there are two,
    and one may be that many acts ahead of the other.
    """

    name: str
    rows: int = 2
    in_flight: int = 1
    failures: int = 0
    width: int = 2
    flush_every: int = 0
    slice_width: int = 2
    seed_ahead: int = 0
    dwell: int = 0
    pins: bool = False
    skew: int = 0
    shape: Shape = SHAPE

    def stated(self) -> str:
        """The bounds in one line."""
        return (
            f"{self.rows} at once, {self.in_flight + 1} launches in flight, stash {self.width}, "
            f"slice {self.slice_width}, flush every {self.flush_every}, dwell {self.dwell}, "
            f"{self.failures} failures in a row, pins {'yes' if self.pins else 'no'}"
            f"{f', seeds ahead with {self.seed_ahead}' if self.seed_ahead else ''}"
            f"{f', two ranks, {self.skew} acts apart' if self.skew else ''}"
        )

    @property
    def origin(self) -> int:
        """Age at which figures saturate, and the length every settled row reads as."""
        return self.width + self.in_flight + 3


class Request(NamedTuple):
    """One request.

    base: tick at which it joined.  point: tick it is covered up to for good once it is lost, else
    0.  flying: bit i is set if it takes part in the i-th oldest launch in flight.  ending: 1 once
    its last token is in flight, 2 while its only token is in the result of its prefill and no
    launch has left it out.  sat_out: 1 after a plain launch or a reseed that left it out for that.
    """

    stage: Stage
    base: int
    point: int
    flying: int
    ending: int
    sat_out: int
    launched: RowState
    settled: RowState


class Flight(NamedTuple):
    """A decode launch whose result was not processed yet.

    point: flush point it was issued with.  carried: row effect it carries besides its own (a
    flush, or what RESEEDED does), with `lower` as its argument.  forget: the row effect of a
    weight change that came behind it, or empty.
    """

    action: Action
    point: int
    carried: str = ""
    lower: int = 0
    forget: str = ""


class PolicyState(NamedTuple):
    """The counters of `spec_fsm.policy.Policy`."""

    dwell: int
    backoff: int
    failures: int
    pin: Pin


class Cached(NamedTuple):
    """The prefix that the cache holds, in the scale of the row that left it there.

    positions: with target KV.  covered: those of them, from the first on, that have draft KV too.
    Of several insertions the one that lacks most, and then the longest: a request may begin with
    any of them.
    """

    positions: Term = 0
    covered: Term = 0


class World(NamedTuple):
    """Everything the search distinguishes, at a moment between two acts of the server.

    ahead: 1 after a plain launch that made the seeds.
    """

    mode: Mode
    state: State
    policy: PolicyState
    rows: tuple[Request, ...]
    flights: tuple[Flight, ...]
    cached: Cached = Cached()
    ahead: int = 0

    @property
    def seeds_due(self) -> bool:
        """Whether a row has no seed, and none was made ahead."""
        return bool(unseeded(INT, self.state)) and not self.ahead

    @property
    def running(self) -> tuple[Request, ...]:
        """The requests that decode."""
        return tuple(r for r in self.rows if r.stage == Stage.RUNNING)


def start(bounds: Bounds) -> World:
    """A server that was just started."""
    counters = dict.fromkeys(State._fields, 0)
    state = State(**counters)._replace(width=bounds.width, slice_width=bounds.slice_width)
    return World(Mode.SPEC, state, PolicyState(0, 0, 0, Pin.AUTO), (), ())


TICKS = (
    "oldest",
    "t_launched",
    "t_settled",
    "f_launched",
    "f_settled",
    "seed_launched",
    "seed_settled",
)


class Canonical:
    """Brings worlds into the form described above; remembers the parts it has seen."""

    ops: Ops = INT

    def __init__(self, bounds: Bounds) -> None:
        self._age = bounds.origin
        self._requests: dict[tuple[Request, int], Request] = {}
        self._states: dict[State, State] = {}

    def __call__(self, world: World) -> World:
        """The representative of `world`."""
        shift = world.state.t_settled
        rows = tuple(sorted(self.request(r, shift) for r in world.rows))
        state = self.state(world.state)
        flights = tuple(f._replace(point=self._tick(f.point, shift)) for f in world.flights)
        cached = self._cached(world.cached)
        return World(world.mode, state, world.policy, rows, flights, cached, world.ahead)

    def _cached(self, cached: Cached) -> Cached:
        """The prefix from its end: no longer than the length every settled row reads as."""
        back = self.ops.max(0, cached.positions - self._age)
        return Cached(cached.positions - back, self.ops.max(0, cached.covered - back))

    def _tick(self, tick: int, shift: int) -> int:
        shifted: int = self.ops.max(tick - shift, -self._age)
        return shifted

    def state(self, state: State) -> State:
        """Counters with ticks counted from `t_settled`; the dwell is the policy's, and 0 here."""
        found = self._states.get(state)
        if found is None:
            found = self._states[state] = self._state(state)
        return found

    def _state(self, state: State) -> State:
        shift = state.t_settled
        ticks = {name: self._tick(getattr(state, name), shift) for name in TICKS}
        return state._replace(**ticks, dwell=0)

    def request(self, request: Request, shift: int) -> Request:
        """A request with ticks counted from `shift` and positions from its settled length."""
        key = (request, shift)
        found = self._requests.get(key)
        if found is None:
            found = self._requests[key] = self._request(request, shift)
        return found

    def _request(self, r: Request, shift: int) -> Request:
        if r.stage != Stage.RUNNING:
            return r
        back = r.settled.committed - self._age
        return r._replace(
            base=self._tick(r.base, shift),
            point=self._tick(r.point, shift) if r.launched.lost else 0,
            launched=self._row(r.launched, back),
            settled=self._row(r.settled, back),
        )

    def _row(self, row: RowState, back: int) -> RowState:
        return row._replace(
            committed=row.committed - back,
            covered=self.ops.max(0, row.covered - back),
            stashed=row.stashed - back,
            reserved=row.reserved - back,
        )


__all__ = [
    "NOTHING",
    "TICKS",
    "Bounds",
    "Cached",
    "Canonical",
    "Flight",
    "PolicyState",
    "Request",
    "Stage",
    "World",
    "start",
]
