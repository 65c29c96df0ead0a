"""RESEEDING step by step: which ages go out with which launch, and when the seeds do."""

from __future__ import annotations

from core_support import HIGH, LOW, join, make, settle, step
from spec_fsm import Action, Lifecycle, Mode, StashConfig


def reseed(lifecycle: Lifecycle) -> list[tuple[Action, int, int, bool]]:
    """Steps until SPEC; action, ages and seeds of each."""
    lifecycle.boundary(LOW)
    plans = []
    while lifecycle.mode is Mode.RESEEDING:
        plan = lifecycle.plan_decode(1)
        plans.append((plan.action, plan.flush_upper, plan.flush_lower, plan.seeds))
        assert plan.mode is Mode.RESEEDING
        if plan.action is Action.RESEED:
            lifecycle.reseeded()
        lifecycle.launched(plan.action, 1, plan)
        settle(lifecycle)
    return plans


def plainly(steps: int, stash: StashConfig) -> Lifecycle:
    """One row that was decoded plainly for some steps."""
    lifecycle = make(stash=stash)
    join(lifecycle, 1)
    lifecycle.boundary(HIGH)
    for _ in range(steps):
        step(lifecycle)
    return lifecycle


def test_slices_start_at_the_oldest_gap_and_shrink_it() -> None:
    """RESEEDING writes slices of slice_width ages from the oldest, then the rest with the seed."""
    lifecycle = plainly(10, StashConfig(width=32, flush_every=0, slice_width=4))
    assert reseed(lifecycle) == [
        (Action.PLAIN, 11, 7, False),
        (Action.PLAIN, 8, 4, False),
        (Action.RESEED, 4, 0, False),
    ]


def test_seeds_made_ahead_leave_the_reseed_nothing_to_write() -> None:
    """The last slice goes out with a plain launch, the seeds with it; the RESEED comes next."""
    stash = StashConfig(width=32, flush_every=0, slice_width=4, seed_ahead=4)
    assert reseed(plainly(10, stash)) == [
        (Action.PLAIN, 11, 7, False),
        (Action.PLAIN, 8, 4, False),
        (Action.PLAIN, 5, 1, False),
        (Action.PLAIN, 2, 0, True),
        (Action.RESEED, 0, 0, False),
    ]
    assert reseed(plainly(3, stash))[0] == (Action.PLAIN, 4, 0, True)


def test_a_gap_too_long_for_the_seeds_is_written_one_launch_before_them() -> None:
    """Its newest age is left, which they write with that of their own launch."""
    stash = StashConfig(width=64, flush_every=0, seed_ahead=4)
    assert reseed(plainly(40, stash)) == [
        (Action.PLAIN, 41, 1, False),
        (Action.PLAIN, 2, 0, True),
        (Action.RESEED, 0, 0, False),
    ]
    assert reseed(plainly(4, stash))[0] == (Action.PLAIN, 5, 1, False)


def test_seeds_are_made_ahead_where_no_position_is_missing() -> None:
    """A flush just wrote the gap: the seeds have a plain launch to go with all the same."""
    stash = StashConfig(width=32, flush_every=4, seed_ahead=4)
    flushed = plainly(4, stash)
    assert flushed.ledger.max_gap == 0
    assert reseed(flushed) == [(Action.PLAIN, 1, 0, True), (Action.RESEED, 0, 0, False)]
    every = StashConfig(width=32, flush_every=1, seed_ahead=4)
    assert reseed(plainly(1, every))[0] == (Action.PLAIN, 1, 0, True)  # the very first one, too
    # Without a plain launch since its seed, a row needs neither.
    seeded = plainly(0, stash)
    seeded.plan_decode(1)
    assert seeded.mode is Mode.PLAIN
    assert reseed(seeded) == [(Action.RESEED, 0, 0, False)]


def test_seeds_made_ahead_are_still_good_after_a_failure_and_stale_after_a_step() -> None:
    """What counts is whether a plain launch came since."""
    lifecycle = plainly(3, StashConfig(width=32, flush_every=0, seed_ahead=4))
    lifecycle.boundary(LOW)
    assert lifecycle.plan_decode(1).seeds
    step(lifecycle)
    assert lifecycle.plan_decode(1).action is Action.RESEED
    lifecycle.boundary(HIGH)
    assert lifecycle.mode is Mode.PLAIN
    lifecycle.boundary(LOW)
    assert lifecycle.plan_decode(1).action is Action.RESEED
    lifecycle.boundary(HIGH)
    step(lifecycle)
    assert [seeds for *_, seeds in reseed(lifecycle)] == [True, False]
