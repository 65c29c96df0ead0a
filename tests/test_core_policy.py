"""The policy: thresholds, hysteresis, dwell, pins, back-off, and the errors of its settings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_support import HIGH, LOW, in_mode, join, launch, make, settle, step
from spec_fsm import ConfigError, Event, Mode, Pin, Policy, PolicyConfig, StashConfig
from spec_fsm.policy import BACKOFF_CAP, EVERYWHERE, NOWHERE, default_enable_at

ROSE, FELL = Event.LOAD_ROSE, Event.LOAD_FELL


def test_level_triggered_thresholds() -> None:
    """Above disable_above it asks to stop, at or below enable_at to start, in between nothing."""
    policy = Policy(PolicyConfig(disable_above=8, enable_at=5, dwell=0))
    asked = {
        Mode.SPEC: {8: None, 9: ROSE},
        Mode.DRAINING: {5: FELL, 6: None, 9: None},
        Mode.PLAIN: {5: FELL, 6: None, 9: None},
        Mode.RESEEDING: {5: None, 8: None, 9: ROSE},
    }
    for mode, answers in asked.items():
        for load, event in answers.items():
            for _ in range(3):
                assert policy.event(mode, load) is event


def test_the_default_leaves_hysteresis_where_there_is_room() -> None:
    """The enable threshold is three quarters of the disable threshold, never 0 nor above it."""
    assert [default_enable_at(n) for n in (1, 2, 4, 5, 48)] == [1, 1, 3, 3, 36]
    for n in range(1, 200):
        assert 1 <= default_enable_at(n) <= n
    assert PolicyConfig(5).enable_at == PolicyConfig(5).enable_threshold == 3
    assert PolicyConfig(5, 2).enable_threshold == 2


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"disable_above": 0}, "disable_above is 0: accepted are whole numbers, 1 or more"),
        ({"disable_above": 2.5}, "disable_above is 2.5"),
        ({"disable_above": True}, "disable_above is True"),
        (
            {"disable_above": 5, "enable_at": 6},
            "enable_at is 6: accepted are whole numbers, 1 to 5",
        ),
        ({"disable_above": 5, "enable_at": 0}, "enable_at is 0"),
        ({"disable_above": 5, "dwell": -1}, "dwell is -1: accepted are whole numbers, 0 or more"),
        ({"disable_above": 5, "pin": "OFF"}, "pin is 'OFF': accepted are AUTO, SPEC, PLAIN"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], text: str) -> None:
    """A wrong setting is a one-line ConfigError naming the value and the accepted ones."""
    with pytest.raises(ConfigError) as caught:
        PolicyConfig(**settings)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"width": 1}, "width is 1: accepted are whole numbers, 2 or more"),
        ({"width": 8, "flush_every": 8}, "flush_every is 8: accepted are whole numbers, 0 to 7"),
        ({"slice_width": 1}, "slice_width is 1"),
    ],
)
def test_stash_settings_that_are_refused(settings: dict[str, Any], text: str) -> None:
    """A stash that would lose rows between flushes, or whose slices never end, is refused."""
    with pytest.raises(ConfigError, match=text):
        StashConfig(**settings)


def boundaries_until(lifecycle: Any, load: int, mode: Mode) -> int:
    """Boundaries at `load`, each followed by a step, until `mode` is reached."""
    for count in range(1, 10_000):
        lifecycle.boundary(load)
        if lifecycle.mode is mode:
            return count
        if lifecycle.ledger.in_flight:
            settle(lifecycle)
        step(lifecycle)
    raise AssertionError(mode)


def test_dwell_holds_plain_and_spec_after_a_reseed() -> None:
    """PLAIN is left only after `dwell` boundaries, and so is SPEC when a reseed brought it."""
    lifecycle = make(dwell=4, stash=StashConfig())
    join(lifecycle, 2)
    assert boundaries_until(lifecycle, HIGH, Mode.DRAINING) == 1  # no dwell at the start
    step(lifecycle)
    assert lifecycle.mode is Mode.PLAIN
    assert boundaries_until(lifecycle, LOW, Mode.RESEEDING) == 5
    step(lifecycle)
    assert lifecycle.mode is Mode.SPEC
    assert boundaries_until(lifecycle, HIGH, Mode.DRAINING) == 5


def test_a_cancelled_drain_starts_no_dwell() -> None:
    """DRAINING back to SPEC may drain again at once."""
    lifecycle = in_mode(Mode.DRAINING, dwell=9)
    assert lifecycle.boundary(LOW) is False
    assert lifecycle.mode is Mode.SPEC
    assert lifecycle.boundary(HIGH) is True
    assert lifecycle.mode is Mode.DRAINING


def test_pins_skip_the_dwell_at_any_load() -> None:
    """PLAIN and SPEC pinned are reached at the next boundary whatever load and dwell say."""
    lifecycle = in_mode(Mode.SPEC, dwell=100)
    lifecycle.pin = Pin.PLAIN
    assert lifecycle.pin is Pin.PLAIN
    lifecycle.boundary(LOW)
    assert lifecycle.mode is Mode.DRAINING
    lifecycle.boundary(LOW)
    step(lifecycle)
    for _ in range(3):
        lifecycle.boundary(LOW)
        assert lifecycle.mode is Mode.PLAIN
    lifecycle.pin = "SPEC"  # type: ignore[assignment]
    lifecycle.boundary(HIGH)
    assert lifecycle.mode is Mode.RESEEDING
    lifecycle.boundary(HIGH)
    step(lifecycle)
    for _ in range(3):
        lifecycle.boundary(HIGH)
        assert lifecycle.mode is Mode.SPEC
    with pytest.raises(ConfigError, match="pin is 'ON'"):
        lifecycle.pin = "ON"  # type: ignore[assignment]
    assert lifecycle.pin is Pin.SPEC


def test_a_pin_turns_a_change_in_progress_around() -> None:
    """Pinning SPEC cancels a drain; pinning PLAIN ends a reseed, keeping what was covered."""
    draining = in_mode(Mode.DRAINING)
    draining.pin = Pin.SPEC
    draining.boundary(HIGH)
    assert draining.mode is Mode.SPEC
    reseeding = in_mode(Mode.RESEEDING)
    step(reseeding)
    covered = reseeding.max_gap
    reseeding.pin = Pin.PLAIN
    reseeding.boundary(LOW)
    assert (reseeding.mode, reseeding.max_gap) == (Mode.PLAIN, covered)


def test_failed_reseeds_back_off_twice_as_long_each_time() -> None:
    """Each failure doubles the wait up to the cap, a pin does not skip it, success forgets it."""
    lifecycle = in_mode(Mode.RESEEDING, dwell=0, stash=StashConfig(), pin=Pin.AUTO)
    waits = []
    for _ in range(15):
        lifecycle.reseed_failed("no memory")
        assert lifecycle.mode is Mode.PLAIN
        waits.append(lifecycle.policy.waiting)
        if len(waits) == 3:
            lifecycle.pin = Pin.SPEC
        assert boundaries_until(lifecycle, LOW, Mode.RESEEDING) == waits[-1] + 1
    assert waits[:4] == [2, 4, 8, 16]
    assert waits[-1] == BACKOFF_CAP
    step(lifecycle)
    lifecycle.pin = Pin.PLAIN
    lifecycle.boundary(LOW)
    step(lifecycle)
    lifecycle.pin = Pin.AUTO
    lifecycle.boundary(LOW)
    lifecycle.reseed_failed("again")
    assert lifecycle.policy.waiting == 2


@pytest.mark.parametrize("pin", Pin)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("dwell", "backoff"), [(0, 0), (2, 0), (0, 2)])
def test_calm_is_exactly_where_the_policy_has_nothing_to_say(
    mode: Mode, pin: Pin, dwell: int, backoff: int
) -> None:
    """Within calm no event is due and nothing is counted; with nothing to count, and SPEC or
    PLAIN standing as it should, every load at which no event is due is within calm."""
    for load in range(12):
        policy = Policy(PolicyConfig(8, 5, pin=pin))
        policy._dwell, policy._backoff = dwell, backoff
        low, high = policy.calm(mode)
        event = policy.event(mode, load)
        counted = (policy._dwell, policy._backoff) != (dwell, backoff)
        if low <= load <= high:
            assert event is None
            assert not counted
        elif mode in (Mode.SPEC, Mode.PLAIN):
            assert event is not None or counted


def test_a_policy_of_ones_own_is_asked_at_every_boundary_unless_it_says_when_it_is_calm() -> None:
    """An `event` of one's own with the inherited `calm` would be asked too rarely."""

    class Asks(Policy):
        """Says nothing, ever."""

        def event(self, mode: Mode, load: int) -> Event | None:
            """Nothing."""
            return None

    class Knows(Asks):
        """Says when it has nothing to say."""

        def calm(self, mode: Mode) -> tuple[int, int]:
            """Always."""
            return EVERYWHERE

    class AsksAgain(Knows):
        """Overrides the question alone."""

        def event(self, mode: Mode, load: int) -> Event | None:
            """Nothing."""
            return None

    config = PolicyConfig(disable_above=5)
    assert Asks(config).calm(Mode.SPEC) == NOWHERE
    assert Knows(config).calm(Mode.SPEC) == EVERYWHERE
    assert AsksAgain(config).calm(Mode.SPEC) == NOWHERE


