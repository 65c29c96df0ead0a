"""Shape laws: tokens, slots, spec_info, hidden capture, and what a launch is held against."""

from __future__ import annotations

import itertools

import pytest

from core_support import CHAIN, TREE, in_mode
from spec_fsm import (
    ConfigError,
    Hidden,
    IllegalLaunch,
    Lifecycle,
    Mode,
    Phase,
    Shape,
    ShapeViolation,
    SpecInfo,
    laws,
)
from spec_fsm.launch_laws import DENSE, FIXED_WIDTH, Launch, fixed_laws, violation

P = Phase
PAGED_TREE = Shape(topk=4, num_steps=2, num_draft_tokens=16, page_size=16)


@pytest.mark.parametrize(
    ("phase", "tokens", "slots"),
    [
        (P.DRAFT, 40, 80),
        (P.VERIFY, 160, 160),
        (P.DRAFT_EXTEND, 160, 160),
        (P.PLAIN_DECODE, 10, 10),
        (P.IDLE, 0, 0),
    ],
)
def test_the_numbers_of_the_original_crash(phase: Phase, tokens: int, slots: int) -> None:
    """10 requests, topk 4, 2 steps, 16 draft tokens: the verify of 160 tokens, the plain of 10."""
    assert laws.tokens(phase, 10, TREE) == tokens
    assert laws.slots(phase, 10, TREE) == slots


def test_a_draft_owns_more_slots_than_it_launches_tokens() -> None:
    """b*k*s slots at every page size, b*k tokens a step; a chain may own the verify window."""
    for shape in (CHAIN, TREE, PAGED_TREE):
        assert laws.tokens(P.DRAFT, 3, shape) == 3 * shape.topk
        assert laws.slots(P.DRAFT, 3, shape) == 3 * shape.topk * shape.num_steps
    assert laws.window_slots(3, CHAIN) == 12
    assert laws.window_slots(3, TREE) == laws.slots(P.DRAFT, 3, TREE)


@pytest.mark.parametrize(
    ("shape", "planned"),
    [(CHAIN, True), (Shape(1, 3, 3), False), (Shape(1, 3, 2), False), (Shape(2, 3, 4), False)],
)
def test_a_window_is_planned_for_a_chain_that_verifies_more_than_it_drafts(
    shape: Shape, planned: bool
) -> None:
    """Only a chain with more draft tokens than steps may own the verify window."""
    assert shape.plans_window is planned


@pytest.mark.parametrize("phase", [P.PREFILL, P.MIXED, P.FLUSH])
def test_ragged_phases_take_their_total(phase: Phase) -> None:
    """Prefill, mixed and flush launch as many tokens and slots as their rows sum up to."""
    assert laws.tokens(phase, 3, TREE, 52) == laws.slots(phase, 3, TREE, 52) == 52
    with pytest.raises(ConfigError, match=f"{phase.name} needs a width"):
        laws.tokens(phase, 3, TREE)


def test_seed_extend_is_as_wide_as_its_graph() -> None:
    """b*w tokens and slots, w the width of the graph that is replayed."""
    assert laws.tokens(P.SEED_EXTEND, 3, TREE, 16) == 48
    assert laws.slots(P.SEED_EXTEND, 3, TREE, 1) == 3


@pytest.mark.parametrize(
    ("phase", "width", "length"),
    [
        (P.PREFILL, None, 100),
        (P.DRAFT, None, 100),
        (P.VERIFY, None, 100),
        (P.DRAFT_EXTEND, None, 116),
        (P.SEED_EXTEND, 16, 115),
        (P.PLAIN_DECODE, None, 101),
        (P.FLUSH, None, 0),
        (P.IDLE, None, 0),
    ],
)
def test_attention_sees(phase: Phase, width: int | None, length: int) -> None:
    """seq_lens in attention at 100 committed positions, as the plan of record has them."""
    assert laws.attention_len(phase, 100, TREE, width) == length


@pytest.mark.parametrize(
    ("shape", "reserve"),
    [
        (TREE, 32),
        (CHAIN, 8),
        (Shape(1, 3, 4, page_size=16), 8),
        (PAGED_TREE, 2 * 2 * 16 * 4),
        (Shape(2, 3, 8, page_size=4), 2 * (2 * 4 * 2)),
    ],
)
def test_reserve_is_what_sglang_reserves(shape: Shape, reserve: int) -> None:
    """Twice max(k*s, d), or twice the page-aligned branches, worked out by hand."""
    # The last: ceil((4 - 1 + 3) / 4) = 2 pages of 4 slots a branch, 2 branches, twice.
    assert laws.reserve(shape) == reserve


def test_reserve_equals_the_engine_formula() -> None:
    """Over a grid of shapes, the reserve is that of the engine's formula, restated in floats."""
    import math

    for k, s, page in itertools.product((1, 2, 4), (1, 2, 3, 5), (1, 4, 16)):
        shape = Shape(k, s, 1 + min(k * s, 15), page)
        if page == 1 or k == 1:
            one = max(k * s, shape.num_draft_tokens)
        else:
            one = max(math.ceil((page - 1 + s) / page) * page * k, shape.num_draft_tokens)
        assert laws.reserve(shape) == 2 * one


