"""What each line of a trace has to bring, and the words of its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spec_fsm.modes import LEAVING, Action, Event, Hidden, Mode, Phase, SpecInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = frozenset({"seq", "t_ns", "kind"})
_COMMON = _LINE | {"at", "mode", "rows", "unsettled", "in_flight"}
SETTINGS = frozenset({"shape", "policy", "stash"})
_RESULT = frozenset({"action", "batch", "accepted", "rids", "forwards"})
_SAYS: dict[Event, frozenset[str]] = {
    Event.LOAD_ROSE: frozenset({"load"}),
    Event.LOAD_FELL: frozenset({"load"}),
    Event.DRAINED: frozenset(),
    Event.SLICE_DONE: frozenset({"upper", "lower"}),
    Event.RESEEDED: frozenset(),
    Event.RESEED_FAILED: frozenset({"why", "forwards"}),
    Event.PREFILLED_CHUNK: frozenset({"rid", "committed", "cached"}),
    Event.PREFILLED: frozenset({"rid", "committed", "cached", "chunks"}),
    Event.LAUNCHED: frozenset({"action", "batch", "flush"}),
    Event.SETTLED: _RESULT,
    Event.DECODED: _RESULT,
    Event.FLUSHED: frozenset({"upper", "lower"}),
    Event.STASH_DROPPED: frozenset({"rid"}),
    **{event: frozenset({"rid", "gap", "committed", "epoch"}) for event in LEAVING},
    Event.CACHE_FLUSHED: frozenset({"epoch"}),
    Event.WEIGHTS_CHANGED: frozenset({"lost", "epoch"}),
}
EVENT_FIELDS = {event: _COMMON | {"event", "to"} | says for event, says in _SAYS.items()}
"""All fields of an event's line.  ADMITTED, FILTERED and MERGED have none: they move nothing, and
a trace tells them as observations."""
LAUNCH = _COMMON | {"phase", "b", "tokens", "slots", "spec_info", "hidden"}
OBSERVED = _COMMON | {"what", "facts"}
KIND_FIELDS: Mapping[str, frozenset[str]] = {
    "start": _LINE | {"v"} | SETTINGS,
    "boundary": _COMMON | {"load", "loads"},
    "plan": _COMMON | {"action", "flush", "seeds", "rids"},
    "pin": _COMMON | {"pin", "was", "epoch"},
    "refused": _COMMON | {"event", "reason"},
    "violation": _LINE | {"mode", "invariant", "error"},
    "dropped": _LINE | {"lines"},
    "end": _COMMON | {"pin", "epoch", "tokens", "left"} | SETTINGS,
}
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


class LinesMissing(Mismatch):
    """The sink dropped lines here: what follows can no longer be judged."""


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


def check_fields(line: dict[str, Any], names: frozenset[str]) -> None:
    """Raise Mismatch unless the line has just these fields."""
    if line.keys() != names:
        raise Mismatch(f"fields {sorted(line)}", f"fields {sorted(names)}")


def text(line: dict[str, Any], name: str) -> str:
    """A text of the line; raises Mismatch."""
    value = line[name]
    if type(value) is not str:
        raise Mismatch(f"{name} is {value!r}", f"{name}: a text")
    return value


__all__ = [
    "ACTIONS",
    "EVENTS",
    "EVENT_FIELDS",
    "HIDDEN",
    "INFOS",
    "KIND_FIELDS",
    "LAUNCH",
    "MODE_NAMES",
    "OBSERVED",
    "PHASES",
    "SETTINGS",
    "LinesMissing",
    "Mismatch",
    "check_fields",
    "count",
    "named",
    "same",
    "text",
]
