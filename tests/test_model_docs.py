"""What is written about the table is read from it: `model explain`, the pages of `make docs`."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from spec_fsm import laws
from spec_fsm._rules import GUARDS
from spec_fsm._table import ALLOWED, EDGES, REFUSALS
from spec_fsm.invariants import INVARIANTS
from spec_fsm.laws import Shape
from spec_fsm.modes import Event, Mode, Phase
from spec_fsm_model import drawing, pages, pinned, prevents, sources, symbols
from spec_fsm_model.bugs import BUGS, told
from spec_fsm_model.cli import app
from spec_fsm_model.environment import Environment
from spec_fsm_model.explain import explain, names
from spec_fsm_model.prove import Prover
from spec_fsm_model.world import Bounds, World, start

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


# -- pages and drawing --------------------------------------------------------------------

GENERATED = Path(__file__).parents[1] / "docs" / "generated"


def test_the_pages_are_not_stale(tmp_path: Path) -> None:
    """What `make docs` writes is, byte by byte, what is committed."""
    assert pages.stale(GENERATED, tmp_path) == []


def test_a_changed_table_makes_the_pages_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another target, another reason and another matrix show in drawing, pages and grid."""
    edges = tuple(
        replace(e, target=Mode.SPEC) if (e.source, e.event) == (Mode.PLAIN, Event.LOAD_FELL) else e
        for e in EDGES
    )
    monkeypatch.setattr(pages, "EDGES", edges)
    monkeypatch.setattr(pages, "REFUSALS", {**REFUSALS, (Mode.SPEC, Event.DRAINED): "no reason"})
    monkeypatch.setattr(pages, "ALLOWED", {**ALLOWED, Mode.SPEC: frozenset(Phase)})
    assert pages.stale(GENERATED, tmp_path) == ["matrix.md", "modes.md", "refusals.md"]
    monkeypatch.setattr(drawing, "arrows", lambda: {(Mode.SPEC, Mode.PLAIN): ["LOAD_ROSE"]})
    assert "modes.svg" in pages.stale(GENERATED, tmp_path)


def test_a_page_nobody_writes_is_stale(tmp_path: Path) -> None:
    """A file left over in the folder is named."""
    written, fresh = tmp_path / "a", tmp_path / "b"
    pages.write_all(written)
    (written / "old.md").write_text("left over")
    assert pages.stale(written, fresh) == ["old.md"]


def test_the_drawing_shows_every_change_of_mode() -> None:
    """Each mode, each event and each guard of an arrow stands in the SVG as text."""
    root = ElementTree.parse(GENERATED / "modes.svg").getroot()
    texts = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text")}
    for (source, target), labels in drawing.arrows().items():
        assert {source.name, target.name, *labels} <= texts
    moving = {(e.source, e.target) for e in EDGES if e.source is not e.target}
    assert moving <= set(drawing.arrows())


def test_the_numbers_of_the_page_of_claims() -> None:
    """States and edges on docs/claims.md are the pinned ones, and each command has its section."""
    page = (GENERATED.parent / "claims.md").read_text()
    counts = pinned.baseline()["check"].values()
    states, edges = (sum(c[name] for c in counts) for name in ("states", "edges"))
    assert f"{states:,} states, {edges:,} edges" in page
    proved = Prover().prove().obligations
    others = sum(proved.values()) - proved["INDUCTION"]
    assert f"{proved['INDUCTION']:,} obligations of induction, {others} others" in page
    for command in ("check", "prove", "progress", "mutate", "spin", "sequences"):
        assert f"## `spec-fsm model {command}" in page
    assert "## `spec-fsm trace check FILE`" in page


def test_the_history_of_the_page_happens() -> None:
    """The table of docs/lifecycle.md, row by row: mode and figures of its one request."""
    page = (GENERATED.parent / "lifecycle.md").read_text()
    told = [
        [cell.strip() for cell in line.strip("|").split("|")[2:]]
        for line in page[page.index("## One history") :].splitlines()
        if line.startswith("| ") and "---" not in line
    ][1:]
    bounds = Bounds("the page", rows=1, in_flight=0)
    environment = Environment(bounds)
    environment.canonical = lambda world: world  # type: ignore[assignment]
    world = start(bounds)
    seen = []
    for step in (
        ("admit a request", "prefill the rest row 0"),
        ("launch speculative", "a speculative result (accepted 1)"),
        ("boundary (load high)",),
        ("go on after the drain",),
        ("launch plain", "a plain result"),
        ("boundary (load low)",),
        ("launch reseed",),
    ):
        for name in step:
            world = {str(act): after for act, after in environment.successors(world)}[name]
            assert isinstance(world, World)
        row = world.rows[0].launched
        seeded = "yes" if row.seeded else "no"
        seen.append([world.mode.name, str(row.committed), str(row.covered), seeded])
    assert seen == told


SIZES = [
    Shape(k, s, d) for k, s, d in product((1, 3), (1, 2), (2, 4)) if d <= 1 + k + (s - 1) * k * k
]


@pytest.mark.parametrize("phase", Phase)
def test_the_laws_in_letters_are_the_laws(phase: Phase) -> None:
    """Each formula on the page, evaluated, is what the law says for several sizes."""
    for shape, b, w in product(SIZES, (1, 5), (2, 7)):
        values = {"b": b, "w": w, "committed": 40, "k": shape.topk, "s": shape.num_steps}
        values["d"] = shape.num_draft_tokens

        def value(text: str, values: dict[str, int] = values) -> int:
            return int(eval(text.replace("·", "*"), {}, values))

        assert value(symbols.tokens(phase)) == laws.tokens(phase, b, shape, w)
        assert value(symbols.slots(phase)) == laws.slots(phase, b, shape, w)
        assert value(symbols.attention(phase)) == laws.attention_len(phase, 40, shape, w)


def test_a_sum_in_a_product_has_brackets() -> None:
    """Letters keep the order of operations."""
    b, k = symbols.Letter("b"), symbols.Letter("k")
    assert ((b + k) * k).text == "(b + k)·k"
    assert (b * k + 1 - k).text == "b·k + 1 - k"
    assert symbols.window() == "b·d"
