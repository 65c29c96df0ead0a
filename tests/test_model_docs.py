"""What is written about the table is read from it: `model explain`, the pages of `make docs`."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from spec_fsm._rules import GUARDS
from spec_fsm._table import EDGES, REFUSALS
from spec_fsm.invariants import INVARIANTS
from spec_fsm.modes import Event, Mode, Phase
from spec_fsm_model import prevents, sources
from spec_fsm_model.bugs import BUGS, told
from spec_fsm_model.cli import app
from spec_fsm_model.explain import explain, names

# -- explain ------------------------------------------------------------------------------


def test_every_name_of_the_table_has_its_reason() -> None:
    """Events, modes, phases and guards each say what goes wrong without them, and no other does."""
    for kind, texts in (
        (Event, prevents.EVENTS),
        (Mode, prevents.MODES),
        (Phase, prevents.PHASES),
        (GUARDS, prevents.GUARDS),
    ):
        assert list(texts) == list(kind)
        for without in texts.values():
            assert without.harm
            assert set(without.invariants) <= set(INVARIANTS)


def test_every_report_is_told_and_none_is_idle() -> None:
    """The reports are exactly those the invariants name; each line has its address."""
    assert {bug for i in INVARIANTS.values() for bug in i.bugs} == set(BUGS)
    assert told("VL#53420").startswith("vLLM #53420 (github.com/vllm-project/vllm/issues/53420): ")


def test_every_invariant_is_kept_by_something() -> None:
    """No invariant stands there without a mode, event or phase that serves it."""
    kept = {
        i
        for texts in (prevents.EVENTS, prevents.MODES, prevents.PHASES, prevents.GUARDS)
        for without in texts.values()
        for i in without.invariants
    }
    # Of tensors alone, and not of the table: buffers, tokens, lengths' copies, grammars, padding.
    assert set(INVARIANTS) - kept == {"I12", "I13", "I17", "I18", "I19"}


@pytest.mark.parametrize("name", names())
def test_every_name_is_explained(name: str) -> None:
    """What it is, and where it is checked: in this repository each name is mentioned somewhere."""
    lines = explain(name)
    assert lines[0].startswith(f"{name}: ")
    where = lines[lines.index("  where it is checked:") + 1 :]
    assert any(".py:" in line for line in where), where


def test_load_rose_is_told_whole() -> None:
    """Meaning, guard with its text, effect, refusals, the bug it excludes, and where to look."""
    done = CliRunner().invoke(app, ["explain", "LOAD_ROSE"])
    assert done.exit_code == 0, done.output
    for part in (
        sources.member_docs(Event)["LOAD_ROSE"],
        "LOAD_ROSE in SPEC goes to DRAINING if DWELL_OVER",
        "return ops.eq(s.dwell, 0)",
        f"in PLAIN it is refused: {REFUSALS[Mode.PLAIN, Event.LOAD_ROSE]}",
        "github.com/sgl-project/sglang/issues/13804",
        "spec_fsm/policy.py",
        "tests/test_core_table.py",
    ):
        assert part in done.output, part


def test_an_effect_is_told_with_its_text() -> None:
    """Lines of the function that runs, and the edges that have it."""
    text = "\n".join(explain("ROW_DECODE"))
    assert "stashed=ops.max(r.stashed, committed - s.width)," in text
    assert "DECODED in SPEC, DRAINING, PLAIN, RESEEDING stays there" in text


def test_an_unknown_name_is_refused_with_the_accepted_ones() -> None:
    """Exit code 2, the name, and every name there is."""
    done = CliRunner().invoke(app, ["explain", "LOAD_ROES"])
    assert done.exit_code == 2
    assert "LOAD_ROES" in done.output
    assert all(edge.event.name in done.output for edge in EDGES)


def test_member_docs_are_the_sentences_in_the_source() -> None:
    """Every event, mode and phase has one, and it is the one written there."""
    for kind in (Event, Mode, Phase):
        assert set(sources.member_docs(kind)) == set(kind.__members__)
    assert sources.member_docs(Phase)["IDLE"] == "A launch without rows."
