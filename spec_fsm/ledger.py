"""How far each row's target KV and draft KV are valid, without touching the rows.

What a row is
-------------
For each request six figures, in positions (`Row`): `committed`, `reserved`, `covered`, `stashed`
and the flags `seeded` and `lost`.  `covered` is the one no engine keeps, and the one whose
faults are silent.  The table's row effects say what each event does to them: a plain result
commits one position and unseeds the row, a flush raises `covered`, and so on.

Why it is not kept like that
----------------------------
All calls of a scheduler step together may take 5 microseconds at 256 rows.  Adding one to 256
rows takes longer than that by itself, and it would be done in each step to say the same thing
256 times: in PLAIN every running row advances by exactly one position with every plain launch.
So the ledger counts launches, and remembers of a row only *when it joined*:

- `t`, the tick: plain launches so far;
- `f`, the flush point: every row was covered up to its position at this tick;
- one entry a row, `rid -> base`, the tick at which it finished its prefill (complete and seeded).

A row's gap, committed - covered, is then `t - max(base, f)`.  No step touches a row.  The largest
gap is the oldest row's, and that is the first entry: a dict keeps insertion order, rows join at
the present tick, and ticks only grow.  Its `max(base, f)` is kept as `floor`, so that a step
compares two integers.

A flush that carries the ages [upper, lower) raises `f` to `t - lower`.  That is right for each row
only if `upper` reaches the oldest gap, else a hole would stay below what was written; the guard
REACHES_OLDEST holds it to that.  A drain raises `f` to `t` (in SPEC all is covered) and so does a
reseed; both are also the tick `seed` at which every row was seeded.  A row is seeded while
`max(base, seed) == t`: no plain launch since.  Rows stay seeded after a drain until their first
plain launch, and a flush does not seed.

Two views
---------
The engine launches before it has settled the previous result.  So `t`, `f` and `seed` exist
twice: `_launched`, moved when a launch is issued, and `_settled`, moved when its result is
processed.  Results come in launch order, and the table's guards leave only one order: plain
launches, then the one that reseeded, then speculative ones (after those, a drain waits for all).
So three counts say what is in flight, and a queue holds the flush points still to be settled, each
with the tick of the launch that carries it.  Guards and
plans use the launched view, for a flush is ordered behind what is in flight on the device.  What a
leaving row may give to the prefix cache is cut by the settled view: the flush in flight may yet
write, but nothing of it has been promised to the tree.

Under overlap SGLang leaves a row whose last token is in flight out of the next launch.  The
launched view then overstates its gap by one, harmlessly: the row leaves when that token settles,
and is cut by the settled view, which is exact.  `Lifecycle.plan_decode` refuses any other absence.

Rows that are lost
------------------
The engine stashes the hidden states of the last `width` plain steps.  A gap that outgrows them
cannot be rebuilt: the row is *lost*, for good, whatever is flushed later.  Lost rows are taken out
of the entries, with the point they are covered to, in the launch that loses them.  The lost are
always the oldest, so this looks at no row that stays, and at each row once in its life.

`Row.stashed` is where the ring begins: `committed` minus the plain steps since the row was last
seeded, at most `width`; speculative steps stash nothing.  All of this is held against the row
effects of the table, applied one by one to each row on random histories, in
`tests/test_core_ledger.py`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spec_fsm._rules import State
from spec_fsm.modes import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPECULATE, _PLAIN, _RESEED = Action


@dataclass(frozen=True, slots=True)
class Row:
    """One request's figures at a boundary, in token positions.

    committed: target KV is valid up to here (prompt + output - 1).  reserved: slots owned up to
    here.  covered: draft KV is valid up to here.  stashed: target hidden states are kept from
    here on.  seeded: top-k and hidden state of the last position are valid.  lost: the gap can no
    longer be rebuilt from the stash.
    """

    committed: int
    reserved: int
    covered: int
    stashed: int
    seeded: bool
    lost: bool = False


class Ledger:
    """The figures of all rows, O(1) a step; see the essay above.

    width: hidden states stashed a row.  The methods trust their caller: `Lifecycle` refuses what
    the table refuses before it calls them.
    """

    __slots__ = (
        "_base",
        "_lost",
        "_seed_launched",
        "_seed_settled",
        "f_launched",
        "f_settled",
        "floor",
        "points",
        "reseeds",
        "rows",
        "seeds_at",
        "t_launched",
        "t_settled",
        "unsettled",
        "width",
    )

    def __init__(self, width: int) -> None:
        self.width = width
        self.t_launched = self.t_settled = 0
        self.f_launched = self.f_settled = 0
        self.floor = 0
        """max(base, f_launched) of the oldest row that is not lost; old news without such a row."""
        self.rows = 0
        """Rows that decode."""
        self.unsettled = 0
        """Speculative launches whose result was not processed yet."""
        self.reseeds = 0
        """Of the unsettled launches, those that reseeded: 0 or 1, and the oldest of them."""
        self._seed_launched = self._seed_settled = 0
        self.seeds_at = -1
        """The tick whose launch made seeds ahead of a reseed last, see `StashConfig.seed_ahead`."""
        self._base: dict[str, int] = {}
        self._lost: dict[str, tuple[int, int]] = {}
        self.points: deque[tuple[int, int]] = deque()
        """Flush points not settled yet, each with the tick of the launch that carries it."""

    # -- reading --------------------------------------------------------------------------

    @property
    def lost(self) -> int:
        """Rows whose gap outgrew the stash."""
        return len(self._lost)

    @property
    def lost_rids(self) -> frozenset[str]:
        """Those rows."""
        return frozenset(self._lost)

    @property
    def in_flight(self) -> int:
        """Decode launches of any kind whose result was not processed yet."""
        return self.t_launched - self.t_settled + self.unsettled

    @property
    def max_gap(self) -> int:
        """Largest gap of a row that is not lost, launches in flight included."""
        return self.t_launched - self.floor if self._base else 0

    @property
    def unseeded(self) -> bool:
        """Whether a row that is not lost was decoded plainly since its seed was made."""
        oldest = next(iter(self._base.values()), self.t_launched)
        return max(oldest, self._seed_launched) < self.t_launched

    @property
    def seeds_due(self) -> bool:
        """Whether a row that is not lost has no seed, and none was made ahead."""
        return self.unseeded and self.seeds_at != self.t_launched

    @property
    def next_action(self) -> Action | None:
        """The action whose result is due next, or None with nothing in flight."""
        if self.t_settled < self.t_launched:
            return _PLAIN
        if self.reseeds:
            return _RESEED
        return _SPECULATE if self.unsettled else None

    def __contains__(self, rid: object) -> bool:
        return rid in self._base or rid in self._lost

    def gap(self, rid: str) -> int:
        """Positions of `rid` without draft KV, launches in flight included; 0 if unknown."""
        if (kept := self._lost.get(rid)) is not None:
            return self.t_launched - kept[1]
        base = self._base.get(rid, self.t_launched)
        return self.t_launched - max(base, self.f_launched)

    def settled_gap(self, rid: str) -> int:
        """committed - covered of `rid`, counting settled launches only; 0 if unknown."""
        if (kept := self._lost.get(rid)) is not None:
            covered = max(kept[0], min(self.f_settled, kept[1]))
        else:
            covered = max(self._base.get(rid, self.t_settled), self.f_settled)
        return max(0, self.t_settled - covered)

    def base(self, rid: str) -> int | None:
        """The tick at which `rid` joined, or None."""
        kept = self._lost.get(rid)
        return self._base.get(rid) if kept is None else kept[0]

    def seeded(self, rid: str) -> bool:
        """Whether the seed of `rid` is the one of its last position."""
        base = self.base(rid)
        return base is not None and max(base, self._seed_launched) >= self.t_launched

    def row(self, rid: str, committed: int, reserved: int) -> Row:
        """The figures of `rid` as of the settled launches, given its own two, in positions.

        `lost` alone is as of what was launched: the ring is overwritten by then.  An unknown
        `rid` reads as a row still in its prefill: covered up to `committed`, not seeded.
        """
        base = self.base(rid)
        # Plain steps since it was seeded; below 0 while launches from before it joined settle.
        steps = 0 if base is None else max(0, self.t_settled - max(base, self._seed_settled))
        gap = self.settled_gap(rid)
        return Row(
            committed=committed,
            reserved=reserved,
            covered=committed - gap,
            stashed=committed - min(self.width, steps),
            seeded=base is not None and steps == 0,
            lost=rid in self._lost,
        )

    def state(self, slice_width: int, dwell: int) -> State:
        """The shared counters, as the table's guards and effects read them."""
        return State(
            self.rows,
            len(self._lost),
            next(iter(self._base.values()), self.t_launched),
            self.unsettled,
            self.t_launched,
            self.t_settled,
            self.f_launched,
            self.f_settled,
            self._seed_launched,
            self._seed_settled,
            self.width,
            slice_width,
            dwell,
        )

    def take(self, state: State) -> None:
        """Adopt the points an edge's effects moved; the other counters move in here only."""
        self.f_launched, self.f_settled = state.f_launched, state.f_settled
        self._seed_launched, self._seed_settled = state.seed_launched, state.seed_settled
        self._find_floor()

    # -- membership -----------------------------------------------------------------------

    def join(self, rid: str) -> bool:
        """`rid` finished its prefill: complete and seeded now; False if it is here already."""
        if rid in self._base or rid in self._lost:
            return False
        if not self._base:
            self.floor = self.t_launched
        self._base[rid] = self.t_launched
        self.rows += 1
        return True

    def leave(self, rid: str) -> int:
        """Forget `rid`; returns its settled gap, 0 if it never joined."""
        base = self._base.pop(rid, None)
        if base is None:
            gap = self.settled_gap(rid)
            if self._lost.pop(rid, None) is not None:
                self.rows -= 1
            return gap
        self.rows -= 1
        if base <= self.floor:  # only then it may have been the oldest
            self._find_floor()
        point = self.f_settled
        gap = self.t_settled - (base if base > point else point)
        return gap if gap > 0 else 0

    def _find_floor(self) -> None:
        for base in self._base.values():
            point = self.f_launched
            self.floor = base if base > point else point
            return

    # -- launches and results -------------------------------------------------------------

    def launch_speculative(self, action: Action) -> None:
        """A SPECULATE or RESEED launch was issued."""
        self.unsettled += 1
        if action is _RESEED:
            self.reseeds += 1

    def launch_plain(self) -> Sequence[str]:
        """A plain launch was issued; returns the rows it made lost."""
        tick = self.t_launched = self.t_launched + 1
        return self._drop() if tick - self.floor > self.width else ()

    def flush(self, lower: int) -> None:
        """The plain launch just issued carries a flush, from the oldest gap down to age `lower`."""
        point = self.t_launched - lower
        if point > self.f_launched:
            self.f_launched = point
            self.points.append((self.t_launched, point))
            self._find_floor()

    def _drop(self) -> list[str]:
        dropped = []
        oldest = self.t_launched - self.width
        for rid, base in self._base.items():
            if max(base, self.f_launched) >= oldest:
                break
            dropped.append(rid)
        self.lose(dropped)
        return dropped

    def lose(self, rids: list[str]) -> None:
        """Move `rids` to the lost rows, with the point they are covered to."""
        for rid in rids:
            base = self._base.pop(rid)
            self._lost[rid] = (base, max(base, self.f_launched))
        self._find_floor()

    def settle(self, action: Action) -> bool:
        """The oldest result in flight was processed; False, doing nothing, if not of `action`."""
        if self.t_settled < self.t_launched:
            return action is _PLAIN and self._settle_plain()
        if action is _PLAIN or not self.unsettled or (action is _RESEED) is not (self.reseeds > 0):
            return False
        self.unsettled -= 1
        if action is _RESEED:
            self.reseeds = 0
            self.f_settled = self._seed_settled = self._seed_launched
        return True

    def settle_many(self, action: Action, count: int) -> bool:
        """The `count` oldest results were processed; False, doing nothing, unless of `action`.

        action: PLAIN or SPECULATE; a launch that reseeded is settled by itself.
        """
        plain = self.t_launched - self.t_settled
        if action is _PLAIN:
            if count > plain:
                return False
            self.t_settled += count
            while self.points and self.points[0][0] <= self.t_settled:
                self.f_settled = self.points.popleft()[1]
            return True
        if plain or self.reseeds or count > self.unsettled:
            return False
        self.unsettled -= count
        return True

    def _settle_plain(self) -> bool:
        self.t_settled += 1
        if self.points and self.points[0][0] <= self.t_settled:
            self.f_settled = self.points.popleft()[1]
        return True

    def stale(self) -> list[str]:
        """Rows, not lost yet, that still need stashed hidden states: O(rows), for rare events."""
        return [rid for rid in self._base if not self.seeded(rid)]

    def oldest_without(self, rids: list[str]) -> int:
        """What `State.oldest` is once `rids` are lost."""
        gone = set(rids)
        kept = (base for rid, base in self._base.items() if rid not in gone)
        return next(kept, self.t_launched)


__all__ = ["Ledger", "Row"]
