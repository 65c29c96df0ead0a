"""`model spin`: the exported table is the table, and SPIN counts the same states where it is."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS
from spec_fsm._table import EDGES
from spec_fsm.modes import Event, Mode
from spec_fsm_model import spin as runner
from spec_fsm_model.cli import app
from spec_fsm_model.pinned import baseline
from spec_fsm_model.promela import COUNTERS, PROMELA, ROW, SYSTEMS, Free, Printed
from spec_fsm_model.rules import RULES

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
    assert found.spin == found.states > 100
    assert found.verdict == 0


@pytest.mark.skipif(not HERE, reason="SPIN is not installed: CI requires it, see .ci/run")
def test_a_faulty_rule_changes_the_count() -> None:
    """The export of another table is another model: the agreement is about something."""
    wider = {**ROW_EFFECTS, "ROW_LOSE": lambda o, s, r, a: r._replace(lost=1, seeded=0)}
    faulty = Free("faulty", ROW, replace(RULES, row_effects=wider))
    assert runner.count(faulty.export()) == faulty.explore()[0] != SYSTEMS[1].explore()[0]


def test_without_spin_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not run is no success where it is required, and no failure elsewhere; the text is written."""
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["spin", "--export", str(tmp_path / "pml")])
    assert (done.exit_code, "not run" in done.output) == (0, True)
    assert {f.name for f in (tmp_path / "pml").iterdir()} == {"the_counters.pml", "a_row.pml"}
    assert CliRunner().invoke(app, ["spin", "--required"]).exit_code == 2


def test_counts_that_differ_are_refuted() -> None:
    """Another number than SPIN's refutes."""
    same = runner.Agreed("x", 10, 20, 10, (10, 20), 0.0)
    assert same.verdict == 0
    assert replace(same, spin=11).verdict == 1
    assert replace(same, pinned=(10, 21)).verdict == 1


def test_the_table_alone_has_the_pinned_counts() -> None:
    """States and moves of each system, with or without SPIN."""
    counts = {system.name: list(system.explore()) for system in SYSTEMS}
    assert counts == baseline()["alone"]
