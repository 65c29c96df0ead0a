"""Replays trace lines one by one: counters by the table's effects, rows by the ledger's methods.

Both are compared after every line, so a replay also holds the lazy ledger against the table on
what a real worker did.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from spec_fsm._rules import Arg, State
from spec_fsm.errors import ConfigError
from spec_fsm.launch_laws import Launch, violation
from spec_fsm.laws import Shape
from spec_fsm.ledger import Ledger
from spec_fsm.modes import LEAVING, MODE_EVENTS, Action, Event, Hidden, Mode, Phase, SpecInfo
from spec_fsm.ops import INT
from spec_fsm.plan import StashConfig
from spec_fsm.policy import PolicyConfig
from spec_fsm_model.planner import plans
from spec_fsm_model.rules import RULES
from spec_fsm_model.trace_fields import (
    ACTIONS,
    EVENTS,
    HIDDEN,
    INFOS,
    MODE_NAMES,
    PHASES,
    Mismatch,
    check_fields,
    count,
    named,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm.plan import Plan

_NO_ARG = Arg()
_MODE_EVENTS = frozenset(MODE_EVENTS) - {Event.SLICE_DONE}
_RAGGED = frozenset({Phase.PREFILL, Phase.MIXED, Phase.FLUSH})
_OF_A_PLAN = frozenset(Phase) - {Phase.PREFILL, Phase.MIXED, Phase.IDLE}
_PHASES = {
    True: frozenset({Phase.PLAIN_DECODE}),
    False: frozenset({Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND}),
}
"""Phases of a decode launch, by whether it is plain."""
_OTHER_REASONS = ("row ", "results come in launch order")
_NOT_TRACED = "DWELL_OVER"


class Flight(NamedTuple):
    """A decode launch in flight, as its LAUNCHED line and the flush after it told."""

    action: Action
    batch: int
    point: int


class Replay:
    """The model's side of one trace; `take` each line in order.

    edges: how often each edge of the table was followed.  launches: launches held against their
    law.
    """

    def __init__(self) -> None:
        self.edges: Counter[tuple[Mode, Event]] = Counter()
        self.launches = 0
        self._mode = Mode.SPEC
        self._time = 0
        self._flights: deque[Flight] = deque()
        self._due: deque[tuple[Event, dict[str, object]]] = deque()
        self._planned: tuple[Plan, int] | None = None
        self._rows = 0  # rows of the last plan
        self._departed = self._sat_out = 0
        self._chunks: dict[str, int] = {}
        self._kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "start": self._start,
            "event": self._event,
            "plan": self._plan,
            "obs": self._obs,
            "refused": self._refused,
            "violation": self._violation,
        }
        self._apply: dict[Event, Callable[[dict[str, Any], Event], Arg]] = {
            Event.PREFILLED: self._prefilled,
            Event.PREFILLED_CHUNK: self._chunk,
            Event.LAUNCHED: self._launched,
            Event.SETTLED: self._result,
            Event.DECODED: self._result,
            Event.FLUSHED: self._flush,
            Event.SLICE_DONE: self._flush,
            Event.STASH_DROPPED: self._dropped,
            Event.WEIGHTS_CHANGED: self._weights,
            Event.RESEEDED: self._reseeded,
            **dict.fromkeys(LEAVING, self._left),
        }

    def take(self, line: dict[str, Any]) -> None:
        """One line; raises Mismatch, after which the replay is of no more use."""
        now = line.get("t_ns")
        if type(now) is not int or now < self._time:
            raise Mismatch(f"t_ns is {now!r}", f"t_ns: a whole number, {self._time} or more")
        self._time = now
        if self._due and line["kind"] != "event":
            raise Mismatch(f"a line of kind {line['kind']}", self.missing())
        self._kinds[line["kind"]](line)

    def missing(self) -> str:
        """The line that has to come next, or empty."""
        if not self._due:
            return ""
        event, fields = self._due[0]
        return f"event {event.name} with {fields}"

    def _start(self, line: dict[str, Any]) -> None:
        try:
            self._shape = Shape(**line["shape"])
            policy = PolicyConfig(**line["policy"])
            self._stash = stash = StashConfig(**line["stash"])
        except (ConfigError, TypeError, KeyError) as error:
            raise Mismatch(f"settings: {error}", "settings a server can have") from None
        self._ledger = Ledger(stash.width)
        self._state = self._ledger.state(stash.slice_width, 0)
        self._planner = plans(self._shape, policy, stash)

    def _in_mode(self, line: dict[str, Any]) -> None:
        if line.get("mode") != MODE_NAMES[self._mode]:
            raise Mismatch(f"mode is {line.get('mode')!r}", f"mode {self._mode.name}")

    # -- events ---------------------------------------------------------------------------

    def _event(self, line: dict[str, Any]) -> None:
        event: Event = named("event", line, EVENTS)
        self._in_mode(line)
        check_fields(event, line)
        edge = RULES.edges.get((self._mode, event))
        if edge is None:
            raise Mismatch(f"{event.name} in {self._mode.name}", "an event this mode accepts")
        if self._due:
            self._take_due(event, line)
        elif event in (Event.FLUSHED, Event.SLICE_DONE, Event.STASH_DROPPED):
            raise Mismatch(f"{event.name} that no launch made", "another event")
        apply, state = self._apply.get(event), self._state
        arg = _NO_ARG if apply is None else apply(line, event)
        for name in edge.guards:
            if not RULES.guards[name](INT, state, arg):
                raise Mismatch(f"{event.name} although {name} does not hold", f"{name} to hold")
        for name in edge.effects:
            state = RULES.effects[name](INT, state, arg)
        self._mode = edge.target
        self._after(event, line, state)
        self.edges[edge.source, event] += 1

    def _take_due(self, event: Event, line: dict[str, Any]) -> None:
        due, fields = self._due[0]
        if event is not due or any(line.get(k) != v for k, v in fields.items()):
            raise Mismatch(f"event {event.name}", self.missing())
        self._due.popleft()

    def _after(self, event: Event, line: dict[str, Any], state: State) -> None:
        """The state after an event, as the line, the table and the ledger have it."""
        ledger = self._ledger
        if event in (Event.DRAINED, Event.RESEEDED):
            ledger.take(state)
        if event in _MODE_EVENTS and event is not Event.RESEEDED:
            self._planned = None
        self._state = state
        if line.get("to") != MODE_NAMES[self._mode]:
            raise Mismatch(f"to is {line.get('to')!r}", f"to {self._mode.name}")
        if line.get("rows") != state.rows:
            raise Mismatch(f"rows is {line.get('rows')!r}", f"rows {state.rows}")
        if line.get("unsettled") != state.unsettled:
            text = f"unsettled is {line.get('unsettled')!r}"
            raise Mismatch(text, f"unsettled {state.unsettled}")
        if not self._due and (kept := ledger.state(self._stash.slice_width, 0)) != state:
            raise Mismatch(f"the ledger counts {kept}", f"the table's {state}")

    def _prefilled(self, line: dict[str, Any], _: Event) -> Arg:
        rid, length = line["rid"], count(line, "committed", 1)
        if length <= (chunk := self._chunks.pop(rid, 0)):
            raise Mismatch(f"committed is {length}", f"more than the chunk's {chunk}")
        return Arg(known=int(not self._ledger.join(rid)), length=length)

    def _chunk(self, line: dict[str, Any], _: Event) -> Arg:
        rid, length = line["rid"], count(line, "committed", 1)
        if length <= (chunk := self._chunks.get(rid, 0)):
            raise Mismatch(f"committed is {length}", f"more than the last chunk's {chunk}")
        self._chunks[rid] = length
        return Arg(known=int(rid in self._ledger), length=length)

    def _left(self, line: dict[str, Any], _: Event) -> Arg:
        ledger, rid = self._ledger, line["rid"]
        self._chunks.pop(rid, None)
        known, lost = int(rid in ledger), ledger.lost
        same("gap", line["gap"], ledger.leave(rid))
        self._departed += known
        oldest = ledger.state(0, 0).oldest
        return Arg(known=known, lost=lost - ledger.lost, oldest=oldest)

    def _weights(self, line: dict[str, Any], _: Event) -> Arg:
        stale = self._ledger.stale()
        same("lost", line["lost"], len(stale))
        oldest = self._ledger.oldest_without(stale)
        self._ledger.lose(stale)
        return Arg(lost=len(stale), oldest=oldest)

    # -- plans, launches, results ---------------------------------------------------------

    def _plan(self, line: dict[str, Any]) -> None:
        self._in_mode(line)
        mode, rows = self._mode, count(line, "rows", 1)
        if mode is Mode.DRAINING:
            raise Mismatch("a plan in DRAINING", "DRAINED first")
        ledger = self._ledger
        plan: Plan = self._planner(mode, ledger.max_gap, ledger.seeds_due)
        same("action", line.get("action"), ACTIONS[plan.action])
        same("flush", line.get("flush"), [plan.flush_upper, plan.flush_lower])
        if mode is not Mode.SPEC:
            most = self._state.rows + self._departed
            if rows > most or self._sat_out > self._departed:
                raise Mismatch(f"{rows} rows, {self._sat_out} left out before", f"at most {most}")
        self._planned, self._rows = (plan, rows), rows

    def _reseeded(self, _: dict[str, Any], __: Event) -> Arg:
        if self._planned is None or self._planned[0].action is not Action.RESEED:
            raise Mismatch("RESEEDED that was not planned", "a plan RESEED before it")
        return Arg()

    def _launched(self, line: dict[str, Any], _: Event) -> Arg:
        if self._planned is None:
            raise Mismatch("a launch that was not planned", "a plan before it")
        (plan, rows), self._planned = self._planned, None
        action, ledger = plan.action, self._ledger
        same("action", line["action"], ACTIONS[action])
        same("batch", line["batch"], rows)
        same("flush", line["flush"], [plan.flush_upper, plan.flush_lower])
        plain = action is Action.PLAIN
        allowed = int(_PHASES[plain] <= RULES.allowed[self._mode])
        self._sat_out = max(0, self._state.rows - rows) if plain else 0
        self._departed = 0
        if not plain:
            ledger.launch_speculative(action)
            self._flights.append(Flight(action, rows, self._state.f_launched))
            return Arg(allowed=allowed, speculative=1)
        self._due.extend((Event.STASH_DROPPED, {"rid": rid}) for rid in ledger.launch_plain())
        if plan.flush_upper:
            event = Event.FLUSHED if self._mode is Mode.PLAIN else Event.SLICE_DONE
            ages: dict[str, object] = {"upper": plan.flush_upper, "lower": plan.flush_lower}
            self._due.append((event, ages))
            if plan.seeds:
                ledger.seeds_at = ledger.t_launched
        self._flights.append(Flight(action, rows, self._state.f_launched))
        return Arg(allowed=allowed, plain=1)

    def _dropped(self, _: dict[str, Any], __: Event) -> Arg:
        # The ledger dropped them all at once; the table tells of one at a time.
        rest = [fields["rid"] for event, fields in self._due if event is Event.STASH_DROPPED]
        oldest = self._ledger.base(str(rest[0])) if rest else self._ledger.state(0, 0).oldest
        return Arg(lost=1, oldest=oldest)

    def _flush(self, line: dict[str, Any], _: Event) -> Arg:
        upper, lower = line["upper"], line["lower"]
        self._ledger.flush(lower)
        flight = self._flights[-1]
        self._flights[-1] = flight._replace(point=self._ledger.f_launched)
        return Arg(upper=upper, lower=lower)

    def _result(self, line: dict[str, Any], event: Event) -> Arg:
        if not self._flights:
            raise Mismatch(f"{event.name} with nothing in flight", "a launch before it")
        flight = self._flights.popleft()
        action, plain = flight.action, flight.action is Action.PLAIN
        if (event is Event.DECODED) is not plain:
            same("event", event.name, "DECODED" if plain else "SETTLED")
        same("action", line["action"], ACTIONS[action])
        same("batch", line["batch"], flight.batch)
        most = 1 if plain else self._shape.num_steps + 1
        for n in line.get("accepted", ()):
            if type(n) is not int or not 1 <= n <= most:
                raise Mismatch(f"accept length {n!r}", f"1 to {most}")
        for name in ("accepted", "rids"):
            if name in line and len(line[name]) != flight.batch:
                raise Mismatch(f"{len(line[name])} {name}", f"{flight.batch}, one a row")
        if len(set(rids := line.get("rids", ()))) != len(rids):
            raise Mismatch("a row twice in rids", "each row once")
        self._ledger.settle(action)
        return Arg(point=flight.point, reseed=int(action is Action.RESEED))

    # -- observations ---------------------------------------------------------------------

    def _obs(self, line: dict[str, Any]) -> None:
        self._in_mode(line)
        if "phase" not in line:
            facts = {k: v for k, v in line.items() if k not in ("kind", "mode", "what")}
            if type(line.get("what")) is not str or any(type(v) is not int for v in facts.values()):
                raise Mismatch(f"an observation {line}", "a name `what` and whole numbers")
            return
        phase: Phase = named("phase", line, PHASES)
        b, tokens, slots = (count(line, name) for name in ("b", "tokens", "slots"))
        info: SpecInfo = named("spec_info", line, INFOS)
        hidden: Hidden = named("hidden", line, HIDDEN)
        # Of a ragged phase the width is the sum of the rows; of a seed extend, tokens by rows.
        width = tokens if phase in _RAGGED else tokens // b if b else 0
        launch = Launch(phase, b, tokens, slots, info, hidden, width)
        if (error := violation(self._mode, launch, self._shape)) is not None:
            raise Mismatch(f"{error.message}, observed {error.observed}", error.expected)
        if phase in _OF_A_PLAN and b != self._rows:
            raise Mismatch(f"{phase.name} of {b} rows", f"the plan's {self._rows} rows")
        self.launches += 1

    def _refused(self, line: dict[str, Any]) -> None:
        event: Event = named("event", line, EVENTS)
        self._in_mode(line)
        reason, edge = line.get("reason"), RULES.edges.get((self._mode, event))
        if edge is None or type(reason) is not str:
            same("reason", reason, RULES.refusals.get((self._mode, event), "a text"))
        elif reason in edge.guards:
            held = reason != _NOT_TRACED and RULES.guards[reason](INT, self._state, Arg())
            if held and reason != "REACHES_OLDEST":
                raise Mismatch(f"{event.name} refused by {reason}", f"{reason} holds")
        elif not reason.startswith(_OTHER_REASONS):
            raise Mismatch(f"reason is {reason!r}", f"a guard: {', '.join(edge.guards) or 'none'}")

    def _violation(self, line: dict[str, Any]) -> None:
        raise Mismatch(f"{line.get('invariant')} was broken: {line.get('error')}", "no violation")


__all__ = ["Mismatch", "Replay"]
