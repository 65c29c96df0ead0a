"""A small engine around the model's worlds: slots, tensors of a batch, graphs and tokens.

The searches know counters and rows; most invariants speak of what an engine does with them.  This
engine has that much of a real one that each invariant can be read off it: it owns a pool, launches
with shapes, carries a relay between steps, pads a graph, stashes states, feeds a prefix cache.  It
does everything right.  `seeded` overrides one method at a time with a bug that was reported.

It follows the acts of `environment.Environment` and believes the table; what it holds itself (which
positions have draft KV, which states are kept) is what the invariants are checked on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_fsm import laws
from spec_fsm.invariants import (
    buffers_hold,
    insertion_covered,
    lengths_agree,
    slot_owned,
    slots_conserved,
    token_is_last,
)
from spec_fsm.launch_laws import Launch, violation
from spec_fsm.modes import Hidden, Mode, Phase, SpecInfo
from spec_fsm.ops import INT
from spec_fsm_model.deeds import SPECULATIVE_PHASES, takes_part
from spec_fsm_model.held import GRAPH_ROWS, POOL, Flying, Held, Row, put, stashed
from spec_fsm_model.world import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm_model.environment import Act
    from spec_fsm_model.world import Bounds, World

LEAVES = ("finished", "aborted", "retracted")


class Engine:
    """Carries acts out; `broken` collects the invariants that do not hold, with what was seen."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.shape = bounds, bounds.shape
        self.reserve = laws.reserve(bounds.shape)
        self.broken: dict[str, str] = {}

    def act(self, held: Held, act: Act, before: World, after: World) -> Held:
        """What the engine holds after an act; `broken` says what does not hold."""
        self.broken = {}
        name = act.name
        if name == "admit a request":
            row = self.admitted(held, after.rows[-1].settled.committed)
            held = held._replace(rows=(*held.rows, row), named=held.named + 1)
        elif name.startswith("prefill"):
            held = self.prefill(held, act.row, before.mode, whole=name.endswith("rest"))
        elif name.startswith("launch"):
            held = self.launch(held, act, before, after)
        elif name.endswith("result"):
            held = self.result(held, before)
        elif name in LEAVES:
            held = self.leave(held, act.row, name)
        elif name == "flush the prefix cache" and not before.running:
            free = (*held.free, *held.cached)
            held = held._replace(free=free, cached=(), cached_draft=0)
        self.boundary(held, after)
        return held

    # -- acts -----------------------------------------------------------------------------

    def prefill(self, held: Held, i: int, mode: Mode, *, whole: bool) -> Held:
        """A chunk of a prompt, or the rest of it, goes through target and draft."""
        width, row = self.bounds.origin if whole else 1, held.rows[i]
        length = row.committed + width
        self.issue(held, mode, Phase.PREFILL, 1, width)
        held, row = self.grow(held, row, length)
        draft = row.draft | (1 << length) - (1 << row.committed)
        seed = length if whole else 0
        row = row._replace(committed=length, draft=draft, seed=seed, cursor=length, decodes=whole)
        held = self.insert(held, row, self.inserted(row, "")) if whole else put(held, row)
        return self.settled(held, tuple(r.name for r in held.batch)) if whole else held

    def launch(self, held: Held, act: Act, before: World, after: World) -> Held:
        """A decode launch: plain, speculative, or the one that reseeds.

        A row whose last token is in flight is not in it.
        """
        for row in in_launch(held, before):
            held, _ = self.grow(held, row, row.committed + self.reserve)
        batch = in_launch(held, before)
        held = self.replay(held, batch)
        names, b = tuple(r.name for r in batch), len(batch)
        if act.name == "launch plain":
            upper, lower = _ages(act.what)
            self.issue(held, before.mode, self.plain_phase(), b)
            return held._replace(flying=(*held.flying, Flying(names, True, upper, lower)))
        if act.name == "launch reseed":
            missing = sum(r.committed - r.covered for r in batch)
            if missing:
                self.issue(held, before.mode, Phase.FLUSH, b, missing)
            self.issue(held, before.mode, Phase.SEED_EXTEND, b, 1)
            rows = (self.reseed(r) if r.name in names else r for r in held.rows)
            held = held._replace(rows=tuple(rows))
        for phase in SPECULATIVE_PHASES:
            self.issue(held, after.mode, phase, b)
        return held._replace(flying=(*held.flying, Flying(names, False)))

    def result(self, held: Held, before: World) -> Held:
        """The oldest result: a token a row, or all that was drafted and the bonus."""
        flight, flying = held.flying[0], held.flying[1:]
        held = held._replace(flying=flying)
        tokens = 1 if flight.plain else self.shape.num_steps + 1
        for name in flight.rows:
            row = next((r for r in held.rows if r.name == name), None)
            if row is None:
                held = self.late(held, name)
            else:
                held = put(held, self.commit(row, flight, tokens))
        return self.settled(held, tuple(r.name for r in held.batch))

    def leave(self, held: Held, i: int, how: str) -> Held:
        """A request leaves: what is covered goes to the prefix cache, the rest is free again."""
        row = held.rows[i]
        if row.decodes:
            held = self.insert(held, row, self.inserted(row, how))
            row = held.rows[i]
        rows, free = (*held.rows[:i], *held.rows[i + 1 :]), self.given_back(row)
        held = held._replace(rows=rows, free=(*held.free, *free))
        if not row.decodes:
            return held
        return self.settled(held, self.filtered(held, row))

    # -- what the acts are made of, and `seeded` overrides ----------------------------------

    def admitted(self, held: Held, hit: int) -> Row:
        """A request that begins with a cached prefix of `hit` positions."""
        draft = self.brought(held.cached_draft & (1 << hit) - 1)
        return Row(held.named, held.cached[:hit], hit, committed=hit, draft=draft)

    def brought(self, draft: int) -> int:
        """Positions of a hit that come with draft KV."""
        return draft

    def insert(self, held: Held, row: Row, length: int) -> Held:
        """The cache receives the row's first positions; what it has already is free again."""
        if not insertion_covered(INT, length, row.covered):
            self.breaks("I15", f"{length} positions inserted, {row.covered} covered")
        known = len(held.cached)
        cached = (*held.cached, *row.slots[known:length])
        draft = held.cached_draft | row.draft & (1 << length) - 1
        twice = row.slots[row.protected : min(known, length)]
        slots = (*cached[:length], *row.slots[length:])
        row = row._replace(slots=slots, protected=max(length, row.protected))
        free = (*held.free, *twice)
        return put(held._replace(cached=cached, cached_draft=draft, free=free), row)

    def grow(self, held: Held, row: Row, length: int) -> tuple[Held, Row]:
        """The row owns slots up to `length`."""
        more = self.more(row, length)
        taken, free = held.free[:more], held.free[more:]
        row = row._replace(slots=(*row.slots, *taken))
        return put(held._replace(free=free), row), row

    def more(self, row: Row, length: int) -> int:
        """Slots a row still needs to own `length`."""
        return max(0, length - len(row.slots))

    def plain_phase(self) -> Phase:
        """What is launched for a plain step."""
        return Phase.PLAIN_DECODE

    def spec_info(self, phase: Phase) -> SpecInfo:
        """The `spec_info` a launch carries."""
        return laws.spec_info(phase)

    def hidden(self, phase: Phase) -> Hidden:
        """The hidden states a launch captures."""
        return laws.hidden(phase)

    def tokens(self, phase: Phase, b: int, width: int | None) -> int:
        """Length of `input_ids`."""
        return int(laws.tokens(phase, b, self.shape, width))

    def slots(self, phase: Phase, b: int, width: int | None) -> int:
        """Length of `out_cache_loc`."""
        return int(laws.slots(phase, b, self.shape, width))

    def token(self, row: Row) -> int:
        """The token launched for a row of a plain step."""
        return row.token

    def graph(self, phase: Phase) -> tuple[Phase, int, int]:
        """The graph that replays a launch: phase, tokens a row, rows."""
        return phase, laws.tokens(phase, 1, self.shape), GRAPH_ROWS

    def buffer_rows(self) -> int:
        """Rows the buffers shared by all graphs hold."""
        return GRAPH_ROWS

    def replay(self, held: Held, batch: tuple[Row, ...]) -> Held:
        """The batch is copied into the graph; the rows beyond it are reset."""
        padding = tuple(r.committed for r in batch) + (0,) * (GRAPH_ROWS - len(batch))
        return held._replace(padding=padding)

    def reseed(self, row: Row) -> Row:
        """The rest of the gap and the seed of a row are made."""
        if not row.decodes:
            return row
        return self.written(row, row.committed, 0)._replace(seed=row.committed)

    def written(self, row: Row, upper: int, lower: int) -> Row:
        """The row with draft KV at the ages from `upper` to `lower`, as far as they are missing."""
        first, end = max(row.committed - upper, self.missing_from(row)), row.committed - lower
        if first >= end:
            return row
        if not slot_owned(INT, first, row.protected, len(row.slots)):
            self.breaks("I15", f"position {first} is written, the cache owns {row.protected}")
        return row._replace(draft=row.draft | (1 << end) - (1 << first))

    def missing_from(self, row: Row) -> int:
        """The first position of a row that has no draft KV."""
        return row.covered

    def commit(self, row: Row, flight: Flying, tokens: int) -> Row:
        """A row's share of a result."""
        length, token, cursor = row.committed + tokens, row.token + tokens, row.cursor + tokens
        cursor = self.advanced(cursor, tokens)
        row = row._replace(committed=length, token=token, cursor=cursor)
        if not flight.plain:
            full = (1 << length) - 1
            return row._replace(draft=full, states=0, seed=length)
        kept = ((1 << self.bounds.width) - 1) << max(0, length - self.bounds.width)
        row = row._replace(states=self.stash(row.states, length - 1) & kept)
        return self.written(row, flight.upper, flight.lower) if flight.upper else row

    def stash(self, states: int, position: int) -> int:
        """The state of a plain step is kept."""
        return states | 1 << position

    def advanced(self, cursor: int, tokens: int) -> int:
        """Where a row's grammar stands after a result."""
        return cursor

    def late(self, held: Held, name: int) -> Held:
        """A result comes for a row that has left: it is dropped."""
        return held

    def inserted(self, row: Row, how: str) -> int:
        """Positions of a row that the prefix cache receives; how: it left, empty: was prefilled."""
        return row.covered

    def given_back(self, row: Row) -> tuple[int, ...]:
        """Slots of a leaving row that are free again."""
        return row.slots[row.protected :]

    def filtered(self, held: Held, left: Row) -> tuple[int, ...] | None:
        """Rows of the relay after a row left."""
        return None if held.relay is None else tuple(n for n in held.relay if n != left.name)

    def settled(self, held: Held, relay: tuple[int, ...] | None) -> Held:
        """The batch's own tensors after a result or a change of its rows."""
        lens = tuple(r.committed for r in held.batch)
        return held._replace(relay=relay, lens=lens, cpu_lens=lens)

    # -- the invariants -------------------------------------------------------------------

    def breaks(self, invariant: str, text: str) -> None:
        """An invariant does not hold."""
        self.broken.setdefault(invariant, text)

    def issue(self, held: Held, mode: Mode, phase: Phase, b: int, width: int | None = None) -> None:
        """Everything that is checked of one launch, before it is issued."""
        info, hidden = self.spec_info(phase), self.hidden(phase)
        sizes = self.tokens(phase, b, width), self.slots(phase, b, width)
        error = violation(mode, Launch(phase, b, *sizes, info, hidden, width), self.shape)
        if error is not None:
            self.breaks(error.invariant, str(error))
        if phase is Phase.PREFILL or phase in (Phase.FLUSH, Phase.SEED_EXTEND):
            return
        if not laws.graph_fits(phase, b, self.shape, self.graph(phase)):
            self.breaks("I2", f"{phase.name} of {b} rows replays {self.graph(phase)}")
        if not buffers_hold(INT, b, self.buffer_rows()):
            self.breaks("I13", f"{b} rows, buffers for {self.buffer_rows()}")
        if any(held.padding[b:]):
            self.breaks("I12", f"rows beyond the {b} of the batch hold {held.padding[b:]}")
        for row in held.batch if phase is Phase.PLAIN_DECODE else ():
            if not token_is_last(INT, self.token(row), row.token):
                self.breaks("I17", f"row {row.name}: token {self.token(row)}, last {row.token}")

    def boundary(self, held: Held, world: World) -> None:
        """Everything that is checked between two acts."""
        batch, names = held.batch, tuple(r.name for r in held.batch)
        if batch and held.relay is None:
            self.breaks("I1b", f"{len(batch)} rows, no relay")
        elif batch and held.relay != names:
            self.breaks("I7", f"rows {names} in the batch, {held.relay} in the relay")
        self._slots(held)
        if held.late:
            self.breaks("I10", f"tokens committed for {held.late}, which had left")
        if held.cpu_lens != held.lens:
            self.breaks("I18", f"{held.lens} on the device, {held.cpu_lens} on the host")
        for row, length in zip(batch, held.lens, strict=True):
            if not lengths_agree(INT, length, row.committed):
                self.breaks("I9", f"row {row.name} has length {length}, {row.committed} committed")
        for invariant, text in _of_rows(held, world):
            self.breaks(invariant, text)

    def _slots(self, held: Held) -> None:
        """Every slot of the pool is somewhere, once."""
        owned = [slot for row in held.rows for slot in row.slots[row.protected :]]
        counts = len(held.cached), len(owned), len(held.free)
        if not slots_conserved(INT, *counts, POOL):
            self.breaks("I4", "{} cached, {} owned, {} free of {}".format(*counts, POOL))
        everywhere = [*owned, *held.cached, *held.free]
        if len(set(everywhere)) < len(everywhere):
            twice = sorted({slot for slot in everywhere if everywhere.count(slot) > 1})
            self.breaks("I6", f"slots {twice} have two owners")


