"""The mutants of the adapter: their draw is what is committed, and nine in ten are killed."""

from __future__ import annotations

import json
from types import FunctionType
from typing import Any

import pytest

from mutants import page, pool, put, tree

SOURCE = '''
def least(values, floor=0):
    """Text."""
    found = floor
    for value in values:
        if value < found and value is not None:
            found = value - 1
    return found


def outer():
    def inner(x):
        return x + 1
    return inner
'''


def record() -> dict[str, Any]:
    """What `make trials ARGS=adapter-mutants` found; one never run is stale, which fails none."""
    if not page.RECORD.exists():
        pytest.skip("never run: make trials ARGS=adapter-mutants")
    found: dict[str, Any] = json.loads(page.RECORD.read_text(encoding="utf-8"))
    return found


def test_nine_in_ten_are_killed_and_every_survivor_is_explained() -> None:
    """Equal ones count as neither; an explanation of a mutant that is killed is out of date."""
    found = record()
    killed, total = page.rate(found)
    assert len(found["mutants"]) == pool.table()["number"] == 300
    assert killed / total >= page.BAR / 100
    assert page.unexplained(found) == []
    equal, missed = page.explained()
    assert equal.keys() | missed.keys() == page.survivors(found).keys()


def test_the_page_is_written_from_the_record() -> None:
    """`docs/adapter-mutants.md` says what the record says."""
    found = record()
    assert page.PAGE.read_text(encoding="utf-8") == page.page(found)


def test_the_draw_is_the_same_each_time_and_leaves_out_what_is_named() -> None:
    """A module or function that is left out exists, and none of it is drawn."""
    drawn = pool.drawn()
    assert [m.name for m in drawn] == [m.name for m in pool.drawn()]
    assert len({m.name for m in pool.everything()}) == len(pool.everything())
    known = {path.stem for path in pool.ADAPTER.glob("*.py")}
    for name in pool.left_out():
        module, _, function = name.partition(":")
        assert module in known, name
        if function:
            assert function in {m.function for m in tree.mutants(module, pool.source(module))}
    assert not {m.module for m in drawn} & pool.left_out().keys()


def test_every_mutant_compiles_to_other_code() -> None:
    """A mutant that changes nothing would be a survivor for no reason."""
    for mutant in tree.mutants("m", SOURCE):
        changed = tree.code_of(mutant, SOURCE, "m.py")
        assert tree.functions_in(changed) != tree.functions_in(compile(SOURCE, "m.py", "exec"))


@pytest.mark.parametrize(
    "says",
    ["bound: value < found", "one less: 1 -> 0", "left side only: x + 1 -> x",
     "never entered: for value in values", "without operand 1", "dropped: found"],
)
def test_the_operators_make_the_slips_they_are_named_after(says: str) -> None:
    """Off by one, a branch, a dropped condition, a loop never entered; no text, no default."""
    names = [m.name for m in tree.mutants("m", SOURCE)]
    assert any(says in name for name in names) is (says != "dropped: found")
    assert not any("Text" in name or "floor=" in name for name in names)


def test_a_mutant_reaches_functions_that_run_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those made before and those that another makes later, by replacing their code."""
    space: dict[str, Any] = {}
    exec(compile(SOURCE, str(pool.path_of("m")), "exec"), space)
    monkeypatch.setattr(pool, "source", lambda module: SOURCE)
    before: FunctionType = space["outer"]()
    (mutant,) = (m for m in tree.mutants("m", SOURCE) if m.name.endswith("x + 1 -> x - 1"))
    assert put.into_running(mutant) == 2
    assert before(5) == 4
    assert space["outer"]()(5) == 4
