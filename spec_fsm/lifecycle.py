"""The lifecycle of one server: facts in, frozen plans out; it touches no tensor.

Order of calls in one scheduler iteration::

    must_wait = boundary(load)          # may change the mode
    (must_wait: process the result in flight first)
    joined / left / noted               # as the batch changes
    plan = plan_decode(rows)            # only if a decode batch is about to be launched
    check_launch(...)                   # before each forward launch, of any phase
    reseeded()                          # RESEED only, just before the first draft
    launched(plan.action, rows, plan)
    settled(action, rows)               # the oldest result in flight was processed
    left(rid, FINISHED)                 # for each row that result ends

Nothing here waits, allocates by the batch size or reads a clock.  Mode changes are looked up in
the table, run through the `transitions` machine and counted.  The calls of a step that changes no
mode go neither way: they move the counters of the ledger, which tests hold against the table's
guards and effects.

The same iteration, the quick way, for an engine in which every call counts::

    plan = decide(load, rows)           # boundary, plan_decode and launched
    (hold a launch against laws[phase] first; call check_launch where it differs)
    steady.processed += 1               # settled, if the result's action is steady.action
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

from spec_fsm._reports import Reports
from spec_fsm._runner import NO_ARG
from spec_fsm._table import EDGE_OF
from spec_fsm.errors import IllegalLaunch
from spec_fsm.flight import LAUNCHED, RESULT, STEADY
from spec_fsm.launch_laws import Launch, violation
from spec_fsm.modes import Action, Event, Hidden, Mode, Phase, Pin, SpecInfo
from spec_fsm.plan import PLAIN_STEP, SPECULATE, WAIT, Plan, StashConfig, Steady, misplaced
from spec_fsm.policy import NOWHERE, Policy, as_pin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec_fsm.laws import Shape
    from spec_fsm.trace import Sink

# Bound once: looking a member up on its enum class costs as much as the rest of a check.
_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_PREFILL = Phase.PREFILL
_ACT_SPECULATE, _ACT_PLAIN, _ACT_RESEED = Action
_NEVER = 1 << 62
_SPELL = 64  # speculative steps after which a steady server is looked at again
_RESULT = (Event.SETTLED, Event.DECODED, Event.SETTLED)  # by action


class Lifecycle(Reports):
    """Owns the mode and the ledger of one server.

    shape: the speculative configuration.  policy: when to ask for a change.  stash: how much of
    the plain steps' hidden states the engine keeps.  trace: where the trace goes; None: off.
    """

    def __init__(
        self, shape: Shape, policy: Policy, stash: StashConfig, *, trace: Sink | None = None
    ) -> None:
        super().__init__(shape, policy, stash, trace=trace)
        self.held = ""
        """The guard that keeps a change that is due from being made, or empty."""
        self._told = ""  # the guard the trace told of last, not to repeat it at each boundary
        # Loads at which no boundary has anything to do, see `Policy.calm`; nowhere in DRAINING and
        # RESEEDING, and SPEC and PLAIN are left by a boundary alone, so modes need not reset it.
        self._calm = NOWHERE
        self._sat_out = 0  # rows that joined and were not in the last launch, see `plan_decode`
        self._flush_at = stash.flush_every or _NEVER
        self._periodic = Plan(_ACT_PLAIN, _PLAIN, flush_upper=stash.flush_every)

    # -- the operator ---------------------------------------------------------------------

    @property
    def pin(self) -> Pin:
        """What the operator asks for; assign to change it, in force at the next boundary."""
        return self.policy.pin

    @pin.setter
    def pin(self, value: Pin) -> None:
        was, self.policy.pin = self.policy.pin, as_pin(value)
        if self._trace is not None and self.policy.pin is not was:
            self._trace.pinned(self._where(), self.policy.pin, was)
        self._calm = NOWHERE
        self.steady.left = -1

    # -- the mode, once an iteration ------------------------------------------------------

    def boundary(self, load: int) -> bool:
        """Ask the policy once; True if the next decode batch must wait for results in flight.

        load: rows that decode or are about to.  A change that is due but whose guard does not
        hold (a row is lost) is not made; `held` names the guard, and the next boundary asks
        again.
        """
        if self._trace is not None:
            self._trace.boundary(self._where(), load)
        calm = self._calm
        if calm[0] <= load <= calm[1]:
            return False
        event = self.policy.event(self.mode, load)
        self.held = ""
        if event is None:
            self._told = ""
        else:
            self._due(event, load)
        if not self.held:
            self._calm = self.policy.calm(self.mode)
        return self.mode is _DRAINING and self.ledger.in_flight > 0

    def _due(self, event: Event, load: int) -> None:
        edge = EDGE_OF[self.mode, event]
        state = self.state()
        guard = self._broken_guard(edge, state, NO_ARG)
        if guard:
            self._hold(event, guard)
        else:
            self._told = ""
            self._follow(edge, state, NO_ARG, {"load": load})

    def _hold(self, event: Event, guard: str) -> None:
        self.held, self._calm = guard, NOWHERE
        if guard != self._told:
            self._refused_line(event, guard)
        self._told = guard

    def decide(self, load: int, rows: int, rids: Sequence[str] = ()) -> Plan:
        """`boundary`, `plan_decode` and `launched` in one call, for an iteration that decodes.

        The plan that comes back counts as launched, but for two: where `boundary` says to wait,
        one with `settle_first` (process every result in flight and ask again), and a RESEED,
        which the engine may still fail to carry out (`reseeded` and `launched`, or
        `reseed_failed` and ask again).  rids: the rows in batch order, for the trace alone.
        Raises what the three raise.
        """
        steady = self.steady
        if (
            steady.left > 0
            and steady.lo <= load <= steady.hi
            and steady.rows_lo <= rows <= steady.rows_hi
            and not steady.absent
        ):
            steady.left -= 1
            steady.issued += 1
            return steady.plan
        return self._decide(load, rows, rids)

    def _decide(self, load: int, rows: int, rids: Sequence[str]) -> Plan:
        steady = self.steady
        if steady.left >= 0 and steady.lo <= load <= steady.hi and not steady.absent:
            plan = self._step_aside(steady, rows)
            if plan is not None:
                return plan
        if self.boundary(load):
            return WAIT
        plan = self.plan_decode(rows, rids)
        if plan.action is not _ACT_RESEED:
            self.launched(plan.action, rows, plan)
            self._settle_down(rows)
        return plan

    def _step_aside(self, steady: Steady, rows: int) -> Plan | None:
        """The two steps of a steady PLAIN that are not the usual one; None if it is neither.

        A step that rows sit out whose last token is in flight, and the periodic flush.  Flat, on
        purpose: in a server these lines run once in some ten steps, and each call would be
        fetched from memory anew.  `launched` does the same; random histories hold them equal.
        """
        ledger = self._ledger
        tick = ledger.t_launched + steady.issued + 1
        if steady.left:
            if not 0 < rows < steady.rows_lo:
                return None
            plan, absent = PLAIN_STEP, steady.rows_lo - rows
            steady.left -= 1
        else:
            # The oldest row may have left: then its flush is not due yet.
            whole = steady.rows_lo <= rows <= steady.rows_hi
            if not whole or steady.flush is None or tick - ledger.floor != self._flush_at:
                return None
            plan, absent = steady.flush, 0
            steady.left = self._flush_at - 1
            ledger.f_launched = ledger.floor = tick
            ledger.points.append((tick, tick))
        ledger.t_launched = tick
        self.checks.plans += steady.issued + 1
        note = LAUNCHED, time.monotonic_ns(), _ACT_PLAIN, rows, plan.flush_upper, 0, steady.issued
        self._note(note)
        steady.issued, steady.absent = 0, absent
        self._departed, self._sat_out = 0, absent
        return plan

    def _settle_down(self, rows: int) -> None:
        """Say for how long nothing will have to be asked, if nothing happens."""
        ledger, steady = self.ledger, self.steady
        steady.left, steady.absent = -1, 0
        if self._trace is not None:
            return
        steady.lo, steady.hi = self._calm
        if self.mode is _SPEC:
            steady.plan, steady.action, steady.left = SPECULATE, _ACT_SPECULATE, _SPELL
            steady.rows_lo, steady.rows_hi, steady.flush = 1, ledger.rows, None
        elif self.mode is _PLAIN:
            steady.plan, steady.action = PLAIN_STEP, _ACT_PLAIN
            # Up to the next flush, and no step that would lose a row. Lost rows are rare enough.
            until_flush = min(self._flush_at - 1, ledger.width) - ledger.max_gap
            restless = self._sat_out or rows != ledger.rows or ledger.lost
            steady.left = -1 if restless else until_flush
            steady.flush = self._periodic if self.stash.flush_every else None
            steady.rows_lo = steady.rows_hi = rows

    def plan_decode(self, rows: int, rids: Sequence[str] = ()) -> Plan:
        """What a decode batch of `rows` rows does; in DRAINING with nothing in flight, DRAINED.

        Raises IllegalLaunch in DRAINING while a result is in flight, and where `rows` cannot be
        rows that joined.  A row that left since the last launch may ride along in one more.  A row
        may sit a speculative launch out: it stays covered and seeded.  The ledger counts on each
        row taking part in every plain launch and in the RESEED.  The one exception is a row whose
        last token is in flight (SGLang 0.5.23 `Scheduler._reqs_finishing_inflight`): it may sit
        one out if it leaves before the next launch, and before a RESEED's result.
        rids: the rows in batch order, for the trace alone.
        """
        departed = self._departed
        self.checks.plans += 1
        if not 1 <= rows <= self.ledger.rows + departed or self._sat_out > departed:
            self._wrong_rows(rows)
        plan = SPECULATE if self.mode is _SPEC else self._plan_unspeculative()
        if self._trace is not None:
            self._trace.plan(self._where(), plan, rids)
        return plan

    def _plan_unspeculative(self) -> Plan:
        ledger, mode = self.ledger, self.mode
        if mode is _PLAIN:
            gap = ledger.max_gap + 1
            if gap < self._flush_at:
                return PLAIN_STEP
            return self._periodic if gap == self._flush_at else Plan(_ACT_PLAIN, _PLAIN, False, gap)
        if mode is _RESEEDING:
            return self._plan_slice()
        if ledger.in_flight:
            msg = "a decode batch must wait for the results in flight"
            raise IllegalLaunch(msg, mode=mode, observed=ledger.in_flight, expected=0)
        self._fire(Event.DRAINED)
        return self._periodic if self._flush_at == 1 else PLAIN_STEP

    def _plan_slice(self) -> Plan:
        ledger, width, ahead = self.ledger, self.stash.slice_width, self.stash.seed_ahead
        gap = ledger.max_gap
        if (gap == 0 and not ledger.seeds_due) if ahead else gap <= width:
            return Plan(_ACT_RESEED, _RESEEDING, flush_upper=gap)
        upper = gap + 1
        lower = max(0, upper - width)
        if upper > ahead:
            # The newest age stays for the launch that makes the seeds.
            lower = max(1, lower)
        return Plan(_ACT_PLAIN, _RESEEDING, False, upper, lower, seeds=not lower)

    def _wrong_rows(self, rows: int) -> NoReturn:
        error = IllegalLaunch(
            "a decode launch holds the rows that joined: at least one, no stranger, none left out"
            " twice",
            mode=self.mode,
            observed=f"{rows} rows, {self._sat_out} left out before",
            expected=f"{self.ledger.rows} rows, of which {self._departed} more may linger",
            invariant="I7",
        )
        self._violated(error)

    # -- launches and results -------------------------------------------------------------

    def check_launch(  # noqa: PLR0913 -- a record of the facts would cost as much as the check
        self,
        phase: Phase,
        b: int,
        tokens: int,
        slots: int,
        spec_info: SpecInfo,
        hidden: Hidden,
        width: int | None = None,
    ) -> None:
        """Hold a launch against the matrix and I1a, I16, I2, I3, before it is issued.

        b: rows.  tokens, slots: lengths of `input_ids` and `out_cache_loc`.  width: needed for
        PREFILL, MIXED, FLUSH and SEED_EXTEND, see `laws.tokens`.  Raises ShapeViolation naming
        mode, phase, observed, expected and the invariant; the launch must then not be issued.
        """
        checks = self.checks
        checks.launches += 1
        law = self._laws[self.mode][phase]
        units = width if phase is _PREFILL else b
        if (
            law is None
            or units is None
            or spec_info is not law[0]
            or hidden is not law[1]
            or tokens != law[2] * units
            or (slots != law[3] * units and slots != law[4] * units)
            or b < 1
        ):
            launch = Launch(phase, b, tokens, slots, spec_info, hidden, width)
            error = violation(self.mode, launch, self.shape)
            if error is not None:
                self._violated(error)
        if self._trace is not None:
            # A line of the trace has no width: its tokens are what it led to.
            launch = Launch(phase, b, tokens, slots, spec_info, hidden)
            self._trace.launch(self._where(), launch)

    def launched(self, action: Action, rows: int, plan: Plan) -> None:
        """The decode launch of `plan` was issued for `rows` rows.

        Raises IllegalLaunch, changing nothing, if the mode has no such launch or the plan is
        another one's, and IllegalEvent if a flush does not reach the oldest gap.
        """
        mode = self.mode
        speculative = action is not _ACT_PLAIN
        if action is not plan.action or mode is _DRAINING or (mode is _SPEC) is not speculative:
            msg, planned = misplaced(mode, action, plan), f"the plan's {plan.action.name}"
            raise IllegalLaunch(msg, mode=mode, observed=action.name, expected=planned)
        ledger = self.ledger
        if action is _ACT_RESEED and ledger.unsettled:
            msg = "a RESEED plan was reported as launched twice, or after another launch"
            raise IllegalLaunch(msg, mode=mode, observed=ledger.unsettled, expected=0)
        if speculative:
            self._departed = 0
            self._sat_out = max(0, ledger.rows - rows) if action is _ACT_RESEED else 0
            ledger.launch_speculative(action)
            dropped: Sequence[str] = ()
        else:
            gap = ledger.max_gap + 1
            if plan.flush_upper and not 0 <= plan.flush_lower <= plan.flush_upper >= gap:
                event = Event.FLUSHED if mode is _PLAIN else Event.SLICE_DONE
                self._refuse(event, "REACHES_OLDEST", plan.flush_upper, gap)
            self._departed, self._sat_out = 0, max(0, ledger.rows - rows)
            dropped = ledger.launch_plain()
            if plan.flush_upper:
                ledger.flush(plan.flush_lower)
                if plan.seeds:
                    ledger.seeds_at = ledger.t_launched
        if self._trace is not None:
            self._launched_lines(rows, plan, dropped)
        else:
            upper, lower = plan.flush_upper, plan.flush_lower
            self._note((LAUNCHED, time.monotonic_ns(), action, rows, upper, lower, 0))

    def settled(
        self,
        action: Action,
        rows: int,
        accepted: Sequence[int] | None = None,
        *,
        rids: Sequence[str] | None = None,
    ) -> None:
        """The oldest result in flight, of an `action` launch of `rows` rows, was processed.

        Call it before `left` for the rows this result ends.  accepted, rids: positions committed
        (bonus included, 0 for a row that had left) and id of each row in batch order, for the
        trace alone.  Raises
        IllegalEvent, changing nothing, if another result is due first.
        """
        if action is _ACT_RESEED and self._sat_out > self._departed:
            self._wrong_rows(rows)
        if not self.ledger.settle(action):
            due = self.ledger.next_action
            expected = "nothing" if due is None else due.name
            self._refuse(_RESULT[action], "results come in launch order", action.name, expected)
        if self._trace is not None:
            fields: dict[str, object] = {"action": action.name, "batch": rows}
            if accepted is not None:
                fields["accepted"] = list(accepted)
            if rids is not None:
                fields["rids"] = list(rids)
            self._event_line(_RESULT[action], self.mode, fields)
        else:
            self._note((RESULT, _RESULT[action], action, rows))

    def _count(self, steady: Steady) -> None:
        issued, processed, action = steady.issued, steady.processed, steady.action
        steady.issued = steady.processed = 0
        self._note((STEADY, time.monotonic_ns(), action, issued, processed))
        ledger = self._ledger
        if issued:
            self._departed = self._sat_out = 0
            self.checks.plans += issued
            if action is _ACT_PLAIN:
                ledger.t_launched += issued
            else:
                ledger.unsettled += issued
        if processed and not (action is not None and ledger.settle_many(action, processed)):
            self._refuse(_RESULT[action or 0], "results come in launch order")


__all__ = ["Lifecycle", "Plan", "StashConfig"]
