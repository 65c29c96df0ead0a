"""The explored graph with what each act asked of the table, so that a fault is searched in little.

A fault of one edge changes only the acts that ask for that edge.  All others lead where they led:
the search of a faulty table reuses them, and follows anew only what the fault can touch.  What it
reaches is exactly what a search from the start would reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spec_fsm.modes import Event, Mode, Phase
from spec_fsm_model.claims import Broken, broken
from spec_fsm_model.environment import Act, Environment
from spec_fsm_model.explore import Arcs
from spec_fsm_model.refuses import attempts, wishes, wrong_launch, wrongly_answered
from spec_fsm_model.rules import RULES, Table
from spec_fsm_model.world import Bounds, World, start

if TYPE_CHECKING:
    from spec_fsm._rules import Arg, State
    from spec_fsm_model.faults import Fault, Pair

_EVENTS, _PHASES = len(Event), len(Phase)
_CELLS = len(Mode) * _EVENTS
MOST_NEW = 3_000
"""Worlds a faulty table may add to those of the true one before its search is given up."""


FIRST_CELL = 1 << _CELLS


def bit_of_pair(mode: Mode, event: Event) -> int:
    """The bit that says an act asked the table for this pair."""
    return 1 << (mode * _EVENTS + event)


def bit_of_cell(mode: Mode, phase: Phase) -> int:
    """The bit that says an act asked the matrix for this cell."""
    return 1 << (_CELLS + mode * _PHASES + phase)


class _Asked(Table):
    """A table that notes what it is asked; asked: the bits since it was last set to 0."""

    asked = 0

    def step(self, mode: Mode, event: Event, state: State, arg: Arg) -> tuple[Mode, State]:
        """As `Table.step`."""
        self.asked |= bit_of_pair(mode, event)
        return super().step(mode, event, state, arg)

    def row_effect(self, mode: Mode, event: Event) -> str:
        """As `Table.row_effect`."""
        self.asked |= bit_of_pair(mode, event)
        return super().row_effect(mode, event)


class _Noting(Environment):
    """An environment whose table notes what it is asked."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds, RULES)
        self.noted = _Asked(RULES, bounds.width)
        self.table = self.noted

    def allowed(self, world: World, *phases: Phase) -> int:
        """As `Deeds.allowed`."""
        for phase in phases:
            self.noted.asked |= bit_of_cell(world.mode, phase)
        return super().allowed(world, *phases)


class Graph:
    """The graph of the true table within `bounds`.

    arcs: of each world the acts in order.  asked: of each act the bits of what it asked.  touched:
    of each world those of all its acts.  attempted: of each world those of what else it is asked.
    """

    def __init__(self, bounds: Bounds) -> None:
        environment = _Noting(bounds)
        self.bounds, self._environment = bounds, environment
        first = environment.canonical(start(bounds))
        self.index: dict[World, int] = {first: 0}
        self.true = Arcs([first])
        self.asked: list[list[int]] = []
        for world in self.true.worlds:
            self._follow(world)
        self.touched = [_all(bits) for bits in self.asked]
        self.attempted = [
            _all(bit_of_pair(w.mode, event) for event in _asked_of(w)) for w in self.true.worlds
        ]

    def _follow(self, world: World) -> None:
        arcs, asked = [], []
        for act, deed in self._environment._acts(world):
            self._environment.noted.asked = 0
            after = self._environment.canonical(deed())
            asked.append(self._environment.noted.asked)
            arcs.append((act, self._number(after)))
        self._environment.steps.clear()
        self.true.arcs.append(arcs)
        self.asked.append(asked)

    def _number(self, world: World) -> int:
        number = self.index.setdefault(world, len(self.index))
        if number == len(self.true.worlds):
            self.true.worlds.append(world)
        return number

    def with_fault(self, fault: Fault) -> Faulty:
        """The search of the faulty table within the same bounds; `run` it."""
        environment = Environment(self.bounds, fault.rules)
        # What is asked of the code that runs does not depend on the table of the model.
        environment.planner = self._environment.planner
        environment.canonical = self._environment.canonical
        mask = _all(bit_of_pair(*pair) for pair in fault.pairs)
        mask |= _all(bit_of_cell(*cell) for cell in fault.cells)
        return Faulty(self, environment, mask)


