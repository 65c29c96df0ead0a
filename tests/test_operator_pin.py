"""The operator's pin in the scheduler: all of a request or nothing, and an end of its own."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.managers.io_struct import SetInternalStateReq, SetInternalStateReqOutput

from spec_fsm import Pin
from spec_fsm_sglang import operator_pin
from spec_fsm_sglang.operator_pin import LARGEST_ID, LONGEST_S, OperatorPin, PinEnds


class Clock:
    """A clock that is set by hand, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Asked:
    """A pin, a clock, and SGLang's handler in its place: what it was given and what it says."""

    def __init__(self, answer: Callable[[dict[Any, Any]], bool] = lambda _: True) -> None:
        self.clock = Clock()
        self.pin = OperatorPin(Pin.AUTO, self.clock)
        self.changes: list[Pin] = []
        self.passed_on: list[Any] = []
        self._answer = answer

    def __call__(self, server_args: Any) -> bool | None:
        """Whether a request was taken; None for no answer."""
        return self.send(SetInternalStateReq(server_args=server_args))

    def send(self, request: Any) -> bool | None:
        """Sends a message of any type."""
        answer = operator_pin.set_internal_state(
            self.pin, lambda: self.changes.append(self.pin.current), self._original, request
        )
        return None if answer is None else bool(answer.updated)

    def _original(self, request: Any) -> Any:
        self.passed_on.append(dict(request.server_args))
        return SetInternalStateReqOutput(updated=self._answer(request.server_args))


def raises(_: object) -> bool:
    """SGLang's handler where a value is compared with a number and is none."""
    raise TypeError("'<' not supported")


