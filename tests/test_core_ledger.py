"""The lazy ledger equals the table's row effects, applied one by one to each row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_reference import NO_STATE, Reference, agree
from core_support import HIGH, LOW, make
from spec_fsm import Action, Event, Mode, Row, ShapeViolation, StashConfig
from spec_fsm._rules import EFFECTS, Arg
from spec_fsm.invariants import STATE_PREDICATES
from spec_fsm.ledger import Ledger
from spec_fsm.ops import INT

# -- the ledger alone, with any flush that reaches the oldest gap -------------------------

# Launches and results outweigh what resets a gap, else no gap would ever outgrow the stash.
MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ["launch"] * 5
            + ["settle"] * 4
            + ["join"] * 3
            + ["flush"] * 2
            + ["leave", "reseed", "forget", "nothing"]
        ),
        st.integers(0, 5),
    ),
    min_size=40,  # hypothesis draws short lists by itself
    max_size=120,
)


@settings(deadline=None)
@given(MOVES, st.integers(2, 6), st.integers(1, 3))
def test_lazy_ledger_is_the_row_effects(
    moves: list[tuple[str, int]], width: int, depth: int
) -> None:
    """On random histories of joins, leaves, plain launches, flushes, reseeds, drains and results
    settled up to `depth` launches behind, each row reads as if it had been moved by itself."""
    ledger = Ledger(width)
    reference = Reference(NO_STATE._replace(width=width))
    for move, number in moves:
        rid = f"r{number}"
        if move == "join" and rid not in ledger:
            ledger.join(rid)
            reference.prefill(rid, 5 + number)
        elif move == "leave":
            row = reference.rows.pop(rid, None)
            gap = ledger.leave(rid)
            assert gap == (0 if row is None else row.settled.committed - row.settled.covered)
        elif move in ("launch", "flush") and ledger.in_flight < depth and not ledger.unsettled:
            play_plain(ledger, reference, number if move == "flush" else None)
        elif move == "settle" and ledger.in_flight:
            assert ledger.settle(ledger.next_action)
            reference.settle()
        elif move == "reseed" and not (ledger.unsettled or ledger.lost):
            adopt(ledger, "SEED_ALL")
            ledger.launch_speculative(Action.RESEED)
            reference.speculate(1 + number, reseed=True)
        elif move == "forget":
            ledger.lose(ledger.stale())
            reference.forget_stash()
        agree(ledger, reference)
        assert STATE_PREDICATES["ORDER"](INT, ledger.state(4, 0))
        assert STATE_PREDICATES["WITHIN_STASH"](INT, ledger.state(4, 0))


def play_plain(ledger: Ledger, reference: Reference, lower: int | None) -> None:
    """One plain launch, with a flush of the ages [oldest gap, lower) if `lower` is given."""
    dropped = ledger.launch_plain()
    effects = [("ROW_DECODE", Arg())]
    if lower is not None:
        arg = Arg(upper=max(ledger.max_gap, lower), lower=lower)
        moved = EFFECTS["COVER_SLICE"](INT, ledger.state(4, 0), arg)
        ledger.flush(lower)
        assert ledger.state(4, 0) == moved
        effects.append(("ROW_FLUSH", arg))
    before = {rid for rid, row in reference.rows.items() if row.launched.lost}
    reference.launch(effects)
    after = {rid for rid, row in reference.rows.items() if row.launched.lost}
    assert set(dropped) == after - before


def adopt(ledger: Ledger, effect: str, arg: Arg | None = None) -> None:
    """Move the ledger's points by an effect of the table, as the lifecycle does."""
    ledger.take(EFFECTS[effect](INT, ledger.state(4, 0), Arg() if arg is None else arg))


# -- single cases the essay names ---------------------------------------------------------


def test_rows_join_between_plain_launches() -> None:
    """Gaps count from each row's own join; the first that joined has the largest."""
    ledger = Ledger(8)
    for rid in ("a", "b", "c"):
        ledger.join(rid)
        ledger.launch_plain()
    assert [ledger.gap(r) for r in "abc"] == [3, 2, 1]
    assert ledger.max_gap == 3
    ledger.leave("a")
    assert ledger.max_gap == 2


def test_rows_are_lost_one_at_a_time_at_the_width() -> None:
    """A gap of exactly the width is kept, one more loses that row alone, and it stays lost."""
    ledger = Ledger(2)
    ledger.join("a")
    assert not ledger.launch_plain()
    ledger.join("b")
    assert [list(ledger.launch_plain()) for _ in range(3)] == [[], ["a"], ["b"]]
    assert (ledger.lost, ledger.max_gap, ledger.gap("a")) == (2, 0, 4)


