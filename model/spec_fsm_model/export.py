"""A search of `model check` as a Promela program, written down by the search's own code.

The environment is Python: what a server does around the table, with branches and loops.  It is not
written a second time.  Each act is run on integers that remember how they came about (`traced`), in
worlds the search has seen; every run leaves a path of decisions and the figures of the world after
it as expressions.  The paths of one act make a tree, its program.  Where a path is missing the
program stands still, so SPIN would count too few worlds; `Exported.misses` counts such worlds here.

A world is a row of integers (`Layout`).  The searches with one row and without pins are exported:
there is nothing to sort, and no act has thrice its paths.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spec_fsm._rules import RowState, State
from spec_fsm.modes import Event, Mode, Pin
from spec_fsm_model.environment import Act, Environment
from spec_fsm_model.explore import BOUNDS, Search, Verdict
from spec_fsm_model.planner import Planner
from spec_fsm_model.rules import RULES, Refused, Rules, Table
from spec_fsm_model.traced import SEEN, Decision, Seen, Text, begin, concrete, text_of
from spec_fsm_model.world import (
    Bounds,
    Cached,
    Canonical,
    Flight,
    PolicyState,
    Request,
    World,
)

SEARCHES = tuple(b for b in BOUNDS if b.rows == 1 and not (b.skew or b.pins or b.seed_ahead))
"""The searches that are exported."""
SAMPLE = 40
"""Worlds an act is run in before its program is tried in all others."""
EFFECTS = ("", *RULES.row_effects)
"""Row effects by number, as a launch in flight carries them."""


# -- a world as a row of integers ---------------------------------------------------------

_NAME = re.compile(r"[a-z_]\w*")
_REQUEST = Request._fields[:6]
_FLIGHT = Flight._fields


class Layout:
    """Names of the figures of a world, and what a world reads as.

    present: of the row and the launches in flight how many there are; the figures of those that are
    not there read 0.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.flights = bounds.in_flight + 1
        views = [f"row_{v}_{n}" for v in ("launched", "settled") for n in RowState._fields]
        self.names: list[str] = [
            "mode",
            *State._fields,
            *(f"policy_{n}" for n in PolicyState._fields[:3]),
            *("cached_positions", "cached_covered"),
            *("rows_there", *(f"row_{n}" for n in _REQUEST), *views),
            "flights_there",
            *(f"flight{i}_{n}" for i in range(self.flights) for n in _FLIGHT),
        ]

    def row(self, world: World) -> list[Any]:
        """The figures of a world."""
        figures: list[Any] = [world.mode, *world.state, *world.policy[:3], *world.cached]
        figures.append(len(world.rows))
        r = world.rows[0] if world.rows else None
        if r is None:
            figures += [0] * (len(_REQUEST) + 2 * len(RowState._fields))
        else:
            figures += [*r[: len(_REQUEST)], *r.launched, *r.settled]
        figures.append(len(world.flights))
        for i in range(self.flights):
            flight = world.flights[i] if i < len(world.flights) else None
            figures += [0] * len(_FLIGHT) if flight is None else self._flight(flight)
        return figures

    def _flight(self, f: Flight) -> list[Any]:
        carried, forget = (
            EFFECTS.index(name) if isinstance(name, str) else name for name in (f.carried, f.forget)
        )
        return [f.action, f.point, carried, f.lower, forget]

    def seen(self, figures: list[int]) -> World:
        """The world with figures that remember their names; how many there are is decided."""
        there: dict[str, Any] = {
            name: Seen(value, Text(name, name))
            for name, value in zip(self.names, figures, strict=True)
        }
        rows, flights = concrete(there["rows_there"]), concrete(there["flights_there"])
        view = {
            v: RowState(*(there[f"row_{v}_{n}"] for n in RowState._fields))
            for v in ("launched", "settled")
        }
        stage, base, point, flying, ending, sat_out = (there[f"row_{n}"] for n in _REQUEST)
        views = view["launched"], view["settled"]
        request = Request(stage, base, point, flying, ending, sat_out, *views)
        dwell, backoff, failures = (there[f"policy_{n}"] for n in PolicyState._fields[:3])
        return World(
            there["mode"],
            State(*(there[n] for n in State._fields)),
            PolicyState(dwell, backoff, failures, Pin.AUTO),
            (request,) * rows,
            tuple(Flight(*(there[f"flight{i}_{n}"] for n in _FLIGHT)) for i in range(flights)),
            Cached(there["cached_positions"], there["cached_covered"]),
        )


# -- the environment on integers that remember --------------------------------------------


