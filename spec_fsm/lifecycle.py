"""The lifecycle of one server: facts in, frozen plans out; it touches no tensor."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NoReturn

from spec_fsm import laws
from spec_fsm._rules import EFFECTS, GUARDS, Arg, State
from spec_fsm._table import ALLOWED, EDGE_OF, REFUSALS, Edge
from spec_fsm.errors import ConfigError, IllegalEvent, IllegalLaunch, ShapeViolation
from spec_fsm.invariants import Checks
from spec_fsm.ledger import Ledger, Row
from spec_fsm.machine import ModeMachine
from spec_fsm.modes import LEAVING, Action, Event, Hidden, Mode, Phase, Pin, SpecInfo
from spec_fsm.ops import INT
from spec_fsm.policy import Policy, as_pin, whole
from spec_fsm.trace import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec_fsm.trace import Sink

_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_ACT_SPEC, _ACT_PLAIN, _ACT_RESEED = Action
_DRAFT, _IDLE = Phase.DRAFT, Phase.IDLE


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next decode batch is to do.

    flush_upper, flush_lower: ages of the positions whose draft KV the launch writes too, oldest
    first, as `committed - upper` up to `committed - lower` with `committed` counting every plain
    launch issued, this one included; 0, 0 is no flush.  A row with a smaller gap than `upper`
    writes from its own gap on.
    """

    action: Action
    mode: Mode
    settle_first: bool = False
    flush_upper: int = 0
    flush_lower: int = 0


@dataclass(frozen=True, slots=True)
class StashConfig:
    """Settings of the stash of hidden states, checked when built (raises ConfigError).

    width: hidden states kept a row, in positions (2 or more).
    flush_every: the missing draft KV is written when the largest gap reaches this many
        positions (0: only when speculation resumes; else 1 to width - 1).
    slice_width: largest span of ages one slice of RESEEDING writes (2 or more: each slice is
        carried by a plain launch, which itself adds one).
    """

    width: int = 64
    flush_every: int = 16
    slice_width: int = 64

    def __post_init__(self) -> None:
        whole("width", self.width, 2)
        whole("flush_every", self.flush_every, 0, self.width - 1)
        whole("slice_width", self.slice_width, 2)


_PLANS = {
    _SPEC: Plan(_ACT_SPEC, _SPEC),
    _PLAIN: Plan(_ACT_PLAIN, _PLAIN),
}
_SPECULATE, _PLAIN_STEP = _PLANS[_SPEC], _PLANS[_PLAIN]


