"""How far each row's target KV and draft KV are valid, without touching the rows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from spec_fsm._rules import State
from spec_fsm.modes import Action

_PLAIN, _RESEED = Action.PLAIN, Action.RESEED


@dataclass(frozen=True, slots=True)
class Row:
    """One request's figures at a boundary, in token positions."""

    committed: int
    reserved: int
    covered: int
    stashed: int
    seeded: bool
    lost: bool = False


class Ledger:
    """Per-row figures kept as ticks of plain launches, O(1) per step."""

    __slots__ = (
        "_base",
        "_drained",
        "_flights",
        "_lost",
        "_seed_launched",
        "_seed_settled",
        "f_launched",
        "f_settled",
        "t_launched",
        "t_settled",
        "unsettled",
        "width",
    )

    def __init__(self, width: int) -> None:
        self.width = width
        self.t_launched = self.t_settled = 0
        self.f_launched = self.f_settled = 0
        self.unsettled = 0
        self._seed_launched = self._seed_settled = 0
        self._drained = 0
        self._base: dict[str, int] = {}
        self._lost: dict[str, tuple[int, int]] = {}
        self._flights: deque[tuple[Action, int]] = deque()

    # -- reading --------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Rows that decode."""
        return len(self._base) + len(self._lost)

    @property
    def lost(self) -> int:
        """Rows whose gap outgrew the stash."""
        return len(self._lost)

    @property
    def in_flight(self) -> int:
        """Decode launches of any kind whose result was not processed yet."""
        return len(self._flights)

    @property
    def max_gap(self) -> int:
        """Largest gap of a row that is not lost, launches in flight included."""
        for base in self._base.values():
            point = self.f_launched
            return self.t_launched - (base if base > point else point)
        return 0

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
        """The figures of `rid` as of the settled launches."""
        base = self.base(rid)
        steps = 0 if base is None else self.t_settled - max(base, self._drained)
        gap = self.settled_gap(rid)
        return Row(
            committed=committed,
            reserved=reserved,
            covered=committed - gap,
            stashed=committed - min(self.width, max(0, steps)),
            seeded=base is not None and max(base, self._seed_settled) >= self.t_settled,
            lost=rid in self._lost,
        )

    def state(self, slice_width: int, dwell: int) -> State:
        """The shared counters, as the table's guards and effects read them."""
        return State(
            rows=self.rows,
            lost=self.lost,
            oldest=next(iter(self._base.values()), self.t_launched),
            unsettled=self.unsettled,
            t_launched=self.t_launched,
            t_settled=self.t_settled,
            f_launched=self.f_launched,
            f_settled=self.f_settled,
            seed_launched=self._seed_launched,
            seed_settled=self._seed_settled,
            drained=self._drained,
            width=self.width,
            slice_width=slice_width,
            dwell=dwell,
        )

    def take(self, state: State) -> None:
        """Adopt the points an edge's effects moved; the other counters move in here only."""
        self.f_launched, self.f_settled = state.f_launched, state.f_settled
        self._seed_launched, self._seed_settled = state.seed_launched, state.seed_settled
        self._drained = state.drained

    # -- membership -----------------------------------------------------------------------

    def join(self, rid: str) -> None:
        """`rid` finished its prefill: complete and seeded as of now."""
        self._base[rid] = self.t_launched

    def leave(self, rid: str) -> int:
        """Forget `rid`; returns its settled gap, 0 if it never joined."""
        gap = self.settled_gap(rid)
        self._base.pop(rid, None)
        self._lost.pop(rid, None)
        return gap

    # -- launches and results -------------------------------------------------------------

    def launch_speculative(self, action: Action) -> None:
        """A SPECULATE or RESEED launch was issued."""
        self.unsettled += 1
        self._flights.append((action, self.f_launched))

    def launch_plain(self) -> list[str]:
        """A plain launch was issued; returns the rows it made lost."""
        self.t_launched += 1
        dropped = [] if self.max_gap <= self.width else self._drop()
        self._flights.append((_PLAIN, self.f_launched))
        return dropped

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

    @property
    def next_action(self) -> Action | None:
        """The action whose result is due next, or None with nothing in flight."""
        return self._flights[0][0] if self._flights else None

    def settle(self) -> None:
        """The oldest result in flight was processed."""
        action, point = self._flights.popleft()
        if action is _PLAIN:
            self.t_settled += 1
        else:
            self.unsettled -= 1
            if action is _RESEED:
                self._seed_settled = point
        self.f_settled = point

    def stale(self) -> list[str]:
        """Rows, not lost yet, that still need stashed hidden states: O(rows), for rare events."""
        return [rid for rid in self._base if not self.seeded(rid)]

    def oldest_without(self, rids: list[str]) -> int:
        """What `State.oldest` is once `rids` are lost."""
        gone = set(rids)
        kept = (base for rid, base in self._base.items() if rid not in gone)
        return next(kept, self.t_launched)

    def repoint(self) -> None:
        """The newest launch in flight carries the flush that moved `f_launched`."""
        action, _ = self._flights[-1]
        self._flights[-1] = (action, self.f_launched)


__all__ = ["Ledger", "Row"]
