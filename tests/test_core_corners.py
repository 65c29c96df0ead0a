"""Single corners of the core: bounds met exactly, figures put wrong on purpose, trace lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from core_support import HIGH, LOW, in_mode, join, launch, make, settle, step
from spec_fsm import (
    Action,
    Checks,
    Event,
    IllegalEvent,
    IllegalLaunch,
    ListSink,
    Mode,
    Pin,
    Plan,
    Row,
    ShapeViolation,
    StashConfig,
    _runner,
    laws,
)
from spec_fsm._rules import Arg
from spec_fsm.machine import diagram
from spec_fsm.plan import PLAIN_STEP, SPECULATE


def lines_of(sink: ListSink, event: str) -> list[dict[str, Any]]:
    """The trace lines of one event, without number and time."""
    kept = [line for line in sink.lines if line.get("event") == event]
    return [{k: v for k, v in line.items() if k not in ("seq", "t_ns")} for line in kept]


# -- audits -------------------------------------------------------------------------------


def test_an_audit_gives_the_row_it_held() -> None:
    """The row that comes back has its own two figures and the ledger's four."""
    lifecycle = in_mode(Mode.PLAIN)
    assert lifecycle.audit("r0", 12, 20) == Row(12, 20, 7, 7, seeded=False)


def test_an_audit_in_spec_counts_what_was_launched() -> None:
    """A gap in SPEC, which a right ledger cannot have, is I8 with the row and the mode."""
    lifecycle = in_mode(Mode.SPEC)
    ledger = lifecycle.ledger
    ledger.t_launched = ledger.t_settled = ledger._seed_launched = 2
    with pytest.raises(ShapeViolation, match="breaks I8") as caught:
        lifecycle.audit("r0", 9, 20)
    assert caught.value.mode is Mode.SPEC
    assert caught.value.observed == Row(9, 20, 7, 7, seeded=False)


# -- membership ---------------------------------------------------------------------------


def test_as_many_rows_may_ride_along_as_left() -> None:
    """Two rows that left may both be in the next launch, a third one may not."""
    lifecycle = in_mode(Mode.PLAIN, rows=4)
    for rid in ("r0", "r1"):
        lifecycle.left(rid, Event.FINISHED)
    with pytest.raises(IllegalLaunch, match="observed 5 rows"):
        lifecycle.plan_decode(5)
    assert lifecycle.plan_decode(4) is PLAIN_STEP


def test_as_many_rows_may_sit_out_as_leave() -> None:
    """Two rows sit out a launch: both must have left before the next, not only one."""
    lifecycle = in_mode(Mode.PLAIN, rows=4)
    lifecycle.launched(Action.PLAIN, 2, PLAIN_STEP)
    lifecycle.left("r0", Event.FINISHED)
    with pytest.raises(IllegalLaunch, match="2 left out before"):
        lifecycle.plan_decode(3)
    lifecycle.left("r1", Event.FINISHED)
    assert lifecycle.plan_decode(2) is PLAIN_STEP


def test_membership_lines_of_a_trace() -> None:
    """A row that comes, leaves or is made lost leaves its figures in the trace."""
    sink = ListSink()
    lifecycle = in_mode(Mode.PLAIN, trace=sink)
    lifecycle.chunked("new", 3, 1)
    lifecycle.joined("new", 5, 3)
    lifecycle.left("r0", Event.RETRACTED, 12)
    lifecycle.noted(Event.MERGED, 2)
    lifecycle.weights_changed()
    same = {"kind": "event", "at": 1, "mode": "PLAIN", "to": "PLAIN", "unsettled": 0}
    same["in_flight"] = 0
    chunk = {"event": "PREFILLED_CHUNK", "rows": 2, "rid": "new", "committed": 3, "cached": 1}
    assert lines_of(sink, "PREFILLED_CHUNK") == [{**same, **chunk}]
    joined = {"event": "PREFILLED", "rows": 3, "rid": "new", "committed": 5}
    joined |= {"cached": 3, "chunks": 1}
    assert lines_of(sink, "PREFILLED")[-1] == {**same, **joined}
    left = {"event": "RETRACTED", "rows": 2, "rid": "r0", "gap": 5, "committed": 12, "epoch": 0}
    assert lines_of(sink, "RETRACTED") == [{**same, **left}]
    noted = [line for line in sink.lines if line.get("what") == "MERGED"]
    assert [line["facts"] for line in noted] == [{"batch": 2}]
    changed = {"event": "WEIGHTS_CHANGED", "rows": 2, "lost": 1, "epoch": 1}
    assert lines_of(sink, "WEIGHTS_CHANGED") == [{**same, **changed}]


