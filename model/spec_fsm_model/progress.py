"""`model progress`: that the server gets somewhere, on the graph the search explored.

Safety alone is content with a table that refuses everything.  Four claims say it does not:

REACHABLE    from every state every mode can be reached.
DRAINS       DRAINING ends.
RESEEDS      RESEEDING ends, in SPEC or back in PLAIN.
DWELL        unless a pin says so, speculation is not turned off before the dwell that RESEEDED
             began is over, nor on before that of PLAIN and the back-off are: LOAD_ROSE and
             LOAD_FELL cannot take turns without boundaries between them.

DRAINS and RESEEDS are shown by a rank, a pair of numbers that cannot fall for ever: while a row
decodes, an act of the server itself (a launch, a result, going on after the drain, a row that ends
with its last token) is possible and makes the rank smaller or leaves the mode, and no other act
makes it larger.  Fairness assumed: the server goes on acting, and results that are in flight come.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from spec_fsm._rules import max_gap
from spec_fsm.modes import Mode, Pin
from spec_fsm.ops import INT
from spec_fsm_model.deeds import takes_part
from spec_fsm_model.explore import BOUNDS as CHECKED
from spec_fsm_model.explore import MOST_STATES, Arcs, Search, Verdict
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.world import Bounds, World

if TYPE_CHECKING:
    from spec_fsm_model.environment import Act

SAYS = {
    "REACHABLE": "From every state every mode can be reached.",
    "DRAINS": "DRAINING ends, if results in flight come and the server goes on.",
    "RESEEDS": "RESEEDING ends in SPEC or PLAIN, if the server goes on.",
    "DWELL": "Unless pinned, a mode that was paid for lasts its dwell, and PLAIN its back-off.",
}
_AS_CHECKED = ("one row, slices", "one row, seeds ahead", "two rows, slices, no overlap")
BOUNDS = (
    *(bounds for bounds in CHECKED if bounds.name in _AS_CHECKED),
    Bounds("one row, pins, flushes", rows=1, dwell=1, width=3, flush_every=2, pins=True),
)
"""The bounds `model progress` searches."""
_ENDS = {Mode.DRAINING: "DRAINS", Mode.RESEEDING: "RESEEDS"}
_OWN = ("launch", "a plain result", "a speculative result", "go on", "the reseed fails")


@dataclass
class Progressed:
    """What the graph of one search shows.  broken: the claim that does not hold, or empty."""

    bounds: Bounds
    verdict: Verdict = Verdict.UNDETERMINED
    states: int = 0
    edges: int = 0
    seconds: float = 0.0
    broken: str = ""
    detail: str = ""
    history: list[Act] = field(default_factory=list)


class _Failed(Exception):
    """claim, the world it fails in, and why."""

    def __init__(self, claim: str, at: int, why: str) -> None:
        self.claim, self.at, self.why = claim, at, why
        super().__init__(claim, at, why)


def progress(bounds: Bounds, rules: Rules = RULES, most: int = MOST_STATES) -> Progressed:
    """Search within `bounds`, then check the four claims on the graph."""
    found, began = Progressed(bounds), time.perf_counter()
    search = Search(bounds, rules, most, asks=False)  # what is refused is `model check`'s to say
    searched = search.run()
    found.states, found.verdict = searched.states, searched.verdict
    if searched.broken is not None:
        found.broken, found.history = searched.broken.claim, searched.history
        found.detail = searched.broken.detail
    elif found.verdict is Verdict.PROVED:
        try:
            graph = Arcs(search.worlds, search.arcs)
            found.edges = graph.edges
            _check(graph)
        except _Failed as error:
            found.verdict, found.broken = Verdict.REFUTED, error.claim
            found.detail, found.history = error.why, search.path(error.at)
    found.seconds = time.perf_counter() - began
    return found


def progress_all(processes: int = 2) -> list[Progressed]:
    """All of BOUNDS, in processes of their own."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(progress, BOUNDS))


def held_up(graph: Arcs) -> str:
    """The claim that does not hold on a graph, with where it fails, or empty."""
    try:
        _check(graph)
    except _Failed as error:
        return f"{error.claim}: {error.why}"
    return ""


def _check(graph: Arcs) -> None:
    worlds = graph.worlds
    sources: list[list[int]] = [[] for _ in worlds]
    for i, (world, arcs) in enumerate(zip(worlds, graph.arcs, strict=True)):
        own, mode = False, world.mode
        for act, target in arcs:
            after = worlds[target]
            sources[target].append(i)
            if mode is not after.mode and (why := _not_before_dwell(world, after)):
                raise _Failed("DWELL", i, f"{act}: {why}")
            if mode in _ENDS:
                own = own or _is_own(world, act)
                if after.mode is mode:
                    _check_rank(i, act, world, after)
        if mode in _ENDS and not own and any(takes_part(r) for r in world.rows):
            raise _Failed(_ENDS[mode], i, "rows decode, and the server can do nothing")
    _check_reachable(worlds, sources)


def _is_own(world: World, act: Act) -> bool:
    """Whether the server will do it by itself: not the operator's act, nor a client's."""
    ends = act.name == "finished" and world.rows[act.row].ending == 1
    return act.name.startswith(_OWN) or (ends and not world.rows[act.row].flying)


def _rank(world: World) -> tuple[int, int, int]:
    # A result in flight may leave a row that has to go before anything else: it counts last.
    # What is left to make: positions, and the seeds.
    left = max_gap(INT, world.state) + world.seeds_due if world.mode is Mode.RESEEDING else 0
    due = sum(r.ending == 1 and not r.flying for r in world.rows)
    return left, len(world.flights), due


def _check_rank(i: int, act: Act, world: World, after: World) -> None:
    before, then = _rank(world), _rank(after)
    if then > before or (_is_own(world, act) and then >= before):
        raise _Failed(_ENDS[world.mode], i, f"{act}: the rank goes from {before} to {then}")


def _not_before_dwell(world: World, after: World) -> str:
    policy, modes = world.policy, (world.mode, after.mode)
    dwell = policy.dwell if policy.pin is Pin.AUTO else 0
    if modes == (Mode.SPEC, Mode.DRAINING) and dwell:
        return f"speculation is turned off {dwell} boundaries before its dwell is over"
    if modes == (Mode.PLAIN, Mode.RESEEDING) and (dwell or policy.backoff):
        return f"speculation is turned on again with {policy} still to wait for"
    return ""


def _check_reachable(worlds: list[World], sources: list[list[int]]) -> None:
    for mode in Mode:
        reached = [world.mode is mode for world in worlds]
        queue = [i for i, there in enumerate(reached) if there]
        while queue:
            for source in sources[queue.pop()]:
                if not reached[source]:
                    reached[source] = True
                    queue.append(source)
        if not all(reached):
            at = reached.index(False)
            raise _Failed("REACHABLE", at, f"{mode.name} cannot be reached any more")


__all__ = ["BOUNDS", "SAYS", "Progressed", "held_up", "progress", "progress_all"]
