"""Which numbers of rows a decode launch may have, and which rows may sit one out."""

from __future__ import annotations

import pytest

from core_support import HIGH, LOW, in_mode, launch, settle, snapshot
from spec_fsm import (
    Action,
    Event,
    IllegalLaunch,
    Lifecycle,
    Mode,
    Pin,
    Policy,
    PolicyConfig,
    Shape,
    StashConfig,
)


def _plain(rows: int) -> Lifecycle:
    policy = Policy(PolicyConfig(disable_above=1, pin=Pin.PLAIN))
    lifecycle = Lifecycle(Shape(4, 2, 16), policy, StashConfig())
    for i in range(rows):
        lifecycle.joined(f"r{i}", 10)
    lifecycle.boundary(rows)
    return lifecycle


def test_a_row_whose_last_token_is_in_flight_may_sit_a_launch_out() -> None:
    """SGLang's overlap loop launches fewer rows than joined; that is no violation."""
    lifecycle = _plain(10)
    plan = lifecycle.plan_decode(10)
    lifecycle.launched(plan.action, 10, plan)
    assert lifecycle.plan_decode(9).action is Action.PLAIN


@pytest.mark.parametrize("rows", [0, 11])
def test_a_launch_without_rows_or_with_a_stranger_is_refused(rows: int) -> None:
    """More rows than joined, or none, cannot be a decode launch of this ledger (I7)."""
    with pytest.raises(IllegalLaunch):
        _plain(10).plan_decode(rows)


@pytest.mark.parametrize("way", ["plan_decode", "decide"])
def test_a_row_may_sit_out_any_number_of_speculative_launches(way: str) -> None:
    """It stays covered and seeded in SPEC, so that nothing depends on when it is launched again."""
    lifecycle = in_mode(Mode.SPEC, rows=3)
    for rows in (2, 1, 3, 2, 2):
        if way == "decide":
            assert lifecycle.decide(LOW, rows).action is Action.SPECULATE
        else:
            plan = lifecycle.plan_decode(rows)
            lifecycle.launched(plan.action, rows, plan)
        lifecycle.settled(Action.SPECULATE, rows)
    for rid in ("r0", "r1", "r2"):
        assert (lifecycle.gap(rid), lifecycle.seeded(rid)) == (0, True)


@pytest.mark.parametrize("way", ["plan_decode", "decide"])
@pytest.mark.parametrize("mode", [Mode.SPEC, Mode.PLAIN, Mode.RESEEDING])
def test_no_launch_holds_a_stranger_or_nobody(mode: Mode, way: str) -> None:
    """More rows than joined, or none, are refused in every mode that decodes, changing nothing."""
    lifecycle = in_mode(mode, rows=3)
    load = {Mode.SPEC: LOW, Mode.PLAIN: HIGH, Mode.RESEEDING: LOW}[mode]
    before = snapshot(lifecycle)
    for rows in (0, 4):
        with pytest.raises(IllegalLaunch, match="breaks I7"):
            lifecycle.decide(load, rows) if way == "decide" else lifecycle.plan_decode(rows)
    assert snapshot(lifecycle) == before


def test_a_stranger_in_a_steady_speculative_batch_is_refused() -> None:
    """The quick way knows how many rows there are: one that joined is known at once."""
    lifecycle = in_mode(Mode.SPEC, rows=3)
    for _ in range(3):
        lifecycle.decide(LOW, 3)
        lifecycle.steady.processed += 1
    with pytest.raises(IllegalLaunch, match="observed 4 rows"):
        lifecycle.decide(LOW, 4)
    lifecycle.joined("new", 5)
    assert lifecycle.decide(LOW, 4).action is Action.SPECULATE


def test_a_row_that_left_may_ride_along_once_in_spec() -> None:
    """A row that left may be in one more speculative launch, not in two."""
    lifecycle = in_mode(Mode.SPEC, rows=3)
    lifecycle.decide(LOW, 3)
    lifecycle.left("r2", Event.FINISHED)
    assert lifecycle.decide(LOW, 3).action is Action.SPECULATE
    with pytest.raises(IllegalLaunch, match="breaks I7"):
        lifecycle.decide(LOW, 3)


def _reseed_without_one() -> Lifecycle:
    """A RESEED launch of two of three rows, with the last token of `r1` in flight before it."""
    lifecycle = in_mode(Mode.RESEEDING, rows=3)
    while (plan := lifecycle.plan_decode(3)).action is not Action.RESEED:
        launch(lifecycle)
        if lifecycle.ledger.in_flight > 1:
            settle(lifecycle)
    lifecycle.reseeded()
    lifecycle.launched(plan.action, 2, plan)
    return lifecycle


def test_a_row_that_sits_a_reseed_out_leaves_before_the_next_launch() -> None:
    """Nothing rebuilt it: in a speculative launch its drafts would attend to holes."""
    lifecycle = _reseed_without_one()
    for rows in (2, 3):
        with pytest.raises(IllegalLaunch, match="1 left out before"):
            lifecycle.plan_decode(rows)
    settle(lifecycle)
    lifecycle.left("r1", Event.FINISHED)
    assert lifecycle.plan_decode(2).action is Action.SPECULATE


def test_a_row_that_sits_a_reseed_out_leaves_before_its_result() -> None:
    """The result says that all rows are covered: a row it is not true of would enter the cache."""
    lifecycle = _reseed_without_one()
    while lifecycle.ledger.next_action is Action.PLAIN:
        settle(lifecycle)
    before = snapshot(lifecycle)
    with pytest.raises(IllegalLaunch, match="breaks I7"):
        lifecycle.settled(Action.RESEED, 2)
    assert snapshot(lifecycle) == before
    assert lifecycle.left("r1", Event.FINISHED) > 0
    lifecycle.settled(Action.RESEED, 2)
    assert lifecycle.left("r0", Event.FINISHED) == 0
