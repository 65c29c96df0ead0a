"""The quick way to report and to decide says what the plain calls say, at one call a step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_support import CHAIN, HIGH, LOW, TREE, in_mode, join, make, moves, settle, snapshot
from spec_fsm import (
    Action,
    Event,
    Hidden,
    IllegalEvent,
    IllegalLaunch,
    Lifecycle,
    ListSink,
    Mode,
    Phase,
    Pin,
    ShapeViolation,
    SpecInfo,
    StashConfig,
)
from spec_fsm.plan import PLAIN_STEP, SPECULATE, WAIT

STEPS = moves(
    step=8, settle=4, join=3, load=3, leave=1, absent=1, pin=1, fail=1, weights=1, nothing=1
)


def report(lifecycle: Lifecycle, action: Action) -> None:
    """A result was processed, told the quick way."""
    if action is lifecycle.steady.action:
        lifecycle.steady.processed += 1
    else:
        lifecycle.settled(action, lifecycle.rows)


class Pair:
    """Two lifecycles told the same history, one by plain calls, the other by `decide`."""

    def __init__(self, flush_every: int, dwell: int, *, ahead: bool, traced: bool) -> None:
        stash = StashConfig(6, flush_every, slice_width=3, seed_ahead=2 if ahead else 0)
        self.sinks = (ListSink(), ListSink()) if traced else (None, None)
        self.plain, self.quick = (make(stash=stash, dwell=dwell, trace=sink) for sink in self.sinks)
        self.load = LOW
        self.ghosts = 0

    def both(self, name: str, *args: object) -> None:
        """The same call to both, with the same answer."""
        answers = [getattr(lc, name)(*args) for lc in (self.plain, self.quick)]
        assert answers[0] == answers[1]

    def settle(self) -> None:
        """Process the oldest result: told by call to one, by a count to the other."""
        action = self.plain.ledger.next_action
        if action is not None:
            self.plain.settled(action, self.plain.rows)
            report(self.quick, action)

    def step(self, missing: int = 0) -> None:
        """One iteration that decodes, all rows but `missing`."""
        while self.plain.ledger.in_flight > 1:
            self.settle()
        rows = self.plain.rows - missing
        must_wait = self.plain.boundary(self.load)
        if rows < 1:
            assert self.quick.boundary(self.load) is must_wait
            return
        plan = self.quick.decide(self.load, rows)
        assert plan.settle_first is must_wait
        if must_wait:
            while self.plain.ledger.in_flight:
                self.settle()
            plan = self.quick.decide(self.load, rows)
            assert self.plain.boundary(self.load) is False
        assert plan == self.plain.plan_decode(rows)
        if plan.action is Action.RESEED:
            self.both("reseeded")
            self.quick.launched(plan.action, rows, plan)
        self.plain.launched(plan.action, rows, plan)

    def play(self, what: str, number: int) -> None:  # noqa: C901 -- one case a move
        """One move of a random history."""
        rid = f"r{number}"
        match what:
            case "step":
                self.step()
            case "absent" if self.plain.rows > 1:
                self.step(missing=1)
                self.both("left", next(iter(self.plain.ledger._base), "none"), Event.FINISHED)
                self.both("left", next(iter(self.plain.ledger._lost), "none"), Event.FINISHED)
            case "settle":
                self.settle()
            case "join" if rid not in self.plain.ledger:
                self.both("joined", rid, 3)
            case "leave":
                self.both("left", rid, Event.ABORTED)
            case "load":
                self.load = (LOW, 5, HIGH)[number % 3]
            case "pin":
                for lifecycle in (self.plain, self.quick):
                    lifecycle.pin = list(Pin)[number % 3]
            case "fail" if self.plain.mode is Mode.RESEEDING:
                self.both("reseed_failed", "by chance")
            case "weights":
                self.both("weights_changed")


def kept(lifecycle: Lifecycle) -> dict[str, object]:
    """What both ways must agree on."""
    assert lifecycle.ledger is lifecycle._ledger, "reading counts what is pending"
    return snapshot(lifecycle) | {"checks": lifecycle.checks.evaluated("I7")}


@settings(deadline=None)
@given(STEPS, st.integers(0, 4), st.integers(0, 3), st.booleans(), st.booleans())
def test_decide_equals_the_plain_calls(
    steps: list[tuple[str, int]], flush_every: int, dwell: int, ahead: bool, traced: bool
) -> None:
    """On random histories both ways reach the same state, plans and trace events."""
    pair = Pair(flush_every, dwell, ahead=ahead, traced=traced)
    for what, number in steps:
        pair.play(what, number)
        if number == 0:  # else counts pile up until the next look
            assert kept(pair.quick) == kept(pair.plain)
    assert kept(pair.quick) == kept(pair.plain)
    if traced:
        events = [
            [line["event"] for line in sink.lines if line["kind"] == "event"]
            for sink in pair.sinks
            if sink is not None
        ]
        assert sorted(events[0]) == sorted(events[1])


def test_ordinary_steps_are_one_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """In SPEC and PLAIN an ordinary step ends in `decide` itself: nothing else is called."""
    for mode, plan in ((Mode.SPEC, SPECULATE), (Mode.PLAIN, PLAIN_STEP)):
        lifecycle = in_mode(mode, rows=3, pin=Pin.AUTO)
        load = LOW if mode is Mode.SPEC else HIGH
        lifecycle.boundary(load)
        assert lifecycle.decide(load, 3) is plan
        for name in ("_decide", "launched", "settled", "boundary", "plan_decode"):
            monkeypatch.setattr(lifecycle, name, None)
        for _ in range(2):
            assert lifecycle.decide(load, 3) is plan
            lifecycle.steady.processed += 1
        monkeypatch.undo()
        assert lifecycle.ledger.in_flight == 1


def test_a_row_more_or_less_leaves_plain_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come and go all the time: a batch with exactly them is still an ordinary step."""
    lifecycle = in_mode(Mode.PLAIN, rows=3)
    lifecycle.decide(HIGH, 3)
    monkeypatch.setattr(lifecycle, "_decide", None)
    lifecycle.joined("new", 5)
    assert lifecycle.decide(HIGH, 4) is PLAIN_STEP
    lifecycle.left("r0", Event.FINISHED)
    lifecycle.left("nobody", Event.FINISHED)
    assert lifecycle.decide(HIGH, 3) is PLAIN_STEP