def test_graph_fits() -> None:
    """A graph replays a launch of its own phase and width, up to its rows."""
    assert laws.graph_fits(P.PLAIN_DECODE, 10, TREE, (P.PLAIN_DECODE, 1, 10))
    assert not laws.graph_fits(P.PLAIN_DECODE, 10, TREE, (P.PLAIN_DECODE, 1, 9))
    assert not laws.graph_fits(P.PLAIN_DECODE, 10, TREE, (P.PLAIN_DECODE, 16, 16))
    assert not laws.graph_fits(P.PLAIN_DECODE, 10, TREE, (P.VERIFY, 1, 16))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((0, 2, 4), "topk is 0: accepted are whole numbers, 1 or more"),
        ((1, True, 4), "num_steps is True"),
        ((1, 3, "4"), "num_draft_tokens is '4'"),
        ((1, 3, 5), "num_draft_tokens is 5: accepted are 2 to 4 for topk 1 and num_steps 3"),
        ((4, 2, 22), "accepted are 2 to 21"),
        ((1, 3, 1), "accepted are 2 to 4"),
        ((1, 3, 4, 0), "page_size is 0"),
    ],
)
def test_shapes_no_draft_can_have(args: tuple[int, ...], text: str) -> None:
    """A shape out of range is a one-line ConfigError naming the value and the accepted ones."""
    with pytest.raises(ConfigError) as caught:
        Shape(*args)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


# -- launches held against the laws ------------------------------------------------------


def lawful(mode: Mode, phase: Phase, b: int, shape: Shape) -> Launch:
    """The launch of `phase` as the laws have it."""
    width = 16 if phase is P.SEED_EXTEND else 3 * b
    width_of = width if phase not in (*FIXED_WIDTH, P.IDLE) else None
    b = 0 if phase is P.IDLE else b
    return Launch(
        phase,
        b,
        laws.tokens(phase, b, shape, width_of),
        laws.slots(phase, b, shape, width_of),
        laws.spec_info(phase),
        laws.hidden(phase),
        width_of,
    )


