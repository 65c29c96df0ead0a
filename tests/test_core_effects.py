"""Every effect and row effect, worked out by hand at one point where all figures differ."""

from __future__ import annotations

import pytest

from spec_fsm._rules import EFFECTS, ROW_EFFECTS, Arg, RowState, State
from spec_fsm.ops import INT

S = State(
    rows=5,
    lost=2,
    oldest=11,
    unsettled=3,
    t_launched=20,
    t_settled=18,
    f_launched=13,
    f_settled=12,
    seed_launched=9,
    seed_settled=8,
    width=7,
    slice_width=4,
    dwell=6,
)
ALL_LOST = S._replace(lost=5)


@pytest.mark.parametrize(
    ("effect", "before", "arg", "moved"),
    [
        ("SEED_ALL", S, Arg(), {"f_launched": 20, "seed_launched": 20}),
        ("COVER_SLICE", S, Arg(lower=2), {"f_launched": 18}),
        ("COVER_SLICE", S, Arg(lower=9), {}),
        ("LAUNCH", S, Arg(plain=1), {"t_launched": 21}),
        ("LAUNCH", S, Arg(speculative=1), {"unsettled": 4}),
        ("LAUNCH", S, Arg(), {}),
        ("LAUNCH", ALL_LOST, Arg(plain=1), {"t_launched": 21, "oldest": 21}),
        ("LAUNCH", ALL_LOST, Arg(speculative=1), {"unsettled": 4, "oldest": 20}),
        ("SETTLE", S, Arg(point=15), {"unsettled": 2, "f_settled": 15}),
        (
            "SETTLE",
            S,
            Arg(point=15, reseed=1),
            {"unsettled": 2, "f_settled": 15, "seed_settled": 15},
        ),
        ("SETTLE_PLAIN", S, Arg(point=15), {"t_settled": 19, "f_settled": 15}),
        ("ROW_IN", S, Arg(oldest=17), {"rows": 6}),
        ("ROW_OUT", S, Arg(known=1, oldest=17), {"rows": 4, "oldest": 17}),
        ("ROW_OUT", S, Arg(known=1, lost=1, oldest=17), {"rows": 4, "lost": 1, "oldest": 17}),
        ("ROW_OUT", S, Arg(oldest=11), {}),
        ("ROW_LOST", S, Arg(lost=2, oldest=17), {"lost": 4, "oldest": 17}),
    ],
)
def test_effects(effect: str, before: State, arg: Arg, moved: dict[str, int]) -> None:
    """The effect moves exactly these counters, to exactly these values."""
    assert EFFECTS[effect](INT, before, arg) == before._replace(**moved)


R = RowState(committed=30, covered=26, stashed=24, seeded=0, lost=0, reserved=40)
SEEDED = R._replace(covered=30, stashed=30, seeded=1)
LOST = R._replace(covered=20, lost=1)
AFTER_A_PROMPT = {"committed": 9, "covered": 9, "stashed": 9, "lost": 0}


@pytest.mark.parametrize(
    ("effect", "before", "arg", "moved"),
    [
        ("ROW_CHUNK", LOST._replace(seeded=1), Arg(length=9), {**AFTER_A_PROMPT, "seeded": 0}),
        ("ROW_PREFILL", LOST, Arg(length=9), {**AFTER_A_PROMPT, "seeded": 1}),
        (
            "ROW_ACCEPT",
            SEEDED,
            Arg(length=3),
            {"committed": 33, "covered": 33, "stashed": 33},
        ),
        # Width 7: a gap of 7 is kept, the 8th position loses the row.
        ("ROW_DECODE", R._replace(covered=24), Arg(), {"committed": 31}),
        ("ROW_DECODE", R._replace(covered=23), Arg(), {"committed": 31, "lost": 1}),
        ("ROW_DECODE", R._replace(stashed=23), Arg(), {"committed": 31, "stashed": 24}),
        ("ROW_DECODE", SEEDED, Arg(), {"committed": 31, "seeded": 0}),
        ("ROW_DECODE", LOST._replace(covered=29), Arg(), {"committed": 31}),
        ("ROW_FLUSH", R, Arg(lower=1), {"covered": 29}),
        ("ROW_FLUSH", R, Arg(lower=5), {}),
        ("ROW_FLUSH", LOST, Arg(lower=1), {}),
        ("ROW_COVER", R, Arg(), {"covered": 30, "stashed": 30, "seeded": 1}),
        ("ROW_LOSE", R, Arg(), {"lost": 1}),
        ("ROW_FORGET_STASH", R, Arg(), {"lost": 1}),
        ("ROW_FORGET_STASH", SEEDED, Arg(), {}),
        ("ROW_FORGET_STASH", SEEDED._replace(lost=1), Arg(), {}),
    ],
)
def test_row_effects(effect: str, before: RowState, arg: Arg, moved: dict[str, int]) -> None:
    """The row effect moves exactly these figures, to exactly these values."""
    assert ROW_EFFECTS[effect](INT, S, before, arg) == before._replace(**moved)
