"""Histories that together follow every edge of an explored graph, as data for a real worker.

A history starts at a server that was just started.  Each step names its act, and the request it is
about by an id that stays the same for as long as the request lives.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

from spec_fsm_model.environment import Act, Environment
from spec_fsm_model.explore import Arcs, Search, Verdict
from spec_fsm_model.world import Bounds, Request, World, start

SMALL = Bounds("one row, no overlap", rows=1, in_flight=0)
"""The bounds histories are made for where none are given."""
LONGEST = 200
"""Acts of a history, at most, before it is ended and another one started."""


class Step(NamedTuple):
    """One step of a history.  rid: the request it is about, empty for none."""

    act: Act
    rid: str


def cover(bounds: Bounds = SMALL, longest: int = LONGEST) -> list[list[Act]]:
    """Histories that follow every edge of the graph within `bounds`; raises ValueError."""
    search = Search(bounds)
    if search.run().verdict is not Verdict.PROVED:
        raise ValueError(f"the search within '{bounds.name}' did not come to an end")
    return list(_walks(Arcs(search.worlds, search.arcs), longest))


def _walks(graph: Arcs, longest: int) -> Iterator[list[Act]]:
    left = [set(range(len(arcs))) for arcs in graph.arcs]
    missing = graph.edges
    while missing:
        at = 0
        history: list[Act] = []
        while missing and len(history) < longest:
            way = _nearest(graph, left, at)
            if way is None:
                break  # nothing new can be reached from here; from the start it can
            for k in way:
                act, after = graph.arcs[at][k]
                history.append(act)
                if k in left[at]:
                    left[at].remove(k)
                    missing -= 1
                at = after
        yield history


def _nearest(graph: Arcs, left: list[set[int]], at: int) -> list[int] | None:
    """The shortest way from a world to an edge not followed yet, that edge included."""
    came: dict[int, tuple[int, int]] = {at: (-1, -1)}
    queue = deque([at])
    while queue:
        i = queue.popleft()
        if left[i]:
            way = [min(left[i])]
            while came[i][0] >= 0:
                i, k = came[i]
                way.append(k)
            return way[::-1]
        for k, (_, after) in enumerate(graph.arcs[i]):
            if after not in came:
                came[after] = (i, k)
                queue.append(after)
    return None


def replay(bounds: Bounds, history: Iterable[Act]) -> Iterator[tuple[World, Step, World]]:
    """A history through the model: each step with the worlds before and after it.

    Raises ValueError where an act is not possible.
    """
    environment = Environment(bounds)
    world, names, born = environment.canonical(start(bounds)), list[str](), 0
    for act in history:
        deed = next((deed for a, deed in environment._acts(world) if a == act), None)
        if deed is None:
            raise ValueError(f"{act} is not possible in {world}")
        step = Step(act, names[act.row] if act.row >= 0 else "")
        raw = deed()
        if act.name == "admit a request":
            names.append(f"r{born}")
            born += 1
        elif len(raw.rows) < len(names):
            del names[act.row]
        order = _sorted(environment, raw)
        after = environment.canonical(raw)
        names = [names[i] for i in order]
        yield world, step, after
        world = after


def _sorted(environment: Environment, raw: World) -> list[int]:
    """Where the requests of `raw` come to stand when it is brought into its form."""
    shift = raw.state.t_settled
    rows: list[Request] = [environment.canonical.request(r, shift) for r in raw.rows]
    return sorted(range(len(rows)), key=lambda i: (rows[i], i))


def lines(bounds: Bounds = SMALL, longest: int = LONGEST) -> Iterator[str]:
    """The histories as JSON, one a line; the first line says what they are made for."""
    histories = cover(bounds, longest)
    head: dict[str, Any] = {"bounds": asdict(bounds), "histories": len(histories)}
    yield json.dumps(head)
    for history in histories:
        steps = [step for _, step, _ in replay(bounds, history)]
        yield json.dumps([[s.act.name, s.rid, s.act.what] for s in steps])


__all__ = ["LONGEST", "SMALL", "Step", "cover", "lines", "replay"]