class _Table(Table):
    """Evaluates each question anew, and reads guards and effects through `traced.SEEN`."""

    def step(self, mode: Mode, event: Event, state: State, arg: Any) -> tuple[Mode, State]:
        edge = self.rules.edges.get((Mode(concrete(mode)), event))
        if edge is None:
            raise Refused("no such edge")
        for name in edge.guards:
            if not self.rules.guards[name](SEEN, state, arg):
                raise Refused(name)
        for name in edge.effects:
            state = self.rules.effects[name](SEEN, state, arg)
        return edge.target, state

    def row_effect(self, mode: Mode, event: Event) -> str:
        return super().row_effect(Mode(concrete(mode)), event)

    def row(self, effect: str, row: RowState, arg: Any) -> RowState:
        if isinstance(effect, Seen):
            effect = EFFECTS[concrete(effect)]
        if not effect:
            return row
        return self.rules.row_effects[effect](SEEN, self._width, row, arg)


class _Planner(Planner):
    """Asks the code that runs with what it is asked about decided."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        plan, due, fired = self.plan, self.due, self.fired

        def policy(state: PolicyState) -> PolicyState:
            dwell, backoff, failures = (concrete(n) for n in state[:3])
            return PolicyState(dwell, backoff, failures, state.pin)

        self.plan = lambda mode, gap, seeds_due: plan(
            Mode(concrete(mode)), concrete(gap), seeds_due
        )
        self.due = lambda state, mode, load: due(  # type: ignore[assignment]
            policy(state), Mode(concrete(mode)), load
        )
        self.fired = lambda state, event, target: fired(policy(state), event, target)  # type: ignore[assignment]
        self._gap = self._settled_gap  # type: ignore[assignment]


class _Canonical(Canonical):
    """Brings every world into its form anew."""

    ops = SEEN

    def state(self, state: State) -> State:
        return self._state(state)

    def request(self, request: Request, shift: int) -> Request:
        return self._request(request, shift)


class _Traced(Environment):
    def __init__(self, bounds: Bounds, rules: Rules) -> None:
        super().__init__(bounds, rules)
        self.table = _Table(rules, bounds.width)
        self.planner = _Planner(bounds)
        self.canonical = _Canonical(bounds)

    def allowed(self, world: World, *phases: Any) -> int:
        return super().allowed(world._replace(mode=Mode(concrete(world.mode))), *phases)

    def run(self, world: World, wanted: Act) -> World:
        """The world after an act, not brought into its form."""
        for act, deed in self._acts(world):
            if act == wanted:
                after = deed()
                self.steps.clear()
                return after
        raise ValueError(f"{wanted} is not possible in {world}")


# -- programs -----------------------------------------------------------------------------


@dataclass
class Node:
    """A part of an act's program: what is decided, or, at its end, what the figures become."""

    text: Text | None = None
    branches: dict[int, Node] = field(default_factory=dict)
    after: dict[str, Text] | None = None

    def add(self, path: list[Decision], after: dict[str, Text]) -> None:
        """Add a path of decisions and its end."""
        node = self
        for text, value in path:
            if node.after is not None or (node.text is not None and node.text != text):
                raise ValueError(f"two runs decide differently: {node.text} and {text}")
            node.text = text
            node = node.branches.setdefault(value, Node())
        if node.text is not None or (node.after is not None and node.after != after):
            raise ValueError("two runs that decide the same end differently")
        node.after = after

    @property
    def ends(self) -> int:
        """Paths through it."""
        return sum(1 for _ in self.paths())

    def paths(self) -> Iterator[tuple[list[Decision], dict[str, Text]]]:
        """Every path with its end."""
        if self.after is not None:
            yield [], self.after
        for value, branch in self.branches.items():
            assert self.text is not None
            for path, after in branch.paths():
                yield [Decision(self.text, value), *path], after


class Arc(NamedTuple):
    """Figures of a world, and what they become."""

    before: list[int]
    after: list[int]


@dataclass
class Exported:
    """A search, the program of each of its acts, and the one that brings a world into its form.

    misses: pairs of a world and an act in which the programs do not do what the search did.
    """

    bounds: Bounds
    states: int
    edges: int
    layout: Layout
    start: list[int]
    programs: dict[Act, Node]
    form: Node
    misses: int

    @property
    def paths(self) -> int:
        """Paths through all programs."""
        return self.form.ends + sum(program.ends for program in self.programs.values())

    @property
    def promela(self) -> str:
        """The program for SPIN."""
        names = self.layout.names
        lines = ["/* Written by `spec-fsm model spin`: a search of `model check`. Do not edit. */"]
        lines += [f"int {n} = {value};" for n, value in zip(names, self.start, strict=True)]
        lines += [f"hidden int new_{name};" for name in names]
        lines += ["active proctype server() {", "  do", "  :: atomic {", "    if"]
        for act, program in self.programs.items():
            lines += [f"    /* {act} */", *_options(program)]
        lines += ["    fi;", "    if /* the world in its form */", *_options(self.form), "    fi"]
        return "\n".join([*lines, "  } od", "}", ""])


