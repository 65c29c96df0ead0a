"""The lazy ledger equals the table's row effects, applied one by one to each row."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_support import HIGH, LEAVE, LOW, make
from spec_fsm import Action, Event, Lifecycle, Mode, Row, ShapeViolation, StashConfig
from spec_fsm._rules import EFFECTS, ROW_EFFECTS, Arg, RowState, State
from spec_fsm._table import EDGE_OF
from spec_fsm.invariants import ROW_PREDICATES, STATE_PREDICATES
from spec_fsm.ledger import Ledger
from spec_fsm.ops import INT

if TYPE_CHECKING:
    from collections.abc import Callable

NO_STATE = Ledger(8).state(4, 0)
RESERVE = 10_000


@dataclass
class TwoViews:
    """One row kept the long way: as of what was launched and as of what was settled."""

    launched: RowState
    settled: RowState


@dataclass
class Reference:
    """Every row, moved by the table's row effects alone; launches in flight replay theirs."""

    state: State
    rows: dict[str, TwoViews] = field(default_factory=dict)
    flights: deque[list[Callable[[], None]]] = field(default_factory=deque)

    def _apply(self, rows: list[TwoViews], view: str, effect: str, arg: Arg) -> None:
        for row in rows:
            figures = ROW_EFFECTS[effect](INT, self.state, getattr(row, view), arg)
            setattr(row, view, figures)

    def prefill(self, rid: str, length: int) -> None:
        """A row joins, the same in both views."""
        nothing = RowState(0, 0, 0, 0, 0)
        row = ROW_EFFECTS["ROW_PREFILL"](INT, self.state, nothing, Arg(length=length))
        self.rows[rid] = TwoViews(row, row)

    def launch(self, effects: list[tuple[str, Arg]], *, launched: bool = True) -> None:
        """Apply `effects` to the launched view now, to the settled view when it settles."""
        rows = list(self.rows.values())
        later: list[Callable[[], None]] = []
        for effect, arg in effects:
            if launched:
                self._apply(rows, "launched", effect, arg)
            later.append(lambda e=effect, a=arg: self._apply(rows, "settled", e, a))  # type: ignore[misc]
        self.flights.append(later)

    def speculate(self, accepted: int, *, reseed: bool = False) -> None:
        """A round whose accept length is known only when it settles, then in both views."""
        rows = list(self.rows.values())
        if reseed:
            self._apply(rows, "launched", "ROW_COVER", Arg())
        arg = Arg(length=accepted)

        def land() -> None:
            if reseed:
                self._apply(rows, "settled", "ROW_COVER", Arg())
            for view in ("launched", "settled"):
                self._apply(rows, view, "ROW_ACCEPT", arg)

        self.flights.append([land])

    def settle(self) -> None:
        """The oldest launch in flight reaches the settled view."""
        for effect in self.flights.popleft():
            effect()

    def drained(self) -> None:
        """All settled and speculation ends."""
        for view in ("launched", "settled"):
            self._apply(list(self.rows.values()), view, "ROW_COVER", Arg())

    def forget_stash(self) -> None:
        """Launched rows lose it now, settled ones once what is in flight has settled."""
        rows = list(self.rows.values())
        self._apply(rows, "launched", "ROW_FORGET_STASH", Arg())

        def later() -> None:
            self._apply(rows, "settled", "ROW_FORGET_STASH", Arg())

        if self.flights:
            self.flights[-1].append(later)
        else:
            later()


def agree(ledger: Ledger, reference: Reference) -> None:
    """Every figure the ledger can give is the one the row effects gave."""
    for rid, row in reference.rows.items():
        launched, settled = row.launched, row.settled
        assert ledger.gap(rid) == launched.committed - launched.covered
        assert ledger.seeded(rid) is bool(launched.seeded)
        assert ledger.settled_gap(rid) == settled.committed - settled.covered
        assert ledger.row(rid, settled.committed, RESERVE) == Row(
            committed=settled.committed,
            reserved=RESERVE,
            covered=settled.covered,
            stashed=settled.stashed,
            seeded=bool(settled.seeded),
            lost=bool(launched.lost),
        )
    kept = [r.launched for r in reference.rows.values() if not r.launched.lost]
    assert ledger.rows == len(reference.rows)
    assert ledger.lost == len(reference.rows) - len(kept)
    assert ledger.lost_rids == {r for r, row in reference.rows.items() if row.launched.lost}
    assert ledger.max_gap == max((r.committed - r.covered for r in kept), default=0)
    assert ledger.in_flight == len(reference.flights)