@pytest.mark.parametrize("shape", [TREE, CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize(("mode", "phase"), list(itertools.product(Mode, Phase)))
def test_lawful_launches_pass_where_the_matrix_allows(
    mode: Mode, phase: Phase, shape: Shape
) -> None:
    """Each mode takes exactly the phases of its matrix row, shaped as the laws have them."""
    from spec_fsm._table import ALLOWED

    lifecycle = in_mode(mode, shape=shape)
    before = lifecycle.checks.evaluated("I2")
    launch = lawful(mode, phase, 10, shape)
    if phase in ALLOWED[mode]:
        lifecycle.check_launch(*launch)
        assert not lifecycle.checks.violations
    else:
        with pytest.raises(ShapeViolation, match="breaks matrix"):
            lifecycle.check_launch(*launch)
        assert lifecycle.checks.violations == {"matrix": 1}
    assert lifecycle.checks.evaluated("I2") == before + 1


def off_by_one(launch: Launch) -> dict[str, Launch]:
    """The launch with one fact wrong, by the invariant that must say so."""
    other_info = SpecInfo.NONE if launch.spec_info is not SpecInfo.NONE else SpecInfo.DRAFT
    other_hidden = Hidden.LAST if launch.hidden is not Hidden.LAST else Hidden.FULL
    return {
        "I1a": launch._replace(spec_info=other_info),
        "I16": launch._replace(hidden=other_hidden),
        "I2": launch._replace(tokens=launch.tokens + 1),
        "I3": launch._replace(slots=launch.slots - 1),
    }


@pytest.mark.parametrize(
    ("mode", "phase"),
    [
        (Mode.SPEC, P.DRAFT),
        (Mode.SPEC, P.VERIFY),
        (Mode.SPEC, P.DRAFT_EXTEND),
        (Mode.DRAINING, P.PREFILL),
        (Mode.PLAIN, P.PLAIN_DECODE),
        (Mode.PLAIN, P.FLUSH),
        (Mode.RESEEDING, P.SEED_EXTEND),
    ],
)
@pytest.mark.parametrize("invariant", ["I1a", "I16", "I2", "I3"])
def test_one_wrong_fact_is_named(mode: Mode, phase: Phase, invariant: str) -> None:
    """Any single wrong fact of a launch is refused with mode, phase, both values and the id."""
    lifecycle = in_mode(mode)
    wrong = off_by_one(lawful(mode, phase, 10, TREE))[invariant]
    with pytest.raises(ShapeViolation) as caught:
        lifecycle.check_launch(*wrong)
    error = caught.value
    assert (error.mode, error.phase, error.invariant) == (mode, phase, invariant)
    assert error.observed != error.expected
    for word in (mode.name, phase.name, str(error.observed), str(error.expected), invariant):
        assert word in str(error)
    assert lifecycle.checks.violations == {invariant: 1}


def test_the_dense_laws_are_the_laws() -> None:
    """The table of the fast path accepts a launch exactly if the reading in words does."""
    for shape, mode, phase, b in itertools.product((TREE, CHAIN), Mode, DENSE, (1, 7)):
        law = fixed_laws(shape)[mode][phase]
        launch = lawful(mode, phase, b, shape)
        tries = [launch, *off_by_one(launch).values()]
        tries.append(launch._replace(slots=laws.window_slots(b, shape)))
        for one in tries:
            units = b if one.width is None else one.width  # a prefill is b rows of 3 tokens here
            dense = law is not None and (
                (one.spec_info, one.hidden) == law[:2]
                and one.tokens == law[2] * units
                and one.slots in (law[3] * units, law[4] * units)
            )
            assert dense is (violation(mode, one, shape) is None)


def test_a_prefill_is_held_against_its_tokens_not_its_rows() -> None:
    """As many tokens and slots as rows are no prefill of three tokens a row; one needs a width."""
    lifecycle = in_mode(Mode.SPEC)
    lifecycle.check_launch(P.PREFILL, 2, 6, 6, SpecInfo.NONE, Hidden.FULL, 6)
    with pytest.raises(ShapeViolation, match="wrong number of tokens"):
        lifecycle.check_launch(P.PREFILL, 2, 2, 2, SpecInfo.NONE, Hidden.FULL, 6)
    with pytest.raises(ConfigError, match="PREFILL needs a width"):
        lifecycle.check_launch(P.PREFILL, 2, 2, 2, SpecInfo.NONE, Hidden.FULL)
    with pytest.raises(ShapeViolation, match="a launch needs rows"):
        lifecycle.check_launch(P.PREFILL, 0, 6, 6, SpecInfo.NONE, Hidden.FULL, 6)


def test_a_chain_may_gather_the_verify_window() -> None:
    """A chain's draft passes with b*s slots and with b*d; a tree's only with b*k*s."""
    chain = in_mode(Mode.SPEC, shape=CHAIN)
    for slots in (30, 40):
        chain.check_launch(P.DRAFT, 10, 10, slots, SpecInfo.DRAFT, Hidden.LAST)
    with pytest.raises(ShapeViolation, match="expected 30 or 40"):
        chain.check_launch(P.DRAFT, 10, 10, 20, SpecInfo.DRAFT, Hidden.LAST)
    tree = in_mode(Mode.SPEC)
    with pytest.raises(ShapeViolation, match="expected 80"):
        tree.check_launch(P.DRAFT, 10, 40, 160, SpecInfo.DRAFT, Hidden.LAST)


def test_launches_need_rows_and_idle_has_none() -> None:
    """A launch with b < 1 is refused as I2, an idle one with any row too."""
    lifecycle = in_mode(Mode.PLAIN)
    with pytest.raises(ShapeViolation, match="a launch needs rows"):
        lifecycle.check_launch(P.PLAIN_DECODE, 0, 0, 0, SpecInfo.NONE, Hidden.FULL)
    lifecycle.check_launch(P.IDLE, 0, 0, 0, SpecInfo.DRAFT, Hidden.LAST)
    with pytest.raises(ShapeViolation, match="an idle launch has no rows"):
        lifecycle.check_launch(P.IDLE, 0, 1, 0, SpecInfo.NONE, Hidden.NULL)


# -- the naive patches of the original crash ----------------------------------------------


def plain_of_ten() -> Lifecycle:
    """A tree server of 10 rows that was turned off properly."""
    return in_mode(Mode.PLAIN, rows=10)


def test_skipping_the_draft_and_keeping_spec_info_is_refused() -> None:
    """The original patch: a plain launch that still carries EagleDraftInput breaks I1a."""
    with pytest.raises(ShapeViolation, match="breaks I1a"):
        plain_of_ten().check_launch(P.PLAIN_DECODE, 10, 10, 10, SpecInfo.DRAFT, Hidden.FULL)


def test_clearing_spec_info_alone_is_refused() -> None:
    """Its first repair: without spec_info, but with the 160 tokens of the verify, breaks I2."""
    with pytest.raises(ShapeViolation, match="observed 160, expected 10, breaks I2"):
        plain_of_ten().check_launch(P.PLAIN_DECODE, 10, 160, 10, SpecInfo.NONE, Hidden.FULL)


def test_a_stale_out_cache_loc_is_refused() -> None:
    """With the draft's 80 or the verify's 160 slots left in out_cache_loc it breaks I3."""
    for slots in (80, 160):
        with pytest.raises(ShapeViolation, match=f"observed {slots}, expected 10, breaks I3"):
            plain_of_ten().check_launch(P.PLAIN_DECODE, 10, 10, slots, SpecInfo.NONE, Hidden.FULL)


def test_skipping_the_draft_without_leaving_spec_is_refused() -> None:
    """A flag that decodes plainly while the mode is SPEC is refused by the matrix, any shape."""
    with pytest.raises(IllegalLaunch, match="breaks matrix"):
        in_mode(Mode.SPEC, rows=10).check_launch(
            P.PLAIN_DECODE, 10, 10, 10, SpecInfo.NONE, Hidden.FULL
        )