@pytest.mark.parametrize(
    "asked",
    [
        {"spec_fsm_pin": value}
        for value in (
            3, -1, 0.5, math.nan, math.inf, -math.inf, 10**400, "plain", None, True, [2], {"a": 1}
        )
    ]
    + [
        {"spec_fsm_pin": 2, "spec_fsm_pin_for": value}
        for value in (0, -1, math.nan, math.inf, LONGEST_S + 1, 10**400, "10m", None, False, [1])
    ]
    + [
        {"spec_fsm_pin": 2, "spec_fsm_pin_id": value}
        for value in (0, 1.5, math.nan, math.inf, LARGEST_ID + 1, "1", None, True)
    ]
    + [
        {"spec_fsm_pin": 2, "spec_fsm_pim": 1},
        {"spec_fsm_pin_for": 5},
        {"spec_fsm_pin_undo": math.nan},
        {"spec_fsm_pin_undo": 5},
        {"spec_fsm_pin_undo": 5, "spec_fsm_pin": 1},
        "plain", None, 2, [("spec_fsm_pin", 2)],
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_without_meaning_is_refused_and_nothing_changes(asked: Any) -> None:
    """No value of a client raises, and none that is refused leaves anything changed."""
    server = Asked()
    assert server(asked) is False
    assert (server.pin.current, server.changes, server.passed_on) == (Pin.AUTO, [], [])


def test_a_number_that_python_refuses_to_print_is_refused_without_printing_it() -> None:
    """An int of more than 4300 digits has no text in Python; its refusal says how long it is."""
    with pytest.raises(operator_pin.Refused, match="an int of 16610 bits"):
        operator_pin.Order.of({"spec_fsm_pin": 10**5000})


def test_a_pin_with_a_key_that_sglang_refuses_is_not_applied() -> None:
    """The pin and SGLang's own settings in one request: all or nothing, in either order."""
    for asked in (
        {"spec_fsm_pin": 2, "pp_max_micro_batch_size": -1},
        {"pp_max_micro_batch_size": -1, "spec_fsm_pin": 2},
    ):
        server = Asked(lambda _: False)
        assert server(asked) is False
        assert (server.pin.current, server.changes) == (Pin.AUTO, [])
        assert server.passed_on == [{"pp_max_micro_batch_size": -1}]
    server = Asked()
    assert server({"spec_fsm_pin": 3, "pp_max_micro_batch_size": 8}) is False
    assert server.passed_on == []
    assert server({"spec_fsm_pin": 2, "pp_max_micro_batch_size": 8}) is True
    assert server.pin.current is Pin.PLAIN
    assert server.passed_on == [{"pp_max_micro_batch_size": 8}]


def test_a_handler_of_sglang_that_raises_does_not_end_the_scheduler() -> None:
    """SGLang compares some values without looking at their type; that becomes a refusal."""
    for asked in ({"pp_max_micro_batch_size": "8"}, {"pp_max_micro_batch_size": [], "x": 1}):
        server = Asked(raises)
        assert server(asked) is False
        assert server({**asked, "spec_fsm_pin": 1}) is False
        assert server.pin.current is Pin.AUTO


def test_a_pin_ends_after_its_time_and_the_lasting_one_holds_again() -> None:
    """The end comes once, after the time, and gives back what was pinned without an end."""
    server = Asked()
    assert server({"spec_fsm_pin": 1})
    assert server({"spec_fsm_pin": 2, "spec_fsm_pin_for": 10})
    server.clock.now += 9
    assert (server.pin.current, server.pin.left, server.pin.due()) == (Pin.PLAIN, 1.0, None)
    assert server.pin.status() == {
        "pin": "PLAIN", "pin_left_s": 1.0, "pin_after": "SPEC", "pin_id": None
    }  # fmt: skip
    server.clock.now += 2
    ends = server.pin.due()
    assert isinstance(ends, PinEnds)
    assert server.pin.due() is None, "it is announced once"
    assert server.send(pickle.loads(pickle.dumps(ends))) is None, "nobody waits for an answer"
    assert (server.pin.current, server.pin.left) == (Pin.SPEC, None)
    assert server.changes == [Pin.SPEC, Pin.PLAIN, Pin.SPEC]
    assert server.pin.status()["pin_left_s"] is None


def test_the_end_of_a_pin_that_was_replaced_ends_nothing() -> None:
    """A new pin that arrives before the old one's end is processed keeps its whole time."""
    server = Asked()
    assert server({"spec_fsm_pin": 2, "spec_fsm_pin_for": 10})
    server.clock.now += 11
    ends = server.pin.due()
    assert server({"spec_fsm_pin": 1, "spec_fsm_pin_for": 10})
    assert server.send(ends) is None
    assert (server.pin.current, server.pin.left) == (Pin.SPEC, 10.0)
    assert server({"spec_fsm_pin": 0})
    assert (server.pin.current, server.pin.left, server.pin.due()) == (Pin.AUTO, None, None)


def test_a_pin_is_taken_back_by_its_number_and_by_no_other() -> None:
    """What held before holds again, with the time it had left; only the last pin goes back."""
    server = Asked()
    assert server({"spec_fsm_pin": 2, "spec_fsm_pin_for": 60, "spec_fsm_pin_id": 7})
    assert server({"spec_fsm_pin": 1, "spec_fsm_pin_id": 8})
    assert server({"spec_fsm_pin_undo": 7}) is False
    assert server.pin.current is Pin.SPEC
    server.clock.now += 20
    assert server({"spec_fsm_pin_undo": 8}) is True
    assert (server.pin.current, server.pin.left) == (Pin.PLAIN, 40.0)
    assert server({"spec_fsm_pin_undo": 8}) is False
    server.clock.now += 41
    ends = server.pin.due()
    assert ends is not None
    server.send(ends)
    assert server.pin.current is Pin.AUTO


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.integers(0, 3), st.just(10**300),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
KEYS = st.sampled_from(
    ["spec_fsm_pin", "spec_fsm_pin_for", "spec_fsm_pin_id", "spec_fsm_pin_undo", "spec_fsm_", "x"]
)


@settings(max_examples=300, deadline=None)
@given(asked=st.one_of(st.dictionaries(KEYS | st.integers(), VALUES, max_size=4), VALUES))
def test_no_request_raises_and_a_refused_one_changes_nothing(asked: Any) -> None:
    """For any content of a request: taken whole, or refused with everything as it was."""
    server = Asked()
    server({"spec_fsm_pin": 1, "spec_fsm_pin_for": 5})
    before = server.pin.status()
    taken = server(asked)
    assert taken in (True, False)
    if not taken:
        assert server.pin.status() == before
