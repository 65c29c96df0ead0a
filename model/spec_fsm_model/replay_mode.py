"""The frame of a replay: where the lifecycle stands, what is due next, when a mode changes.

When a change of mode is due is asked of a real `Policy`, at each boundary of the trace.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from spec_fsm._rules import Arg
from spec_fsm.errors import ConfigError
from spec_fsm.laws import Shape
from spec_fsm.ledger import Ledger
from spec_fsm.modes import LEAVING, Event, Mode, Pin
from spec_fsm.ops import INT
from spec_fsm.plan import StashConfig
from spec_fsm.policy import Policy, PolicyConfig
from spec_fsm.trace import Settings
from spec_fsm_model.planner import plans
from spec_fsm_model.replay_rows import Rows
from spec_fsm_model.rules import RULES
from spec_fsm_model.trace_fields import (
    KIND_FIELDS,
    MODE_NAMES,
    SETTINGS,
    LinesMissing,
    Mismatch,
    check_fields,
    count,
    named,
    same,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm_model.replay_launch import Launching

_NO_ARG = Arg()

_FORKED = (
    "_due", "_flights", "_launching", "_ledger", "_policy", "_rows", "edges",
)  # fmt: skip
"""What a fork copies; the rest is never changed in place."""


class Flight(NamedTuple):
    """A decode launch in flight, as its plan, its LAUNCHED line and the flush after it told."""

    launching: Launching
    point: int


class Replayed:
    """What a replay knows, and the lines that no edge of the table is followed by.

    edges: how often each edge of the table was followed.  launches: forwards held against their
    law.  ended: whether the last line was taken.
    """

    def __init__(self) -> None:
        self.edges: Counter[tuple[Mode, Event]] = Counter()
        self.launches = 0
        self.ended = False
        self._mode = Mode.SPEC
        self._time = self._at = self._loads = self._epoch = 0
        self._told = ""  # the guard a refused line told of last
        self._draft_slots = 0  # of a row, in the first draft
        self._settings: dict[str, Any] = {}
        self._rows = Rows()
        self._flights: deque[Flight] = deque()
        self._due: deque[tuple[str, dict[str, object]]] = deque()
        self._launching: Launching | None = None
        self._dispatch()

    def _dispatch(self) -> None:
        """What takes which line."""
        self._kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "boundary": self._boundary,
            "pin": self._pin,
            "refused": self._refused,
            "end": self._end,
        }

    def fork(self) -> Self:
        """Return a copy that goes its own way from here."""
        other = copy.copy(self)
        kept = {name: getattr(self, name) for name in _FORKED if hasattr(self, name)}
        vars(other).update(copy.deepcopy(kept))
        other._dispatch()
        return other

    def take(self, line: dict[str, Any]) -> None:
        """One line; raises Mismatch, after which the replay is of no more use."""
        kind, now = line["kind"], line.get("t_ns")
        if type(now) is not int or now < self._time:
            raise Mismatch(f"t_ns is {now!r}", f"t_ns: a whole number, {self._time} or more")
        self._time = now
        if self.ended:
            raise Mismatch(f"a line of kind {kind} after the end", "no further line")
        handler = self._kinds.get(kind)
        if handler is None:
            self._outside(kind, line)
            return
        if line.get("mode") != MODE_NAMES[self._mode]:
            raise Mismatch(f"mode is {line.get('mode')!r}", f"mode {self._mode.name}")
        if self._due and (kind != self._due[0][0]):
            raise Mismatch(f"a line of kind {kind}", self.missing())
        if self._rows.untold and line.get("event") not in ("PREFILLED", "PREFILLED_CHUNK"):
            raise Mismatch(f"a line of kind {kind}", "the next row of the prefill")
        handler(line)
        self._stands(line)

    def _outside(self, kind: str, line: dict[str, Any]) -> None:
        """Lines that say nothing of where the lifecycle stands."""
        check_fields(line, KIND_FIELDS[kind])
        if kind == "start":
            self._start(line)
        elif kind == "dropped":
            n = count(line, "lines", 1)
            raise LinesMissing(f"{n} lines are missing here, dropped by the sink", "no line lost")
        else:
            raise Mismatch(f"{line['invariant']} was broken: {line['error']}", "no violation")

    def _stands(self, line: dict[str, Any]) -> None:
        """Hold a line's common counts against where the replay stands after it."""
        state = self._state
        plain = state.t_launched - state.t_settled
        told = line["at"], line["rows"], line["unsettled"], line["in_flight"]
        stands = self._at, state.rows, state.unsettled, plain + state.unsettled
        if told != stands or not all(type(n) is int for n in told):
            names = "at, rows, unsettled, in_flight"
            raise Mismatch(f"{names} are {told}", f"{names}: {stands}")

    def missing(self) -> str:
        """What has to come next, or empty."""
        if self._due:
            kind, fields = self._due[0]
            return f"a line of kind {kind} with {fields}"
        if self._rows.untold:
            return f"the lines of {self._rows.untold} more rows of a prefill"
        return self._launching.missing() if self._launching is not None else ""

    def _start(self, line: dict[str, Any]) -> None:
        if self._settings:
            raise Mismatch("a second start", "one at line 0")
        self._settings = {name: line[name] for name in SETTINGS}
        try:
            self._shape = Shape(**line["shape"])
            policy = PolicyConfig(**line["policy"])
            self._stash = stash = StashConfig(**line["stash"])
        except (ConfigError, TypeError, KeyError) as error:
            raise Mismatch(f"settings: {error}", "settings a server can have") from None
        settings = Settings(self._shape, policy, stash).fields()
        same("settings", self._settings, {name: settings[name] for name in SETTINGS})
        self._policy = Policy(policy)
        self._ledger = Ledger(stash.width)
        self._state = self._ledger.state(stash.slice_width, 0)
        self._planner = plans(self._shape, policy, stash)

    def _end(self, line: dict[str, Any]) -> None:
        check_fields(line, KIND_FIELDS["end"])
        self._not_launching("the end")
        same("pin", line["pin"], self._policy.pin.name)
        same("epoch", line["epoch"], self._epoch)
        same("tokens", line["tokens"], self._rows.tokens)
        left = {event.name: self._rows.left[event.name] for event in LEAVING}
        same("left", line["left"], left)
        same("settings", {name: line[name] for name in SETTINGS}, self._settings)
        self.ended = True

    # -- the mode -------------------------------------------------------------------------

    def _boundary(self, line: dict[str, Any]) -> None:
        check_fields(line, KIND_FIELDS["boundary"])
        self._not_launching("a boundary")
        load, mode, policy = count(line, "load"), self._mode, self._policy
        self._at += 1
        self._loads += load
        same("loads", line["loads"], self._loads)
        event = policy.event(mode, load)
        if event is None:
            self._told = ""
            return
        state = self._state._replace(dwell=policy.waiting_for(mode))
        for name in RULES.edges[mode, event].guards:
            if not RULES.guards[name](INT, state, _NO_ARG):
                if name != self._told:
                    self._due.append(("refused", {"event": event.name, "reason": name}))
                self._told = name
                return
        self._told = ""
        self._due.append(("event", {"event": event.name, "load": load}))

    def _refused(self, line: dict[str, Any]) -> None:
        check_fields(line, KIND_FIELDS["refused"])
        if not self._due:
            what = f"{line['event']} was reported, and refused: {line['reason']}"
            raise Mismatch(what, "events the table accepts")
        self._take_due(line)

    def _pin(self, line: dict[str, Any]) -> None:
        check_fields(line, KIND_FIELDS["pin"])
        self._not_launching("a pin")
        pin: Pin = named("pin", line, Pin.__members__)
        same("was", line["was"], self._policy.pin.name)
        if pin is self._policy.pin:
            raise Mismatch(f"pin is {pin.name} already", "another pin")
        self._policy.pin = pin
        self._outer(line)

    def _outer(self, line: dict[str, Any]) -> None:
        """Count what came from outside: a pin, an emptied cache, new weights."""
        self._epoch += 1
        same("epoch", line["epoch"], self._epoch)

    def _take_due(self, line: dict[str, Any]) -> None:
        fields = self._due[0][1]
        if any(line.get(k) != v or type(line.get(k)) is not type(v) for k, v in fields.items()):
            raise Mismatch(f"{line['event']} here", self.missing())
        self._due.popleft()

    def _not_launching(self, what: str) -> None:
        """Raise Mismatch if the launch planned last is not complete."""
        launching = self._launching
        if launching is not None and (missing := launching.missing()):
            raise Mismatch(f"{what} amid a {launching.plan.action.name} launch", missing)


__all__ = ["Flight", "Replayed"]
