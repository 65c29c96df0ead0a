"""Every predicate that is evaluated on a running server, at both sides of its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spec_fsm import invariants
from spec_fsm._rules import RowState, State
from spec_fsm.invariants import ROW_PREDICATES, STATE_PREDICATES
from spec_fsm.ops import INT


@pytest.mark.parametrize(
    ("law", "holds", "breaks"),
    [
        # cached, owned, available, pool
        (invariants.slots_conserved, [(3, 5, 7, 15), (0, 0, 4, 4)], [(3, 5, 7, 14), (3, 5, 7, 1)]),
        # position, protected, reserved
        (invariants.slot_owned, [(4, 4, 6), (5, 4, 6)], [(3, 4, 6), (6, 4, 6)]),
        # seq_len, committed
        (invariants.lengths_agree, [(4, 4)], [(3, 4), (5, 4)]),
        # rows, captured
        (invariants.buffers_hold, [(3, 4), (4, 4)], [(5, 4)]),
        # inserted, covered
        (invariants.insertion_covered, [(3, 4), (4, 4)], [(5, 4)]),
        # token, last: token 0 is a token, -1 the placeholder
        (invariants.token_is_last, [(0, 0), (7, 7)], [(-1, -1), (7, 8), (-1, 7)]),
    ],
)
def test_laws_over_an_engines_own_integers(
    law: Callable[..., Any], holds: list[tuple[int, ...]], breaks: list[tuple[int, ...]]
) -> None:
    """I4, I6, I9, I13, I15 and I17 hold up to their bounds and break one beyond them."""
    assert all(law(INT, *facts) is True for facts in holds)
    assert all(law(INT, *facts) is False for facts in breaks)


ROW = RowState(committed=9, covered=9, stashed=5, seeded=0, lost=0, reserved=9)


@pytest.mark.parametrize(
    ("law", "holds", "breaks"),
    [
        (
            "I5",
            [ROW, ROW._replace(covered=0)],
            [{"covered": 10}, {"covered": -1}, {"reserved": 8}],
        ),
        (
            "I8",
            [ROW._replace(seeded=1)],
            [{"seeded": 0}, {"seeded": 1, "covered": 8}, {"seeded": 1, "lost": 1}],
        ),
        (
            "I14",
            [
                ROW._replace(stashed=8),
                ROW._replace(stashed=7, covered=7),
                ROW._replace(stashed=9, lost=1),
                ROW._replace(stashed=9, seeded=1),
            ],
            [{"stashed": 9}, {"stashed": 8, "covered": 7}],
        ),
    ],
)
def test_row_laws(law: str, holds: list[RowState], breaks: list[dict[str, int]]) -> None:
    """I5, I8 and I14 at the last row that keeps them and the first that does not."""
    assert all(ROW_PREDICATES[law](INT, row) for row in holds)
    assert not any(ROW_PREDICATES[law](INT, ROW._replace(**wrong)) for wrong in breaks)


STATE = State(
    rows=2,
    lost=2,
    oldest=9,
    unsettled=0,
    t_launched=9,
    t_settled=9,
    f_launched=9,
    f_settled=9,
    seed_launched=9,
    seed_settled=9,
    width=4,
    slice_width=4,
    dwell=0,
)
WHOLE = STATE._replace(lost=0)


@pytest.mark.parametrize(
    ("law", "holds", "breaks"),
    [
        (
            "ORDER",
            STATE,
            [
                {"t_settled": 10},
                {"f_launched": 10, "f_settled": 9},
                {"f_settled": 9, "f_launched": 8, "seed_launched": 8},
                {"seed_launched": 9, "f_launched": 8, "f_settled": 8, "seed_settled": 8},
                {"seed_settled": 9, "f_settled": 8},
                {"oldest": 10},
                {"lost": -1},
                {"lost": 3},
                {"unsettled": -1},
            ],
        ),
        (
            "WITHIN_STASH",
            STATE._replace(oldest=5, f_launched=0),
            [{"oldest": 4, "f_launched": 0}, {"oldest": 0, "f_launched": 4}],
        ),
        ("COVERED", WHOLE, [{"lost": 1}, {"f_launched": 8}, {"seed_launched": 8}]),
    ],
)
def test_state_laws(law: str, holds: State, breaks: list[dict[str, int]]) -> None:
    """The laws over the shared counters hold at their bounds, and each part breaks by one."""
    assert STATE_PREDICATES[law](INT, holds)
    for wrong in breaks:
        base = WHOLE if law == "COVERED" else STATE
        assert not STATE_PREDICATES[law](INT, base._replace(**wrong)), wrong


def test_the_reading_over_integers() -> None:
    """Each word of the vocabulary means what it says, its truth values Python's own."""
    assert (INT.all(True, True), INT.all(True, False), INT.all()) == (True, False, True)
    assert (INT.any(False, True), INT.any(False, False), INT.any()) == (True, False, False)
    assert (INT.not_(True), INT.not_(False)) == (False, True)
    assert [INT.imp(a, b) for a in (False, True) for b in (0, 1)] == [True, True, False, True]
    assert (INT.ite(True, 3, 4), INT.ite(False, 3, 4)) == (3, 4)
    assert (INT.max(3, 4), INT.min(3, 4)) == (4, 3)
    assert (INT.eq(3, 3), INT.eq(3, 4)) == (True, False)
    assert (INT.div(7, 2), INT.div(8, 2)) == (3, 4)
