"""The table as a Promela model, printed from the rules that run.

Promela has integers, so guards and effects are read once more through their vocabulary: `Printed`
terms are Promela expressions.  The model is the table alone, under an environment that may do
anything: every event may happen at any time and bring any figures of a small domain, as long as
the counters stay in a box.  `Free` is the same system for Python; SPIN must count the same states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from spec_fsm._rules import Arg, RowState, State
from spec_fsm._table import Edge
from spec_fsm.modes import Event, Mode
from spec_fsm.ops import INT
from spec_fsm_model.rules import RULES, Rules


@dataclass(frozen=True)
class Printed:
    """A Promela expression; reads: the names in it."""

    text: str
    reads: frozenset[str] = frozenset()

    def _with(self, sign: str, other: Any) -> Printed:
        other = printed(other)
        return Printed(f"({self.text} {sign} {other.text})", self.reads | other.reads)

    def __add__(self, other: Any) -> Printed:
        return self._with("+", other)

    def __sub__(self, other: Any) -> Printed:
        return self._with("-", other)

    def __le__(self, other: Any) -> Printed:
        return self._with("<=", other)

    def __lt__(self, other: Any) -> Printed:
        return self._with("<", other)

    def __ge__(self, other: Any) -> Printed:
        return self._with(">=", other)

    def __gt__(self, other: Any) -> Printed:
        return self._with(">", other)


def printed(term: Any) -> Printed:
    """A term as an expression."""
    return term if isinstance(term, Printed) else Printed(str(int(term)))


class _PromelaOps:
    """The reading over Promela expressions."""

    def all(self, *terms: Any) -> Printed:
        return _joined(" && ", terms, "true")

    def any(self, *terms: Any) -> Printed:
        return _joined(" || ", terms, "false")

    def not_(self, term: Any) -> Printed:
        term = printed(term)
        return Printed(f"!({term.text})", term.reads)

    def imp(self, left: Any, right: Any) -> Printed:
        return self.any(self.not_(left), right)

    def ite(self, condition: Any, then: Any, other: Any) -> Printed:
        c, a, b = printed(condition), printed(then), printed(other)
        return Printed(f"({c.text} -> {a.text} : {b.text})", c.reads | a.reads | b.reads)

    def max(self, left: Any, right: Any) -> Printed:
        return self.ite(printed(left) >= right, left, right)

    def min(self, left: Any, right: Any) -> Printed:
        return self.ite(printed(left) <= right, left, right)

    def eq(self, left: Any, right: Any) -> Printed:
        return printed(left)._with("==", right)

    def mul(self, left: Any, right: Any) -> Printed:
        return printed(left)._with("*", right)


PROMELA: Any = _PromelaOps()


def _joined(sign: str, terms: tuple[Any, ...], none: str) -> Printed:
    parts = [printed(term) for term in terms]
    text = f"({sign.join(p.text for p in parts)})" if parts else none
    return Printed(text, frozenset().union(*(p.reads for p in parts)))


class Box(NamedTuple):
    """Of each field of the counters or of a row: where it starts, its least and its most."""

    record: type[Any]
    fields: dict[str, tuple[int, int, int]]

    @property
    def start(self) -> Any:
        """The figures at the start."""
        return self.record(**{name: first for name, (first, _, _) in self.fields.items()})

    def holds(self, figures: Any) -> bool:
        """Whether all figures are inside."""
        bounds = zip(figures, self.fields.values(), strict=True)
        return all(least <= value <= most for value, (_, least, most) in bounds)


_TICK = (0, 0, 2)
COUNTERS = Box(
    State,
    {
        "rows": (0, 0, 1),
        "lost": (0, 0, 1),
        "oldest": _TICK,
        "unsettled": (0, 0, 1),
        **dict.fromkeys(("t_launched", "t_settled"), _TICK),
        **dict.fromkeys(("f_launched", "f_settled"), _TICK),
        **dict.fromkeys(("seed_launched", "seed_settled"), _TICK),
        "width": (1, 1, 1),
        "slice_width": (1, 1, 1),
        "dwell": (0, 0, 0),
    },
)
"""The counters, with two ticks, one row and a stash of one."""
ROW = Box(
    RowState,
    {
        **dict.fromkeys(("committed", "covered", "stashed"), (0, 0, 4)),
        **dict.fromkeys(("seeded", "lost"), (0, 0, 1)),
        "reserved": (4, 4, 4),
    },
)
"""One row of up to four positions."""
DOMAIN: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("allowed", "plain", "speculative", "reseed", "known", "lost"), (0, 1)),
    **dict.fromkeys(("point", "oldest", "lower"), (0, 1, 2)),
    "upper": (0, 1, 2, 3),
    "length": (1, 2),
}
"""What an event may bring; only what its guards and effects read is tried."""
STASH = 2
"""Width of the stash a row effect reads."""


class Move(NamedTuple):
    """An edge with what it brings."""

    edge: Edge
    arg: Arg


@dataclass(frozen=True)
class Free:
    """The table alone on the counters, or on one row, inside a box."""

    name: str
    box: Box
    rules: Rules = RULES

    def moves(self) -> Iterator[Move]:
        """Every edge with every combination of the figures it reads."""
        for edge in self.rules.edges.values():
            reads = sorted(self._reads(edge))
            for values in product(*(DOMAIN[name] for name in reads)):
                yield Move(edge, Arg(**dict(zip(reads, values, strict=True))))

    def after(self, ops: Any, move: Move, figures: Any) -> tuple[Any, Any]:
        """Whether the guards hold, and the figures afterwards, in a reading."""
        edge, arg = move
        if self.box.record is RowState:
            state = State(*[None] * len(State._fields))._replace(width=STASH)
            if edge.row_effect is None:
                return ops.all(), figures
            return ops.all(), self.rules.row_effects[edge.row_effect](ops, state, figures, arg)
        holds = ops.all(*(self.rules.guards[name](ops, figures, arg) for name in edge.guards))
        for name in edge.effects:
            figures = self.rules.effects[name](ops, figures, arg)
        return holds, figures

    def _reads(self, edge: Edge) -> set[str]:
        """The fields of an event's figures that the edge reads."""
        names = {f"arg_{name}": name for name in Arg._fields}
        arg = Arg(*(Printed(text, frozenset([text])) for text in names))
        holds, figures = self.after(PROMELA, Move(edge, arg), _symbols(self.box))
        reads = holds.reads.union(*(printed(value).reads for value in figures))
        return {name for text, name in names.items() if text in reads}

    def explore(self) -> tuple[int, int]:
        """Count states, and the moves possible in them."""
        moves: dict[Mode, list[Move]] = {mode: [] for mode in Mode}
        for move in self.moves():
            moves[move.edge.source].append(move)
        first = (Mode.SPEC, self.box.start)
        seen, queue, edges = {first}, [first], 0
        for mode, figures in queue:
            for move in moves[mode]:
                holds, then = self.after(INT, move, figures)
                if not holds or not self.box.holds(then):
                    continue
                edges += 1
                state = (move.edge.target, then)
                if state not in seen:
                    seen.add(state)
                    queue.append(state)
        return len(seen), edges

    def export(self) -> str:
        """The same system in Promela."""
        lines = ["/* Printed from the table by `spec-fsm model spin`. Do not edit. */"]
        lines.append(f"int mode = {int(Mode.SPEC)};")
        lines += [f"int {name} = {first};" for name, (first, _, _) in self.box.fields.items()]
        lines += [f"hidden int new_{name};" for name in self.box.fields]
        lines += ["active proctype table() {", "  do"]
        lines += [line for move in self.moves() for line in self._option(move)]
        return "\n".join([*lines, "  od", "}", ""])

    def _option(self, move: Move) -> Iterator[str]:
        edge, before = move.edge, _symbols(self.box)
        holds, after = self.after(PROMELA, move, before)
        moved = [
            (name, printed(value).text)
            for name, old, value in zip(self.box.fields, before, after, strict=True)
            if value is not old
        ]
        inside = [f"{text} >= {self.box.fields[name][1]}" for name, text in moved]
        inside += [f"{text} <= {self.box.fields[name][2]}" for name, text in moved]
        condition = " && ".join([f"mode == {int(edge.source)}", holds.text, *inside])
        brought = ", ".join(str(value) for value in move.arg)
        yield f"  /* {Event(edge.event).name} in {edge.source.name} ({brought}) */"
        yield f"  :: d_step {{ ({condition}) ->"
        yield "    " + " ".join(f"new_{name} = {text};" for name, text in moved)
        yield "    " + " ".join(f"{name} = new_{name};" for name, _ in moved)
        yield f"    mode = {int(edge.target)}; }}"


def _symbols(box: Box) -> Any:
    return box.record(*(Printed(name, frozenset([name])) for name in box.fields))


SYSTEMS = (Free("the counters", COUNTERS), Free("a row", ROW))
"""What is exported."""

__all__ = ["COUNTERS", "DOMAIN", "PROMELA", "ROW", "SYSTEMS", "Box", "Free", "Move", "Printed"]
