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
the table, run through the `transitions` machine and counted; the calls of a step that changes no
mode go neither way, they move the counters of the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from spec_fsm._rules import EFFECTS, Arg, RowState
from spec_fsm._runner import NO_ARG, TableRunner
from spec_fsm._table import EDGE_OF
from spec_fsm.errors import ConfigError, IllegalLaunch, ShapeViolation
from spec_fsm.invariants import ROW_PREDICATES
from spec_fsm.launch_laws import Launch, fixed_laws, violation
from spec_fsm.modes import LEAVING, Action, Event, Hidden, Mode, Phase, Pin, SpecInfo
from spec_fsm.ops import INT
from spec_fsm.plan import PLAIN_STEP, SPECULATE, Plan, StashConfig
from spec_fsm.policy import Policy, as_pin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec_fsm.laws import Shape
    from spec_fsm.ledger import Row
    from spec_fsm.trace import Sink

# Bound once: looking a member up on its enum class costs as much as the rest of a check.
_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_ACT_SPECULATE, _ACT_PLAIN, _ACT_RESEED = Action
_NEVER = 1 << 62
_RESULT = (Event.SETTLED, Event.DECODED, Event.SETTLED)  # by action
_PLAIN_LAUNCH = Arg(plain=1)
NOTED = frozenset({Event.ADMITTED, Event.FILTERED, Event.MERGED})


