"""Bugs of the reported kinds, one an invariant: each is found, and breaks that invariant alone.

The table is right here; the engine around it, or one of two ranks, is not.  So an invariant that no
table can break by itself is shown to be no sentence that is always true, and each bug comes with a
shortest history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from spec_fsm.invariants import INVARIANTS
from spec_fsm.modes import Hidden, Phase, SpecInfo
from spec_fsm_model.bugs import told
from spec_fsm_model.engine import Engine, in_launch
from spec_fsm_model.environment import Act, Environment
from spec_fsm_model.explore import Search, Verdict
from spec_fsm_model.held import Flying, Held, Row
from spec_fsm_model.ranks import FailsAlone, OwnClock, OwnLoad, TwoRanks
from spec_fsm_model.report import describe
from spec_fsm_model.world import Bounds, World, start

if TYPE_CHECKING:
    from spec_fsm_model.claims import Broken

ONE = Bounds("one row", rows=1, in_flight=0)
TWO = Bounds("two rows", in_flight=0)
RANKS = Bounds("two ranks", rows=1, in_flight=0, dwell=1, failures=1, skew=2)
MOST = 400_000
"""Situations a search may visit before it is given up."""
_PLAIN = Phase.PLAIN_DECODE


class _SkipsTheDraft(Engine):
    def launch(self, held: Held, act: Act, before: World, after: World) -> Held:
        if act.name != "launch speculative":
            return super().launch(held, act, before, after)
        names = tuple(r.name for r in in_launch(held, before))
        self.issue(held, before.mode, _PLAIN, len(names))
        return held._replace(flying=(Flying(names, plain=True),))


class _StaleSpecInfo(Engine):
    def spec_info(self, phase: Phase) -> SpecInfo:
        return SpecInfo.DRAFT if phase is _PLAIN else super().spec_info(phase)


class _NoRelay(Engine):
    def result(self, held: Held, before: World) -> Held:
        plain, held = held.flying[0].plain, super().result(held, before)
        return held._replace(relay=None) if plain else held


class _GraphOfAVerify(Engine):
    def graph(self, phase: Phase) -> tuple[Phase, int, int]:
        return super().graph(Phase.VERIFY if phase is _PLAIN else phase)


class _SlotsOfAVerify(Engine):
    def slots(self, phase: Phase, b: int, width: int | None) -> int:
        return super().slots(Phase.VERIFY if phase is _PLAIN else phase, b, width)


class _Leaks(Engine):
    def given_back(self, row: Row) -> tuple[int, ...]:
        return super().given_back(row)[:-1]


class _NeverGrows(Engine):
    def more(self, row: Row, length: int) -> int:
        return 0 if row.decodes else super().more(row, length)


class _OneSlotTwice(Engine):
    def grow(self, held: Held, row: Row, length: int) -> tuple[Held, Row]:
        held, row = super().grow(held, row, length)
        others = [r.slots[0] for r in held.rows if r.name != row.name and r.slots]
        if others and row.slots:
            row = row._replace(slots=(*row.slots[:-1], others[0]))
            held = held._replace(rows=tuple(row if r.name == row.name else r for r in held.rows))
        return held, row


class _NoFilter(Engine):
    def filtered(self, held: Held, left: Row) -> tuple[int, ...] | None:
        return held.relay


class _SeedsOnly(Engine):
    def reseed(self, row: Row) -> Row:
        return super().reseed(row)._replace(draft=row.draft)


class _StaleLengths(Engine):
    def result(self, held: Held, before: World) -> Held:
        after = super().result(held, before)
        return after._replace(lens=held.lens, cpu_lens=held.cpu_lens)


class _CommitsLate(Engine):
    def late(self, held: Held, name: int) -> Held:
        return held._replace(late=(*held.late, name))


class _OldPadding(Engine):
    def replay(self, held: Held, batch: tuple[Row, ...]) -> Held:
        b = len(batch)
        return held._replace(padding=super().replay(held, batch).padding[:b] + held.padding[b:])


class _SmallBuffers(Engine):
    def buffer_rows(self) -> int:
        return 1


class _NoStash(Engine):
    def stash(self, states: int, position: int) -> int:
        return states


class _TargetAlone(Engine):
    def brought(self, draft: int) -> int:
        return 0


class _WritesTooEarly(Engine):
    def missing_from(self, row: Row) -> int:
        return super().missing_from(row) - 1


class _InsertsAll(Engine):
    def inserted(self, row: Row, how: str) -> int:
        return row.committed


class _InsertsAllOfAborted(Engine):
    def inserted(self, row: Row, how: str) -> int:
        return row.committed if how == "aborted" else super().inserted(row, how)


class _InsertsAllOfRetracted(Engine):
    def inserted(self, row: Row, how: str) -> int:
        return row.committed if how == "retracted" else super().inserted(row, how)


class _LastHidden(Engine):
    def hidden(self, phase: Phase) -> Hidden:
        return Hidden.LAST if phase is _PLAIN else super().hidden(phase)


class _Placeholder(Engine):
    def token(self, row: Row) -> int:
        return -1


class _StaleOnTheHost(Engine):
    def settled(self, held: Held, relay: tuple[int, ...] | None) -> Held:
        after = super().settled(held, relay)
        return after._replace(cpu_lens=held.cpu_lens) if held.flying == () else after


class _AdvancesOverRejected(Engine):
    def advanced(self, cursor: int, tokens: int) -> int:
        return cursor + (tokens > 1)


class _ByHand(Engine):
    def tokens(self, phase: Phase, b: int, width: int | None) -> int:
        return super().tokens(Phase.VERIFY if phase is _PLAIN else phase, b, width)


class Bug(NamedTuple):
    """One bug.

    what: it in words.  invariant: the one it breaks.  report: a public report of its kind, or
    empty.  engine: the engine that has it.  bounds: what it is searched in.
    """

    what: str
    invariant: str
    report: str
    engine: Callable[[Bounds], Engine | TwoRanks]
    bounds: Bounds = ONE


BUGS: tuple[Bug, ...] = (
    Bug("the draft is skipped, the mode is not left", "matrix", "SG#13804", _SkipsTheDraft),
    Bug("a plain launch with the spec_info of before", "I1a", "SG#13804", _StaleSpecInfo),
    Bug("no relay after a plain step", "I1b", "SG#2730", _NoRelay),
    Bug("a plain launch replays the graph of a verify", "I2", "SG#13804", _GraphOfAVerify),
    Bug("a plain launch with the tokens of a verify", "I2", "VL#51510", _ByHand),
    Bug("a plain launch with the slots of a verify", "I3", "SG#26201", _SlotsOfAVerify),
    Bug("a slot is not given back", "I4", "SG#7111", _Leaks),
    Bug("no slots for accepted tokens", "I5", "SG#13741", _NeverGrows),
    Bug("one slot for two rows", "I6", "SG#25805", _OneSlotTwice, TWO),
    Bug("a row that left stays in spec_info", "I7", "SG#2939", _NoFilter, TWO),
    Bug("seeds without draft KV", "I8", "VL#53420", _SeedsOnly),
    Bug("lengths that do not follow the tokens", "I9", "LC#26478", _StaleLengths),
    Bug("a result is committed for a row that left", "I10", "SG#23456", _CommitsLate),
    Bug("a rank that goes by its own load", "I11", "SG#35898", OwnLoad, RANKS),
    Bug("a rank that goes by its own clock", "I11", "", OwnClock, RANKS),
    Bug("a rebuild that fails on one rank alone", "I11", "SG#28616", FailsAlone, RANKS),
    Bug("padding of the batch before", "I12", "SG#28569", _OldPadding, TWO),
    Bug("buffers for one row", "I13", "SG#30549", _SmallBuffers, TWO),
    Bug("hidden states are not kept", "I14", "TR#16888", _NoStash),
    Bug("the prefix cache gets all there is", "I15", "VL#41838", _InsertsAll),
    Bug("the prefix cache gets all of an aborted row", "I15", "", _InsertsAllOfAborted),
    Bug("the prefix cache gets all of a retracted row", "I15", "", _InsertsAllOfRetracted),
    Bug("a prefix hit brings the target's KV alone", "I8", "SG#21125", _TargetAlone),
    Bug("a rebuild that writes into the cached prefix", "I15", "", _WritesTooEarly),
    Bug("hidden states of the last token alone", "I16", "SG#26163", _LastHidden),
    Bug("a placeholder is launched", "I17", "SG#13804", _Placeholder),
    Bug("lengths on the host that lag", "I18", "", _StaleOnTheHost),
    Bug("a grammar that takes rejected tokens", "I19", "SG#24283", _AdvancesOverRejected),
)
"""At least one for each invariant."""


@dataclass
class Refuted:
    """What a search for a bug found.

    broken: every invariant that does not hold after the last act, with what was seen.  history:
    the acts that lead there, each with the edges of the table it followed.
    """

    bug: Bug
    verdict: Verdict = Verdict.UNDETERMINED
    broken: Mapping[str, str] = field(default_factory=dict)
    history: list[tuple[Act, str]] = field(default_factory=list)
    states: int = 0
    seconds: float = 0.0
    last: tuple[Held, World] | None = None

    @property
    def alone(self) -> bool:
        """Whether the bug breaks its invariant and no other."""
        return set(self.broken) == {self.bug.invariant}


class Acts:
    """What can happen next in a world, remembered: every bug is searched in the same worlds."""

    def __init__(self, bounds: Bounds) -> None:
        self._environment = Environment(bounds)
        # As it is: the engine knows its rows by their place, which sorting would change.
        self._environment.canonical = lambda world: world  # type: ignore[assignment]
        self.first = start(bounds)
        self.after = cache(self._after)

    def _after(self, world: World) -> list[tuple[Act, World, str]]:
        found, steps = [], self._environment.steps
        steps.clear()
        for act, after in self._environment.successors(world):
            edges = ", ".join(str(step) for step in steps) or "no edge"
            steps.clear()
            found.append((act, _sound(after), edges))
        return found


def _sound(after: World | Broken) -> World:
    if not isinstance(after, World):
        raise TypeError(f"the table breaks a claim by itself: {after}")
    return after


@cache
def acts(bounds: Bounds) -> Acts:
    """The acts within `bounds`, shared by all searches of a process."""
    return Acts(bounds)


def search(bug: Bug, most: int = MOST) -> Refuted:
    """Breadth first, up to the first act after which an invariant does not hold."""
    began, found = time.perf_counter(), Refuted(bug)
    engine = bug.engine(bug.bounds)
    if isinstance(engine, TwoRanks):
        return _between_ranks(found, engine, most)
    possible = acts(bug.bounds)
    queue = [(possible.first, Held())]
    seen, parents = set(queue), [(-1, Act(""), "")]
    for i, (world, held) in enumerate(queue):
        for act, after, edges in possible.after(world):
            then = after, engine.act(held, act, world, after)
            if engine.broken:
                found.verdict, found.broken = Verdict.REFUTED, engine.broken
                found.history, found.last = [*_path(parents, i), (act, edges)], (then[1], after)
                break
            if then not in seen:
                seen.add(then)
                queue.append(then)
                parents.append((i, act, edges))
        if found.verdict is Verdict.REFUTED or len(queue) > most:
            break
    found.states, found.seconds = len(queue), time.perf_counter() - began
    return found


def _between_ranks(found: Refuted, ranks: TwoRanks, most: int) -> Refuted:
    searched = Search(found.bug.bounds, most=most, environment=ranks).run()
    found.verdict, found.states = searched.verdict, searched.states
    found.seconds = searched.seconds
    found.history = [(act, "") for act in searched.history]
    if searched.broken is not None:
        found.broken = {searched.broken.claim: searched.broken.detail}
    return found


def _path(parents: list[tuple[int, Act, str]], i: int) -> list[tuple[Act, str]]:
    history = []
    while i > 0:
        i, act, edges = parents[i]
        history.append((act, edges))
    return history[::-1]


def story(found: Refuted) -> list[str]:
    """A bug's history in lines, with what is broken at its end."""
    bug = found.bug
    lines = [f"{bug.what}: {len(found.history)} acts"]
    if bug.report:
        lines.append(f"  as in {told(bug.report)}")
    for n, (act, edges) in enumerate(found.history, 1):
        lines.append(f"  {n:2}. {act}{': ' if edges else ''}{edges}")
    if found.last is not None:
        held, world = found.last
        lines += ["after it:", *describe(world), *_held(held)]
    for invariant, text in found.broken.items():
        lines.append(f"breaks {invariant} ({INVARIANTS[invariant].says})")
        lines.append(f"  {text}")
    return lines


def _held(held: Held) -> list[str]:
    lines = [
        f"  engine: row {r.name} has {len(r.slots)} slots, {r.committed} committed, "
        f"{r.covered} covered, seed of {r.seed}"
        for r in held.rows
    ]
    return [*lines, f"  engine: relay {held.relay}, lengths {held.lens}, graph {held.padding}"]


__all__ = [
    "BUGS",
    "MOST",
    "ONE",
    "RANKS",
    "TWO",
    "Acts",
    "Bug",
    "Refuted",
    "acts",
    "search",
    "story",
]
