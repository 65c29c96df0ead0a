"""`model spin`: what is exported is the table and its environment, and SPIN counts the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS
from spec_fsm._table import EDGES
from spec_fsm.modes import Event, Mode
from spec_fsm_model import export, traced
from spec_fsm_model import spin as runner
from spec_fsm_model.cli import app
from spec_fsm_model.explore import Search
from spec_fsm_model.pinned import baseline
from spec_fsm_model.promela import COUNTERS, PROMELA, ROW, SYSTEMS, Free, Printed
from spec_fsm_model.rules import RULES
from spec_fsm_model.sequences import SMALL
from spec_fsm_model.traced import SEEN, Seen, Text, begin, concrete
from spec_fsm_model.world import Bounds

HERE = shutil.which("spin") is not None and shutil.which("cc") is not None


def test_the_export_names_every_edge() -> None:
    """Each edge stands in the Promela text, and so do all figures."""
    counters = SYSTEMS[0].export()
    for edge in EDGES:
        assert f"/* {edge.event.name} in {edge.source.name} " in counters
    for box, system in ((COUNTERS, SYSTEMS[0]), (ROW, SYSTEMS[1])):
        assert all(f"int {name} = " in system.export() for name in box.fields)


def test_rules_print_as_expressions() -> None:
    """Guards and effects are written out with their operators, in brackets."""
    a, b = Printed("a", frozenset("a")), Printed("b", frozenset("b"))
    assert PROMELA.all(a <= b, PROMELA.not_(PROMELA.eq(a, 1))).text == "((a <= b) && !((a == 1)))"
    assert PROMELA.max(a, b + 1).text == "((a >= (b + 1)) -> a : (b + 1))"
    assert PROMELA.min(a, b).text == "((a <= b) -> a : b)"
    assert PROMELA.imp(a, b).text == "(!(a) || b)"
    assert PROMELA.any().text == "false"
    assert (PROMELA.mul(a, 2) - b).reads == {"a", "b"}
    assert "(t_launched - s" not in SYSTEMS[0].export()


def test_only_what_an_edge_reads_is_tried() -> None:
    """A launch brings its three flags, a drain nothing: 8 moves and 1."""
    moves = list(Free("x", COUNTERS).moves())
    of = [m for m in moves if (m.edge.source, m.edge.event) == (Mode.SPEC, Event.LAUNCHED)]
    assert len(of) == 8
    assert sum(m.edge.event is Event.DRAINED for m in moves) == 1


def test_both_systems_use_every_rule() -> None:
    """Every guard and effect has an edge in the counters, every row effect one on the row."""
    used = {name for edge in EDGES for name in (*edge.guards, *edge.effects, edge.row_effect)}
    assert {*GUARDS, *EFFECTS, *ROW_EFFECTS} <= used


@pytest.mark.skipif(not HERE, reason="SPIN is not installed: CI requires it, see .ci/run")
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: s.name)
def test_spin_counts_the_same_states(system: Free) -> None:
    """Two interpreters and two searches, one number."""
    found = runner.agree(system)
    assert found.spin == (found.states, found.edges)
    assert found.states > 100
    assert found.verdict == 0


@pytest.mark.skipif(not HERE, reason="SPIN is not installed: CI requires it, see .ci/run")
def test_a_faulty_rule_changes_the_count() -> None:
    """The export of another table is another model: the agreement is about something."""
    wider = {**ROW_EFFECTS, "ROW_COVER": lambda o, s, r, a: r._replace(covered=r.committed)}
    faulty = Free("faulty", ROW, replace(RULES, row_effects=wider))
    assert runner.count(faulty.export()) == faulty.explore() != SYSTEMS[1].explore()


def test_without_spin_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not run is no success where it is required, and no failure elsewhere; the text is written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(export, "SEARCHES", (SMALL,))
    done = CliRunner().invoke(app, ["spin", "--export", str(tmp_path / "pml")])
    assert (done.exit_code, "not run" in done.output) == (0, True)
    written = {"the_counters.pml", "a_row.pml", "one_row_no_overlap.pml"}
    assert {f.name for f in (tmp_path / "pml").iterdir()} == written
    assert CliRunner().invoke(app, ["spin", "--required"]).exit_code == 2


def test_counts_that_differ_are_refuted() -> None:
    """Another number than SPIN's refutes."""
    same = runner.Agreed("x", 10, 20, (10, 20), (10, 20), 0.0)
    assert same.verdict == 0
    assert replace(same, spin=(11, 20)).verdict == 1
    assert replace(same, spin=(10, 19)).verdict == 1
    assert replace(same, pinned=(10, 21)).verdict == 1