def test_a_steady_server_is_looked_at_again() -> None:
    """A steady plan is handed out a bounded number of times, and so are counts kept pending."""
    lifecycle = in_mode(Mode.SPEC, rows=2)
    for _ in range(200):
        lifecycle.decide(LOW, 2)
        lifecycle.steady.processed += 1
        assert lifecycle.steady.issued <= 64
    assert lifecycle.unsettled == 0


def test_a_result_that_is_not_due_is_refused_at_the_next_look() -> None:
    """More results than launches raise before anything else is told."""
    lifecycle = in_mode(Mode.PLAIN)
    lifecycle.decide(HIGH, 2)
    lifecycle.steady.processed += 2
    with pytest.raises(IllegalEvent, match="launch order"):
        lifecycle.left("r0", Event.FINISHED)
    fresh = make()
    fresh.steady.processed += 1
    with pytest.raises(IllegalEvent, match="launch order"):
        fresh.joined("r0", 3)


def test_decide_says_wait_while_a_result_is_in_flight() -> None:
    """When the load rises with a result in flight, decide hands out the plan to settle first."""
    lifecycle = make()
    join(lifecycle, 2)
    lifecycle.decide(LOW, 2)
    assert lifecycle.decide(HIGH, 2) is WAIT
    assert WAIT.settle_first
    settle(lifecycle)
    assert lifecycle.decide(HIGH, 2) is PLAIN_STEP


def test_the_laws_of_the_mode_are_data() -> None:
    """`laws` holds what check_launch accepts, and follows the mode."""
    lifecycle = in_mode(Mode.SPEC, shape=CHAIN)
    law = lifecycle.laws[Phase.DRAFT]
    assert law is not None
    info, hidden, tokens, slots, window = law
    for owned in (slots, window):
        lifecycle.check_launch(Phase.DRAFT, 2, 2 * tokens, 2 * owned, info, hidden)
    with pytest.raises(ShapeViolation):
        lifecycle.check_launch(Phase.DRAFT, 2, 2 * tokens + 1, 2 * slots, info, hidden)
    assert lifecycle.laws[Phase.PLAIN_DECODE] is None
    lifecycle.boundary(HIGH)
    assert lifecycle.laws[Phase.DRAFT] is None


def test_there_are_no_laws_to_compare_while_tracing() -> None:
    """With a trace every launch has to be told, in every mode."""
    lifecycle = in_mode(Mode.SPEC, shape=TREE, trace=ListSink())
    lifecycle.check_launch(Phase.VERIFY, 2, 32, 32, SpecInfo.VERIFY, Hidden.FULL)
    assert set(lifecycle.laws) == {None}
    lifecycle.boundary(HIGH)
    assert set(lifecycle.laws) == {None}