def test_the_effects_are_given_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counters that the table's effect gives for new weights are those the ledger has then."""
    lifecycle = in_mode(Mode.PLAIN)
    lifecycle.joined("new", 5)
    given = []
    effect = _runner.EFFECTS["ROW_LOST"]

    def noted(*args: Any) -> Any:
        given.append(effect(*args))
        return given[-1]

    monkeypatch.setattr(_runner, "EFFECTS", {**_runner.EFFECTS, "ROW_LOST": noted})
    lifecycle.weights_changed()
    assert given == [lifecycle.state()]
    assert (lifecycle.lost, lifecycle.state().oldest) == (2, 5)


# -- flushes ------------------------------------------------------------------------------


def test_a_flush_that_was_not_carried_out_is_made_up_for() -> None:
    """An engine that issued a plain step where a flush was due is handed the whole gap next."""
    stash = StashConfig(width=16, flush_every=3, slice_width=4)
    lifecycle = make(stash=stash, pin="PLAIN")
    join(lifecycle, 2)
    lifecycle.boundary(HIGH)
    lifecycle.plan_decode(2)
    for _ in range(4):
        lifecycle.launched(Action.PLAIN, 2, PLAIN_STEP)
    assert lifecycle.plan_decode(2) == Plan(Action.PLAIN, Mode.PLAIN, flush_upper=5)


def test_the_plan_of_the_periodic_flush_is_made_once() -> None:
    """Where the flush is due, each look hands out the same frozen plan."""
    lifecycle = in_mode(Mode.PLAIN, stash=StashConfig(width=8, flush_every=3, slice_width=2))
    while lifecycle.max_gap < 2:
        step(lifecycle)
    assert lifecycle.plan_decode(2) is lifecycle.plan_decode(2)
    assert lifecycle.plan_decode(2) == Plan(Action.PLAIN, Mode.PLAIN, flush_upper=3)


def test_a_flush_is_due_at_the_first_plain_step_if_every_step_flushes() -> None:
    """With flush_every 1 the step after the drain flushes already."""
    lifecycle = make(stash=StashConfig(width=8, flush_every=1, slice_width=2))
    join(lifecycle, 1)
    lifecycle.boundary(HIGH)
    assert lifecycle.mode is Mode.DRAINING
    assert lifecycle.plan_decode(1) == Plan(Action.PLAIN, Mode.PLAIN, flush_upper=1)


@pytest.mark.parametrize(
    ("mode", "event", "ages"),
    [(Mode.PLAIN, "FLUSHED", [6, 0]), (Mode.RESEEDING, "SLICE_DONE", [6, 3])],
)
def test_flush_lines_of_a_trace(mode: Mode, event: str, ages: list[int]) -> None:
    """A flush in PLAIN is FLUSHED, one in RESEEDING a slice, each with its ages."""
    sink = ListSink()
    lifecycle = in_mode(mode, trace=sink)
    plan = Plan(Action.PLAIN, mode, False, *ages)
    lifecycle.launched(Action.PLAIN, 2, plan)
    (line,) = lines_of(sink, event)
    assert [line["upper"], line["lower"]] == ages
    (launched,) = [li for li in lines_of(sink, "LAUNCHED") if li["flush"] == ages]
    assert (launched["action"], launched["batch"]) == ("PLAIN", 2)


# -- the table, followed by itself --------------------------------------------------------


