"""The flight record's lines, and a lifecycle that starts afresh after a violated law."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core_support import HIGH, LOW, in_mode, join, launch, make, settle, snapshot, step
from spec_fsm import (
    Action,
    Event,
    Hidden,
    IllegalEvent,
    ListSink,
    Mode,
    Phase,
    Pin,
    ShapeViolation,
    SpecInfo,
    StashConfig,
)
from spec_fsm.flight import KEPT
from spec_fsm.launch_laws import NO_LAWS


def told(lifecycle: Any) -> list[dict[str, Any]]:
    """The lines of a flight without their times, as JSON gives them back."""
    lines = json.loads(json.dumps(lifecycle.flight.lines()))
    return [{k: v for k, v in line.items() if k not in ("seq", "t_ns")} for line in lines]


def test_rare_things_are_kept_line_by_line_without_a_trace() -> None:
    """Rows, launches that are not steady, mode changes, refusals and violations, in their order."""
    lifecycle = make(stash=StashConfig(width=8, flush_every=4, slice_width=3))
    join(lifecycle, 1)
    launch(lifecycle)
    settle(lifecycle)
    lifecycle.boundary(HIGH)
    with pytest.raises(IllegalEvent):
        lifecycle.joined("r0", 7)
    with pytest.raises(ShapeViolation):
        lifecycle.check_launch(Phase.VERIFY, 1, 1, 1, SpecInfo.NONE, Hidden.NULL)
    lifecycle.left("r0", Event.ABORTED)
    assert told(lifecycle) == [
        {"kind": "event", "event": "PREFILLED", "rid": "r0", "committed": 7},
        {"kind": "event", "event": "LAUNCHED", "action": "SPECULATE", "batch": 1, "upper": 0,
         "lower": 0, "steady": 0},
        {"kind": "event", "event": "SETTLED", "action": "SPECULATE", "batch": 1},
        {"kind": "event", "event": "LOAD_ROSE", "mode": "SPEC", "to": "DRAINING", "rows": 1,
         "unsettled": 0, "load": HIGH},
        {"kind": "refused", "event": "PREFILLED", "mode": "DRAINING",
         "reason": "row 'r0' joined already"},
        {"kind": "violation", "invariant": "matrix", "mode": "DRAINING",
         "error": told(lifecycle)[5]["error"]},
        {"kind": "event", "event": "ABORTED", "rid": "r0", "gap": 0},
    ]


def test_a_guard_that_holds_a_change_is_kept() -> None:
    """A change that is due but not made is one line, not one at each boundary."""
    lifecycle = in_mode(Mode.PLAIN, stash=StashConfig(width=2, flush_every=0, slice_width=2))
    for _ in range(3):
        lifecycle.boundary(LOW)
    refused = [line for line in told(lifecycle) if line["kind"] == "refused"]
    assert [line["event"] for line in refused] == ["LOAD_FELL"]


def test_steady_steps_are_one_line_with_their_counts() -> None:
    """Forty steady steps leave a line where they are counted, and one at each periodic flush."""
    lifecycle = make(stash=StashConfig(width=64, flush_every=16, slice_width=8), pin=Pin.PLAIN)
    join(lifecycle, 3)
    for _ in range(41):
        plan = lifecycle.decide(HIGH, 3)
        if plan.action is lifecycle.steady.action:
            lifecycle.steady.processed += 1
        else:
            settle(lifecycle)
    before = len(told(lifecycle))
    assert lifecycle.ledger.t_launched == 41
    lines = told(lifecycle)
    assert before < len(lines) < 12
    launched = [line for line in lines if line.get("event") == "LAUNCHED"]
    flushes = [(line["upper"], line["lower"]) for line in launched]
    assert [flush for flush in flushes if flush != (0, 0)] == [(16, 0), (16, 0)]
    steps = sum(line["steady"] for line in launched) + len(launched)
    steps += sum(line["launched"] for line in lines if line["kind"] == "steady")
    assert steps == 41


def test_the_last_thousand_lines_are_kept() -> None:
    """Older ones make room; with a trace they are the trace's own."""
    sink = ListSink()
    for lifecycle in (make(), make(trace=sink)):
        join(lifecycle, KEPT + 20)
        lines = told(lifecycle)
        assert len(lines) == KEPT
        assert lines[0]["rid"] == "r20"
    assert lifecycle._trace is not None
    kept = lifecycle._trace._write.__self__  # type: ignore[attr-defined]
    assert kept.lines is sink.lines, "what else a sink has is reached through the flight"
    bare = [{k: v for k, v in line.items() if k not in ("seq", "t_ns")} for line in sink.lines]
    assert lines == bare[-KEPT:]


def test_an_error_counts_once() -> None:
    """What a lifecycle raised and an engine reports again is one violation; a stranger's is one."""
    sink = ListSink()
    lifecycle = make(trace=sink)
    with pytest.raises(ShapeViolation) as caught:
        lifecycle.check_launch(Phase.PLAIN_DECODE, 1, 1, 1, SpecInfo.NONE, Hidden.NULL)
    lifecycle.violated(caught.value)
    lifecycle.violated(AttributeError("gone"))
    assert dict(lifecycle.checks.violations) == {"matrix": 1, "AttributeError": 1}
    lines = [line for line in sink.lines if line["kind"] == "violation"]
    assert [line["invariant"] for line in lines] == ["matrix", "AttributeError"]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_restart_is_a_new_lifecycle(mode: Mode, traced: bool) -> None:
    """After it all state is that of a new lifecycle that went to PLAIN without a row, but for
    pin, counts, trace and flight; and life goes on after it as it does for the new one."""
    lifecycle = in_mode(mode, trace=ListSink() if traced else None)
    if mode is Mode.RESEEDING:
        lifecycle.reseed_failed("by hand")
        assert lifecycle.policy.waiting
    lifecycle.pin = Pin.PLAIN
    counts, evaluated = dict(lifecycle.transitions), lifecycle.checks.as_dict()
    lines = len(told(lifecycle))
    flight = lifecycle.flight
    lifecycle.restart()
    fresh = make(trace=ListSink() if traced else None)
    fresh.pin = Pin.PLAIN
    fresh._fire(Event.LOAD_ROSE, fields={"load": 0})
    fresh._fire(Event.DRAINED)
    assert snapshot(lifecycle) | {"transitions": 0} == snapshot(fresh) | {"transitions": 0}
    assert vars(lifecycle).keys() == vars(fresh).keys()
    assert sum(lifecycle.transitions.values()) == sum(counts.values()) + 2
    assert lifecycle.checks.as_dict() == evaluated
    assert (lifecycle.laws is NO_LAWS) is traced
    assert lifecycle.flight is flight
    assert len(told(lifecycle)) == lines + 3
    assert told(lifecycle)[-2]["event"] == "LOAD_ROSE"
    assert told(lifecycle)[-2]["load"] == 0
    for one in (lifecycle, fresh):
        join(one, 2)
        assert not one.boundary(LOW)
        assert one.mode is Mode.PLAIN
        assert [step(one) for _ in range(3)] == [Action.PLAIN] * 3
    assert snapshot(lifecycle) | {"transitions": 0} == snapshot(fresh) | {"transitions": 0}