def in_launch(held: Held, world: World) -> tuple[Row, ...]:
    """The rows a decode launch holds, in order."""
    pairs = zip(held.rows, world.rows, strict=True)
    return tuple(row for row, known in pairs if takes_part(known))


def _of_rows(held: Held, world: World) -> Iterator[tuple[str, str]]:
    speculates = world.mode in (Mode.SPEC, Mode.DRAINING)
    for row, known in zip(held.rows, world.rows, strict=True):
        if row.committed > len(row.slots):
            yield "I5", f"row {row.name}: {row.committed} committed, {len(row.slots)} reserved"
        if known.stage is not Stage.RUNNING:
            continue
        if row.cursor != row.committed:
            yield "I19", f"row {row.name}: grammar at {row.cursor}, {row.committed} committed"
        whole = row.covered >= row.committed and row.seed == row.committed
        if known.sat_out:
            continue  # it is in no other launch
        if speculates and not whole:
            text = f"{row.covered} of {row.committed} covered, seed of {row.seed}"
            yield "I8", f"row {row.name}: {text}"
        if not speculates and row.seed != row.committed and not known.launched.lost:
            kept = stashed(row)
            if kept > min(row.covered, row.committed - 1):
                yield "I14", f"row {row.name}: states from {kept}, {row.covered} covered"


def _ages(what: str) -> tuple[int, int]:
    """The ages a flush writes, from the words of its act."""
    words = what.split()
    return (int(words[1]), int(words[3])) if words else (0, 0)


__all__ = ["LEAVES", "Engine", "in_launch"]
