"""What the tests of the core share: lifecycles in every mode, and their whole state as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from spec_fsm import Action, Event, Lifecycle, Mode, Policy, PolicyConfig, Shape, StashConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm import Pin, Sink

TREE = Shape(topk=4, num_steps=2, num_draft_tokens=16)
"""The configuration of the original crash."""
CHAIN = Shape(topk=1, num_steps=3, num_draft_tokens=4)
HIGH, LOW = 100, 1
"""Loads above and below the thresholds of `make`."""


def moves(**weights: int) -> st.SearchStrategy[list[tuple[str, int]]]:
    """Histories of 40 to 120 moves, each with a number up to 5; a move is as often as it weighs."""
    names = [name for name, weight in weights.items() for _ in range(weight)]
    move = st.tuples(st.sampled_from(names), st.integers(0, 5))
    return st.lists(move, min_size=40, max_size=120)


def make(
    shape: Shape = TREE,
    *,
    dwell: int = 0,
    stash: StashConfig | None = None,
    pin: Pin | str = "AUTO",
    trace: Sink | None = None,
) -> Lifecycle:
    """A lifecycle that disables above 5 rows, with a stash that is flushed on resume only."""
    policy = Policy(PolicyConfig(disable_above=5, dwell=dwell, pin=pin))
    stash = StashConfig(width=8, flush_every=0, slice_width=3) if stash is None else stash
    return Lifecycle(shape, policy, stash, trace=trace)


def join(lifecycle: Lifecycle, rows: int, committed: int = 7) -> None:
    """Let rows r0, r1 ... join."""
    for i in range(rows):
        lifecycle.joined(f"r{i}", committed)


def launch(lifecycle: Lifecycle) -> Action:
    """Plan and issue one decode launch of all rows, as an engine that can rebuild."""
    plan = lifecycle.plan_decode(lifecycle.rows)
    if plan.action is Action.RESEED:
        lifecycle.reseeded()
    lifecycle.launched(plan.action, lifecycle.rows, plan)
    return plan.action


def settle(lifecycle: Lifecycle) -> None:
    """Process the oldest result in flight, every draft rejected."""
    action = lifecycle.ledger.next_action
    assert action is not None
    lifecycle.settled(action, lifecycle.rows)


def step(lifecycle: Lifecycle) -> Action:
    """One launch and its result, nothing in flight after."""
    action = launch(lifecycle)
    settle(lifecycle)
    return action


def _spec(lifecycle: Lifecycle) -> None:
    step(lifecycle)


def _draining(lifecycle: Lifecycle) -> None:
    launch(lifecycle)
    lifecycle.boundary(HIGH)


def _plain(lifecycle: Lifecycle) -> None:
    step(lifecycle)
    lifecycle.boundary(HIGH)
    for _ in range(5):
        step(lifecycle)


def _reseeding(lifecycle: Lifecycle) -> None:
    _plain(lifecycle)
    lifecycle.boundary(LOW)


REACH: dict[Mode, Callable[[Lifecycle], None]] = {
    Mode.SPEC: _spec,
    Mode.DRAINING: _draining,
    Mode.PLAIN: _plain,
    Mode.RESEEDING: _reseeding,
}


def in_mode(mode: Mode, rows: int = 2, **settings: Any) -> Lifecycle:
    """A lifecycle brought into `mode` by public calls; gaps of 5 in PLAIN and RESEEDING."""
    lifecycle = make(**settings)
    join(lifecycle, rows)
    REACH[mode](lifecycle)
    assert lifecycle.mode is mode
    return lifecycle


def snapshot(lifecycle: Lifecycle) -> dict[str, Any]:
    """All that an event may change, as a value to compare."""
    ledger, policy = lifecycle.ledger, lifecycle.policy
    return {
        "mode": lifecycle.mode,
        "machine": lifecycle._machine.mode,
        "state": lifecycle.state(),
        "base": list(ledger._base.items()),
        "lost": list(ledger._lost.items()),
        "flights": (list(ledger.points), ledger.reseeds, ledger.floor),
        "policy": [getattr(policy, name) for name in policy.__slots__],
        "transitions": dict(lifecycle.transitions),
        "held": lifecycle.held,
        "absences": (lifecycle._departed, lifecycle._sat_out),
    }


LEAVE = (Event.FINISHED, Event.RETRACTED, Event.ABORTED)
