"""The last lines of a lifecycle, kept in memory for a flight record.

Tracing to a file tells every step and costs accordingly; a server without it still has to say what
led to a violated law.  So the rare things (mode changes, rows that come and go, launches and
results that are not steady, refusals, violations) are noted here as tuples, and steady steps as
one note with their count.  Tuples become trace-like lines only when somebody asks for them.
With a trace the same lines are kept as are written.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm.trace import Sink

KEPT = 1000
"""Lines kept."""


class Line(NamedTuple):
    """What a note of one kind becomes: its constant fields, and the names of the others."""

    kind: str
    event: str
    names: tuple[str, ...]


Note = tuple[Any, ...]
"""A `Line` and its values, in the order of its names."""

CHANGED = Line("event", "", ("t_ns", "event", "mode", "to", "rows", "unsettled", "fields"))
JOINED = Line("event", "PREFILLED", ("rid", "committed"))
LEFT = Line("event", "", ("event", "rid", "gap"))
LAUNCHED = Line("event", "LAUNCHED", ("t_ns", "action", "batch", "upper", "lower", "steady"))
RESULT = Line("event", "", ("event", "action", "batch"))
STEADY = Line("steady", "", ("t_ns", "action", "launched", "settled"))
REFUSED = Line("refused", "", ("event", "mode", "reason"))
VIOLATION = Line("violation", "", ("t_ns", "invariant", "mode", "error"))
RESTARTED = Line("restarted", "", ("t_ns",))


class Flight:
    """A ring of the last `KEPT` notes; `note` takes one and costs one append."""

    __slots__ = ("_kept", "note")

    def __init__(self) -> None:
        self._kept: deque[Note | dict[str, Any]] = deque(maxlen=KEPT)
        self.note: Callable[[Note | dict[str, Any]], None] = self._kept.append

    def lines(self) -> list[dict[str, Any]]:
        """The lines, the oldest first, in plain types."""
        return [kept if isinstance(kept, dict) else _line(kept) for kept in self._kept]


class Both:
    """A sink that keeps each line in a flight as well; everything else is the sink's own."""

    def __init__(self, sink: Sink, flight: Flight) -> None:
        self._sink, self._note = sink, flight.note

    def write(self, line: dict[str, Any]) -> None:
        """Take one line."""
        self._note(line)
        self._sink.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def _line(note: Note) -> dict[str, Any]:
    shape, *values = note
    line: dict[str, Any] = {"kind": shape.kind}
    if shape.event:
        line["event"] = shape.event
    for name, value in zip(shape.names, values, strict=True):
        if name == "fields":
            line.update(value)
        else:
            line[name] = value.name if isinstance(value, Enum) else value
    return line


__all__ = ["KEPT", "Both", "Flight", "Line"]