def _options(program: Node) -> Iterator[str]:
    for path, after in program.paths():
        holds = " && ".join(_holds(decision) for decision in path)
        yield f"    :: d_step {{ ({holds or 'true'}) -> {' '.join(_assigned(after))} }}"


def _holds(decision: Decision) -> str:
    text, value = decision
    if text.promela.endswith("!= 0)"):
        return text.promela if value else f"!{text.promela}"
    return f"({text.promela} == {value})"


def _assigned(after: dict[str, Text]) -> Iterator[str]:
    """All at once: what another expression reads is kept until all were evaluated."""
    read = {name for text in after.values() for name in _NAME.findall(text.promela)}
    for name, text in after.items():
        yield f"{'new_' * (name in read)}{name} = {text.promela};"
    for name in after:
        if name in read:
            yield f"{name} = new_{name};"
    if not after:
        yield "skip;"


_Compiled = Callable[[list[int]], "list[int] | None"]


def compiled(names: list[str], program: Node) -> _Compiled:
    """The same program in Python: the figures after, None where a path is missing."""
    lines = ["def act(figures):", f"    {', '.join(names)} = figures"]
    lines += _python(program, names, "    ")
    there: dict[str, Any] = {}
    exec("\n".join([*lines, "    return None"]), there)
    done: _Compiled = there["act"]
    return done


def _python(node: Node, names: list[str], indent: str) -> Iterator[str]:
    if node.after is not None:
        figures = (node.after[n].python if n in node.after else n for n in names)
        yield f"{indent}return [{', '.join(figures)}]"
        return
    if node.text is None:
        return
    yield f"{indent}_ = {node.text.python}"
    for value, branch in node.branches.items():
        yield f"{indent}if _ == {value}:"
        yield from _python(branch, names, indent + " ")
        if branch.after is None:
            yield f"{indent} return None"


def export(bounds: Bounds, rules: Rules = RULES) -> Exported:
    """Search within `bounds`, which have one row, and write every act down as a program.

    Raises ValueError if the search does not come to its end.
    """
    search = Search(bounds, rules, asks=False)
    if (found := search.run()).verdict is not Verdict.PROVED:
        raise ValueError(f"the search within '{bounds.name}' is not whole: {found.broken}")
    layout = Layout(bounds)
    rows = [[int(n) for n in layout.row(world)] for world in search.worlds]
    arcs: dict[Act, list[Arc]] = {}
    for row, out in zip(rows, search.arcs, strict=True):
        for act, after in out:
            arcs.setdefault(act, []).append(Arc(row, rows[after]))
    maker = _Maker(layout, _Traced(bounds, rules))
    programs = {act: maker.program(act, possible) for act, possible in arcs.items()}
    sizes = len(rows), sum(len(out) for out in search.arcs)
    return Exported(bounds, *sizes, layout, rows[0], programs, maker.form, maker.misses)


class _Maker:
    """Makes programs; form: the one that brings a world into its form, which all acts share."""

    def __init__(self, layout: Layout, traced: _Traced) -> None:
        self._layout, self._traced, self._random = layout, traced, random.Random(1)
        self.form, self.misses = Node(), 0
        self._form = compiled(layout.names, self.form)

    def program(self, act: Act, arcs: list[Arc]) -> Node:
        """The program of one act, made from runs in as few worlds as cover all."""
        program, left = Node(), arcs
        while left:
            for arc in self._random.sample(left, min(SAMPLE, len(left))):
                self._run(program, arc.before, lambda world: self._traced.run(world, act))
            done = compiled(self._layout.names, program)
            missing = [arc for arc in left if not self._does(done, arc)]
            if len(missing) == len(left):
                self.misses += len(left)
                break
            left = missing
        return program

    def _does(self, done: _Compiled, arc: Arc) -> bool:
        raw = done(arc.before)
        if raw is None:
            return False
        after = self._form(raw)
        if after is None:
            self._run(self.form, raw, self._traced.canonical)
            self._form = compiled(self._layout.names, self.form)
            after = self._form(raw)
        return after == arc.after

    def _run(self, program: Node, figures: list[int], deed: Callable[[World], World]) -> None:
        run, names = begin(), self._layout.names
        after = self._layout.row(deed(self._layout.seen(figures)))
        texts = zip(names, map(text_of, after), strict=True)
        program.add(run.path, {name: text for name, text in texts if text.promela != name})


__all__ = ["SEARCHES", "Exported", "Layout", "Node", "compiled", "export"]