# -- the ledger alone, with any flush that reaches the oldest gap -------------------------

# Launches and results outweigh what resets a gap, else no gap would ever outgrow the stash.
MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ["launch"] * 5
            + ["settle"] * 4
            + ["join"] * 3
            + ["flush"] * 2
            + ["leave", "reseed", "drain", "forget", "nothing"]
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
        elif move == "drain" and not ledger.in_flight and not ledger.lost:
            adopt(ledger, "COVER_ALL")
            reference.drained()
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


# -- the whole lifecycle, driven as a server would ----------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["step"] * 8
            + ["settle"] * 4
            + ["join"] * 3
            + ["load"] * 2
            + ["leave"] * 2
            + ["fail", "weights", "nothing"]
        ),
        st.integers(0, 5),
    ),
    min_size=40,
    max_size=120,
)


def next_point(ledger: Ledger) -> int:
    """`f_settled` once the next result is processed."""
    if ledger.t_settled == ledger.t_launched:
        return ledger._seed_launched if ledger.reseeds else ledger.f_settled
    due = ledger.points and ledger.points[0][0] <= ledger.t_settled + 1
    return ledger.points[0][1] if due else ledger.f_settled


class Server:
    """A lifecycle, the reference beside it, and the counters the table's effects would give."""

    def __init__(self, flush_every: int, width: int, slice_width: int) -> None:
        stash = StashConfig(width=width, flush_every=flush_every, slice_width=slice_width)
        self.lifecycle: Lifecycle = make(stash=stash)
        self.reference = Reference(self.lifecycle.state())
        self.accepts: deque[int] = deque()
        self.load = HIGH

    def play(self, what: str, number: int) -> None:
        """One move of a random history."""
        match what:
            case "join":
                self.join(f"r{number}", 3 + number)
            case "leave":
                self.leave(f"r{number}", LEAVE[number % 3])
            case "step":
                while self.lifecycle.ledger.in_flight > 1:
                    self.settle()
                self.step(1 + number % 3)
            case "settle" if self.lifecycle.ledger.in_flight:
                self.settle()
            case "load":
                self.load = LOW if number % 2 else HIGH
            case "fail" if self.lifecycle.mode is Mode.RESEEDING:
                self.lifecycle.reseed_failed("by chance")
            case "weights":
                self.weights()

    def step(self, accepted: int) -> None:
        """One scheduler iteration that launches: boundary, drain if due, plan, launch."""
        lifecycle, reference = self.lifecycle, self.reference
        if lifecycle.boundary(self.load):
            while lifecycle.ledger.in_flight:
                self.settle()
        if lifecycle.rows == 0:
            return
        drains = lifecycle.mode is Mode.DRAINING
        plan = lifecycle.plan_decode(lifecycle.rows)
        if drains:
            reference.drained()
        if plan.action is Action.RESEED:
            self.follow(Event.RESEEDED, Arg(), lifecycle.reseeded)
        lost = lifecycle.lost
        lifecycle.launched(plan.action, lifecycle.rows, plan)
        if plan.action is Action.PLAIN:
            effects = [("ROW_DECODE", Arg())]
            if plan.flush_upper:
                arg = Arg(upper=plan.flush_upper, lower=plan.flush_lower)
                effects.append(("ROW_FLUSH", arg))
            reference.launch(effects)
            assert lifecycle.stash.flush_every == 0 or lifecycle.lost == lost
        else:
            reference.speculate(accepted, reseed=plan.action is Action.RESEED)

    def settle(self) -> None:
        """Process the oldest result; its counters move as the table's effect says."""
        ledger = self.lifecycle.ledger
        action, point = ledger.next_action, next_point(ledger)
        assert action is not None
        event = Event.DECODED if action is Action.PLAIN else Event.SETTLED
        arg = Arg(point=point, reseed=int(action is Action.RESEED))
        rows = self.lifecycle.rows
        self.follow(event, arg, lambda: self.lifecycle.settled(action, rows))
        self.reference.settle()

    def follow(self, event: Event, arg: Arg, act: Callable[[], object]) -> None:
        """Run `act` and hold the counters after it against the table's effects of `event`."""
        state = self.lifecycle.state()
        for effect in EDGE_OF[self.lifecycle.mode, event].effects:
            state = EFFECTS[effect](INT, state, arg)
        act()
        assert self.lifecycle.state() == state._replace(dwell=self.lifecycle.state().dwell)

    def join(self, rid: str, length: int) -> None:
        """A request's last chunk was launched, if it is not here already."""
        if rid in self.lifecycle.ledger:
            return
        arg = Arg(length=length)
        self.follow(Event.PREFILLED, arg, lambda: self.lifecycle.joined(rid, length))
        self.reference.prefill(rid, length)

    def leave(self, rid: str, event: Event) -> None:
        """A request ends, known or not."""
        ledger = self.lifecycle.ledger
        known, lost = rid in ledger, rid in ledger._lost
        others = [base for r, base in ledger._base.items() if r != rid]
        oldest = others[0] if others else ledger.t_launched
        arg = Arg(known=int(known), lost=int(lost), oldest=oldest)
        self.follow(event, arg, lambda: self.lifecycle.left(rid, event))
        self.reference.rows.pop(rid, None)

    def weights(self) -> None:
        """New weights arrive."""
        ledger = self.lifecycle.ledger
        stale = ledger.stale()
        arg = Arg(lost=len(stale), oldest=ledger.oldest_without(stale))
        self.follow(Event.WEIGHTS_CHANGED, arg, self.lifecycle.weights_changed)
        if self.lifecycle.mode is Mode.PLAIN:
            self.reference.forget_stash()

    def hold(self) -> None:
        """Everything that must hold at a boundary, of all rows and of the counters."""
        lifecycle, reference = self.lifecycle, self.reference
        agree(lifecycle.ledger, reference)
        state = lifecycle.state()
        speculates = lifecycle.mode in (Mode.SPEC, Mode.DRAINING)
        assert STATE_PREDICATES["ORDER"](INT, state)
        assert STATE_PREDICATES["WITHIN_STASH"](INT, state)
        assert not speculates or STATE_PREDICATES["COVERED"](INT, state)
        for rid, row in reference.rows.items():
            lifecycle.audit(rid, row.settled.committed, RESERVE)
            law = ROW_PREDICATES["I8" if speculates else "I14"]
            assert law(INT, row.launched._replace(reserved=RESERVE))
        assert not lifecycle.checks.violations


