"""`model check`: what is searched, that it is the table that runs, and that faults are found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import spec_fsm_model
from spec_fsm import (
    Action,
    Event,
    IllegalEvent,
    Lifecycle,
    Mode,
    Phase,
    Pin,
    Policy,
    PolicyConfig,
    StashConfig,
)
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS, Arg, RowState, State
from spec_fsm._table import ALLOWED, EDGE_OF, EDGES, REFUSALS
from spec_fsm_model.check import check, judge, pinned
from spec_fsm_model.claims import SAYS, Broken, broken
from spec_fsm_model.cli import app
from spec_fsm_model.environment import Act, Environment
from spec_fsm_model.explore import BOUNDS, Found, Search, Verdict
from spec_fsm_model.planner import LOADS
from spec_fsm_model.report import story
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.world import Bounds, Canonical, PolicyState, World, start

if TYPE_CHECKING:
    from spec_fsm.ops import Ops

ONE_ROW = Bounds("one row", rows=1, failures=1, dwell=1, width=4)
TWO_ROWS = Bounds("two rows", width=3, flush_every=2, dwell=1)


# -- the search that counts ---------------------------------------------------------------


def test_every_claim_holds_in_every_reachable_state() -> None:
    """All searches end by themselves, follow every edge, break nothing, and count as pinned."""
    checked = check()
    assert [found.broken for found in checked.found] == [None] * len(BOUNDS)
    assert (checked.unfired, checked.drift) == ([], [])
    assert checked.verdict is Verdict.PROVED
    assert checked.states >= 100_000
    assert set(pinned()) == {bounds.name for bounds in BOUNDS}


def test_it_is_the_table_that_runs() -> None:
    """The model reads the very objects `spec_fsm` runs, and no module of it makes an edge."""
    assert RULES.edges is EDGE_OF
    assert RULES.refusals is REFUSALS
    assert RULES.guards is GUARDS
    assert RULES.effects is EFFECTS
    assert RULES.row_effects is ROW_EFFECTS
    assert RULES.allowed is ALLOWED
    for file in Path(spec_fsm_model.__file__).parent.glob("*.py"):
        assert "Edge(" not in file.read_text(), file.name


# -- verdicts -----------------------------------------------------------------------------


def test_a_search_cut_short_is_undetermined() -> None:
    """A search that was given up proves nothing, and the command says so with exit code 2."""
    assert Search(ONE_ROW, most=50).run().verdict is Verdict.UNDETERMINED
    done = CliRunner().invoke(app, ["check", "--most", "50"])
    assert done.exit_code == 2, done.output
    assert "undetermined" in done.output
    assert "three rows, no overlap: 3 at once, 1 launches in flight, stash 2" in done.output


def test_counts_that_drift_are_refuted() -> None:
    """Another number of states than the pinned one fails, though no claim breaks."""
    found = Found(ONE_ROW, Verdict.PROVED, states=10, edges=20)
    same = {"one row": {"states": 10, "edges": 20, "depth": 0, "modes": {}}}
    assert judge([found], same).verdict is Verdict.PROVED
    assert judge([found], {}).verdict is Verdict.REFUTED
    other = {"one row": {**same["one row"], "edges": 21}}
    assert judge([found], other).verdict is Verdict.REFUTED


def test_an_edge_nothing_follows_is_refuted() -> None:
    """Only an edge that no search at all follows counts as dead."""
    one = Found(ONE_ROW, Verdict.PROVED, unfired=["A", "B"])
    other = Found(ONE_ROW, Verdict.PROVED, unfired=["B"])
    assert judge([one, other], {}).unfired == ["B"]


# -- seeded faults ------------------------------------------------------------------------


def edge(mode: Mode, event: Event, **new: Any) -> Rules:
    """The rules with one edge changed."""
    edges = dict(EDGE_OF)
    edges[mode, event] = replace(edges[mode, event], **new)
    return replace(RULES, edges=edges)


def without(mode: Mode, event: Event) -> Rules:
    """The rules with one edge missing."""
    return replace(RULES, edges={k: v for k, v in EDGE_OF.items() if k != (mode, event)})


def settles_too_much(_: Ops, s: State, __: Arg) -> State:
    """A plain result settles flushes that are still in flight."""
    return s._replace(t_settled=s.t_settled + 1, f_settled=s.f_launched)


def seedless(ops: Ops, s: State, r: RowState, a: Arg) -> RowState:
    """A plain step leaves the seed of the position before as if it were the new one's."""
    return ROW_EFFECTS["ROW_DECODE"](ops, s, r, a)._replace(seeded=1)


def stash_is_wider(_: Ops, __: State, r: RowState, ___: Arg) -> RowState:
    """A plain step that overwrites one state more than it should."""
    return r._replace(committed=r.committed + 1, stashed=r.committed + 1, seeded=0)


def chunk_with_seed(ops: Ops, s: State, r: RowState, a: Arg) -> RowState:
    """A chunk of a prompt leaves its row as if it could draft."""
    return ROW_EFFECTS["ROW_CHUNK"](ops, s, r, a)._replace(seeded=1)


