"""Breadth-first search through every world a server can reach, within bounds.

Breadth first, so that the first broken claim comes with a shortest history.  The verdict is
`proved` only if the search ended by itself, with every world visited and no claim broken.  A
search that was cut short is `undetermined`.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from spec_fsm.modes import Mode
from spec_fsm_model.claims import Broken
from spec_fsm_model.ranks import within
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.world import Bounds, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spec_fsm_model.environment import Act
    from spec_fsm_model.ranks import TwoRanks

BOUNDS = (
    Bounds("one row, pins", rows=1, failures=1, dwell=1, pins=True),
    Bounds("one row, slices", rows=1, failures=1, dwell=1, width=4),
    Bounds(
        "one row, seeds ahead",
        rows=1,
        failures=1,
        dwell=1,
        width=4,
        flush_every=3,
        slice_width=3,
        seed_ahead=2,
    ),
    Bounds("two rows"),
    Bounds("two rows, slices, no overlap", in_flight=0, width=4),
    Bounds("three rows, no overlap", rows=3, in_flight=0),
    Bounds("one row, flushes", rows=1, failures=1, dwell=1, width=3, flush_every=2),
    Bounds("two rows, flushes, no overlap", in_flight=0, width=3, flush_every=2),
    Bounds("two ranks, one row, no overlap", rows=1, in_flight=0, dwell=1, failures=1, skew=2),
)
"""The bounds `model check` searches, one after the other."""
MOST_STATES = 2_000_000


class Verdict(IntEnum):
    """How a check ended; the value is the exit code of its command."""

    PROVED = 0
    """It holds, within the stated bounds."""
    REFUTED = 1
    """There is a counterexample."""
    UNDETERMINED = 2
    """The check did not come to an end."""


@dataclass
class Found:
    """What a search found.

    edges: pairs of a world and an act that is possible in it.  unfired: edges of the table that
    no act followed.  broken and history: the first broken claim and the acts that lead to it.
    """

    bounds: Bounds
    verdict: Verdict = Verdict.UNDETERMINED
    states: int = 0
    edges: int = 0
    depth: int = 0
    seconds: float = 0.0
    modes: dict[str, int] = field(default_factory=dict)
    unfired: list[str] = field(default_factory=list)
    broken: Broken | None = None
    history: list[Act] = field(default_factory=list)


@dataclass
class Arcs:
    """A graph: worlds, and of each its acts with the number of the world after."""

    worlds: list[World] = field(default_factory=list)
    arcs: list[list[tuple[Act, int]]] = field(default_factory=list)

    @property
    def edges(self) -> int:
        """Pairs of a world and an act that is possible in it."""
        return sum(len(arcs) for arcs in self.arcs)


class Search:
    """One search; `run` it once.

    asks: whether the table is also asked, in each world, for what is wrong or wanted there.
    arcs: of each world the acts that are possible with the number of the world after.
    environment: what can happen, if not what `bounds` say.  With two ranks a world is a `Ranks`.
    """

    def __init__(
        self,
        bounds: Bounds,
        rules: Rules = RULES,
        most: int = MOST_STATES,
        *,
        asks: bool = True,
        environment: TwoRanks | None = None,
    ) -> None:
        self.environment: Any = within(bounds, rules) if environment is None else environment
        self._asks = asks
        self.arcs: list[list[tuple[Act, int]]] = []
        self._found = Found(bounds)
        self._most = most
        first: Any = self.environment.start
        self.worlds: list[World] = [first]
        self.index: dict[World, int] = {first: 0}
        self._parents: list[tuple[int, Act | None]] = [(-1, None)]
        self._depths = [0]

    def run(self) -> Found:
        """Search until a claim breaks, every world was seen, or `most` were."""
        # A graph has no garbage: looking for some takes a third of the time.
        collects = gc.isenabled()
        gc.disable()
        try:
            return self._run()
        finally:
            if collects:
                gc.enable()

    def _run(self) -> Found:
        found, began = self._found, time.perf_counter()
        for i, world in enumerate(self.worlds):
            self.environment.steps.clear()
            error = self.environment.asked(world) if self._asks else None
            if error is not None:
                self._refute(i, None, error)
                break
            arcs: list[tuple[Act, int]] = []
            self.arcs.append(arcs)
            for act, after in self.environment.successors(world):
                found.edges += 1
                error = after if isinstance(after, Broken) else self._visit(i, act, after)
                if error is not None:
                    self._refute(i, act, error)
                    break
                arcs.append((act, self.index[after]))
            if found.broken is not None or len(self.worlds) > self._most:
                break
        else:
            self._complete()
        found.states, found.depth = len(self.worlds), self._depths[-1]
        found.modes = _count(world.mode for world in self.worlds)
        found.seconds = time.perf_counter() - began
        return found

    def _visit(self, i: int, act: Act, after: World) -> Broken | None:
        if after in self.index:
            return None
        self.index[after] = len(self.worlds)
        self.worlds.append(after)
        self._parents.append((i, act))
        self._depths.append(self._depths[i] + 1)
        error: Broken | None = self.environment.broken(after)
        return error

    def _refute(self, i: int, act: Act | None, error: Broken) -> None:
        """act: None if it is the i-th world itself in which a claim breaks."""
        self._found.verdict, self._found.broken = Verdict.REFUTED, error
        self._found.history = self.path(i) if act is None else [*self.path(i), act]

    def _complete(self) -> None:
        table = self.environment.table
        unfired = sorted(set(table.rules.edges) - table.fired)
        self._found.unfired = [f"{event.name} in {mode.name}" for mode, event in unfired]
        self._found.verdict = Verdict.PROVED

    def path(self, i: int) -> list[Act]:
        """The acts that lead to the i-th world, a shortest history."""
        acts: list[Act] = []
        while True:
            i, act = self._parents[i]
            if act is None:
                return acts[::-1]
            acts.append(act)


def _count(modes: Iterable[Mode]) -> dict[str, int]:
    counts = dict.fromkeys((mode.name for mode in Mode), 0)
    for mode in modes:
        counts[mode.name] += 1
    return counts


__all__ = ["BOUNDS", "MOST_STATES", "Arcs", "Found", "Search", "Verdict"]
