"""The lifecycle as a server meets it: plans, drains, slices, failures, and what a step costs."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from core_support import (
    CHAIN,
    HIGH,
    LOW,
    TREE,
    in_mode,
    join,
    launch,
    make,
    settle,
    snapshot,
    step,
)
from spec_fsm import (
    Action,
    Change,
    ConfigError,
    Event,
    Hidden,
    IllegalEvent,
    IllegalLaunch,
    Lifecycle,
    Mode,
    Phase,
    Plan,
    SpecInfo,
    StashConfig,
)
from spec_fsm._rules import EFFECTS, GUARDS, Arg
from spec_fsm._table import EDGE_OF
from spec_fsm.ops import INT
from spec_fsm.plan import PLAIN_STEP, SPECULATE


def test_a_whole_round_trip_under_overlap() -> None:
    """SPEC to SPEC with one result in flight throughout: each edge once, no gap left, no check
    violated, and the drain waited for the speculative result in flight."""
    lifecycle = make()
    join(lifecycle, 3)
    launch(lifecycle)
    assert lifecycle.boundary(HIGH) is True
    assert (lifecycle.mode, lifecycle.unsettled) == (Mode.DRAINING, 1)
    with pytest.raises(IllegalLaunch, match="must wait"):
        lifecycle.plan_decode(3)
    settle(lifecycle)
    assert lifecycle.boundary(HIGH) is False
    actions = [launch(lifecycle)]
    for _ in range(6):
        lifecycle.boundary(HIGH)
        actions.append(launch(lifecycle))
        settle(lifecycle)
    assert actions == [Action.PLAIN] * 7
    assert (lifecycle.max_gap, lifecycle.gap("r0")) == (7, 7)
    assert lifecycle.row("r0", 13, 50).covered == 7
    while lifecycle.mode is not Mode.SPEC:
        lifecycle.boundary(LOW)
        actions.append(launch(lifecycle))
        settle(lifecycle)
    assert actions[7:] == [Action.PLAIN, Action.PLAIN, Action.RESEED]
    settle(lifecycle)
    assert (lifecycle.max_gap, lifecycle.seeded("r0")) == (0, True)
    assert lifecycle.left("r0", Event.FINISHED) == 0
    assert lifecycle.transitions == Counter(
        {
            ("SPEC", "LOAD_ROSE", "DRAINING"): 1,
            ("DRAINING", "DRAINED", "PLAIN"): 1,
            ("PLAIN", "LOAD_FELL", "RESEEDING"): 1,
            ("RESEEDING", "RESEEDED", "SPEC"): 1,
        }
    )
    assert not lifecycle.checks.violations


def test_plans_without_a_flush_are_made_once() -> None:
    """SPEC and PLAIN steps hand out the same frozen plan each time."""
    spec, plain = in_mode(Mode.SPEC), in_mode(Mode.PLAIN)
    assert spec.plan_decode(2) is spec.plan_decode(2) is SPECULATE
    assert plain.plan_decode(2) is plain.plan_decode(2) is PLAIN_STEP
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPECULATE.mode = Mode.PLAIN  # type: ignore[misc]


def test_plain_flushes_when_the_oldest_gap_reaches_flush_every() -> None:
    """With flush_every n the launch that would open the n-th position carries a flush of n."""
    lifecycle = make(stash=StashConfig(width=8, flush_every=4, slice_width=3))
    join(lifecycle, 2)
    lifecycle.boundary(HIGH)
    flushes = []
    for _ in range(9):
        plan = lifecycle.plan_decode(2)
        flushes.append((plan.flush_upper, plan.flush_lower))
        lifecycle.launched(plan.action, 2, plan)
        settle(lifecycle)
    assert flushes == [(0, 0)] * 3 + [(4, 0)] + [(0, 0)] * 3 + [(4, 0), (0, 0)]
    assert lifecycle.max_gap == 1
    assert lifecycle.lost == 0


@pytest.mark.parametrize("mode", [Mode.PLAIN, Mode.RESEEDING])
def test_flushes_are_refused_exactly_as_the_table_says(mode: Mode) -> None:
    """For every pair of ages, a launch with that flush passes iff the table's guard holds."""
    event = Event.FLUSHED if mode is Mode.PLAIN else Event.SLICE_DONE
    (guard,) = EDGE_OF[mode, event].guards
    for upper, lower in itertools.product(range(1, 9), range(-1, 10)):
        lifecycle = in_mode(mode)
        after = EFFECTS["LAUNCH"](INT, lifecycle.state(), Arg(plain=1))
        plan = Plan(Action.PLAIN, mode, flush_upper=upper, flush_lower=lower)
        if GUARDS[guard](INT, after, Arg(upper=upper, lower=lower)):
            lifecycle.launched(Action.PLAIN, 2, plan)
            assert lifecycle.max_gap == min(6, lower)
        else:
            with pytest.raises(IllegalEvent, match=guard):
                lifecycle.launched(Action.PLAIN, 2, plan)