def endless_stash(_: Ops, __: State, r: RowState, ___: Arg) -> RowState:
    """A plain step that never loses the oldest state."""
    return r._replace(committed=r.committed + 1, seeded=0)


def effects(**new: Any) -> Rules:
    """The rules with effects replaced."""
    return replace(RULES, effects={**EFFECTS, **new})


def rows(**new: Any) -> Rules:
    """The rules with row effects replaced."""
    return replace(RULES, row_effects={**ROW_EFFECTS, **new})


_PLAIN, _RESEEDING, _SPEC = Mode.PLAIN, Mode.RESEEDING, Mode.SPEC
FAULTS: dict[str, tuple[Rules, str]] = {
    "stale seed after a reseed": (edge(_RESEEDING, Event.RESEEDED, row_effect=None), "I8"),
    "a reseed nobody counts": (edge(_RESEEDING, Event.RESEEDED, effects=()), "COVERED"),
    "uncovered draft KV in SPEC": (edge(_RESEEDING, Event.LOAD_ROSE, target=_SPEC), "COVERED"),
    "a slice that writes nothing": (edge(_RESEEDING, Event.SLICE_DONE, row_effect=None), "AGREE"),
    "a slice nobody counts": (edge(_RESEEDING, Event.SLICE_DONE, effects=()), "AGREE"),
    "the cache gets what is not covered": (effects(SETTLE_PLAIN=settles_too_much), "I15"),
    "a seed that outlives its position": (rows(ROW_DECODE=seedless), "AGREE"),
    "a state overwritten too early": (rows(ROW_DECODE=stash_is_wider), "I14"),
    "a plain result refused in SPEC": (without(_SPEC, Event.DECODED), "ACCEPTED"),
    "a launch refused in PLAIN": (without(_PLAIN, Event.LAUNCHED), "ACCEPTED"),
    "a lost row that may come back": (
        edge(_PLAIN, Event.LOAD_FELL, guards=("DWELL_OVER",)),
        "REFUSES",
    ),
    "a row that leaves and stays counted": (edge(_PLAIN, Event.FINISHED, effects=()), "AGREE"),
    "a row dropped in silence": (edge(_PLAIN, Event.STASH_DROPPED, effects=()), "WITHIN_STASH"),
    "the cache flushed under a row": (edge(_SPEC, Event.CACHE_FLUSHED, guards=()), "CACHE"),
    "a matrix without plain decode": (
        replace(RULES, allowed={**ALLOWED, _PLAIN: ALLOWED[_PLAIN] - {Phase.PLAIN_DECODE}}),
        "MATRIX",
    ),
    "a result settled twice": (
        effects(SETTLE=lambda o, s, a: EFFECTS["SETTLE"](o, s, a)._replace(unsettled=-1)),
        "ORDER",
    ),
    "a row that leaves ends the rebuild": (
        edge(_RESEEDING, Event.FINISHED, target=_PLAIN),
        "KINDS",
    ),
    "a chunk that has a seed": (rows(ROW_CHUNK=chunk_with_seed), "UNREADY"),
    "a stash without an end": (rows(ROW_DECODE=endless_stash), "RING"),
    "a result that commits nothing": (edge(_SPEC, Event.SETTLED, row_effect=None), "I9"),
    "a rebuild nobody may start": (without(_PLAIN, Event.LOAD_FELL), "GRANTS"),
    "a flush that leaves a hole": (edge(_PLAIN, Event.FLUSHED, guards=()), "REFUSES"),
    "no slot for what is accepted": (
        rows(
            ROW_ACCEPT=lambda o, s, r, a: ROW_EFFECTS["ROW_ACCEPT"](o, s, r, a)._replace(reserved=0)
        ),
        "I5",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_refuted_with_a_story(name: str) -> None:
    """The search finds the fault, names the claim it breaks, and tells how to get there."""
    rules, claim = FAULTS[name]
    found = Search(ONE_ROW, rules).run()
    assert found.verdict is Verdict.REFUTED
    assert found.broken is not None
    assert found.broken.claim == claim, found.broken
    text = "\n".join(story(found, rules))
    assert f"{len(found.history)}. {found.history[-1]}" in text
    assert SAYS[claim] in text
    assert "before the last act:" in text


def test_every_claim_is_broken_by_a_fault() -> None:
    """No claim is one that nothing could ever break; that of two ranks no table can break."""
    assert {claim for _, claim in FAULTS.values()} | {"I11"} == set(SAYS)


def test_the_history_is_a_shortest_one() -> None:
    """No search of fewer acts finds the fault: breadth first, and each act is needed."""
    rules, _ = FAULTS["a plain result refused in SPEC"]
    found = Search(ONE_ROW, rules).run()
    worlds = {Environment(ONE_ROW).canonical(start(ONE_ROW))}
    environment = Environment(ONE_ROW, rules)
    for _ in found.history[:-1]:
        after = {w for world in worlds for _, w in environment.successors(world)}
        assert not any(isinstance(w, Broken) for w in after)
        worlds |= {w for w in after if isinstance(w, World)}


# -- what makes the state space finite, and its likeness to the code that runs ------------


def weight(act: Act) -> float:
    """Launches and results often, what ends a gap seldom: else no row would ever be lost."""
    if act.name.startswith(("launch", "a plain result")):
        return 12
    rare = ("finished", "aborted", "retracted", "the last token is in flight", "pin")
    return 0.05 if act.name in rare else 1


@pytest.mark.parametrize("bounds", [ONE_ROW, TWO_ROWS], ids=lambda b: b.name)
def test_saturated_figures_lose_nothing(bounds: Bounds) -> None:
    """Worlds whose old ticks and wide gaps are kept exactly go on as their saturated ones do."""
    coarse, exact = Environment(bounds), Environment(bounds)
    exact.canonical = Canonical(bounds)
    exact.canonical._age = 10_000
    rnd = random.Random(5)
    world = exact.canonical(start(bounds))
    saturated = 0
    for _ in range(3_000):
        acts, outcomes = zip(*exact.successors(world), strict=True)
        after = [w for w in outcomes if isinstance(w, World)]
        assert len(after) == len(acts)
        small = coarse.canonical(world)
        saturated += small.state.seed_launched > world.state.seed_launched
        assert {w for _, w in coarse.successors(small)} == {coarse.canonical(w) for w in after}
        assert broken(world) is None
        world = rnd.choices(after, [weight(a) for a in acts])[0]
    assert saturated > 100


class Real:
    """Carries the acts of a model with one row out on a real `Lifecycle`."""

    def __init__(self, bounds: Bounds) -> None:
        policy = Policy(PolicyConfig(4, 2, bounds.dwell))
        stash = StashConfig(bounds.width, bounds.flush_every, bounds.slice_width)
        self.lifecycle = Lifecycle(bounds.shape, policy, stash)

    def act(self, act: Act) -> None:
        """One act of the model."""
        lifecycle, name = self.lifecycle, act.name
        if name == "boundary":
            lifecycle.boundary(LOADS[act.what.removeprefix("load ")])
        elif name == "pin":
            lifecycle.pin = Pin(act.what)
        elif name.startswith("launch") or name in ("the reseed fails", "go on after the drain"):
            self.launch(name)
        elif name.endswith("result"):
            action = lifecycle.ledger.next_action
            assert action is not None
            lifecycle.settled(action, 1)
        elif name == "flush the prefix cache":
            self.flush_cache()
        elif name == "load new weights":
            lifecycle.weights_changed()
        elif name == "prefill the rest":
            lifecycle.joined("r", 5)
        elif name == "prefill a chunk":
            lifecycle.chunked("r", 1)
        elif name.upper() in Event.__members__:
            lifecycle.left("r", Event[name.upper()])
        else:
            assert name in ("admit a request", "the last token is in flight")

    def launch(self, name: str) -> None:
        """A plan and what becomes of it."""
        lifecycle = self.lifecycle
        plan = lifecycle.plan_decode(1)
        if name == "go on after the drain":
            return
        if name == "the reseed fails":
            lifecycle.reseed_failed("the model says so")
            return
        if plan.action is Action.RESEED:
            lifecycle.reseeded()
        lifecycle.launched(plan.action, 1, plan)

    def flush_cache(self) -> None:
        """Flushed where the lifecycle lets it."""
        try:
            self.lifecycle.cache_flushed()
        except IllegalEvent:
            assert self.lifecycle.rows


@pytest.mark.parametrize("flush_every", [0, 2])
def test_the_model_walks_as_the_lifecycle_runs(flush_every: int) -> None:
    """On random walks each act does to a real `Lifecycle` what the model says it does.

    Compared after every act: the mode, all counters, the policy.
    """
    bounds = replace(ONE_ROW, flush_every=flush_every, pins=True)
    rnd = random.Random(7)
    environment = Environment(bounds)
    for _ in range(60):
        real, world = Real(bounds), environment.canonical(start(bounds))
        for _ in range(200):
            options = [(a, w) for a, w in environment.successors(world) if isinstance(w, World)]
            act, world = rnd.choices(options, [weight(a) for a, _ in options])[0]
            real.act(act)
            lifecycle, policy = real.lifecycle, real.lifecycle.policy
            assert lifecycle.mode is world.mode, act
            assert environment.canonical.state(lifecycle.state()) == world.state, act
            assert world.policy == PolicyState(
                policy._dwell, policy._backoff, policy._failures, policy.pin
            )
    unfired = {e.event for e in EDGES} - {event for _, event in environment.table.fired}
    # With a flush every 2 no gap grows beyond what one slice of 2 writes.
    never = {Event.STASH_DROPPED, Event.SLICE_DONE} if flush_every else {Event.FLUSHED}
    assert unfired == never
