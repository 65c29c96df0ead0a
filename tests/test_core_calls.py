"""Calls of the library that an engine forgets, repeats or makes in the wrong order."""

from __future__ import annotations

import pytest

from core_support import HIGH, LOW, TREE, in_mode, join, launch, settle
from spec_fsm import (
    Action,
    Event,
    IllegalLaunch,
    Lifecycle,
    Mode,
    Policy,
    PolicyConfig,
    StashConfig,
    decode_step,
)


class Contrary(Policy):
    """Speculation stops at loads that are no multiple of three, whatever the thresholds say."""

    def event(self, mode: Mode, load: int) -> Event | None:
        """What is due."""
        if mode is Mode.SPEC and load % 3:
            return Event.LOAD_ROSE
        return super().event(mode, load)


class Heir(Contrary):
    """Inherits the event of a subclass."""


class Told(Contrary):
    """Says itself when it is calm."""

    def calm(self, mode: Mode) -> tuple[int, int]:
        """Up to nine."""
        return (0, 9) if mode is Mode.SPEC else (1, 0)


@pytest.mark.parametrize("kind", [Contrary, Heir])
@pytest.mark.parametrize("way", ["boundary", "decide"])
def test_an_event_of_ones_own_is_asked_at_every_boundary(kind: type[Policy], way: str) -> None:
    """A policy that overrides `event` alone is not bypassed by the loads its base is calm at."""
    lifecycle = Lifecycle(TREE, kind(PolicyConfig(9, dwell=0)), StashConfig())
    join(lifecycle, 3)
    for load, mode in ((3, Mode.SPEC), (3, Mode.SPEC), (4, Mode.DRAINING)):
        if way == "boundary":
            lifecycle.boundary(load)
        elif not lifecycle.decide(load, 3).settle_first:
            settle(lifecycle)
            mode = Mode.PLAIN if mode is Mode.DRAINING else mode
        assert lifecycle.mode is mode


def test_a_calm_of_ones_own_is_believed() -> None:
    """Who overrides both is asked no more than he says."""
    lifecycle = Lifecycle(TREE, Told(PolicyConfig(9, dwell=0)), StashConfig())
    lifecycle.boundary(3)
    lifecycle.boundary(4)
    assert lifecycle.mode is Mode.SPEC


def test_a_forgotten_reseeded_is_named() -> None:
    """The launch of a RESEED plan without `reseeded()` before it says that this is missing."""
    lifecycle = in_mode(Mode.RESEEDING, rows=2)
    while (plan := lifecycle.plan_decode(2)).action is not Action.RESEED:
        launch(lifecycle)
    with pytest.raises(IllegalLaunch, match=r"reseeded\(\) was not called"):
        lifecycle.launched(plan.action, 2, plan)
    lifecycle.reseeded()
    lifecycle.launched(plan.action, 2, plan)
    with pytest.raises(IllegalLaunch, match="launched twice"):
        lifecycle.launched(plan.action, 2, plan)


def test_a_plan_of_an_older_mode_is_named() -> None:
    """A plan that was kept over a change of mode says in which mode it was made."""
    lifecycle = in_mode(Mode.SPEC, rows=2)
    plan = lifecycle.plan_decode(2)
    lifecycle.boundary(HIGH)
    with pytest.raises(IllegalLaunch, match="made in SPEC, and the mode has changed"):
        lifecycle.launched(plan.action, 2, plan)
    with pytest.raises(IllegalLaunch, match="not the one that was planned"):
        lifecycle.launched(Action.PLAIN, 2, plan)


class Recorder:
    """An engine that notes what it is told, with one result in flight."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.told: list[tuple[str, int, bool]] = []

    def load(self) -> int:
        """Few."""
        return LOW

    def rows(self) -> int:
        """All."""
        return self.lifecycle.rows

    def settle(self) -> None:
        """The oldest result."""
        action = self.lifecycle.ledger.next_action
        if action is not None:
            self.lifecycle.settled(action, self.lifecycle.rows)

    def plain(self, flush_upper: int, flush_lower: int, *, seeds: bool = False) -> None:
        """Noted."""
        self.told.append(("plain", flush_upper - flush_lower, seeds))

    def speculate(self) -> None:
        """Noted."""
        self.told.append(("speculate", 0, False))

    def rebuild(self, flush_upper: int) -> None:
        """Noted."""
        self.told.append(("rebuild", flush_upper, False))


def test_the_reference_order_tells_when_seeds_go_ahead() -> None:
    """With `seed_ahead` the seeds are asked for one plain launch before an empty rebuild."""
    stash = StashConfig(width=16, flush_every=0, slice_width=4, seed_ahead=3)
    lifecycle = in_mode(Mode.RESEEDING, rows=2, stash=stash)
    engine = Recorder(lifecycle)
    while decode_step(engine, lifecycle) is not Action.RESEED:
        pass
    assert engine.told[-3:] == [("plain", 3, True), ("rebuild", 0, False), ("speculate", 0, False)]
    assert not any(seeds for _, _, seeds in engine.told[:-3])
