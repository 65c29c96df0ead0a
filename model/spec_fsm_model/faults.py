"""Every single fault of the table, its guards and its effects, made from `Rules`.

Nothing is picked by hand: each edge, refusal and cell of the matrix is changed in each way of its
kind, and each rule by every rewrite of its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
    yield from _of_names("guard", edge.guards, rules.guards, "if", changed)
    yield from _of_names("effect", edge.effects, rules.effects, "does", changed)
    if edge.row_effect is not None:
        text = f"without {edge.row_effect}"
        yield changed("row effect dropped", text, row_effect=None)
        for other in rules.row_effects:
            if other != edge.row_effect:
                text = f"does {other}, not {edge.row_effect}"
                yield changed("row effect swapped", text, row_effect=other)


def _of_names(
    kind: str,
    held: tuple[str, ...],
    known: Iterable[str],
    verb: str,
    changed: Callable[..., Fault],
) -> Iterator[Fault]:
    """Each of an edge's guards or effects dropped, and swapped for each that it does not have."""
    for i, name in enumerate(held):
        rest = (*held[:i], *held[i + 1 :])
        yield changed(f"{kind} dropped", f"without {name}", **{f"{kind}s": rest})
        for other in known:
            if other not in held:
                swapped = (*held[:i], other, *held[i + 1 :])
                text = f"{verb} {other}, not {name}"
                yield changed(f"{kind} swapped", text, **{f"{kind}s": swapped})


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