def test_the_table_alone_has_the_pinned_counts() -> None:
    """States and moves of each system, with or without SPIN."""
    counts = {system.name: list(system.explore()) for system in SYSTEMS}
    assert counts == baseline()["alone"]


# -- searches of `model check` ------------------------------------------------------------

OVERLAP = Bounds("one row, overlap", rows=1)


def test_two_searches_of_model_check_are_exported() -> None:
    """They have their environment with overlap and failures, and 100,000 states between them."""
    counts = baseline()["check"]
    assert {b.name for b in export.SEARCHES} == {"one row, slices", "one row, flushes"}
    assert sum(counts[bounds.name]["states"] for bounds in export.SEARCHES) > 100_000
    assert all(b.in_flight and b.failures and b.dwell for b in export.SEARCHES)


@pytest.mark.parametrize("bounds", [SMALL, OVERLAP], ids=lambda b: b.name)
def test_the_programs_do_what_the_environment_does(bounds: Bounds) -> None:
    """In each world of the search each act's program leads to the world the search went to."""
    exported = export.export(bounds)
    assert exported.misses == 0
    assert exported.states > 800
    text = exported.promela
    for act in ("admit a request (prefix hit)", "load new weights", "the last token is in flight"):
        assert f"/* {act}" in text
    assert exported.paths > len(exported.programs) > 15


def test_a_program_with_a_path_less_is_told() -> None:
    """What the runs did not go through is missing in the program, and it stands still there."""
    exported = export.export(SMALL)
    act = next(a for a in exported.programs if a.what == "load high")
    program = exported.programs[act]
    names, search = exported.layout.names, Search(SMALL)
    search.run()
    figures = [
        [int(n) for n in exported.layout.row(world)]
        for world, arcs in zip(search.worlds, search.arcs, strict=True)
        if act in dict(arcs)
    ]
    assert all(export.compiled(names, program)(f) is not None for f in figures)
    program.branches.popitem()
    assert any(export.compiled(names, program)(f) is None for f in figures)


def test_paths_that_contradict_each_other_are_refused() -> None:
    """Two runs with the same decisions and other ends are no program."""
    decision = traced.Decision(Text("x", "x"), 1)
    node = export.Node()
    node.add([decision], {"y": Text("1", "1")})
    node.add([decision], {"y": Text("1", "1")})
    with pytest.raises(ValueError, match="end differently"):
        node.add([decision], {"y": Text("2", "2")})
    with pytest.raises(ValueError, match="decide differently"):
        node.add([traced.Decision(Text("z", "z"), 1)], {})


def test_an_integer_remembers_how_it_came_about() -> None:
    """Arithmetic is written down; only what Python asks of a comparison is a decision."""
    run = begin()
    x, y = (Seen(n, Text(name, name)) for n, name in ((5, "x"), (2, "y")))
    total = x + y - 1
    assert (int(total), total.text.promela) == (6, "((x + y) - 1)")
    assert SEEN.max(x, y).text == Text("((x >= y) -> x : y)", "(x if (x >= y) else y)")
    assert SEEN.all(x > y, SEEN.not_(SEEN.eq(y, 1))).text.promela == "((x > y) && !((y == 1)))"
    assert run.path == []
    assert min(x, y) is y
    assert not y & 1
    assert concrete(x) == 5
    assert [(d.text.promela, d.value) for d in run.path] == [
        ("(y < x)", 1),
        ("((y & 1) != 0)", 0),
        ("x", 5),
    ]
    # What is decided once is not decided again, and what is the same needs no decision.
    assert bool(x == 5) is True
    assert bool(x + 0 != x) is False
    assert len(run.path) == 3


@pytest.mark.skipif(not HERE, reason="SPIN is not installed: CI requires it, see .ci/run")
def test_spin_counts_a_search_as_python_does() -> None:
    """States and edges of a search with all its environment; the large ones are `.ci/run`'s."""
    exported = export.export(SMALL)
    assert runner.count(exported.promela) == (exported.states, exported.edges)


@pytest.mark.skipif(not HERE, reason="SPIN is not installed: CI requires it, see .ci/run")
def test_a_faulty_table_is_another_search_for_spin() -> None:
    """The export follows the table: with a rebuild that may not begin both count less."""
    guards = {**GUARDS, "REBUILDABLE": lambda *_: False}
    faulty = export.export(SMALL, replace(RULES, guards=guards))
    assert faulty.states < export.export(SMALL).states
    assert runner.count(faulty.promela) == (faulty.states, faulty.edges)
