"""Errors and invariants: texts, fields, ids, and the counter."""

from __future__ import annotations

import pytest

from spec_fsm import (
    INVARIANTS,
    Checks,
    ConfigError,
    Event,
    IllegalEvent,
    IllegalLaunch,
    Mode,
    Phase,
    ProgrammingError,
    ShapeViolation,
    SpecFsmError,
    TraceError,
    UnownedWrite,
)
from spec_fsm.errors import LONGEST_SHOWN, one_line, shown
from spec_fsm.invariants import KEPT_DETAILS, LAUNCH_IDS, ROW_PREDICATES

ERRORS = (
    ConfigError, IllegalEvent, IllegalLaunch, ProgrammingError, ShapeViolation, TraceError,
    UnownedWrite,
)  # fmt: skip


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_is_one_line_with_its_fields(kind: type[SpecFsmError]) -> None:
    """Each error is a SpecFsmError whose text names all its fields in one line."""
    error = kind(
        "it broke",
        mode=Mode.PLAIN,
        event=Event.DECODED,
        phase=Phase.VERIFY,
        observed=160,
        expected=10,
        invariant="I2",
    )
    assert isinstance(error, SpecFsmError)
    assert str(error) == (
        "it broke (mode PLAIN, event DECODED, phase VERIFY, observed 160, expected 10, breaks I2)"
    )
    assert (error.message, error.mode, error.event) == ("it broke", Mode.PLAIN, Event.DECODED)
    assert (error.phase, error.observed, error.expected) == (Phase.VERIFY, 160, 10)
    assert error.invariant == "I2"


def test_an_error_without_fields_is_its_message() -> None:
    """A bare error reads as its message; zero is a value worth naming."""
    assert str(ConfigError("wrong")) == "wrong"
    assert str(IllegalEvent("wrong", observed=0)) == "wrong (observed 0)"


def test_a_shape_violation_is_an_illegal_launch() -> None:
    """Whoever guards a launch can catch one class; a bad setting is a ValueError too."""
    assert issubclass(ShapeViolation, IllegalLaunch)
    assert issubclass(ConfigError, ValueError)


def test_every_invariant_of_the_plan_is_listed() -> None:
    """The ids are the matrix, I1a, I1b and I2 to I19, each with a sentence and a checker."""
    assert list(INVARIANTS) == ["matrix", "I1a", "I1b", *(f"I{n}" for n in range(2, 20))]
    for key, invariant in INVARIANTS.items():
        assert invariant.id == key
        assert invariant.says.endswith(".")
        assert invariant.checked
        assert all("#" in bug for bug in invariant.bugs)
    assert INVARIANTS["I1b"].bugs == ("SG#13804", "SG#2730")
    assert set(LAUNCH_IDS) <= set(INVARIANTS)
    assert set(ROW_PREDICATES) <= set(INVARIANTS)


def test_checks_count_by_id() -> None:
    """Evaluations and violations are counted by id; a launch counts for the five it evaluates."""
    checks = Checks()
    checks.count("I4")
    checks.count("I9", 12)
    checks.launches += 2
    checks.count("I3")
    checks.violated("I9", "row r0: 5 is not 6")
    counts = checks.as_dict()
    assert {k: v for k, v in counts.items() if v} == {
        "matrix": 2,
        "I1a": 2,
        "I2": 2,
        "I3": 3,
        "I4": 1,
        "I9": 12,
        "I16": 2,
    }
    assert set(counts) == set(INVARIANTS)
    assert checks.violations == {"I9": 1}
    assert checks.details == ["I9: row r0: 5 is not 6"]


def test_details_are_bounded() -> None:
    """A check that fails at every step is counted in full and told at most a hundred times."""
    checks = Checks()
    for n in range(KEPT_DETAILS + 5):
        checks.violated("I4", str(n))
    assert checks.violations["I4"] == KEPT_DETAILS + 5
    assert len(checks.details) == KEPT_DETAILS


def test_a_value_in_a_message_is_one_short_line() -> None:
    """Long texts are cut, control characters escaped, and an int Python does not print is named."""
    assert shown("a\n") == repr("a\n")
    assert one_line("a") == "a"
    assert one_line("a\n") == repr("a\n")
    assert len(shown("x" * 999)) == LONGEST_SHOWN
    assert one_line("x" * 999) == shown("x" * 999)
    longest = "x" * (4 * LONGEST_SHOWN)
    assert one_line(longest) == longest
    assert one_line(longest + "x") == shown(longest + "x")
    assert shown(16**5000) == one_line(16**5000) == "an int of 20001 bits"
    assert shown([16**5000]) == "a list"
