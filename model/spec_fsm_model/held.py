"""What the model's engine holds: its rows, its launches in flight, its slots and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

POOL, GRAPH_ROWS = 64, 4
"""Slots of the pool; rows a graph was captured for."""


class Row(NamedTuple):
    """One request as the engine holds it.

    name: its number.  slots: those it uses, in order of position; the first `protected` are the
    prefix cache's.  committed: positions with target KV.  draft: a bit for each position with draft
    KV.  states: a bit for each position whose hidden state is stashed.  seed: length at which its
    seed was made.  cursor: tokens its grammar has seen.  token: number of its last token.
    """

    name: int
    slots: tuple[int, ...] = ()
    protected: int = 0
    committed: int = 0
    draft: int = 0
    states: int = 0
    seed: int = 0
    cursor: int = 0
    token: int = 0
    decodes: bool = False

    @property
    def covered(self) -> int:
        """Positions with draft KV, up to the first that has none."""
        return _ones(self.draft)


class Flying(NamedTuple):
    """A launch in flight: its rows by name, whether it is plain, and the ages its flush writes."""

    rows: tuple[int, ...]
    plain: bool
    upper: int = 0
    lower: int = 0


class Held(NamedTuple):
    """All the engine holds.

    cached: slots of the prefix cache by position (all requests share one text); cached_draft: a bit
    for each of them with draft KV.  relay: rows of the `spec_info` between steps, None if there is
    none.  lens, cpu_lens: lengths
    of the decode batch, on the device and on the host.  padding: what the rows of the graph beyond
    the batch hold.  late: requests that had left when a token of theirs was committed.  named:
    requests so far.
    """

    rows: tuple[Row, ...] = ()
    free: tuple[int, ...] = tuple(range(POOL))
    cached: tuple[int, ...] = ()
    cached_draft: int = 0
    relay: tuple[int, ...] | None = ()
    lens: tuple[int, ...] = ()
    cpu_lens: tuple[int, ...] = ()
    padding: tuple[int, ...] = (0,) * GRAPH_ROWS
    flying: tuple[Flying, ...] = ()
    late: tuple[int, ...] = ()
    named: int = 0

    @property
    def batch(self) -> tuple[Row, ...]:
        """The rows that decode, in order."""
        return tuple(r for r in self.rows if r.decodes)


def put(held: Held, row: Row) -> Held:
    """The row takes the place of the one of its name."""
    rows: Iterable[Row] = (row if r.name == row.name else r for r in held.rows)
    return held._replace(rows=tuple(rows))


def stashed(row: Row) -> int:
    """Position from which on every state is stashed."""
    position = row.committed
    while position and row.states >> position - 1 & 1:
        position -= 1
    return position


def _ones(bits: int) -> int:
    """How many of the lowest bits are set."""
    return (~bits & bits + 1).bit_length() - 1


__all__ = ["GRAPH_ROWS", "POOL", "Flying", "Held", "Row", "put", "stashed"]
