"""Replays trace lines one by one: counters by the table's effects, rows by the ledger's methods.

Both are compared after every line, so a replay also holds the lazy ledger against the table on
what a real worker did.  When a change of mode was due is asked of a real `Policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec_fsm._rules import Arg
from spec_fsm.launch_laws import Launch, violation
from spec_fsm.modes import LEAVING, Action, Event, Hidden, Mode, Phase, SpecInfo
from spec_fsm.ops import INT
from spec_fsm_model.replay_launch import Launching
from spec_fsm_model.replay_mode import Flight, Replayed
from spec_fsm_model.rules import RULES
from spec_fsm_model.trace_fields import (
    ACTIONS,
    EVENT_FIELDS,
    EVENTS,
    HIDDEN,
    INFOS,
    KIND_FIELDS,
    LAUNCH,
    MODE_NAMES,
    OBSERVED,
    PHASES,
    Mismatch,
    check_fields,
    count,
    named,
    same,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm._table import Edge
    from spec_fsm.plan import Plan

_NO_ARG = Arg()
_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_RAGGED = frozenset({Phase.PREFILL, Phase.FLUSH})
_UNTOLD = frozenset({Phase.MIXED, Phase.IDLE})
"""Phases no trace tells: a mixed chunk has no mode, an idle launch has no row."""
_PHASES = {
    True: frozenset({Phase.PLAIN_DECODE}),
    False: frozenset({Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND}),
}
"""Phases of a decode launch, by whether it is plain."""
_ONLY_DUE = frozenset(
    {Event.LOAD_ROSE, Event.LOAD_FELL, Event.FLUSHED, Event.SLICE_DONE, Event.STASH_DROPPED}
)
"""Events that come where a boundary or a launch made them due, and nowhere else."""
_WHILE_LAUNCHING = LEAVING | {
    Event.LAUNCHED, Event.SETTLED, Event.DECODED, Event.RESEEDED, Event.RESEED_FAILED,
}  # fmt: skip
"""Events between a plan and the last forward of its launch; a result may be processed there."""
_COMPUTED = frozenset({Event.PREFILLED, Event.PREFILLED_CHUNK})


class Replay(Replayed):
    """The model's side of one trace; `take` each line in order."""

    def _dispatch(self) -> None:
        """What takes which line."""
        super()._dispatch()
        self._kinds |= {"event": self._event, "plan": self._plan, "obs": self._obs}
        self._apply: dict[Event, Callable[[dict[str, Any], Event], Arg]] = {
            Event.PREFILLED: self._prefilled,
            Event.PREFILLED_CHUNK: self._chunk,
            Event.LAUNCHED: self._launched,
            Event.SETTLED: self._result,
            Event.DECODED: self._result,
            Event.FLUSHED: self._flush,
            Event.SLICE_DONE: self._flush,
            Event.STASH_DROPPED: self._dropped,
            Event.CACHE_FLUSHED: self._emptied,
            Event.WEIGHTS_CHANGED: self._weights,
            Event.RESEEDED: self._reseeded,
            Event.RESEED_FAILED: self._reseed_failed,
            Event.DRAINED: self._drained,
            **dict.fromkeys(LEAVING, self._left),
        }

    # -- events ---------------------------------------------------------------------------

    def _event(self, line: dict[str, Any]) -> None:
        event: Event = named("event", line, EVENTS)
        names = EVENT_FIELDS.get(event)
        edge = RULES.edges.get((self._mode, event))
        if edge is None or names is None:
            raise Mismatch(f"{event.name} in {self._mode.name}", "an event this mode accepts")
        check_fields(line, names)
        if self._due:
            self._take_due(line)
        elif event in _ONLY_DUE:
            raise Mismatch(f"{event.name} that nothing made due", "another event")
        elif event not in _WHILE_LAUNCHING:
            self._not_launching(event.name)
        self._follow(event, edge, line)

    def _follow(self, event: Event, edge: Edge, line: dict[str, Any]) -> None:
        """Follow an edge by the table's effects, and hold line and ledger against it."""
        apply, state = self._apply.get(event), self._state
        arg = _NO_ARG if apply is None else apply(line, event)
        for name in edge.guards:
            if not RULES.guards[name](INT, state, arg):
                raise Mismatch(f"{event.name} although {name} does not hold", f"{name} to hold")
        for name in edge.effects:
            state = RULES.effects[name](INT, state, arg)
        self._mode, self._state = edge.target, state
        if edge.target is not edge.source:
            self._policy.fired(event, edge.target)
        if event is Event.DRAINED or event is Event.RESEEDED:
            self._ledger.take(state)
        if line["to"] != MODE_NAMES[edge.target]:
            raise Mismatch(f"to is {line['to']!r}", f"to {edge.target.name}")
        if not self._due and (kept := self._ledger.state(self._stash.slice_width, 0)) != state:
            raise Mismatch(f"the ledger counts {kept}", f"the table's {state}")
        self.edges[edge.source, event] += 1

    def _prefilled(self, line: dict[str, Any], _: Event) -> Arg:
        length = self._rows.join(line)
        return Arg(known=int(not self._ledger.join(text(line, "rid"))), length=length)

    def _chunk(self, line: dict[str, Any], _: Event) -> Arg:
        known = int(text(line, "rid") in self._ledger)
        return Arg(known=known, length=self._rows.chunk(line))

    def _left(self, line: dict[str, Any], event: Event) -> Arg:
        ledger, rid = self._ledger, text(line, "rid")
        self._rows.leave(line, event)
        same("epoch", line["epoch"], self._epoch)
        known, lost = int(rid in ledger), ledger.lost
        same("gap", line["gap"], ledger.leave(rid))
        oldest = ledger.state(0, 0).oldest
        return Arg(known=known, lost=lost - ledger.lost, oldest=oldest)

    def _emptied(self, line: dict[str, Any], _: Event) -> Arg:
        self._outer(line)
        return _NO_ARG

    def _weights(self, line: dict[str, Any], event: Event) -> Arg:
        self._emptied(line, event)
        stale = self._ledger.stale()
        same("lost", line["lost"], len(stale))
        oldest = self._ledger.oldest_without(stale)
        self._ledger.lose(stale)
        return Arg(lost=len(stale), oldest=oldest)

    # -- plans, launches, results ---------------------------------------------------------

    def _drained(self, _: dict[str, Any], __: Event) -> Arg:
        self._due.append(("plan", {}))
        return _NO_ARG

    def _plan(self, line: dict[str, Any]) -> None:
        check_fields(line, KIND_FIELDS["plan"])
        self._not_launching("a plan")
        if self._due:
            self._due.popleft()
        if self._mode is _DRAINING:
            raise Mismatch("a plan in DRAINING", "DRAINED first")
        ledger = self._ledger
        plan: Plan = self._planner(self._mode, ledger.max_gap, ledger.seeds_due)
        same("action", line["action"], ACTIONS[plan.action])
        same("flush", line["flush"], [plan.flush_upper, plan.flush_lower])
        same("seeds", line["seeds"], int(plan.seeds))
        rids = self._rows.plan(line["rids"])
        self._launching = Launching(plan, rids, self._shape.num_steps - 1, ledger.seeds_due)

    def _reseeded(self, _: dict[str, Any], __: Event) -> Arg:
        if self._launching is None:
            raise Mismatch("RESEEDED that was not planned", "a plan RESEED before it")
        self._launching.reseed()
        return _NO_ARG

    def _reseed_failed(self, line: dict[str, Any], _: Event) -> Arg:
        launching, self._launching = self._launching, None
        if launching is None or launching.plan.action is not Action.RESEED:
            raise Mismatch("RESEED_FAILED that was not planned", "a plan RESEED before it")
        same("forwards", line["forwards"], launching.forwards)
        text(line, "why")
        return _NO_ARG

    def _launched(self, line: dict[str, Any], _: Event) -> Arg:
        launching = self._launching
        if launching is None or launching.launched:
            raise Mismatch("a launch that was not planned", "a plan before it")
        launching.launched = True
        plan, ledger = launching.plan, self._ledger
        action = plan.action
        same("action", line["action"], ACTIONS[action])
        same("batch", line["batch"], len(launching.rids))
        same("flush", line["flush"], [plan.flush_upper, plan.flush_lower])
        plain = action is Action.PLAIN
        allowed = int(_PHASES[plain] <= RULES.allowed[self._mode])
        self._rows.launch(launching.rids, needed=action is not Action.SPECULATE)
        if not plain:
            ledger.launch_speculative(action)
            self._flights.append(Flight(launching, self._state.f_launched))
            return Arg(allowed=allowed, speculative=1)
        for rid in ledger.launch_plain():
            self._due.append(("event", {"event": Event.STASH_DROPPED.name, "rid": rid}))
        if plan.flush_upper:
            event = Event.FLUSHED if self._mode is _PLAIN else Event.SLICE_DONE
            ages: dict[str, object] = {"upper": plan.flush_upper, "lower": plan.flush_lower}
            self._due.append(("event", {"event": event.name, **ages}))
            if plan.seeds:
                ledger.seeds_at = ledger.t_launched
        self._flights.append(Flight(launching, self._state.f_launched))
        return Arg(allowed=allowed, plain=1)

    def _dropped(self, _: dict[str, Any], __: Event) -> Arg:
        # The ledger dropped them all at once; the table tells of one at a time.
        rest = [due["rid"] for _, due in self._due if "rid" in due]
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
        launching, point = self._flights.popleft()
        if missing := launching.missing():
            raise Mismatch(f"{event.name} amid its launch", missing)
        action, plain = launching.plan.action, launching.plan.action is Action.PLAIN
        if (event is Event.DECODED) is not plain:
            same("event", event.name, "DECODED" if plain else "SETTLED")
        same("action", line["action"], ACTIONS[action])
        same("batch", line["batch"], len(launching.rids))
        same("forwards", line["forwards"], launching.forwards)
        most = 1 if plain else self._shape.num_steps + 1
        self._rows.settle(line, launching.rids, most)
        self._ledger.settle(action)
        return Arg(point=point, reseed=int(action is Action.RESEED))

    # -- observations ---------------------------------------------------------------------

    def _obs(self, line: dict[str, Any]) -> None:
        if "phase" not in line:
            check_fields(line, OBSERVED)
            text(line, "what")
            facts = line["facts"]
            if type(facts) is not dict or any(type(v) is not int for v in facts.values()):
                raise Mismatch(f"facts are {facts!r}", "facts: whole numbers by name")
            return
        check_fields(line, LAUNCH)
        phase: Phase = named("phase", line, PHASES)
        b, tokens, slots = (count(line, name, 1) for name in ("b", "tokens", "slots"))
        info: SpecInfo = named("spec_info", line, INFOS)
        hidden: Hidden = named("hidden", line, HIDDEN)
        # Of a ragged phase the width is the sum of the rows; of a seed extend, tokens by rows.
        width = tokens if phase in _RAGGED else tokens // b
        launch = Launch(phase, b, tokens, slots, info, hidden, width)
        if (error := violation(self._mode, launch, self._shape)) is not None:
            raise Mismatch(f"{error.message}, observed {error.observed}", error.expected)
        if phase in _UNTOLD:
            raise Mismatch(f"a forward of phase {phase.name}", "a phase that traces tell")
        self.launches += 1
        if phase is Phase.PREFILL:
            self._not_launching("a prefill")
            self._rows.prefill(b, tokens)
            return
        launching = self._launching
        if launching is None:
            raise Mismatch(f"{phase.name} that was not planned", "a plan before it")
        if b != len(launching.rids):
            raise Mismatch(f"{phase.name} of {b} rows", f"the plan's {len(launching.rids)} rows")
        launching.forward(phase)
        if phase is Phase.DRAFT:
            # The window or the drafts' own slots: one of the two, as the device has it.
            self._draft_slots = self._draft_slots or slots // b
            same("slots a row", slots // b, self._draft_slots)


__all__ = ["Mismatch", "Replay"]