@settings(deadline=None)
@given(STEPS, st.integers(0, 3), st.integers(4, 7), st.integers(2, 4))
def test_a_served_history_keeps_every_law(
    steps: list[tuple[str, int]], flush_every: int, width: int, slice_width: int
) -> None:
    """Random loads, joins, leaves, failures and new weights, results settled one or two launches
    behind: counters move as the table says, rows as its row effects say, I5, I8 and I14 hold."""
    server = Server(flush_every, width, slice_width)
    for what, number in steps:
        server.play(what, number)
        server.hold()


def test_random_histories_reach_every_mode_and_loss() -> None:
    """The histories above are not vacuous: a fixed one passes all modes, loses and frees a row."""
    server = Server(flush_every=0, width=4, slice_width=2)
    server.join("r0", 5)
    seen = set()
    for load, steps in ((LOW, 2), (HIGH, 3), (LOW, 3), (HIGH, 8)):
        server.load = load
        for _ in range(steps):
            server.step(2)
            seen.add(server.lifecycle.mode)
            server.hold()
            if server.lifecycle.ledger.in_flight > 1:
                server.settle()
    assert seen == set(Mode) - {Mode.DRAINING}  # left within the step that enters it
    assert server.lifecycle.lost == 1
    server.leave("r0", Event.ABORTED)
    assert (server.lifecycle.lost, server.lifecycle.rows) == (0, 0)


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