@pytest.mark.parametrize(("slices", "fits"), [(3, True), (2, False)])
def test_the_rest_must_fit_one_slice(slices: int, fits: bool) -> None:
    """RESEEDED with a gap of exactly one slice is followed, with one position more refused."""
    lifecycle = make(stash=StashConfig(width=8, flush_every=0, slice_width=slices))
    join(lifecycle, 1)
    lifecycle.boundary(HIGH)
    for _ in range(3):
        step(lifecycle)
    lifecycle.boundary(LOW)
    if fits:
        lifecycle.reseeded()
    else:
        with pytest.raises(IllegalEvent, match="REST_FITS"):
            lifecycle.reseeded()
    assert lifecycle.mode is (Mode.SPEC if fits else Mode.RESEEDING)


def test_a_flush_must_reach_the_oldest_gap() -> None:
    """A plain launch whose flush starts one age too young is refused, at the oldest gap it goes."""
    lifecycle = in_mode(Mode.PLAIN)
    before = snapshot(lifecycle)
    with pytest.raises(IllegalEvent, match="REACHES_OLDEST"):
        lifecycle.launched(Action.PLAIN, 2, Plan(Action.PLAIN, Mode.PLAIN, flush_upper=5))
    assert snapshot(lifecycle) == before
    lifecycle.launched(Action.PLAIN, 2, Plan(Action.PLAIN, Mode.PLAIN, flush_upper=6))
    assert lifecycle.max_gap == 0


def test_a_row_that_joins_while_reseeding_needs_nothing() -> None:
    """A row prefilled during RESEEDING is covered and seeded and does not delay the rest."""
    lifecycle = in_mode(Mode.RESEEDING, rows=1)
    lifecycle.joined("new", 4)
    plan = lifecycle.plan_decode(2)
    assert (plan.action, plan.flush_upper, plan.flush_lower) == (Action.PLAIN, 6, 3)
    lifecycle.launched(plan.action, 2, plan)
    assert (lifecycle.gap("r0"), lifecycle.gap("new")) == (3, 1)
    settle(lifecycle)
    assert launch(lifecycle) is Action.RESEED
    assert lifecycle.mode is Mode.SPEC


def test_with_every_row_fresh_a_reseed_has_nothing_to_flush() -> None:
    """If all rows left while PLAIN, the next batch goes straight to SPEC with an empty flush."""
    lifecycle = in_mode(Mode.PLAIN)
    for rid in ("r0", "r1"):
        lifecycle.left(rid, Event.FINISHED)
    lifecycle.boundary(0)
    lifecycle.joined("new", 4)
    assert lifecycle.plan_decode(1) == Plan(Action.RESEED, Mode.RESEEDING)


