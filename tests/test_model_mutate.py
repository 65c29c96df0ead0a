"""`model mutate`: faults are all there is to get wrong, checks find them, bugs break one law."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS
from spec_fsm._table import ALLOWED, EDGES, REFUSALS
from spec_fsm.invariants import INVARIANTS
from spec_fsm.modes import Event, Mode, Phase
from spec_fsm_model import claims, pinned, rewrites
from spec_fsm_model.check import pinned as pinned_counts
from spec_fsm_model.cli import app
from spec_fsm_model.engine import LEAVES, Engine
from spec_fsm_model.environment import Environment
from spec_fsm_model.explore import Arcs, Search, Verdict
from spec_fsm_model.faults import Fault, faults
from spec_fsm_model.graph import Graph
from spec_fsm_model.held import Held
from spec_fsm_model.mutate import FIRST, KILLERS, Bench, Judged, Mutated
from spec_fsm_model.progress import held_up
from spec_fsm_model.rules import RULES
from spec_fsm_model.seeded import BUGS, ONE, TWO, Bug, Refuted, acts, search, story
from spec_fsm_model.sequences import SMALL, cover, replay
from spec_fsm_model.world import Bounds, World, start

FAULTS = faults()
KINDS = Counter(fault.kind for fault in FAULTS)


def fault(what: str) -> Fault:
    """The fault of those words."""
    return next(f for f in FAULTS if f.what == what)


# -- the faults ---------------------------------------------------------------------------


def test_every_cell_and_every_rule_is_changed() -> None:
    """Each edge is dropped and led elsewhere, each refusal and cell flipped, each rule changed."""
    assert KINDS["edge dropped"] == len(EDGES)
    assert KINDS["edge retargeted"] == len(EDGES) * (len(Mode) - 1)
    assert KINDS["guard dropped"] == sum(len(e.guards) for e in EDGES)
    assert KINDS["effect dropped"] == sum(len(e.effects) for e in EDGES)
    rows = sum(e.row_effect is not None for e in EDGES)
    assert KINDS["row effect dropped"] == rows
    assert KINDS["row effect swapped"] == rows * (len(ROW_EFFECTS) - 1)
    assert KINDS["refusal dropped"] == KINDS["refused event accepted"] == len(REFUSALS)
    cells = KINDS["phase allowed"] + KINDS["phase forbidden"]
    assert cells == len(Mode) * len(Phase)
    assert KINDS["phase forbidden"] == sum(len(phases) for phases in ALLOWED.values())
    rewritten = {f.rule for f in FAULTS if f.rule}
    assert rewritten == {*GUARDS, *EFFECTS, *ROW_EFFECTS}


def test_every_fault_differs_from_the_table() -> None:
    """No two faults are the same change, and none is no change at all."""
    names = [(f.kind, f.what) for f in FAULTS if not f.rule]
    assert len(set(names)) == len(names)
    for f in FAULTS:
        assert f.pairs or f.cells
        changed = [
            getattr(f.rules, name) != getattr(RULES, name)
            for name in ("edges", "refusals", "guards", "effects", "row_effects", "allowed")
        ]
        assert any(changed), f.what


def test_rewrites_of_a_rule() -> None:
    """Comparisons turn, terms go, numbers move, fields are confused, branches change places."""
    told = {change.what for change in rewrites.rewrites(GUARDS["REST_FITS"], guard=True)}
    left, right = "ops.eq(s.lost, 0)", "max_gap(ops, s) <= s.slice_width"
    assert {
        f"ops.all({left}, {right}) becomes ops.any({left}, {right})",
        f"ops.all({left}, {right}) becomes ops.all({left})",
        f"{right} becomes max_gap(ops, s) < s.slice_width",
        f"{left} becomes ops.not_({left})",
        "0 becomes 1",
        "s.slice_width becomes s.width",
        "turned round",
        "always holds",
        "never holds",
        "in its max_gap, s.oldest becomes s.t_launched",
    } <= told
    told = {change.what for change in rewrites.rewrites(ROW_EFFECTS["ROW_FLUSH"])}
    assert "ops.ite(ops.eq(r.lost, 1), r.covered, grown) becomes grown" in told
    assert "r.committed - a.lower becomes r.committed + a.lower" in told


# -- the reused graph ---------------------------------------------------------------------

SAMPLE = [f for i, f in enumerate(FAULTS) if i % 60 == 7]


@cache
def graph(bounds: Bounds) -> Graph:
    """The true graph, once."""
    return Graph(bounds)


def test_the_true_graph_is_that_of_the_search() -> None:
    """The same worlds in the same order, and the same arcs."""
    searched = Search(FIRST[0])
    assert searched.run().verdict is Verdict.PROVED
    assert graph(FIRST[0]).true.worlds == searched.worlds
    assert graph(FIRST[0]).true.arcs == searched.arcs


@pytest.mark.parametrize("number", range(len(SAMPLE)))
def test_reusing_the_graph_finds_what_a_search_from_the_start_finds(number: int) -> None:
    """A faulty table is refuted by both or by neither, and reaches the same worlds."""
    tried = SAMPLE[number]
    reused = graph(FIRST[0]).with_fault(tried).run()
    searched = Search(FIRST[0], tried.rules, most=4_000)
    try:
        found = searched.run()
    except (TypeError, IndexError):
        assert reused.broken is not None
        return
    if not reused.whole and reused.broken is None:
        assert found.verdict is Verdict.UNDETERMINED
        return
    assert (reused.broken is None) is (found.broken is None)
    if reused.broken is None:
        mine = reused.graph()
        assert set(mine.worlds) == set(searched.worlds)
        assert mine.edges == found.edges


# -- what finds them ----------------------------------------------------------------------


@cache
def bench() -> Bench:
    """One bench for all tests of a process."""
    return Bench()


EXAMPLES = {
    "RESEEDED in RESEEDING without SEED_ALL": "claims",
    "CACHE_FLUSHED in PLAIN without NO_ROWS": "claims",
    "REACHES_OLDEST: always holds": "claims",
    "MIXED in PLAIN": "claims",
    "LOAD_ROSE in SPEC goes to PLAIN, not DRAINING": "claims",
    "DRAINED in DRAINING goes to DRAINING, not PLAIN": "claims",
    "LOAD_FELL in SPEC": "dead edge",
    "DRAINED in SPEC": "grid",
    "REST_FITS: ops.eq(s.lost, 0) becomes s.lost <= 0": "equivalent",
    "SLICE_DONE in RESEEDING goes to PLAIN, not RESEEDING": "exact",
}


@pytest.mark.parametrize("what", EXAMPLES)
def test_a_fault_is_found_by(what: str) -> None:
    """Each killer finds the faults that are its own; a fault that is none is shown to be none."""
    kinds = [f for f in FAULTS if f.what == what]
    assert EXAMPLES[what] in {bench().judge(f)[0] for f in kinds}


def test_a_refusal_without_a_reason_is_a_hole() -> None:
    """A pair that is neither an edge nor refused, one told twice, and an idle name are named."""
    assert pinned.holes(RULES) == ""
    dropped = next(f for f in FAULTS if f.kind == "refusal dropped")
    assert pinned.holes(dropped.rules) == f"{dropped.what} is neither an edge nor refused"
    pair = (Mode.SPEC, Event.LOAD_ROSE)
    twice = replace(RULES, refusals={**REFUSALS, pair: "no reason at all"})
    assert pinned.holes(twice) == "LOAD_ROSE in SPEC is an edge and refused"
    idle = replace(RULES, guards={**GUARDS, "NEVER_USED": GUARDS["NO_ROWS"]})
    assert pinned.holes(idle) == "guard NEVER_USED is idle"


def test_the_table_is_the_pinned_one() -> None:
    """Cell by cell; and what a comparison alone finds, it does find."""
    wanted = pinned.baseline()["table"]
    assert pinned.differences(RULES, wanted) == []
    assert pinned.differences(fault("MIXED in PLAIN").rules, wanted) == ["launches in PLAIN"]
    changed = fault("REST_FITS: s.slice_width becomes s.width")
    assert pinned.differences(changed.rules, wanted) == ["guard REST_FITS"]
    assert set(pinned.baseline()) == {"alone", "check", "table"}
    assert pinned_counts() == pinned.baseline()["check"]


def test_progress_is_read_off_a_faulty_graph() -> None:
    """The graph put together from reused and new arcs shows a server that is held up."""
    true = graph(FIRST[0])
    assert held_up(true.true) == ""
    found = true.with_fault(fault("SLICE_DONE in RESEEDING goes to PLAIN, not RESEEDING")).run()
    assert (found.broken, found.same, held_up(found.graph())) == (None, True, "")
    # A graph in which no load is ever low again.
    arcs = [[arc for arc in arcs if arc[0].what != "load low"] for arcs in true.true.arcs]
    assert held_up(Arcs(true.true.worlds, arcs)).startswith("REACHABLE: ")


def test_a_fault_that_survives_refutes() -> None:
    """The verdict is about survivors and seeded bugs, and nothing else."""
    killed = Judged(0, "guard dropped", "x", "claims", "I8")
    right, wrong = search(BUGS[0]), replace_broken(search(BUGS[0]))
    assert Mutated([killed], [right]).verdict is Verdict.PROVED
    assert Mutated([killed, replace(killed, by="survives")], [right]).verdict is Verdict.REFUTED
    assert Mutated([killed], [wrong]).verdict is Verdict.REFUTED
    assert Mutated([killed], [search(BUGS[0], most=0)]).verdict is Verdict.UNDETERMINED
    assert set(Mutated([killed], []).as_dict()["by"]) == {*KILLERS, "equivalent", "survives"}


def replace_broken(found: Refuted) -> Refuted:
    """A seeded bug that breaks a second invariant too."""
    found.broken = {**found.broken, "I1a": "as well"}
    return found


def test_all_faults_are_found() -> None:
    """Every single fault is found or shown to be none; few need a comparison of cells."""
    done = CliRunner().invoke(app, ["mutate", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.strip().splitlines()[-1])
    assert said["verdict"] == "proved"
    assert said["faults"] == len(FAULTS) == sum(said["by"].values())
    assert said["by"]["survives"] == 0
    assert said["by"]["exact"] <= 5
    assert said["by"]["claims"] + said["by"]["proof"] > 0.9 * len(FAULTS)
    assert all(len(broken) == 1 for broken in said["seeded"].values())
    page = (Path(__file__).parents[1] / "docs" / "claims.md").read_text()
    section = page[page.index("## `spec-fsm model mutate`") :]
    for by, number in said["by"].items():
        assert f"| {number:,} |" in section, f"docs/claims.md has another number for {by}"
    assert f"{len(FAULTS):,} faults, {len(BUGS)} bugs" in page


# -- seeded bugs --------------------------------------------------------------------------


def test_every_invariant_has_its_bug() -> None:
    """Each id, and each claim of the model that is an invariant, is broken by some bug."""
    assert {bug.invariant for bug in BUGS} == set(INVARIANTS)
    reports = {bug.report for bug in BUGS if bug.report}
    assert reports <= {report for i in INVARIANTS.values() for report in i.bugs}


@pytest.mark.parametrize("bug", BUGS, ids=[bug.what for bug in BUGS])
def test_a_bug_breaks_its_invariant_and_no_other(bug: Bug) -> None:
    """Found, alone, with a history that tells each act and what is seen at its end."""
    found = search(bug)
    assert found.verdict is Verdict.REFUTED
    assert set(found.broken) == {bug.invariant}, found.broken
    text = "\n".join(story(found))
    assert f"{len(found.history)}. {found.history[-1][0]}" in text
    assert f"breaks {bug.invariant} ({INVARIANTS[bug.invariant].says})" in text


@pytest.mark.parametrize("bounds", [ONE, TWO], ids=lambda b: b.name)
def test_the_engine_without_a_bug_breaks_nothing(bounds: Bounds) -> None:
    """Breadth first through five thousand situations, none of them breaks an invariant."""
    engine, possible = Engine(bounds), acts(bounds)
    queue = [(possible.first, Held())]
    seen = set(queue)
    for world, held in queue:
        for act, after, _ in possible.after(world):
            then = after, engine.act(held, act, world, after)
            assert engine.broken == {}, (act, engine.broken)
            if then not in seen and len(queue) < 5_000:
                seen.add(then)
                queue.append(then)
    assert len(queue) == 5_000


def test_a_bugs_history_is_a_shortest_one() -> None:
    """No history of fewer acts breaks the invariant."""
    bug = next(b for b in BUGS if b.invariant == "I14")
    engine, possible = bug.engine(bug.bounds), acts(bug.bounds)
    layer = {(possible.first, Held())}
    for _ in search(bug).history[:-1]:
        after = set()
        for (world, held), (act, then, _) in (
            (s, step) for s in layer for step in possible.after(s[0])
        ):
            after.add((then, engine.act(held, act, world, then)))
            assert engine.broken == {}
        layer = after


def test_claims_of_the_model_are_told() -> None:
    """Every claim a search can break has a sentence."""
    assert all(text.endswith(".") for text in claims.SAYS.values())


# -- histories ----------------------------------------------------------------------------


def test_the_histories_follow_every_edge() -> None:
    """Replayed through the model they go along each arc of the graph, and no history is long."""
    histories = cover(longest=150)
    assert max(len(history) for history in histories) <= 150 + 60
    followed = set()
    for history in histories:
        for before, step, _ in replay(SMALL, history):
            followed.add((before, step.act))
    searched = Search(SMALL)
    found = searched.run()
    assert len(followed) == found.edges


def test_a_request_keeps_its_id() -> None:
    """An id names one request from its admission to its end, whatever place it has among others."""
    bounds = Bounds("two rows", in_flight=0)
    rnd = random.Random(3)
    environment = Environment(bounds)
    world, history = environment.canonical(start(bounds)), []
    for _ in range(1_500):
        act, world = rnd.choice(list(environment.successors(world)))
        assert isinstance(world, World)
        history.append(act)
    told: dict[str, list[str]] = {}
    for before, step, after in replay(bounds, history):
        gone = step.act.name in LEAVES
        assert len(after.rows) == len(before.rows) - gone + (step.act.name == "admit a request")
        if step.rid:
            told.setdefault(step.rid, []).append(step.act.name)
    assert len(told) > 50
    # A life has one prefill to its end at most, and nothing comes after it has left.
    for acts_of in told.values():
        assert acts_of.count("prefill the rest") <= 1
        assert not any(name in LEAVES for name in acts_of[:-1])


def test_a_history_that_is_none_is_refused() -> None:
    """An act that is not possible raises, with the world it is not possible in."""
    launch = next(a for h in cover() for a in h if a.name == "launch plain")
    with pytest.raises(ValueError, match="is not possible"):
        list(replay(SMALL, [launch]))


def test_histories_are_written_as_data(tmp_path: Path) -> None:
    """One JSON line for the bounds and one a history; an unknown name of bounds is refused."""
    file = tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["sequences", "--out", str(file)])
    assert done.exit_code == 0, done.output
    head, *histories = (json.loads(line) for line in file.read_text().splitlines())
    assert head["bounds"]["rows"] == 1
    assert head["histories"] == len(histories)
    assert ["admit a request", "", ""] in histories[0]
    wrong = CliRunner().invoke(app, ["sequences", "--out", str(file), "--bounds", "none"])
    assert wrong.exit_code == 2
    assert "three rows, no overlap" in wrong.output


def test_modes_and_events_of_faults_are_all() -> None:
    """Faults of edges and refusals together touch every pair of the grid."""
    touched = {pair for f in FAULTS for pair in f.pairs}
    assert touched == set(product(Mode, Event))
