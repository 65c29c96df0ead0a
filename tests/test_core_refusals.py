"""A refused event changes nothing, over the whole grid of modes and events."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from core_support import HIGH, LOW, in_mode, join, launch, make, settle, snapshot, step
from spec_fsm import Action, Event, IllegalEvent, IllegalLaunch, Lifecycle, ListSink, Mode, Plan
from spec_fsm._table import EDGE_OF, REFUSALS

GRID = list(itertools.product(Mode, Event))


@pytest.mark.parametrize(("mode", "event"), sorted(REFUSALS))
def test_refusal_changes_nothing(mode: Mode, event: Event) -> None:
    """Each refused pair raises IllegalEvent naming both and the reason, and all stays as it was."""
    lifecycle = in_mode(mode)
    before = snapshot(lifecycle)
    with pytest.raises(IllegalEvent) as caught:
        lifecycle._fire(event)
    assert snapshot(lifecycle) == before
    assert (caught.value.mode, caught.value.event) == (mode, event)
    assert REFUSALS[mode, event] in str(caught.value)


@pytest.mark.parametrize(("mode", "event"), [k for k in GRID if k in EDGE_OF and EDGE_OF[k].guards])
def test_a_guard_that_does_not_hold_changes_nothing(mode: Mode, event: Event) -> None:
    """Each guarded edge whose guard is made false raises IllegalEvent and changes nothing."""
    lifecycle, act = broken(mode, event)
    before = snapshot(lifecycle)
    with pytest.raises((IllegalEvent, IllegalLaunch)):
        act(lifecycle)
    assert snapshot(lifecycle) == before


# Calls that meet a guard which does not hold, where the mode alone (gaps of 5, see `in_mode`) is
# enough to break it; `broken` arranges the rest.
CALLS: dict[Event, Callable[[Lifecycle], object]] = {
    Event.DRAINED: lambda lc: lc.plan_decode(lc.rows),
    Event.RESEEDED: lambda lc: lc.reseeded(),
    Event.SETTLED: lambda lc: lc.settled(Action.SPECULATE, 2),
    Event.DECODED: lambda lc: lc.settled(Action.PLAIN, 2),
    Event.PREFILLED: lambda lc: lc.joined("r0", 3),
    Event.PREFILLED_CHUNK: lambda lc: lc.chunked("r0", 3),
    Event.CACHE_FLUSHED: lambda lc: lc.cache_flushed(),
    Event.STASH_DROPPED: lambda lc: lc._fire(Event.STASH_DROPPED),
    Event.LOAD_ROSE: lambda lc: lc._fire(Event.LOAD_ROSE),
    Event.LOAD_FELL: lambda lc: lc._fire(Event.LOAD_FELL),
}


def broken(mode: Mode, event: Event) -> tuple[Lifecycle, Callable[[Lifecycle], object]]:
    """A lifecycle in `mode` in which a guard of `event` fails, and the call that meets it."""
    lifecycle = in_mode(mode)
    if event in (Event.LOAD_ROSE, Event.LOAD_FELL):
        lifecycle.policy._dwell = 3
    if event is Event.SETTLED:
        while lifecycle.ledger.in_flight:
            settle(lifecycle)
    if event in (Event.SLICE_DONE, Event.FLUSHED):
        short = Plan(Action.PLAIN, mode, flush_upper=2)
        return lifecycle, lambda lc: lc.launched(Action.PLAIN, 2, short)
    if event is Event.LAUNCHED:
        wrong = Action.PLAIN if mode is Mode.SPEC else Action.SPECULATE
        return lifecycle, lambda lc: lc.launched(wrong, 2, Plan(wrong, mode))
    return lifecycle, CALLS[event]


@pytest.mark.parametrize("mode", Mode)
def test_a_decode_launch_of_another_plan_is_refused(mode: Mode) -> None:
    """Issuing an action that is not the plan's, in any mode, changes nothing."""
    lifecycle = in_mode(mode)
    before = snapshot(lifecycle)
    for action, planned in itertools.permutations(Action, 2):
        with pytest.raises(IllegalLaunch):
            lifecycle.launched(action, 2, Plan(planned, mode))
    assert snapshot(lifecycle) == before


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("mode", [Mode.DRAINING, Mode.PLAIN, Mode.RESEEDING])
def test_a_plan_for_other_rows_is_refused(mode: Mode, rows: int) -> None:
    """Outside SPEC a batch of none, or with a row that never joined, is refused before DRAINED."""
    lifecycle = in_mode(mode)
    while lifecycle.ledger.in_flight:
        settle(lifecycle)
    before = snapshot(lifecycle)
    with pytest.raises(IllegalLaunch, match="breaks I7"):
        lifecycle.plan_decode(rows)
    assert snapshot(lifecycle) == before
    assert lifecycle.checks.violations == {"I7": 1}