def test_a_pin_is_seen_at_the_next_boundary_of_a_calm_server() -> None:
    """Many boundaries with nothing to do, then a pin: the next boundary acts on it."""
    lifecycle = in_mode(Mode.SPEC)
    for _ in range(5):
        lifecycle.boundary(LOW)
    lifecycle.pin = Pin.PLAIN
    lifecycle.boundary(LOW)
    assert lifecycle.mode is Mode.DRAINING


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.tuples(st.sampled_from(Mode), st.integers(0, 12)), max_size=60), st.booleans())
def test_the_policy_only_asks_for_edges(history: list[tuple[Mode, int]], pinned: bool) -> None:
    """Whatever the history, an event it asks for is an edge out of the mode it was asked in."""
    from spec_fsm._table import EDGE_OF

    policy = Policy(PolicyConfig(6, dwell=3, pin=Pin.SPEC if pinned else Pin.AUTO))
    for mode, load in history:
        event = policy.event(mode, load)
        if event is not None:
            policy.fired(event, EDGE_OF[mode, event].target)


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(0, 12), min_size=40, max_size=120))
def test_equal_facts_give_equal_decisions(loads: list[int]) -> None:
    """Two ranks that see the same loads are in the same mode at every boundary (I11)."""
    ranks = [make(dwell=3), make(dwell=3)]
    for lifecycle in ranks:
        join(lifecycle, 2)
    for load in loads:
        for lifecycle in ranks:
            if lifecycle.boundary(load):
                settle(lifecycle)
            if lifecycle.ledger.in_flight:
                settle(lifecycle)
            launch(lifecycle)
        assert ranks[0].mode is ranks[1].mode
        assert ranks[0].state() == ranks[1].state()


def test_a_new_policy_waits_for_nothing() -> None:
    """Dwell and back-off begin with what was paid for or has failed."""
    policy = Policy(PolicyConfig(disable_above=4))
    assert policy.waiting == 0
    assert [policy.waiting_for(mode) for mode in Mode] == [0] * 4
