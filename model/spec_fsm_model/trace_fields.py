"""What an event's line of a trace has to bring, and the words of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from spec_fsm.modes import LEAVING, Action, Event, Hidden, Mode, Phase, SpecInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMON = frozenset({"seq", "t_ns", "kind", "event", "mode", "to", "rows", "unsettled"})
_SETTLED = frozenset({"action", "batch"})
_SAYS: dict[Event, frozenset[str]] = {
    Event.LOAD_ROSE: frozenset({"load"}),
    Event.LOAD_FELL: frozenset({"load"}),
    Event.SLICE_DONE: frozenset({"upper", "lower"}),
    Event.RESEED_FAILED: frozenset({"why"}),
    Event.ADMITTED: frozenset({"batch"}),
    Event.PREFILLED_CHUNK: frozenset({"rid", "committed"}),
    Event.PREFILLED: frozenset({"rid", "committed"}),
    Event.LAUNCHED: frozenset({"action", "batch", "flush"}),
    Event.SETTLED: _SETTLED,
    Event.DECODED: _SETTLED,
    Event.FLUSHED: frozenset({"upper", "lower"}),
    Event.STASH_DROPPED: frozenset({"rid"}),
    Event.FILTERED: frozenset({"batch"}),
    Event.MERGED: frozenset({"batch"}),
    **{event: frozenset({"rid", "gap"}) for event in LEAVING},
    Event.WEIGHTS_CHANGED: frozenset({"lost"}),
}
_COUNTED = ("load", "lower", "upper", "gap", "lost")


class Fields(NamedTuple):
    """What an event's line brings besides COMMON.  batch: its least number of rows, or -1."""

    names: frozenset[str]
    counts: tuple[str, ...]
    rid: bool
    batch: int


def _fields_of(event: Event) -> Fields:
    says = _SAYS.get(event, frozenset())
    least = int(event in (Event.LAUNCHED, Event.SETTLED, Event.DECODED)) if "batch" in says else -1
    return Fields(says, tuple(n for n in _COUNTED if n in says), "rid" in says, least)


# Made once, by name: a line is looked at in a few microseconds.
FIELDS = {event: _fields_of(event) for event in Event}
EVENTS: Mapping[str, Event] = dict(Event.__members__)
PHASES: Mapping[str, Phase] = dict(Phase.__members__)
INFOS: Mapping[str, SpecInfo] = dict(SpecInfo.__members__)
HIDDEN: Mapping[str, Hidden] = dict(Hidden.__members__)
MODE_NAMES = tuple(mode.name for mode in Mode)
ACTIONS = tuple(action.name for action in Action)


class Mismatch(Exception):
    """A line is no step of the model.  text: what is wrong.  expected: what would be right."""

    def __init__(self, text: str, expected: object = "") -> None:
        self.text = text
        self.expected = str(expected)
        super().__init__(text, self.expected)


def same(what: str, observed: object, expected: object) -> None:
    """Raise Mismatch unless both are the same, and of the same type."""
    if observed != expected or type(observed) is not type(expected):
        raise Mismatch(f"{what} is {observed!r}", f"{what} {expected!r}")


def count(line: dict[str, Any], name: str, least: int = 0) -> int:
    """A whole number of the line, `least` or more; raises Mismatch."""
    value = line.get(name)
    if type(value) is not int or value < least:
        raise Mismatch(f"{name} is {value!r}", f"{name}: a whole number, {least} or more")
    return value


def named(what: str, line: dict[str, Any], members: Mapping[str, Any]) -> Any:
    """The member a field names; raises Mismatch."""
    try:
        return members[line[what]]
    except (KeyError, TypeError):
        text = f"{what} is {line.get(what)!r}"
        raise Mismatch(text, f"{what}: {', '.join(members)}") from None


def check_fields(event: Event, line: dict[str, Any]) -> None:
    """Raise Mismatch unless the line has the fields of its event, each of its kind."""
    names, counts, rid, batch = FIELDS[event]
    given = line.keys() - COMMON
    if names is _SETTLED:
        given.difference_update(("accepted", "rids"))
    if given != names:
        raise Mismatch(f"fields {sorted(given)}", f"fields {sorted(names)}")
    for name in counts:
        count(line, name)
    if rid and type(line["rid"]) is not str:
        raise Mismatch(f"rid is {line['rid']!r}", "rid: a text")
    if batch >= 0:
        count(line, "batch", batch)


__all__ = [
    "ACTIONS",
    "EVENTS",
    "HIDDEN",
    "INFOS",
    "MODE_NAMES",
    "PHASES",
    "Mismatch",
    "check_fields",
    "count",
    "named",
    "same",
]
