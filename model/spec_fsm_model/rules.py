"""The table as data that can be swapped: the model reads what `spec_fsm` runs, or a mutant of it.

`Rules` holds references, not copies.  `Table` evaluates them over integers and remembers what it
evaluated: an exhaustive search asks the same few thousand questions a million times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS, Arg, RowState, State
from spec_fsm._table import ALLOWED, EDGE_OF, REFUSALS, Edge
from spec_fsm.modes import Event, Mode, Phase
from spec_fsm.ops import INT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spec_fsm._rules import Effect, Guard, RowEffect


@dataclass(frozen=True)
class Rules:
    """Edges, refusals, guards, effects, row effects and the mode x phase matrix."""

    edges: Mapping[tuple[Mode, Event], Edge]
    refusals: Mapping[tuple[Mode, Event], str]
    guards: Mapping[str, Guard]
    effects: Mapping[str, Effect]
    row_effects: Mapping[str, RowEffect]
    allowed: Mapping[Mode, frozenset[Phase]]


RULES = Rules(EDGE_OF, REFUSALS, GUARDS, EFFECTS, ROW_EFFECTS, ALLOWED)
"""What `spec_fsm` runs."""


class Refused(Exception):
    """The table refuses an event; the text is the guard's name or the refusal's reason."""


class Table:
    """Evaluates `Rules` over integers, each question once.

    fired: every edge that was followed.
    """

    def __init__(self, rules: Rules, width: int) -> None:
        self.rules = rules
        # A row effect may read the stash width and nothing else that rows share: the rest is None
        # here, and arithmetic on it raises.  That is what makes remembering by row sound.
        self._width = State(*[None] * len(State._fields))._replace(width=width)
        self._steps: dict[tuple[Mode, Event, State, Arg], tuple[Mode, State] | str] = {}
        self._rows: dict[tuple[str, RowState, Arg], RowState] = {}
        self.fired: set[tuple[Mode, Event]] = set()

    def step(self, mode: Mode, event: Event, state: State, arg: Arg) -> tuple[Mode, State]:
        """The mode and the counters after `event`; raises Refused."""
        key = (mode, event, state, arg)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._evaluate(mode, event, state, arg)
        if isinstance(found, str):
            raise Refused(found)
        return found

    def _evaluate(
        self, mode: Mode, event: Event, state: State, arg: Arg
    ) -> tuple[Mode, State] | str:
        edge = self.rules.edges.get((mode, event))
        if edge is None:
            return self.rules.refusals.get((mode, event), "the table has no such edge")
        for name in edge.guards:
            if not self.rules.guards[name](INT, state, arg):
                return f"guard {name} does not hold"
        for name in edge.effects:
            state = self.rules.effects[name](INT, state, arg)
        self.fired.add((mode, event))
        return edge.target, state

    def row_effect(self, mode: Mode, event: Event) -> str:
        """Name of the row effect of an edge, empty without one."""
        edge = self.rules.edges.get((mode, event))
        return "" if edge is None or edge.row_effect is None else edge.row_effect

    def row(self, effect: str, row: RowState, arg: Arg) -> RowState:
        """One row's figures after a row effect; the same row where `effect` is empty."""
        if not effect:
            return row
        key = (effect, row, arg)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self.rules.row_effects[effect](INT, self._width, row, arg)
        return found


__all__ = ["RULES", "Refused", "Rules", "Table"]
