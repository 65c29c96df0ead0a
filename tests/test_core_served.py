"""The whole lifecycle, driven as a server would: counters and rows as the table says, every law."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from core_reference import RESERVE, Reference, agree
from core_support import HIGH, LEAVE, LOW, make, moves
from spec_fsm import Action, Event, Lifecycle, Mode, StashConfig
from spec_fsm._rules import EFFECTS, Arg, unseeded
from spec_fsm._table import EDGE_OF
from spec_fsm.invariants import ROW_PREDICATES, STATE_PREDICATES
from spec_fsm.ledger import Ledger
from spec_fsm.ops import INT

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = moves(step=8, settle=4, join=3, load=2, leave=2, fail=1, weights=1, nothing=1)
STASHES = st.builds(
    StashConfig, st.integers(4, 7), st.integers(0, 3), st.integers(2, 4), st.sampled_from((0, 2, 3))
)


def next_point(ledger: Ledger) -> int:
    """`f_settled` once the next result is processed."""
    if ledger.t_settled == ledger.t_launched:
        return ledger._seed_launched if ledger.reseeds else ledger.f_settled
    due = ledger.points and ledger.points[0][0] <= ledger.t_settled + 1
    return ledger.points[0][1] if due else ledger.f_settled


class Server:
    """A lifecycle, the reference beside it, and the counters the table's effects would give."""

    def __init__(self, stash: StashConfig) -> None:
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
        """One scheduler iteration that launches: boundary, plan, launch."""
        lifecycle, reference = self.lifecycle, self.reference
        if lifecycle.boundary(self.load):
            while lifecycle.ledger.in_flight:
                self.settle()
        if lifecycle.rows == 0:
            return
        plan = lifecycle.plan_decode(lifecycle.rows)
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
        assert lifecycle.ledger.unseeded is unseeded(INT, state)
        assert not speculates or STATE_PREDICATES["COVERED"](INT, state)
        for rid, row in reference.rows.items():
            lifecycle.audit(rid, row.settled.committed, RESERVE)
            law = ROW_PREDICATES["I8" if speculates else "I14"]
            assert law(INT, row.launched._replace(reserved=RESERVE))
        assert not lifecycle.checks.violations


@settings(deadline=None)
@given(STEPS, STASHES)
def test_a_served_history_keeps_every_law(
    steps: list[tuple[str, int]], stash: StashConfig
) -> None:
    """Random loads, joins, leaves, failures and new weights, results settled one or two launches
    behind: counters move as the table says, rows as its row effects say, I5, I8 and I14 hold."""
    server = Server(stash)
    for what, number in steps:
        server.play(what, number)
        server.hold()


def test_random_histories_reach_every_mode_and_loss() -> None:
    """The histories above are not vacuous: a fixed one passes all modes, loses and frees a row."""
    server = Server(StashConfig(flush_every=0, width=4, slice_width=2))
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