def test_a_row_may_sit_out_one_launch_and_then_must_have_left() -> None:
    """A row left out of a plain launch that is still here at the next is refused as I7."""
    lifecycle = in_mode(Mode.PLAIN, rows=3)
    plan = lifecycle.plan_decode(2)
    lifecycle.launched(plan.action, 2, plan)
    before = snapshot(lifecycle)
    for rows in (2, 3):
        with pytest.raises(IllegalLaunch, match="1 left out before"):
            lifecycle.plan_decode(rows)
    assert snapshot(lifecycle) == before
    lifecycle.left("r1", Event.FINISHED)
    assert lifecycle.plan_decode(2).action is Action.PLAIN


def test_a_row_that_left_may_ride_along_once() -> None:
    """A row that left since the last launch may be in the next one, not in the one after."""
    lifecycle = in_mode(Mode.PLAIN, rows=3)
    lifecycle.left("r1", Event.ABORTED)
    plan = lifecycle.plan_decode(3)
    lifecycle.launched(plan.action, 3, plan)
    with pytest.raises(IllegalLaunch, match="breaks I7"):
        lifecycle.plan_decode(3)


def test_results_are_settled_in_launch_order() -> None:
    """A result of another kind than the oldest in flight is refused."""
    lifecycle = in_mode(Mode.RESEEDING)
    assert [launch(lifecycle), launch(lifecycle)] == [Action.PLAIN, Action.RESEED]
    assert lifecycle.ledger.in_flight == 2
    before = snapshot(lifecycle)
    with pytest.raises(IllegalEvent, match="observed RESEED, expected PLAIN"):
        lifecycle.settled(Action.RESEED, 2)
    assert snapshot(lifecycle) == before
    lifecycle.settled(Action.PLAIN, 2)
    lifecycle.settled(Action.RESEED, 2)
    with pytest.raises(IllegalEvent, match="expected nothing"):
        lifecycle.settled(Action.RESEED, 2)


def test_refusals_are_traced_with_their_reason() -> None:
    """A refused event leaves one line that names event, mode and reason."""
    sink = ListSink()
    lifecycle = make(trace=sink)
    with pytest.raises(IllegalEvent):
        lifecycle.reseeded()
    kept = {k: v for k, v in sink.lines[-1].items() if k not in ("seq", "t_ns")}
    assert kept == {
        "kind": "refused",
        "at": 0,
        "mode": "SPEC",
        "rows": 0,
        "unsettled": 0,
        "in_flight": 0,
        "event": "RESEEDED",
        "reason": "no row has a gap",
    }


def test_a_held_change_is_traced_once_and_named() -> None:
    """While a lost row keeps PLAIN, `held` names the guard, one line tells it, and it lifts."""
    sink = ListSink()
    lifecycle = make(trace=sink)
    join(lifecycle, 1)
    lifecycle.boundary(HIGH)
    for _ in range(9):
        step(lifecycle)
    assert lifecycle.lost == 1
    for _ in range(3):
        lifecycle.boundary(LOW)
        assert (lifecycle.mode, lifecycle.held) == (Mode.PLAIN, "REBUILDABLE")
    assert [line["reason"] for line in sink.lines if line["kind"] == "refused"] == ["REBUILDABLE"]
    lifecycle.boundary(HIGH)
    assert lifecycle.held == ""
    lifecycle.left("r0", Event.FINISHED)
    lifecycle.boundary(LOW)
    assert lifecycle.mode is Mode.RESEEDING
