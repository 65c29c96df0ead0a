"""The rows of a trace while it is replayed: who lives, how far each is, who a launch may hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from spec_fsm_model.trace_fields import Mismatch, count, same

if TYPE_CHECKING:
    from spec_fsm.modes import Event


class Rows:
    """Live rows with their committed positions, and rows still in their prefill.

    tokens: positions committed by results.  left: rows that left, by event.
    """

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.tokens = 0
        self.left: Counter[str] = Counter()
        self._chunks: dict[str, tuple[int, int]] = {}  # positions so far, chunks so far
        self._departed: set[str] = set()  # left since the last decode launch
        self._absent: set[str] = set()  # sat the last launch out that no row may sit out twice
        self._computing = [0, 0]  # rows and tokens of the prefill that are not told yet

    # -- prefills -------------------------------------------------------------------------

    @property
    def untold(self) -> int:
        """Rows of the last prefill without a line."""
        return self._computing[0]

    def prefill(self, b: int, tokens: int) -> None:
        """A prefill of b rows was launched: their lines come next."""
        self._computing = [b, tokens]

    def _computed(self, line: dict[str, Any], known: tuple[int, int]) -> int:
        """The positions of the row after its part of the prefill; raises Mismatch."""
        length, cached = count(line, "committed", 1), count(line, "cached")
        left = self._computing
        if not left[0]:
            raise Mismatch(f"{line['event']} without a prefill", "a PREFILL forward before it")
        if known[1] and cached != known[0]:
            raise Mismatch(f"cached is {cached}", f"cached {known[0]}, the chunks before it")
        left[0] -= 1
        left[1] -= length - cached
        if cached >= length or left[1] < left[0] or (not left[0] and left[1]):
            text = f"{length - cached} positions computed"
            raise Mismatch(text, "as many positions in all as the prefill has tokens")
        return length

    def chunk(self, line: dict[str, Any]) -> int:
        """A chunk that is not the last."""
        rid = line["rid"]
        known = self._chunks.get(rid, (0, 0))
        length = self._computed(line, known)
        self._chunks[rid] = length, known[1] + 1
        return length

    def join(self, line: dict[str, Any]) -> int:
        """The last chunk."""
        rid = line["rid"]
        known = self._chunks.pop(rid, (0, 0))
        same("chunks", line["chunks"], known[1])
        length = self.committed[rid] = self._computed(line, known)
        return length

    def leave(self, line: dict[str, Any], event: Event) -> None:
        """A row ends, or a request in its prefill."""
        rid = line["rid"]
        at = self.committed.pop(rid, None)
        if at is not None:
            self._departed.add(rid)
        elif rid in self._chunks:
            at = self._chunks.pop(rid)[0]
        else:
            raise Mismatch(f"{event.name} of {rid!r}, which never joined", "a row that is here")
        same("committed", line["committed"], at)
        self.left[event.name] += 1

    # -- launches -------------------------------------------------------------------------

    def plan(self, rids: object) -> list[str]:
        """The rows of a decode batch; raises Mismatch if one is no row, or is left out again."""
        if type(rids) is not list or not rids or len(set(rids)) != len(rids):
            raise Mismatch(f"rids is {rids!r}", "rids: each row of the batch once")
        for rid in rids:
            if rid not in self.committed and rid not in self._departed:
                raise Mismatch(f"a launch with {rid!r}", "rows that joined, or left just now")
        if again := self._absent & self.committed.keys():
            raise Mismatch(f"rows {sorted(again)} sat a launch out", "that they leave before this")
        return rids

    def launch(self, rids: list[str], *, needed: bool) -> None:
        """A launch of `rids`; needed: rows that sit it out have to leave before another one."""
        self._absent = self.committed.keys() - set(rids) if needed else set()
        self._departed.clear()

    def settle(self, line: dict[str, Any], rids: list[str], most: int) -> None:
        """A result; raises Mismatch unless each row committed what it can have."""
        same("rids", line["rids"], rids)
        accepted = line["accepted"]
        if type(accepted) is not list or len(accepted) != len(rids):
            raise Mismatch(f"accepted is {accepted!r}", f"{len(rids)} numbers, one a row")
        rows = self.committed
        for rid, n in zip(rids, accepted, strict=True):
            lives = rid in rows
            if type(n) is not int or not (1 <= n <= most if lives else n == 0):
                raise Mismatch(f"{n!r} committed for {rid!r}", f"1 to {most}" if lives else "0")
            if lives:
                rows[rid] += n
                self.tokens += n


__all__ = ["Rows"]
