"""Which numbers of rows a decode launch may have outside SPEC."""

from __future__ import annotations

import pytest

from spec_fsm import Action, IllegalLaunch, Lifecycle, Pin, Policy, PolicyConfig, Shape, StashConfig


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