class Faulty:
    """The search of a faulty table.

    broken: the first claim that does not hold.  reached: which worlds it reaches, true ones first.
    changed: the acts of the worlds the fault touches.  same: whether its graph is the true one.
    whole: whether the search came to an end.
    """

    def __init__(self, graph: Graph, environment: Environment, mask: int) -> None:
        self._graph, self._environment, self._mask = graph, environment, mask
        self.broken: Broken | None = None
        self.reached: list[int] = [0]
        self._seen = {0}
        self._new: dict[World, int] = {}
        self._worlds: list[World] = []
        self.changed: dict[int, list[tuple[Act, int]]] = {}
        self.same = True
        self.whole = False

    def run(self) -> Faulty:
        """Search until a claim breaks, all is reached, or too many worlds are new."""
        try:
            self._search()
        except Broken as error:
            self.broken = error
        except (TypeError, IndexError) as error:
            # A row effect that reads what rows share, or a count no row has: it cannot be run.
            self.broken = Broken("ACCEPTED", f"the rule cannot be evaluated: {error}")
        return self

    def _search(self) -> None:
        graph, mask = self._graph, self._mask
        true = len(graph.true.worlds)
        for i in self.reached:
            if i >= true:
                self.changed[i] = list(self._anew(self.world(i), None))
            else:
                world = graph.true.worlds[i]
                if graph.attempted[i] & mask:
                    _raise(wrongly_answered(world, self._environment.table))
                elif mask >= FIRST_CELL:
                    _raise(wrong_launch(world, self._environment.table.rules.allowed))
                if graph.touched[i] & mask:
                    self.changed[i] = list(self._anew(world, i))
                else:
                    for _, after in graph.true.arcs[i]:
                        self._reach(after)
            if len(self._worlds) > MOST_NEW:
                return
        self.whole = True
        self.same = self.same and len(self.reached) == true

    def _anew(self, world: World, i: int | None) -> Iterator[tuple[Act, int]]:
        """The acts of a world; of the i-th true one only those the fault can touch anew."""
        graph, environment = self._graph, self._environment
        for k, (act, deed) in enumerate(environment._acts(world)):
            if i is not None and not graph.asked[i][k] & self._mask:
                after = graph.true.arcs[i][k][1]
            else:
                after = self._number(environment.canonical(deed()))
                self.same = self.same and i is not None and after == graph.true.arcs[i][k][1]
            self._reach(after)
            yield act, after
        environment.steps.clear()

    def _number(self, world: World) -> int:
        number = self._graph.index.get(world)
        if number is not None:
            return number
        number = self._new.get(world)
        if number is None:
            _raise(broken(world))
            _raise(wrongly_answered(world, self._environment.table))
            number = self._new[world] = len(self._graph.true.worlds) + len(self._worlds)
            self._worlds.append(world)
        return number

    def _reach(self, number: int) -> None:
        if number not in self._seen:
            self._seen.add(number)
            self.reached.append(number)

    def world(self, number: int) -> World:
        """The world of a number."""
        true = self._graph.true.worlds
        return true[number] if number < len(true) else self._worlds[number - len(true)]

    def graph(self) -> Arcs:
        """The graph of a search that came to an end."""
        order = {number: i for i, number in enumerate(self.reached)}
        found = Arcs([self.world(number) for number in self.reached])
        for number in self.reached:
            arcs = self.changed.get(number)
            if arcs is None:
                arcs = self._graph.true.arcs[number]
            found.arcs.append([(act, order[after]) for act, after in arcs])
        return found

    @property
    def true(self) -> Arcs:
        """The graph of the true table."""
        return self._graph.true

    @property
    def bounds(self) -> Bounds:
        """The bounds of the search."""
        return self._graph.bounds

    @property
    def fired(self) -> set[Pair]:
        """Pairs that an act the fault can touch followed."""
        return self._environment.table.fired


def _asked_of(world: World) -> Iterator[Event]:
    """The events a world is asked about besides its acts."""
    yield from (event for event, *_ in attempts(world))
    yield from wishes(world)


def _raise(error: Broken | None) -> None:
    if error is not None:
        raise error


def _all(bits: Iterator[int] | list[int]) -> int:
    mask = 0
    for bit in bits:
        mask |= bit
    return mask


__all__ = ["MOST_NEW", "Faulty", "Graph", "bit_of_cell", "bit_of_pair"]
