"""The quick way at its bounds: what is an ordinary step, what is not, what is put in words."""

from __future__ import annotations

import pytest

from core_support import CHAIN, HIGH, TREE, in_mode, join, make, snapshot
from spec_fsm import (
    Action,
    Hidden,
    IllegalLaunch,
    Lifecycle,
    Mode,
    Phase,
    Plan,
    Policy,
    Shape,
    SpecInfo,
    StashConfig,
    laws,
)
from spec_fsm import lifecycle as lifecycle_module
from spec_fsm.plan import PLAIN_STEP, SPECULATE
from spec_fsm.policy import EVERYWHERE

P = Phase


@pytest.mark.parametrize(
    ("mode", "loads"),
    [(Mode.SPEC, (0, 5)), (Mode.PLAIN, (4, EVERYWHERE[1]))],
)
def test_every_load_that_changes_nothing_is_an_ordinary_step(
    mode: Mode, loads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the least to the greatest calm load a step ends in `decide` itself, one beyond not."""
    lifecycle = in_mode(mode, rows=2)
    lifecycle.boundary(loads[0])
    lifecycle.decide(loads[0], 2)
    monkeypatch.setattr(lifecycle, "_decide", None)
    for load in loads:
        lifecycle.decide(load, 2)
    for load in (loads[0] - 1, loads[1] + 1):
        with pytest.raises(TypeError):
            lifecycle.decide(load, 2)


@pytest.mark.parametrize(
    ("mode", "loads"),
    [(Mode.SPEC, (0, 5)), (Mode.PLAIN, (4, EVERYWHERE[1]))],
)
def test_a_calm_boundary_asks_nobody(
    mode: Mode, loads: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the least to the greatest calm load a boundary ends in one comparison."""
    lifecycle = in_mode(mode)
    lifecycle.boundary(loads[0])
    monkeypatch.setattr(Policy, "event", None)
    assert [lifecycle.boundary(load) for load in loads] == [False, False]
    with pytest.raises(TypeError):
        lifecycle.boundary(loads[0] - 1)


def test_nothing_is_steady_at_first() -> None:
    """A new lifecycle has handed out nothing, and every step has to be looked at."""
    steady = make().steady
    found = {name: getattr(steady, name) for name in steady.__slots__}
    assert found.pop("left") == -1
    assert found.pop("plan") is SPECULATE
    assert (found.pop("action"), found.pop("flush")) == (None, None)
    assert found == dict.fromkeys(found, 0)


def flushing(rows: int, flush_every: int = 4) -> Lifecycle:
    """A steady PLAIN that has just flushed."""
    stash = StashConfig(width=8, flush_every=flush_every, slice_width=2)
    lifecycle = in_mode(Mode.PLAIN, rows=rows, stash=stash)
    while lifecycle.decide(HIGH, rows).flush_upper == 0:
        lifecycle.steady.processed += 1
    return lifecycle


@pytest.mark.parametrize("load", [4, EVERYWHERE[1]])
def test_a_row_that_sits_out_costs_one_step_of_a_spell(
    load: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single row left of two is a step aside at every calm load, and counts as one step."""
    lifecycle = flushing(rows=2)
    monkeypatch.setattr(lifecycle, "boundary", None)
    left = lifecycle.steady.left
    assert left > 1
    assert lifecycle.decide(load, 1) is PLAIN_STEP
    assert lifecycle.steady.left == left - 1
    assert lifecycle.steady.absent == 1


def test_a_batch_without_rows_is_refused_in_a_steady_plain() -> None:
    """No row at all is no step aside: I7."""
    lifecycle = flushing(rows=2)
    with pytest.raises(IllegalLaunch, match="observed 0 rows, 0 left out before"):
        lifecycle.decide(HIGH, 0)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_flush_that_is_due_looks_at_the_rows(rows: int) -> None:
    """At the step of the periodic flush a batch that lacks a row is what the plain calls say, and
    one with a stranger is refused."""
    quick, plain = flushing(rows=3), flushing(rows=3)
    for lifecycle in (quick, plain):
        while lifecycle.steady.left > 0:
            lifecycle.decide(HIGH, 3)
    if rows == 4:
        with pytest.raises(IllegalLaunch, match="observed 4 rows"):
            quick.decide(HIGH, rows)
        return
    plan = quick.decide(HIGH, rows)
    assert plan == plain.plan_decode(rows) == Plan(Action.PLAIN, Mode.PLAIN, flush_upper=4)
    plain.launched(plan.action, rows, plan)
    assert snapshot(quick) == snapshot(plain)
    assert quick._sat_out == 1


def test_a_spell_of_steps_is_bounded_by_the_flush_and_by_the_stash() -> None:
    """Right after the drain the steps up to the flush are steady, or up to the stash's width."""
    for flush_every, steady in ((4, 2), (0, 7)):
        lifecycle = make(stash=StashConfig(width=8, flush_every=flush_every, slice_width=2))
        join(lifecycle, 2)
        lifecycle.boundary(HIGH)
        assert lifecycle.decide(HIGH, 2) is PLAIN_STEP
        assert lifecycle.steady.left == steady
        assert (lifecycle.steady.rows_lo, lifecycle.steady.rows_hi) == (2, 2)


@pytest.mark.parametrize("shape", [TREE, CHAIN], ids=["tree", "chain"])
def test_lawful_launches_need_no_words(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lawful launch of fixed width is held by the dense table alone, a single row too."""
    monkeypatch.setattr(lifecycle_module, "violation", None)
    spec, plain = in_mode(Mode.SPEC, shape=shape), in_mode(Mode.PLAIN, shape=shape)
    for b in (1, 2, 7):
        for phase in (P.DRAFT, P.VERIFY, P.DRAFT_EXTEND, P.PLAIN_DECODE):
            lifecycle = plain if phase is P.PLAIN_DECODE else spec
            owned = {laws.slots(phase, b, shape)}
            if phase is P.DRAFT:
                owned.add(laws.window_slots(b, shape))
            for slots in owned:
                lifecycle.check_launch(
                    phase,
                    b,
                    laws.tokens(phase, b, shape),
                    slots,
                    laws.spec_info(phase),
                    laws.hidden(phase),
                )


@pytest.mark.parametrize("wrong", ["info", "hidden", "tokens", "slots", "rows", "phase"])
def test_unlawful_launches_are_put_in_words(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong fact, whichever, leaves the dense table for the reading in words."""
    asked = []
    monkeypatch.setattr(lifecycle_module, "violation", lambda *facts: asked.append(facts))
    lifecycle = in_mode(Mode.SPEC)
    lifecycle.check_launch(
        P.PLAIN_DECODE if wrong == "phase" else P.VERIFY,
        0 if wrong == "rows" else 2,
        0 if wrong == "rows" else 33 if wrong == "tokens" else 32,
        0 if wrong == "rows" else 31 if wrong == "slots" else 32,
        SpecInfo.DRAFT if wrong == "info" else SpecInfo.VERIFY,
        Hidden.LAST if wrong == "hidden" else Hidden.FULL,
    )
    assert len(asked) == 1
