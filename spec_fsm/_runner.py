"""The table at run time: follows an edge whole, or refuses the event and changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from spec_fsm._rules import EFFECTS, GUARDS, Arg, State
from spec_fsm._table import EDGE_OF, REFUSALS, Edge
from spec_fsm.errors import IllegalEvent, SpecFsmError
from spec_fsm.flight import CHANGED, REFUSED, VIOLATION, Both, Flight
from spec_fsm.invariants import Checks
from spec_fsm.launch_laws import NO_LAWS, fixed_laws
from spec_fsm.ledger import Ledger
from spec_fsm.machine import ModeMachine
from spec_fsm.modes import Action, Event, Mode
from spec_fsm.ops import INT
from spec_fsm.plan import Steady
from spec_fsm.trace import Settings, Tracer, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spec_fsm.laws import Shape
    from spec_fsm.plan import Plan, StashConfig
    from spec_fsm.policy import Policy
    from spec_fsm.trace import Sink

NO_ARG = Arg()


class Change(NamedTuple):
    """One change of mode.  gap: the largest before it, in positions; fields: as in the trace."""

    source: Mode
    event: Event
    target: Mode
    gap: int
    fields: Mapping[str, object]


class TableRunner:
    """Holds the mode and what its edges move; `Lifecycle` adds the calls an engine makes."""

    def __init__(
        self, shape: Shape, policy: Policy, stash: StashConfig, *, trace: Sink | None = None
    ) -> None:
        self.shape = shape
        self.policy = policy
        self.stash = stash
        self.mode = Mode.SPEC
        self._ledger = Ledger(stash.width)
        self.steady = Steady()
        """What `decide` hands out without looking further.  An engine that was handed a plan by
        `decide` reports the result of a launch whose action is `steady.action` by adding one to
        `steady.processed`, any other by `settled`."""
        self._laws = fixed_laws(shape)
        self.laws = NO_LAWS if trace is not None else self._laws[self.mode]
        """By phase, the law of a launch in this mode: class of `spec_info`, hidden capture, tokens
        a row, slots a row, other slots a row (PREFILL, whose rows are ragged: a token).  Who holds
        a launch of b > 0 rows against it by himself adds one to `checks.launches`, and calls
        `check_launch` where it differs or there is None: while tracing, in modes without such
        launches, and for MIXED, FLUSH and SEED_EXTEND."""
        self.checks = Checks()
        self.transitions: Counter[tuple[str, str, str]] = Counter()
        """How often each edge that changes the mode was followed: (source, event, target)."""
        self.on_change: Callable[[Change], None] | None = None
        """Called after each change of mode, for logs; must not call the lifecycle's events."""
        self._machine = ModeMachine()
        self.flight = Flight()
        """The last lines in memory, traced or not, for a flight record."""
        self._note = self.flight.note
        self._sink = trace
        settings = Settings(shape, policy.config, stash)
        self._trace = None if trace is None else Tracer(Both(trace, self.flight), settings)

    @property
    def ledger(self) -> Ledger:
        """The figures of the rows, with every launch and result so far counted."""
        steady = self.steady
        if steady.issued or steady.processed:
            self._count(steady)
        return self._ledger

    def _count(self, steady: Steady) -> None:
        """Count what `steady` collected; `Lifecycle` knows how."""

    def state(self) -> State:
        """The shared counters, as the table's guards and effects read them."""
        return self.ledger.state(self.stash.slice_width, self.policy.waiting_for(self.mode))

    def _fire(
        self, event: Event, arg: Arg = NO_ARG, fields: dict[str, object] | None = None
    ) -> None:
        """Follow the edge of `event` in this mode; raises IllegalEvent if it may not be."""
        edge = EDGE_OF.get((self.mode, event))
        if edge is None:
            self._refuse(event, REFUSALS[self.mode, event])
        state = self.state()
        if guard := self._broken_guard(edge, state, arg):
            self._refuse(event, guard)
        self._follow(edge, state, arg, fields or {})

    def _broken_guard(self, edge: Edge, state: State, arg: Arg) -> str:
        """Name of the first guard of `edge` that does not hold, or empty."""
        for name in edge.guards:
            if not GUARDS[name](INT, state, arg):
                return name
        return ""

    def _follow(self, edge: Edge, state: State, arg: Arg, fields: dict[str, object]) -> None:
        """Apply an edge whose guards hold in `state`; fields: what the trace line tells besides."""
        gap = self.ledger.max_gap
        for name in edge.effects:
            state = EFFECTS[name](INT, state, arg)
        if edge.target is not edge.source:
            self.mode = self._machine.fire(edge.event)
            self.policy.fired(edge.event, edge.target)
            self.steady.left = -1
            if self._trace is None:
                self.laws = self._laws[self.mode]
            self.transitions[edge.source.name, edge.event.name, edge.target.name] += 1
        self.ledger.take(state)
        self._event_line(edge.event, edge.source, fields)
        if edge.target is not edge.source and self.on_change is not None:
            self.on_change(Change(edge.source, edge.event, edge.target, gap, fields))

    def _refuse(
        self, event: Event, reason: str, observed: object = None, expected: object = None
    ) -> NoReturn:
        self._refused_line(event, reason)
        msg = f"refused: {reason}"
        raise IllegalEvent(msg, mode=self.mode, event=event, observed=observed, expected=expected)

    def _refused_line(self, event: Event, reason: str) -> None:
        if self._trace is not None:
            self._trace.refused(self._where(), event, reason)
        else:
            self._note((REFUSED, event, self.mode, reason))

    def violated(self, error: Exception) -> None:
        """Count a violation and put it into trace and flight; an error counts once.

        For an engine that catches what a lifecycle raised, or whose own checks raised it.
        """
        if getattr(error, "counted", False):
            return
        error.counted = True  # type: ignore[attr-defined]
        invariant = getattr(error, "invariant", "") or type(error).__name__
        self.checks.violated(invariant, str(error))
        if self._trace is not None:
            self._trace.violation(self.mode, invariant, str(error))
        else:
            self._note((VIOLATION, time.monotonic_ns(), invariant, self.mode, str(error)))

    def _violated(self, error: SpecFsmError) -> NoReturn:
        """Count, trace and raise a broken invariant."""
        self.violated(error)
        raise error

    def _launched_lines(self, rows: int, plan: Plan, dropped: Sequence[str]) -> None:
        mode, flush = self.mode, [plan.flush_upper, plan.flush_lower]
        fields = {"action": plan.action.name, "batch": rows, "flush": flush}
        self._event_line(Event.LAUNCHED, mode, fields)
        for rid in dropped:
            self._event_line(Event.STASH_DROPPED, mode, {"rid": rid})
        if plan.action is Action.PLAIN and plan.flush_upper:
            event = Event.FLUSHED if mode is Mode.PLAIN else Event.SLICE_DONE
            self._event_line(event, mode, {"upper": plan.flush_upper, "lower": plan.flush_lower})

    def _event_line(self, event: Event, source: Mode, fields: dict[str, object]) -> None:
        if self._trace is not None:
            self._trace.event(event, self.mode, self._where(source), fields)
        else:
            now, counts = time.monotonic_ns(), (self.ledger.rows, self.ledger.unsettled)
            self._note((CHANGED, now, event, source, self.mode, *counts, fields))

    def _where(self, mode: Mode | None = None) -> Where:
        """Where the lifecycle stands, or stood in another `mode`; for the trace."""
        ledger = self.ledger
        mode = self.mode if mode is None else mode
        return Where(mode, ledger.rows, ledger.unsettled, ledger.in_flight)

    def close(self) -> None:
        """End the trace, if there is one, with its last line; a second call does nothing.

        Call it between two iterations.  A sink that has a `close` is closed.
        """
        if self._trace is not None:
            self._trace.end(self._where(), self.policy.pin)
            close = getattr(self._sink, "close", None)
            if close is not None:
                close()


__all__ = ["NO_ARG", "Change", "TableRunner"]
