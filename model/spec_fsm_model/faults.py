"""Every single fault of the table, its guards and its effects, made from `Rules`.

Nothing is picked by hand: each edge, refusal and cell of the matrix is changed in each way of its
kind, and each rule by every rewrite of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spec_fsm._table import Edge
from spec_fsm.modes import Event, Mode, Phase
from spec_fsm_model.rewrites import rewrites
from spec_fsm_model.rules import RULES, Rules

Pair = tuple[Mode, Event]


@dataclass(frozen=True)
class Fault:
    """One fault.

    kind: of which kind, for counting.  what: it in words.  rules: the rules that have it.  pairs:
    the pairs of mode and event whose step it may change.  cells: the cells of the matrix it
    changes.  rule: the name of the guard or effect it rewrites, or empty.
    """

    kind: str
    what: str
    rules: Rules
    pairs: frozenset[Pair] = frozenset()
    cells: frozenset[tuple[Mode, Phase]] = frozenset()
    rule: str = ""


def faults(rules: Rules = RULES) -> list[Fault]:
    """All of them, always in the same order."""
    return [
        *(fault for pair in rules.edges for fault in _of_edge(rules, pair)),
        *(fault for pair in rules.refusals for fault in _of_refusal(rules, pair)),
        *_of_matrix(rules),
        *_of_rules(rules),
    ]


def _of_edge(rules: Rules, pair: Pair) -> Iterator[Fault]:
    edge, name = rules.edges[pair], f"{pair[1].name} in {pair[0].name}"

    def changed(kind: str, what: str, **new: Any) -> Fault:
        edges = {**rules.edges, pair: replace(edge, **new)}
        return Fault(kind, f"{name} {what}", replace(rules, edges=edges), frozenset([pair]))

    gone = {p: e for p, e in rules.edges.items() if p != pair}
    yield Fault("edge dropped", name, replace(rules, edges=gone), frozenset([pair]))
    for mode in Mode:
        if mode is not edge.target:
            text = f"goes to {mode.name}, not {edge.target.name}"
            yield changed("edge retargeted", text, target=mode)
    for i, guard in enumerate(edge.guards):
        rest = (*edge.guards[:i], *edge.guards[i + 1 :])
        yield changed("guard dropped", f"without {guard}", guards=rest)
        for other in rules.guards:
            if other not in edge.guards:
                swapped = (*edge.guards[:i], other, *edge.guards[i + 1 :])
                yield changed("guard swapped", f"if {other}, not {guard}", guards=swapped)
    yield from _of_effects(rules, edge, changed)


def _of_effects(rules: Rules, edge: Edge, changed: Callable[..., Fault]) -> Iterator[Fault]:
    for i, effect in enumerate(edge.effects):
        rest = (*edge.effects[:i], *edge.effects[i + 1 :])
        yield changed("effect dropped", f"without {effect}", effects=rest)
        for other in rules.effects:
            if other not in edge.effects:
                swapped = (*edge.effects[:i], other, *edge.effects[i + 1 :])
                yield changed("effect swapped", f"does {other}, not {effect}", effects=swapped)
    if edge.row_effect is not None:
        text = f"without {edge.row_effect}"
        yield changed("row effect dropped", text, row_effect=None)
        for other in rules.row_effects:
            if other != edge.row_effect:
                text = f"does {other}, not {edge.row_effect}"
                yield changed("row effect swapped", text, row_effect=other)


def _of_refusal(rules: Rules, pair: Pair) -> Iterator[Fault]:
    name = f"{pair[1].name} in {pair[0].name}"
    refusals = {p: why for p, why in rules.refusals.items() if p != pair}
    pairs = frozenset([pair])
    yield Fault("refusal dropped", name, replace(rules, refusals=refusals), pairs)
    # As the same event is in another mode, or bare where it is an edge nowhere else.
    alike = [e for (_, event), e in rules.edges.items() if event is pair[1]]
    edge = replace(alike[0], source=pair[0], target=pair[0])
    accepted = {**rules.edges, pair: edge}
    rules = replace(rules, refusals=refusals, edges=accepted)
    yield Fault("refused event accepted", name, rules, pairs)


def _of_matrix(rules: Rules) -> Iterator[Fault]:
    for mode in Mode:
        for phase in Phase:
            has = phase in rules.allowed[mode]
            kind = "phase forbidden" if has else "phase allowed"
            allowed = {**rules.allowed, mode: rules.allowed[mode] ^ {phase}}
            cells = frozenset([(mode, phase)])
            what = f"{phase.name} in {mode.name}"
            yield Fault(kind, what, replace(rules, allowed=allowed), cells=cells)


def _of_rules(rules: Rules) -> Iterator[Fault]:
    kinds: tuple[tuple[str, str, Mapping[str, Callable[..., Any]]], ...] = (
        ("guard rewritten", "guards", rules.guards),
        ("effect rewritten", "effects", rules.effects),
        ("row effect rewritten", "row_effects", rules.row_effects),
    )
    for kind, field, named in kinds:
        for name, rule in named.items():
            pairs = frozenset(p for p, edge in rules.edges.items() if name in _names(edge))
            for change in rewrites(rule, guard=field == "guards"):
                changed: Any = {field: {**named, name: change.rule}}
                what = f"{name}: {change.what}"
                yield Fault(kind, what, replace(rules, **changed), pairs, rule=name)


def _names(edge: Edge) -> tuple[str, ...]:
    return (*edge.guards, *edge.effects, edge.row_effect or "")


__all__ = ["Fault", "Pair", "faults"]