def test_load_that_rises_while_reseeding_keeps_what_was_covered() -> None:
    """RESEEDING back to PLAIN: gaps stay as the slices left them."""
    lifecycle = in_mode(Mode.RESEEDING)
    step(lifecycle)
    assert lifecycle.max_gap == 3
    lifecycle.boundary(HIGH)
    assert (lifecycle.mode, lifecycle.max_gap) == (Mode.PLAIN, 3)


def test_a_failed_reseed_goes_back_to_plain_and_says_why() -> None:
    """RESEED_FAILED changes no figure of any row; outside RESEEDING it is refused."""
    lifecycle = in_mode(Mode.RESEEDING)
    gap = lifecycle.max_gap
    lifecycle.reseed_failed("out of memory")
    assert (lifecycle.mode, lifecycle.max_gap) == (Mode.PLAIN, gap)
    with pytest.raises(IllegalEvent, match="nothing is being reseeded"):
        lifecycle.reseed_failed("again")


def test_new_weights_lose_the_rows_that_need_old_states() -> None:
    """WEIGHTS_CHANGED loses unseeded rows, keeps fresh ones, ends RESEEDING, and is harmless in
    SPEC."""
    lifecycle = in_mode(Mode.RESEEDING)
    lifecycle.joined("new", 4)
    lifecycle.weights_changed()
    assert (lifecycle.mode, lifecycle.lost, lifecycle.rows) == (Mode.PLAIN, 2, 3)
    assert lifecycle.row("r0", 12, 50).lost
    assert not lifecycle.row("new", 4, 50).lost
    lifecycle.boundary(LOW)
    assert (lifecycle.mode, lifecycle.held) == (Mode.PLAIN, "REBUILDABLE")
    spec = in_mode(Mode.SPEC)
    spec.weights_changed()
    assert (spec.mode, spec.lost) == (Mode.SPEC, 0)


def test_the_prefix_cache_is_flushed_only_without_rows() -> None:
    """CACHE_FLUSHED is refused while a row lives and accepted after the last left."""
    lifecycle = in_mode(Mode.PLAIN, rows=1)
    with pytest.raises(IllegalEvent, match="NO_ROWS"):
        lifecycle.cache_flushed()
    lifecycle.left("r0", Event.RETRACTED)
    lifecycle.cache_flushed()


def test_rows_come_back_after_they_were_retracted() -> None:
    """A retracted request that is prefilled again starts without a gap."""
    lifecycle = in_mode(Mode.PLAIN, rows=2)
    assert lifecycle.left("r0", Event.RETRACTED) == 5
    lifecycle.chunked("r0", 4)
    lifecycle.joined("r0", 12)
    assert (lifecycle.gap("r0"), lifecycle.gap("r1")) == (0, 5)
    assert lifecycle.max_gap == 5


def test_only_leaving_events_leave_and_only_noted_ones_are_noted() -> None:
    """left and noted name the events they accept, and change nothing for others."""
    lifecycle = in_mode(Mode.SPEC)
    before = snapshot(lifecycle)
    with pytest.raises(ConfigError, match="accepted are FINISHED, RETRACTED, ABORTED"):
        lifecycle.left("r0", Event.FILTERED)
    with pytest.raises(ConfigError, match="accepted are ADMITTED, FILTERED, MERGED"):
        lifecycle.noted(Event.FINISHED, 2)
    lifecycle.noted(Event.FILTERED, 2)
    assert snapshot(lifecycle) == before


def one_step(lifecycle: Lifecycle) -> None:
    """All calls of one decode step that changes no mode and no membership."""
    b, shape = lifecycle.rows, lifecycle.shape
    lifecycle.boundary(b)
    plan = lifecycle.plan_decode(b)
    if plan.action is Action.SPECULATE:
        k, s, d = shape.topk, shape.num_steps, shape.num_draft_tokens
        lifecycle.check_launch(Phase.DRAFT, b, b * k, b * k * s, SpecInfo.DRAFT, Hidden.LAST)
        lifecycle.check_launch(Phase.VERIFY, b, b * d, b * d, SpecInfo.VERIFY, Hidden.FULL)
        extend = SpecInfo.DRAFT_EXTEND
        lifecycle.check_launch(Phase.DRAFT_EXTEND, b, b * d, b * d, extend, Hidden.FULL)
    else:
        lifecycle.check_launch(Phase.PLAIN_DECODE, b, b, b, SpecInfo.NONE, Hidden.FULL)
    lifecycle.launched(plan.action, b, plan)
    lifecycle.settled(plan.action, b)


