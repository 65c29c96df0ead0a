"""The table as it is pinned in `baseline.json`, cell by cell, and how a table differs from it.

Edges, refusals and the matrix are pinned as they stand; a guard or an effect by what it answers at
fixed points, small integers near the places where rules turn.  A change of what a rule does shows
here even where no claim breaks; a change of its text alone does not.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from spec_fsm._rules import Arg, RowState, State
from spec_fsm._table import Edge
from spec_fsm.modes import Event, Mode
from spec_fsm.ops import INT
from spec_fsm_model.rules import RULES, Rules

BASELINE = Path(__file__).with_name("baseline.json")
POINTS = 600
"""Points at which a rule is evaluated."""


def baseline() -> dict[str, Any]:
    """What is pinned."""
    read: dict[str, Any] = json.loads(BASELINE.read_text())
    return read


def table(rules: Rules = RULES) -> dict[str, str]:
    """Every cell of a table by its name."""
    return {
        **{f"{e.name} in {m.name}": _edge(edge) for (m, e), edge in rules.edges.items()},
        **{f"{e.name} in {m.name} refused": why for (m, e), why in rules.refusals.items()},
        **{
            f"launches in {mode.name}": " ".join(p.name for p in sorted(phases))
            for mode, phases in rules.allowed.items()
        },
        **_answers("guard", rules.guards, row=False),
        **_answers("effect", rules.effects, row=False),
        **_answers("row effect", rules.row_effects, row=True),
    }


def differences(rules: Rules, wanted: Mapping[str, str]) -> list[str]:
    """Names of the cells in which a table is not the one that is pinned."""
    found = table(rules)
    return sorted(n for n in found.keys() | wanted.keys() if found.get(n) != wanted.get(n))


def holes(rules: Rules) -> str:
    """What makes a table none: pairs left out or told twice, names missing or idle; or empty."""
    for pair in product(Mode, Event):
        told = (pair in rules.edges) + bool(rules.refusals.get(pair))
        if told != 1:
            text = "an edge and refused" if told else "neither an edge nor refused"
            return f"{pair[1].name} in {pair[0].name} is {text}"
    edges = rules.edges.values()
    for kind, named, used in (
        ("guard", rules.guards, {g for e in edges for g in e.guards}),
        ("effect", rules.effects, {f for e in edges for f in e.effects}),
        ("row effect", rules.row_effects, {e.row_effect for e in edges if e.row_effect}),
    ):
        if differ := sorted(set(named) ^ used):
            return f"{kind} {differ[0]} is {'idle' if differ[0] in named else 'missing'}"
    return ""


def _edge(edge: Edge) -> str:
    guards, effects = " ".join(edge.guards) or "-", " ".join(edge.effects) or "-"
    return f"to {edge.target.name} if {guards} do {effects} row {edge.row_effect or '-'}"


def _answers(kind: str, rules: Mapping[str, Callable[..., Any]], *, row: bool) -> dict[str, str]:
    return {f"{kind} {name}": _digest(rule, row) for name, rule in rules.items()}


@cache
def _digest(rule: Callable[..., Any], row: bool) -> str:
    said = hashlib.sha256()
    for state, figures, arg in _points():
        answer = rule(INT, state, figures, arg) if row else rule(INT, state, arg)
        # True and 1 are the same answer, as are a record and its numbers.
        numbers = [int(n) for n in answer] if isinstance(answer, tuple) else [int(answer)]
        said.update(json.dumps(numbers).encode())
    return said.hexdigest()[:16]


@cache
def _points() -> list[tuple[State, RowState, Arg]]:
    rnd = random.Random("the points of the baseline")

    def some(kind: Any) -> Any:
        top = rnd.choice((1, 2, 4))
        return kind(*(rnd.randint(0, top) for _ in kind._fields))

    return [(some(State), some(RowState), some(Arg)) for _ in range(POINTS)]


__all__ = ["BASELINE", "POINTS", "baseline", "differences", "holes", "table"]