class Lifecycle:
    """Owns the mode and the ledger of one server; every other part asks it first."""

    def __init__(
        self, shape: laws.Shape, policy: Policy, stash: StashConfig, *, trace: Sink | None = None
    ) -> None:
        self.shape = shape
        self.policy = policy
        self.stash = stash
        self.mode = _SPEC
        self.ledger = Ledger(stash.width)
        self.checks = Checks()
        self.transitions: Counter[tuple[str, str, str]] = Counter()
        self.held = ""
        self._machine = ModeMachine()
        self._trace = trace
        self._laws = _launch_laws(shape)
        self._flush_at = stash.flush_every or (1 << 62)
        if trace is not None:
            trace.write(
                {
                    "kind": "start",
                    "v": VERSION,
                    "shape": asdict(shape),
                    "policy": asdict(policy.config),
                    "stash": asdict(stash),
                }
            )

    # -- reading --------------------------------------------------------------------------

    @property
    def pin(self) -> Pin:
        """What the operator asks for; assign to change it (takes effect at the next boundary)."""
        return self.policy.pin

    @pin.setter
    def pin(self, value: Pin) -> None:
        self.policy.pin = as_pin(value)

    @property
    def rows(self) -> int:
        """Rows that decode."""
        return self.ledger.rows

    @property
    def lost(self) -> int:
        """Rows whose gap outgrew the stash."""
        return self.ledger.lost

    @property
    def unsettled(self) -> int:
        """Speculative launches whose result was not processed yet."""
        return self.ledger.unsettled

    @property
    def max_gap(self) -> int:
        """Largest gap of a row that is not lost, in positions, launches in flight included."""
        return self.ledger.max_gap

    def gap(self, rid: str) -> int:
        """Positions of `rid` without draft KV, launches in flight included; 0 if unknown."""
        return self.ledger.gap(rid)

    def seeded(self, rid: str) -> bool:
        """Whether the seed of `rid` is the one of its last position; False if unknown."""
        return self.ledger.seeded(rid)

    def row(self, rid: str, committed: int, reserved: int) -> Row:
        """The figures of `rid` as of the settled launches, given its own two, in positions."""
        return self.ledger.row(rid, committed, reserved)

    def state(self) -> State:
        """The shared counters, as the table's guards and effects read them."""
        ledger, policy = self.ledger, self.policy
        return ledger.state(self.stash.slice_width, policy.waiting_for(self.mode))

    # -- each scheduler iteration ---------------------------------------------------------

    def boundary(self, load: int) -> bool:
        """Run the policy once; True if the next decode batch must wait for results in flight.

        load: rows that decode or are about to.  A change that is due but not legal yet (a row
        is lost) is not made; `held` says why, and it is asked for again at the next boundary.
        """
        event = self.policy.event(self.mode, load)
        if event is not None:
            self._due(event, load)
        return self.mode is _DRAINING and self.ledger.unsettled > 0

    def _due(self, event: Event, load: int) -> None:
        edge = EDGE_OF[self.mode, event]
        reason = self._broken_guard(edge, Arg())
        if reason and reason != self.held and self._trace is not None:
            self._refusal(event, reason)
        self.held = reason
        if not reason:
            self._follow(edge, Arg(), load=load)

    def plan_decode(self, rows: int) -> Plan:
        """Decide what a decode batch of `rows` rows (>= 1) does.

        Raises IllegalLaunch in DRAINING while a result is in flight, and where `rows` is not the
        number of rows that joined (every running row takes part in every plain launch).
        """
        mode = self.mode
        if mode is _SPEC:
            plan = _SPECULATE
        else:
            plan = self._plan_unspeculative(rows)
        if self._trace is not None:
            self._trace.write(
                {
                    "kind": "plan",
                    "action": plan.action.name,
                    "mode": plan.mode.name,
                    "rows": rows,
                    "flush": [plan.flush_upper, plan.flush_lower],
                }
            )
        return plan

    def _plan_unspeculative(self, rows: int) -> Plan:
        ledger = self.ledger
        if self.mode is _DRAINING:
            if ledger.unsettled:
                msg = "a decode batch must wait for the results in flight"
                raise IllegalLaunch(msg, mode=_DRAINING, observed=f"{ledger.unsettled} unsettled")
            self._fire(Event.DRAINED)
        if rows != ledger.rows:
            self.checks.violated("I7", f"{rows} rows launched, {ledger.rows} joined")
            msg = "a plain launch must hold every row that joined"
            raise IllegalLaunch(
                msg, mode=self.mode, observed=rows, expected=ledger.rows, invariant="I7"
            )
        gap = ledger.max_gap
        if self.mode is _PLAIN:
            if gap + 1 < self._flush_at:
                return _PLAIN_STEP
            return Plan(_ACT_PLAIN, _PLAIN, flush_upper=min(gap + 1, self.stash.width))
        width = self.stash.slice_width
        if gap <= width:
            return Plan(_ACT_RESEED, _RESEEDING, flush_upper=gap)
        return Plan(_ACT_PLAIN, _RESEEDING, flush_upper=gap + 1, flush_lower=gap + 1 - width)

    # -- launches and results -------------------------------------------------------------

    def check_launch(  # noqa: PLR0913 -- the facts of a launch; a record would cost a build a call
        self,
        phase: Phase,
        b: int,
        tokens: int,
        slots: int,
        spec_info: SpecInfo,
        hidden: Hidden,
        width: int | None = None,
    ) -> None:
        """Hold a launch against the matrix and the laws (I1a, I16, I2, I3) before it is issued.

        tokens, slots: lengths of `input_ids` and `out_cache_loc`.  width: see `laws.tokens`.
        Raises ShapeViolation; the launch must then not be issued.
        """
        law = self._laws[self.mode][phase]
        if law is not None:
            want_info, want_hidden, token_mul, slot_mul, window_mul = law
            if (
                spec_info is want_info
                and hidden is want_hidden
                and tokens == token_mul * b
                and (slots == slot_mul * b or slots == window_mul * b)
                and b > 0
            ):
                self.checks.launches += 1
                if self._trace is not None:
                    self._observed(phase, b, tokens, slots, spec_info, hidden)
                return
        self._check_slowly(phase, (b, tokens, slots), spec_info, hidden, width)
        self.checks.launches += 1
        if self._trace is not None:
            self._observed(phase, b, tokens, slots, spec_info, hidden)

    def _check_slowly(
        self,
        phase: Phase,
        sizes: tuple[int, int, int],
        spec_info: SpecInfo,
        hidden: Hidden,
        width: int | None,
    ) -> None:
        b, tokens, slots = sizes
        if phase not in ALLOWED[self.mode]:
            allowed = ", ".join(p.name for p in sorted(ALLOWED[self.mode]))
            self._violated("matrix", phase, phase.name, allowed, "this mode has no such launch")
        if phase is _IDLE:
            # The laws hold for b > 0; an idle launch has no rows and may carry the stub relay.
            if (b, tokens, slots) != (0, 0, 0):
                self._violated("I2", phase, sizes, (0, 0, 0), "an idle launch has no rows")
            return
        want_info, want_hidden = laws.spec_info(phase), laws.hidden(phase)
        if b < 1:
            self._violated("I2", phase, b, "1 row or more", "a launch needs rows")
        if spec_info is not want_info:
            self._violated("I1a", phase, spec_info.name, want_info.name, "wrong spec_info")
        if hidden is not want_hidden:
            self._violated("I16", phase, hidden.name, want_hidden.name, "wrong hidden capture")
        want = laws.tokens(phase, b, self.shape, width)
        if tokens != want:
            self._violated("I2", phase, tokens, want, f"wrong number of tokens for {b} rows")
        accepted = {laws.slots(phase, b, self.shape, width)}
        if phase is _DRAFT:
            accepted.add(laws.window_slots(b, self.shape))
        if slots not in accepted:
            expected = " or ".join(str(n) for n in sorted(accepted))
            self._violated("I3", phase, slots, expected, f"wrong out_cache_loc for {b} rows")

    def _violated(
        self, invariant: str, phase: Phase, observed: object, expected: object, message: str
    ) -> NoReturn:
        error = ShapeViolation(
            message,
            mode=self.mode,
            phase=phase,
            observed=observed,
            expected=expected,
            invariant=invariant,
        )
        self.checks.violated(invariant, str(error))
        if self._trace is not None:
            self._trace.write(
                {"kind": "violation", "invariant": invariant, "mode": self.mode.name,
                 "phase": phase.name, "error": str(error)}
            )
        raise error

    def launched(self, action: Action, rows: int, plan: Plan) -> None:
        """The decode launch of `plan` was issued for `rows` rows.

        Raises IllegalLaunch if this mode has no such launch or the plan is another one's.
        """
        mode, ledger = self.mode, self.ledger
        if action is not plan.action or (mode is _SPEC) is (action is _ACT_PLAIN) or (
            mode is _DRAINING
        ):
            msg = f"no {action.name} launch belongs here"
            raise IllegalLaunch(
                msg, mode=mode, observed=action.name, expected=f"the plan's {plan.action.name}"
            )
        if action is not _ACT_PLAIN:
            ledger.launch_speculative(action)
        elif plan.flush_upper:
            self._launched_with_flush(plan)
        else:
            for rid in ledger.launch_plain():
                self._dropped(rid)
        if self._trace is not None:
            self._event(Event.LAUNCHED, action=action.name, launched=rows,
                        flush=[plan.flush_upper, plan.flush_lower])

    def _launched_with_flush(self, plan: Plan) -> None:
        event = Event.FLUSHED if self.mode is _PLAIN else Event.SLICE_DONE
        for rid in self.ledger.launch_plain():
            self._dropped(rid)
        self._fire(event, Arg(upper=plan.flush_upper, lower=plan.flush_lower))
        self.ledger.repoint()

    def _dropped(self, rid: str) -> None:
        if self._trace is not None:
            self._event(Event.STASH_DROPPED, rid=rid)

    def settled(
        self, action: Action, rows: int, accepted: Sequence[int] | None = None
    ) -> None:
        """The oldest result in flight, of an `action` launch of `rows` rows, was processed.

        Call it before `left` for the rows this result finishes.  accepted: accept length of each
        row, bonus included; only read when tracing.  Raises IllegalEvent out of order.
        """
        due = self.ledger.next_action
        event = Event.DECODED if action is _ACT_PLAIN else Event.SETTLED
        if due is not action:
            self._refuse(event, "another result is due first", observed=action.name,
                         expected="none" if due is None else due.name)
        self.ledger.settle()
        if self._trace is not None:
            extra = {} if accepted is None else {"accepted": list(accepted)}
            self._event(event, action=action.name, settled=rows, **extra)

    # -- membership -----------------------------------------------------------------------

    def joined(self, rid: str, committed: int) -> None:
        """PREFILLED: the last chunk of `rid` was launched; its row decodes from now on.

        Call it before the first decode launch that holds the row, with no plain launch between.
        committed: prompt positions.  Raises IllegalEvent if `rid` is here already.
        """
        if rid in self.ledger:
            self._refuse(Event.PREFILLED, f"row {rid!r} joined already")
        self.ledger.join(rid)
        if self._trace is not None:
            self._event(Event.PREFILLED, rid=rid, committed=committed)

    def chunked(self, rid: str, length: int) -> None:
        """PREFILLED_CHUNK: a chunk of `rid` up to `length` positions was launched, not the last.

        Raises IllegalEvent if `rid` decodes already.
        """
        if rid in self.ledger:
            self._refuse(Event.PREFILLED_CHUNK, f"row {rid!r} joined already")
        if self._trace is not None:
            self._event(Event.PREFILLED_CHUNK, rid=rid, committed=length)

    def left(self, rid: str, event: Event) -> int:
        """FINISHED, RETRACTED or ABORTED: forget `rid`; returns its committed - covered.

        The caller cuts what it inserts into the prefix cache by that much (I15).  A row that
        never joined gives 0.  Raises ConfigError for any other event.
        """
        if event not in LEAVING:
            msg = f"event is {event.name}: accepted are FINISHED, RETRACTED, ABORTED"
            raise ConfigError(msg)
        gap = self.ledger.leave(rid)
        if self._trace is not None:
            self._event(event, rid=rid, gap=gap)
        return gap

    # -- mode events the engine reports ---------------------------------------------------

    def reseeded(self) -> None:
        """The rest of every gap and every seed were enqueued, just before the first draft.

        Raises IllegalEvent unless RESEEDING and the rest fits one slice.
        """
        self._fire(Event.RESEEDED)

    def reseed_failed(self, why: str) -> None:
        """The engine could not rebuild: back to PLAIN, longer and longer before the next try."""
        self._fire(Event.RESEED_FAILED, why=why)

    def cache_flushed(self) -> None:
        """The prefix cache was emptied.  Raises IllegalEvent while a row lives."""
        self._fire(Event.CACHE_FLUSHED)

    def weights_changed(self) -> None:
        """New weights: rows that still need stashed states of the old ones are lost."""
        dropped = [] if self.mode in (_SPEC, _DRAINING) else self.ledger.forget_stash()
        self._fire(Event.WEIGHTS_CHANGED, Arg(lost=len(dropped)))

    def observe(self, kind: str, **facts: int) -> None:
        """Put one line of the engine's own figures into the trace; nothing else."""
        if self._trace is not None:
            self._trace.write({"kind": "obs", "what": kind, **facts})

    # -- the table ------------------------------------------------------------------------

    def _fire(self, event: Event, arg: Arg | None = None, **extra: object) -> None:
        edge = EDGE_OF.get((self.mode, event))
        if edge is None:
            self._refuse(event, REFUSALS[self.mode, event])
        arg = Arg() if arg is None else arg
        if reason := self._broken_guard(edge, arg):
            self._refuse(event, reason)
        self._follow(edge, arg, **extra)

    def _broken_guard(self, edge: Edge, arg: Arg) -> str:
        state = self.state()
        for name in edge.guards:
            if not GUARDS[name](INT, state, arg):
                return name
        return ""

    def _follow(self, edge: Edge, arg: Arg, **extra: object) -> None:
        state = self.state()
        for name in edge.effects:
            state = EFFECTS[name](INT, state, arg)
        self.ledger.take(state)
        if edge.target is not edge.source:
            self.mode = self._machine.fire(edge.event)
            self.policy.fired(edge.event, edge.target)
            self.transitions[edge.source.name, edge.event.name, edge.target.name] += 1
        if self._trace is not None:
            self._event(edge.event, source=edge.source, **extra)

    def _refuse(self, event: Event, reason: str, **fields: object) -> NoReturn:
        if self._trace is not None:
            self._refusal(event, reason)
        raise IllegalEvent(f"refused: {reason}", mode=self.mode, event=event, **fields)  # type: ignore[arg-type]

    # -- tracing --------------------------------------------------------------------------

    def _refusal(self, event: Event, reason: str) -> None:
        assert self._trace is not None
        self._trace.write(
            {"kind": "refused", "event": event.name, "mode": self.mode.name, "reason": reason}
        )

    def _event(self, event: Event, source: Mode | None = None, **fields: object) -> None:
        assert self._trace is not None
        mode = self.mode if source is None else source
        self._trace.write(
            {
                "kind": "event",
                "event": event.name,
                "mode": mode.name,
                "to": self.mode.name,
                "rows": self.ledger.rows,
                "unsettled": self.ledger.unsettled,
                **fields,
            }
        )

    def _observed(  # noqa: PLR0913 -- the facts of a launch
        self, phase: Phase, b: int, tokens: int, slots: int, spec_info: SpecInfo, hidden: Hidden
    ) -> None:
        assert self._trace is not None
        self._trace.write(
            {
                "kind": "obs",
                "phase": phase.name,
                "b": b,
                "tokens": tokens,
                "slots": slots,
                "spec_info": spec_info.name,
                "hidden": hidden.name,
            }
        )


_Law = tuple[SpecInfo, Hidden, int, int, int]


def _launch_laws(shape: laws.Shape) -> tuple[tuple[_Law | None, ...], ...]:
    """The laws as multiples of b, [mode][phase]; None where refused or not a multiple of b."""
    fixed = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.PLAIN_DECODE)

    def law(mode: Mode, phase: Phase) -> _Law | None:
        if phase not in fixed or phase not in ALLOWED[mode]:
            return None
        slots = laws.slots(phase, 1, shape)
        window = laws.window_slots(1, shape) if phase is _DRAFT else slots
        return (
            laws.spec_info(phase),
            laws.hidden(phase),
            laws.tokens(phase, 1, shape),
            slots,
            window,
        )

    return tuple(tuple(law(mode, phase) for phase in Phase) for mode in Mode)


__all__ = ["Lifecycle", "Plan", "StashConfig"]