class Lifecycle(TableRunner):
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
        # Rows that left since the last decode launch, and rows that sat it out; see `_wrong_rows`.
        self._departed = self._sat_out = 0
        self._laws = fixed_laws(shape)
        self._flush_at = stash.flush_every or _NEVER

    # -- reading --------------------------------------------------------------------------

    @property
    def pin(self) -> Pin:
        """What the operator asks for; assign to change it, in force at the next boundary."""
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
        """Rows whose gap outgrew the stash; while one lives, PLAIN stays."""
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
        """Whether the seed of `rid` is that of its last position; False if unknown."""
        return self.ledger.seeded(rid)

    def row(self, rid: str, committed: int, reserved: int) -> Row:
        """The figures of `rid` as of the settled launches, given its own two, in positions."""
        return self.ledger.row(rid, committed, reserved)

    # -- the mode, once an iteration ------------------------------------------------------

    def boundary(self, load: int) -> bool:
        """Ask the policy once; True if the next decode batch must wait for results in flight.

        load: rows that decode or are about to.  A change that is due but whose guard does not
        hold (a row is lost) is not made; `held` names the guard, and the next boundary asks
        again.
        """
        event = self.policy.event(self.mode, load)
        if event is not None:
            self._due(event, load)
        elif self.held:
            self.held = ""
        return self.mode is _DRAINING and self.ledger.in_flight > 0

    def _due(self, event: Event, load: int) -> None:
        edge = EDGE_OF[self.mode, event]
        state = self.state()
        guard = self._broken_guard(edge, state, NO_ARG)
        if guard and guard != self.held and self._trace is not None:
            self._trace.refused(event, self.mode, guard)
        self.held = guard
        if not guard:
            self._follow(edge, state, NO_ARG, {"load": load})

    def plan_decode(self, rows: int) -> Plan:
        """What a decode batch of `rows` rows does; in DRAINING with nothing in flight, DRAINED.

        Raises IllegalLaunch in DRAINING while a result is in flight, and outside SPEC if `rows`
        cannot be the rows that joined: the ledger counts on each of them taking part in every
        plain launch.  Overlap allows two exceptions, for one launch each: a row that left since
        the last launch may ride along, and a row whose last token is in flight may sit out
        (SGLang 0.5.23 `Scheduler._reqs_finishing_inflight`) if it leaves before the next.
        """
        plan = SPECULATE if self.mode is _SPEC else self._plan_unspeculative(rows)
        if self._trace is not None:
            self._trace.plan(plan, rows)
        return plan

    def _plan_unspeculative(self, rows: int) -> Plan:
        ledger, mode = self.ledger, self.mode
        self.checks.count("I7")
        departed = self._departed
        if not 1 <= rows <= ledger.rows + departed or self._sat_out > departed:
            self._wrong_rows(rows)
        if mode is _DRAINING:
            if ledger.in_flight:
                msg = "a decode batch must wait for the results in flight"
                raise IllegalLaunch(msg, mode=mode, observed=ledger.in_flight, expected=0)
            self._fire(Event.DRAINED)
        gap = ledger.max_gap
        if self.mode is _PLAIN:
            if gap + 1 < self._flush_at:
                return PLAIN_STEP
            return Plan(_ACT_PLAIN, _PLAIN, flush_upper=gap + 1)
        width = self.stash.slice_width
        if gap <= width:
            return Plan(_ACT_RESEED, _RESEEDING, flush_upper=gap)
        return Plan(_ACT_PLAIN, _RESEEDING, flush_upper=gap + 1, flush_lower=gap + 1 - width)

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
        if (
            law is None
            or spec_info is not law[0]
            or hidden is not law[1]
            or tokens != law[2] * b
            or (slots != law[3] * b and slots != law[4] * b)
            or b < 1
        ):
            launch = Launch(phase, b, tokens, slots, spec_info, hidden, width)
            error = violation(self.mode, launch, self.shape)
            if error is not None:
                self._violated(error)
        if self._trace is not None:
            launch = Launch(phase, b, tokens, slots, spec_info, hidden, width)
            self._trace.launch(self.mode, launch)

    def launched(self, action: Action, rows: int, plan: Plan) -> None:
        """The decode launch of `plan` was issued for `rows` rows.

        Raises IllegalLaunch, changing nothing, if the mode has no such launch or the plan is
        another one's, and IllegalEvent if a flush does not reach the oldest gap.
        """
        mode = self.mode
        speculative = action is not _ACT_PLAIN
        if action is not plan.action or mode is _DRAINING or (mode is _SPEC) is not speculative:
            msg = "the decode launch does not belong here"
            raise IllegalLaunch(
                msg, mode=mode, observed=action.name, expected=f"the plan's {plan.action.name}"
            )
        self._departed = 0
        dropped: list[str] = []
        if speculative:
            self._sat_out = 0
            self.ledger.launch_speculative(action)
        else:
            self._sat_out = max(0, self.ledger.rows - rows)
            if plan.flush_upper:
                self._launched_with_flush(rows, plan)
                return
            dropped = self.ledger.launch_plain()
        if self._trace is not None:
            self._launched_line(rows, plan)
            for rid in dropped:
                self._event_line(Event.STASH_DROPPED, mode, {"rid": rid})

    def _launched_with_flush(self, rows: int, plan: Plan) -> None:
        event = Event.FLUSHED if self.mode is _PLAIN else Event.SLICE_DONE
        edge = EDGE_OF[self.mode, event]
        arg = Arg(upper=plan.flush_upper, lower=plan.flush_lower)
        # Judged as of after the launch that carries it, but before anything is changed.
        after = EFFECTS["LAUNCH"](INT, self.state(), _PLAIN_LAUNCH)
        if guard := self._broken_guard(edge, after, arg):
            self._refuse(event, guard, observed=plan.flush_upper, expected=self.max_gap + 1)
        self.ledger.launch_plain()
        if self._trace is not None:
            self._launched_line(rows, plan)
        self._follow(edge, after, arg, {"upper": plan.flush_upper, "lower": plan.flush_lower})
        self.ledger.repoint()

    def _launched_line(self, rows: int, plan: Plan) -> None:
        flush = [plan.flush_upper, plan.flush_lower]
        fields = {"action": plan.action.name, "batch": rows, "flush": flush}
        self._event_line(Event.LAUNCHED, self.mode, fields)

    def settled(
        self,
        action: Action,
        rows: int,
        accepted: Sequence[int] | None = None,
        *,
        rids: Sequence[str] | None = None,
    ) -> None:
        """The oldest result in flight, of an `action` launch of `rows` rows, was processed.

        Call it before `left` for the rows this result ends.  accepted, rids: accept length
        (bonus included) and id of each row in batch order, for the trace alone.  Raises
        IllegalEvent, changing nothing, if another result is due first.
        """
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

    # -- membership -----------------------------------------------------------------------

    def joined(self, rid: str, committed: int) -> None:
        """PREFILLED: the last chunk of `rid` was launched; the row decodes from here on.

        Call it before the first decode launch that holds the row, with no plain launch between.
        committed: positions of the prompt.  Raises IllegalEvent if `rid` is here already.
        """
        self._new_row(rid, Event.PREFILLED)
        self.ledger.join(rid)
        self._event_line(Event.PREFILLED, self.mode, {"rid": rid, "committed": committed})

    def chunked(self, rid: str, length: int) -> None:
        """PREFILLED_CHUNK: a chunk of `rid` up to `length` positions was launched, not the last.

        Raises IllegalEvent if `rid` decodes already.
        """
        self._new_row(rid, Event.PREFILLED_CHUNK)
        self._event_line(Event.PREFILLED_CHUNK, self.mode, {"rid": rid, "committed": length})

    def _new_row(self, rid: str, event: Event) -> None:
        if rid in self.ledger:
            self._refuse(event, f"row {rid!r} joined already")

    def left(self, rid: str, event: Event) -> int:
        """FINISHED, RETRACTED or ABORTED: forget `rid`; returns its committed - covered.

        The caller cuts what it inserts into the prefix cache by that many positions (I15).  A
        row that never joined gives 0.  Raises ConfigError for any other event.
        """
        if event not in LEAVING:
            msg = f"event is {event.name}: accepted are FINISHED, RETRACTED, ABORTED"
            raise ConfigError(msg)
        self._departed += rid in self.ledger
        gap = self.ledger.leave(rid)
        self._event_line(event, self.mode, {"rid": rid, "gap": gap})
        return gap

    def noted(self, event: Event, batch: int) -> None:
        """ADMITTED, FILTERED or MERGED: the engine's batch holds `batch` rows now; trace only.

        They move no counter: rows come by `joined` and go by `left`.  Raises ConfigError for any
        other event.
        """
        if event not in NOTED:
            msg = f"event is {event.name}: accepted are ADMITTED, FILTERED, MERGED"
            raise ConfigError(msg)
        self._event_line(event, self.mode, {"batch": batch})

    # -- what the engine reports ----------------------------------------------------------

    def reseeded(self) -> None:
        """The rest of every gap and every seed were enqueued, just before the first draft.

        Raises IllegalEvent unless the mode is RESEEDING and the rest fits one slice.
        """
        self._fire(Event.RESEEDED)

    def reseed_failed(self, why: str) -> None:
        """The engine could not rebuild: back to PLAIN, waiting twice as long each time.

        Raises IllegalEvent outside RESEEDING.
        """
        self._fire(Event.RESEED_FAILED, fields={"why": why})

    def cache_flushed(self) -> None:
        """The prefix cache was emptied.  Raises IllegalEvent while a row lives."""
        self._fire(Event.CACHE_FLUSHED)

    def weights_changed(self) -> None:
        """New weights: rows that still need hidden states stashed under the old ones are lost."""
        stale = self.ledger.stale()
        arg = Arg(lost=len(stale), oldest=self.ledger.oldest_without(stale))
        self._fire(Event.WEIGHTS_CHANGED, arg, {"lost": len(stale)})
        self.ledger.lose(stale)

    def observe(self, kind: str, **facts: int) -> None:
        """Put a line of the engine's own figures into the trace; nothing else."""
        if self._trace is not None:
            self._trace.observed(self.mode, kind, facts)

    def audit(self, rid: str, committed: int, reserved: int) -> Row:
        """`row`, held against I5, I8 (in SPEC and DRAINING) or I14 (in PLAIN and RESEEDING).

        O(1) a row and meant for samples, tests and strict runs.  Raises ShapeViolation.
        """
        row = self.ledger.row(rid, committed, reserved)
        figures = RowState(
            row.committed, row.covered, row.stashed, int(row.seeded), int(row.lost), reserved
        )
        if self.mode in (_SPEC, _DRAINING):
            # What is enqueued counts: the launch that reseeds settles one boundary later.
            gap = self.ledger.gap(rid)
            figures = figures._replace(covered=committed - gap, seeded=int(self.seeded(rid)))
        for invariant in ("I5", "I8" if self.mode in (_SPEC, _DRAINING) else "I14"):
            self.checks.count(invariant)
            if not ROW_PREDICATES[invariant](INT, figures):
                msg = f"row {rid!r} breaks a law of the ledger"
                error = ShapeViolation(msg, mode=self.mode, observed=row, invariant=invariant)
                self._violated(error)
        return row


__all__ = ["NOTED", "Lifecycle", "Plan", "StashConfig"]