def test_rows_are_looked_at_only_where_one_outgrows_the_stash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to the width a plain launch compares two integers; one further it looks for the rows."""
    ledger = Ledger(4)
    for _ in range(3):
        ledger.launch_plain()
    ledger.join("a")
    monkeypatch.setattr(Ledger, "_drop", None)
    assert [list(ledger.launch_plain()) for _ in range(4)] == [[]] * 4
    with pytest.raises(TypeError):
        ledger.launch_plain()


def test_a_flush_that_covers_nothing_new_is_no_flush_point() -> None:
    """Nothing is kept of a flush that ends where the last one did."""
    ledger = Ledger(4)
    ledger.join("a")
    ledger.launch_plain()
    ledger.flush(1)
    assert not ledger.points
    ledger.flush(0)
    assert list(ledger.points) == [(1, 1)]


def test_a_row_that_joins_with_a_launch_in_flight_owes_nothing_of_it() -> None:
    """The launch in flight at the join neither opens a gap for the row nor unseeds it."""
    ledger = Ledger(8)
    ledger.join("old")
    ledger.launch_plain()
    ledger.join("new")
    assert ledger.row("new", 5, 9) == Row(5, 9, 5, 5, seeded=True)
    assert ledger.settle(Action.PLAIN)
    assert ledger.row("new", 5, 9) == Row(5, 9, 5, 5, seeded=True)
    assert ledger.row("old", 6, 9) == Row(6, 9, 5, 5, seeded=False)


def test_a_flush_in_flight_is_not_promised_to_the_cache() -> None:
    """A row that leaves before the flush settles is cut at what was covered before it (I15)."""
    lifecycle = make(stash=StashConfig(width=8, flush_every=3, slice_width=3), pin="PLAIN")
    lifecycle.joined("r0", 5)
    lifecycle.boundary(LOW)
    for _ in range(3):
        plan = lifecycle.plan_decode(1)
        lifecycle.launched(plan.action, 1, plan)
    assert (plan.flush_upper, plan.flush_lower) == (3, 0)
    assert lifecycle.gap("r0") == 0
    lifecycle.settled(Action.PLAIN, 1)
    lifecycle.settled(Action.PLAIN, 1)
    assert lifecycle.left("r0", Event.FINISHED) == 2


def test_rows_stay_seeded_from_the_drain_to_the_first_plain_launch() -> None:
    """DRAINED does not unseed; the first plain launch does."""
    lifecycle = make()
    lifecycle.joined("r0", 5)
    lifecycle.boundary(HIGH)
    plan = lifecycle.plan_decode(1)
    assert lifecycle.mode is Mode.PLAIN
    assert lifecycle.seeded("r0")
    lifecycle.launched(plan.action, 1, plan)
    assert not lifecycle.seeded("r0")
    assert not lifecycle.seeded("nobody")


def test_unknown_rows_read_as_nothing() -> None:
    """A row that never joined has no gap, no seed, and leaves without one."""
    lifecycle = make()
    lifecycle.chunked("r9", 4)
    assert lifecycle.gap("r9") == 0
    assert lifecycle.row("r9", 4, 8) == Row(4, 8, 4, 4, seeded=False)
    assert lifecycle.left("r9", Event.ABORTED) == 0


def test_audit_raises_on_a_row_out_of_its_reserve() -> None:
    """A row that committed more than it reserved is refused as I5, counted and named."""
    lifecycle = make()
    lifecycle.joined("r0", 5)
    assert lifecycle.audit("r0", 5, 5).covered == 5
    with pytest.raises(ShapeViolation, match=r"row 'r0' breaks a law of the ledger.*breaks I5"):
        lifecycle.audit("r0", 6, 5)
    assert lifecycle.checks.violations == {"I5": 1}
    assert lifecycle.checks.evaluated("I8") == 1


@pytest.mark.parametrize("action", [Action.PLAIN, Action.SPECULATE])
def test_settling_many_is_settling_each(action: Action) -> None:
    """n results at once leave the ledger as n single ones, flush points included."""

    def with_flights() -> Ledger:
        ledger = Ledger(8)
        ledger.join("a")
        for _ in range(3):
            if action is Action.PLAIN:
                ledger.launch_plain()
                ledger.flush(1)
            else:
                ledger.launch_speculative(action)
        return ledger

    one, many = with_flights(), with_flights()
    assert one.settle(action)
    assert one.settle(action)
    assert many.settle_many(action, 2)
    assert one.state(4, 0) == many.state(4, 0)
    assert list(one.points) == list(many.points)


def test_settling_many_out_of_order_does_nothing() -> None:
    """More results than are in flight, or behind a plain or a reseeding launch, are refused."""
    ledger = Ledger(8)
    ledger.join("a")
    ledger.launch_plain()
    for action, count in ((Action.PLAIN, 2), (Action.SPECULATE, 1)):
        assert not ledger.settle_many(action, count)
    assert ledger.settle_many(Action.PLAIN, 1)
    ledger.launch_speculative(Action.RESEED)
    assert not ledger.settle_many(Action.SPECULATE, 1)
    assert ledger.settle(Action.RESEED)
    ledger.launch_speculative(Action.SPECULATE)
    assert not ledger.settle_many(Action.SPECULATE, 2)
    assert ledger.unsettled == 1