@pytest.mark.parametrize("mode", [Mode.SPEC, Mode.PLAIN])
def test_steps_that_change_no_mode_never_touch_the_machine(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a machine that raises on every use, hundreds of steps, flushes included, go through."""
    stash = StashConfig(width=8, flush_every=3, slice_width=3)
    lifecycle = in_mode(mode, rows=4, stash=stash)

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(lifecycle._machine, "fire", never)
    monkeypatch.setattr(lifecycle._machine, "trigger", never)
    for _ in range(300):
        one_step(lifecycle)
    assert lifecycle.mode is mode
    with pytest.raises(AssertionError):
        lifecycle.boundary(HIGH if mode is Mode.SPEC else LOW)


@pytest.mark.parametrize("mode", [Mode.SPEC, Mode.PLAIN])
def test_the_work_of_a_step_does_not_grow_with_the_batch(mode: Mode) -> None:
    """A step runs exactly the same number of Python lines at 1 and at 512 rows."""

    def lines(rows: int) -> int:
        lifecycle = in_mode(mode, rows=rows, stash=StashConfig(width=8, flush_every=3))
        count = 0

        def trace(_frame: Any, event: str, _arg: Any) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        for _ in range(4):
            lifecycle.boundary(4)
            step(lifecycle)
        old = sys.gettrace()
        sys.settrace(trace)
        try:
            for _ in range(6):
                plan = lifecycle.plan_decode(rows)
                lifecycle.launched(plan.action, rows, plan)
                lifecycle.settled(plan.action, rows)
        finally:
            sys.settrace(old)
        return count

    assert lines(1) == lines(512) > 0


def test_one_step_costs_the_same_checks_in_tree_and_chain() -> None:
    """A SPEC step checks three launches and a PLAIN step one, counted per invariant."""
    for shape in (TREE, CHAIN):
        spec, plain = in_mode(Mode.SPEC, shape=shape), in_mode(Mode.PLAIN, shape=shape)
        one_step(spec)
        one_step(plain)
        assert spec.checks.as_dict()["I2"] == 3
        assert plain.checks.as_dict()["I2"] == 1


def test_the_core_imports_no_engine_and_no_tensor_library() -> None:
    """Importing spec_fsm loads neither torch, sglang, numpy nor z3."""
    code = (
        "import sys, spec_fsm; "
        "print([m for m in ('torch', 'sglang', 'numpy', 'z3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_change_of_mode_is_told_with_its_cause_and_gap() -> None:
    """`on_change` gets one `Change` for each edge that changes the mode, and nothing else."""
    told: list[Change] = []
    lifecycle = make()
    lifecycle.on_change = told.append
    join(lifecycle, 3)
    step(lifecycle)
    lifecycle.boundary(HIGH)
    step(lifecycle)
    step(lifecycle)
    lifecycle.boundary(LOW)
    lifecycle.reseed_failed("no memory")
    assert [(c.source.name, c.event.name, c.target.name, c.gap) for c in told] == [
        ("SPEC", "LOAD_ROSE", "DRAINING", 0),
        ("DRAINING", "DRAINED", "PLAIN", 0),
        ("PLAIN", "LOAD_FELL", "RESEEDING", 2),
        ("RESEEDING", "RESEED_FAILED", "PLAIN", 2),
    ]
    assert [c.fields for c in told] == [{"load": HIGH}, {}, {"load": LOW}, {"why": "no memory"}]
    del told[:]
    lifecycle.restart()
    assert [c.event for c in told] == [Event.LOAD_ROSE, Event.DRAINED]