def test_any_edge_can_be_followed_by_the_table_alone() -> None:
    """A flush told as an event is held against its guard and moves what its effect moves."""
    lifecycle = in_mode(Mode.PLAIN)
    with pytest.raises(IllegalEvent, match="REACHES_OLDEST"):
        lifecycle._fire(Event.FLUSHED, Arg(upper=4, lower=2))
    assert lifecycle.max_gap == 5
    lifecycle._fire(Event.FLUSHED, Arg(upper=5, lower=2))
    assert lifecycle.max_gap == 2


def test_what_the_dwell_guard_waits_for() -> None:
    """PLAIN waits for dwell and back-off, the other modes for the dwell; a pin skips the dwell."""
    lifecycle = in_mode(Mode.PLAIN)
    policy = lifecycle.policy
    policy._dwell, policy._backoff = 2, 5
    assert lifecycle.state().dwell == 5
    assert [policy.waiting_for(mode) for mode in Mode] == [2, 2, 5, 2]
    policy._dwell, policy._backoff = 5, 2
    assert [policy.waiting_for(mode) for mode in Mode] == [5, 5, 5, 5]
    policy.pin = Pin.SPEC
    assert [policy.waiting_for(mode) for mode in Mode] == [0, 0, 2, 0]


def test_nothing_is_held_at_first() -> None:
    """A new lifecycle keeps no change from being made."""
    assert make().held == ""


# -- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"topk": -2}, {"num_steps": 0}, {"page_size": 0}])
def test_sizes_below_one_are_no_sizes(wrong: dict[str, int]) -> None:
    """`possible` says so of every count by itself, as the formal model reads it."""
    sizes = {"topk": 4, "num_steps": 3, "num_draft_tokens": 4, "page_size": 1}
    assert laws.possible(SimpleNamespace(**sizes))  # type: ignore[arg-type]
    assert not laws.possible(SimpleNamespace(**sizes | wrong))  # type: ignore[arg-type]


# -- counting and drawing -----------------------------------------------------------------


def test_evaluations_add_up() -> None:
    """Counts of one invariant add up, and those kept in bulk come on top."""
    checks = Checks()
    checks.count("I7")
    checks.count("I7", 3)
    checks.plans = 5
    checks.launches = 7
    assert [checks.evaluated(name) for name in ("I7", "I2", "I4")] == [9, 7, 0]
    lifecycle = in_mode(Mode.PLAIN)
    before = lifecycle.checks.evaluated("I7")
    launch(lifecycle)
    assert lifecycle.checks.evaluated("I7") == before + 1
    settle(lifecycle)
    step(lifecycle)
    assert lifecycle.checks.evaluated("I7") == before + 2


def test_the_diagram_line_by_line() -> None:
    """The drawing has a title, the four modes, each mode edge with its guards, and its start."""
    lines = [line.strip() for line in diagram().splitlines()]
    assert lines[:4] == ["---", "spec-fsm", "---", "stateDiagram-v2"]
    assert [line for line in lines if line.startswith("state ")] == [
        f'state "{mode.name}" as {mode.name}' for mode in Mode
    ]
    assert [line for line in lines if line.endswith("s_active")] == ["Class SPEC s_active"]
    assert [line for line in lines if "-->" in line] == [
        "SPEC --> DRAINING: LOAD_ROSE [DWELL_OVER]",
        "DRAINING --> PLAIN: DRAINED [NOTHING_UNSETTLED]",
        "DRAINING --> SPEC: LOAD_FELL",
        "PLAIN --> RESEEDING: LOAD_FELL [DWELL_OVER and REBUILDABLE]",
        "RESEEDING --> RESEEDING: SLICE_DONE [REACHES_OLDEST]",
        "RESEEDING --> SPEC: RESEEDED [REST_FITS]",
        "RESEEDING --> PLAIN: LOAD_ROSE | RESEED_FAILED",
        "[*] --> SPEC",
    ]


def test_loads_at_the_thresholds() -> None:
    """At the threshold the mode stays, one beyond it changes, in both directions."""
    lifecycle = in_mode(Mode.SPEC)
    assert lifecycle.decide(5, 2) is SPECULATE
    settle(lifecycle)
    lifecycle.boundary(6)
    assert lifecycle.mode is Mode.DRAINING
    lifecycle.boundary(LOW)
    assert lifecycle.mode is Mode.SPEC