def test_a_periodic_flush_leaves_plain_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a steady PLAIN every flush_every-th step flushes, without a look at anything else."""
    stash = StashConfig(width=8, flush_every=3, slice_width=2)
    lifecycle = in_mode(Mode.PLAIN, rows=2, stash=stash)
    while lifecycle.decide(HIGH, 2).flush_upper == 0:
        pass
    for name in ("boundary", "plan_decode", "launched"):
        monkeypatch.setattr(lifecycle, name, None)
    flushes = [lifecycle.decide(HIGH, 2).flush_upper for _ in range(9)]
    assert flushes == [0, 0, 3] * 3
    assert lifecycle.max_gap == 0


def test_a_flush_is_not_due_once_the_rows_it_was_for_have_left() -> None:
    """The quick way asks how old the oldest row is now, not when the flush was foreseen."""
    lifecycle = in_mode(Mode.PLAIN, rows=2, stash=StashConfig(width=8, flush_every=3))
    while lifecycle.decide(HIGH, 2).flush_upper == 0:
        pass
    assert [lifecycle.decide(HIGH, 2) for _ in range(2)] == [PLAIN_STEP] * 2
    lifecycle.joined("new", 5)
    for rid in ("r0", "r1"):
        lifecycle.left(rid, Event.FINISHED)
    assert lifecycle.decide(HIGH, 1) is PLAIN_STEP
    assert lifecycle.max_gap == 1


def test_new_weights_end_what_was_foreseen() -> None:
    """Which rows a flush is for is asked anew: here it is due at once, for the new one."""
    lifecycle = in_mode(Mode.PLAIN, rows=1, stash=StashConfig(width=8, flush_every=1))
    lifecycle.decide(HIGH, 1)
    lifecycle.joined("new", 5)
    lifecycle.weights_changed()
    assert lifecycle.lost == 1
    assert lifecycle.decide(HIGH, 2).flush_upper == 1


def test_a_row_that_sits_out_leaves_plain_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose last token is in flight misses a step and leaves: no look at anything else."""
    stash = StashConfig(width=8, flush_every=7, slice_width=2)
    lifecycle = in_mode(Mode.PLAIN, rows=3, stash=stash)
    while lifecycle.decide(HIGH, 3).flush_upper == 0:
        pass
    for name in ("boundary", "plan_decode", "launched"):
        monkeypatch.setattr(lifecycle, name, None)
    assert lifecycle.decide(HIGH, 2) is PLAIN_STEP
    lifecycle.left("r1", Event.FINISHED)
    assert lifecycle.decide(HIGH, 2) is PLAIN_STEP
    assert lifecycle.max_gap == 2


def test_a_stranger_in_a_steady_batch_is_refused() -> None:
    """More rows than joined: the quick way hands it on, and it is refused as I7."""
    lifecycle = in_mode(Mode.PLAIN, rows=3)
    lifecycle.decide(HIGH, 3)
    with pytest.raises(IllegalLaunch, match="breaks I7"):
        lifecycle.decide(HIGH, 4)


def test_slices_of_reseeding_are_decided_one_by_one() -> None:
    """Nothing is steady while a gap is rebuilt: each step carries its own slice."""
    lifecycle = in_mode(Mode.RESEEDING, rows=2)
    assert lifecycle.decide(LOW, 2).flush_lower > 0
    assert lifecycle.steady.left == -1


def test_decide_loses_rows_at_the_width_as_launches_do() -> None:
    """Step by step to one past the stash width, the row is lost in the same step either way."""
    stash = StashConfig(width=6, flush_every=0, slice_width=2)
    plain, quick = (make(stash=stash, pin="PLAIN") for _ in range(2))
    for lifecycle in (plain, quick):
        join(lifecycle, 1)
        lifecycle.boundary(HIGH)
    for number in range(9):
        plain.boundary(HIGH)
        plan = plain.plan_decode(1)
        assert quick.decide(HIGH, 1) == plan
        plain.launched(plan.action, 1, plan)
        assert kept(quick) == kept(plain)
        assert quick.lost == (number >= 6)


def test_decide_refuses_a_row_left_out_twice() -> None:
    """A row that sat out a launch and is still here is refused by `decide` too, fewer or all."""
    lifecycle = in_mode(Mode.PLAIN, rows=3)
    lifecycle.boundary(HIGH)
    lifecycle.decide(HIGH, 2)
    for rows in (2, 3):
        with pytest.raises(IllegalLaunch, match="1 left out before"):
            lifecycle.decide(HIGH, rows)
    lifecycle.left("r2", Event.FINISHED)
    assert lifecycle.decide(HIGH, 2) is PLAIN_STEP


def test_a_row_that_left_may_ride_along_once_by_decide_too() -> None:
    """A row that left may be in one more launch that `decide` hands out, not in two."""
    lifecycle = in_mode(Mode.PLAIN, rows=3)
    lifecycle.boundary(HIGH)
    lifecycle.left("r2", Event.FINISHED)
    lifecycle.decide(HIGH, 3)
    with pytest.raises(IllegalLaunch, match="breaks I7"):
        lifecycle.decide(HIGH, 3)
