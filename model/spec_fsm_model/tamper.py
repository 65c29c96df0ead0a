"""Tampers with true traces, to show that every line and every field of one is needed.

One line of a trace that is proved is dropped, written twice, exchanged with the next, or one of
its fields is changed; numbers and times are set right again, so that they give nothing away.
The trace must then no longer be proved.  What may differ is listed in `EXPLAINED`.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spec_fsm.modes import Action, Event, Hidden, Mode, Phase, Pin, SpecInfo
from spec_fsm_model.explore import Verdict
from spec_fsm_model.replay import Replay
from spec_fsm_model.rules import RULES
from spec_fsm_model.trace_check import TraceChecked, check_lines, run
from spec_fsm_model.trace_fields import EVENT_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from enum import Enum

Line = dict[str, Any]
_NAMES: tuple[type[Enum], ...] = (Mode, Event, Phase, Action, Hidden, SpecInfo, Pin)
_NUMBERED = ("seq", "t_ns")
_UNTOLD = frozenset({Phase.MIXED, Phase.IDLE})
EXPLAINED = {
    "t_ns": "a time",
    "why": "a text",
    "observation": "a free observation",
}
"""What may differ in a trace that is proved, by field or by kind of line, and what it is."""
SAMPLES = 2
"""Lines of each kind that are tampered with."""


def kind_of(line: Line) -> str:
    """The kind of a line: what it tells, and in which mode."""
    kind, mode = line["kind"], line.get("mode", "")
    if kind == "event":
        return f"{line['event']} in {mode}"
    if kind == "plan":
        return f"plan {line['action']} in {mode}"
    if kind == "obs":
        return f"forward {line['phase']} in {mode}" if "phase" in line else "observation"
    if kind == "refused":
        return f"refused {line['event']} in {mode}"
    return f"{kind} in {mode}" if mode else str(kind)


def every_kind() -> frozenset[str]:
    """The kinds of line that a proved trace can hold."""
    kinds = {"start", "observation", "refused LOAD_FELL in PLAIN"}
    for mode in Mode:
        kinds |= {f"{kind} in {mode.name}" for kind in ("boundary", "pin", "end")}
        for phase in RULES.allowed[mode] - _UNTOLD:
            kinds.add(f"forward {phase.name} in {mode.name}")
    for (mode, event) in RULES.edges:
        if event in EVENT_FIELDS and (mode, event) != (Mode.DRAINING, Event.LAUNCHED):
            kinds.add(f"{event.name} in {mode.name}")
    kinds |= {"plan SPECULATE in SPEC", "plan PLAIN in PLAIN"}
    return frozenset(kinds | {"plan PLAIN in RESEEDING", "plan RESEED in RESEEDING"})


@dataclass
class Tampered:
    """What came of tampering.

    outcomes: by kind of line and change, how often the trace was not proved, and how often it was.
    seen: kinds of line the traces hold.  examples: one accepted change each, in words.
    """

    outcomes: dict[tuple[str, str], Counter[bool]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    seen: set[str] = field(default_factory=set)
    examples: dict[tuple[str, str], str] = field(default_factory=dict)

    def verdict(self, kind: str, change: str) -> str:
        """`refused` if no tampered trace was proved, else what it is, or `accepted`."""
        if not self.outcomes[kind, change][True]:
            return "refused"
        return EXPLAINED.get(kind) or EXPLAINED.get(change.split()[0]) or "accepted"

    def counts(self) -> Counter[str]:
        """Kinds (of line and change) by outcome."""
        found: Counter[str] = Counter()
        for kind, change in self.outcomes:
            verdict = self.verdict(kind, change)
            found[verdict if verdict in ("refused", "accepted") else "explained"] += 1
        return found

    def missing(self) -> list[str]:
        """Kinds of line that no trace held."""
        return sorted(every_kind() - self.seen)


def changes(line: Line, after: Line | None) -> Iterator[tuple[str, list[Line]]]:
    """Every change of one line: its name, and the lines in place of this one and the next."""
    rest = [] if after is None else [after]
    yield "drop", rest
    yield "duplicate", [line, line, *rest]
    if after is not None and _bare(line) != _bare(after):
        free = "observation" in (kind_of(line), kind_of(after))
        yield "observation swapped" if free else "swap", [after, line]
    yield "dropped put before", [{"kind": "dropped", "lines": 1}, line, *rest]
    broken = {"kind": "violation", "mode": "SPEC", "invariant": "I2", "error": ""}
    yield "violation put before", [broken, line, *rest]
    yield "extra field", [{**line, "extra": 1}, *rest]
    for name in line:
        if name not in ("seq", "kind", "t_ns"):
            without = {k: v for k, v in line.items() if k != name}
            yield f"{name} left out", [without, *rest]
            for how, value in _values(line[name]):
                yield f"{name} {how}", [{**line, name: value}, *rest]
    yield "t_ns changed", [{**line, "late": True}, *rest]


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    """Other values in place of one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            for how, other in _values(inner):
                yield f"{name} {how}", {**value, name: other}
    elif isinstance(value, list):
        yield from _lists(value)
    elif isinstance(value, str):
        yield from _texts(value)
    elif type(value) is int:
        yield "+1", value + 1
        yield "-1", value - 1
        yield "a text", str(value)


def _lists(value: list[Any]) -> Iterator[tuple[str, Any]]:
    yield "longer", [*value, *(value[-1:] or [0])]
    if value:
        yield "shorter", value[:-1]
        for how, other in _values(value[0]):
            yield f"first {how}", [other, *value[1:]]
    if len(value) > 1 and value[0] != value[-1]:
        yield "exchanged", [value[-1], *value[1:-1], value[0]]


def _texts(value: str) -> Iterator[tuple[str, Any]]:
    for names in _NAMES:
        members = list(names.__members__)
        if value in members:
            i = members.index(value)
            yield f"another {names.__name__}", members[i - 1]
            yield f"third {names.__name__}", members[i - 2]
    yield "renamed", value + "x"


def _bare(line: Line) -> Line:
    return {k: v for k, v in line.items() if k not in _NUMBERED}


def tamper(traces: Iterable[list[Line]], samples: int = SAMPLES) -> Tampered:
    """Tamper with lines of each kind; raises ValueError if a trace is not proved as it is."""
    found = Tampered()
    rnd = random.Random(1)
    left = Counter(dict.fromkeys(every_kind(), samples))
    for lines in traces:
        if (checked := check_lines(lines)).verdict is not Verdict.PROVED:
            raise ValueError(f"a trace is not proved to begin with: {checked.text}")
        places = defaultdict(list)
        for i, line in enumerate(lines):
            places[kind_of(line)].append(i)
        found.seen |= places.keys()
        chosen = set()
        for kind, at in places.items():
            # Not all of them in the first trace that has the kind.
            take = min(len(at), max(1, left[kind] - 1) if left[kind] else 0)
            chosen.update(rnd.sample(at, take))
            left[kind] -= take
        _tamper(lines, chosen, found)
    return found


def _tamper(lines: list[Line], chosen: set[int], found: Tampered) -> None:
    """Tamper with the chosen lines, each from a copy of the replay that has come so far."""
    replay = Replay()
    for i, line in enumerate(lines):
        if i in chosen:
            after = lines[i + 1] if i + 1 < len(lines) else None
            for change, instead in changes(line, after):
                tail = _renumbered([*instead, *lines[i + 2 :]], line)
                proved = _proved(replay.fork(), tail, i == 0)
                key = kind_of(line), change
                found.outcomes[key][proved] += 1
                if proved:
                    found.examples.setdefault(key, f"line {i}: {line} as {instead[:2]}")
        replay.take(line)


def _renumbered(lines: list[Line], first: Line) -> Iterator[Line]:
    """Lines with numbers and times in order again, from those of `first` on."""
    seq, now = first["seq"], first["t_ns"]
    for n, line in enumerate(lines):
        now += line.get("late", False)
        told = {k: v for k, v in line.items() if k != "late"}
        yield {**told, "seq": seq + n, "t_ns": now + n}


def _proved(replay: Replay, lines: Iterator[Line], from_start: bool) -> bool:
    checked = TraceChecked()
    if from_start:
        first = next(lines, None)
        if first is None or first.get("kind") != "start" or first.get("v") != 2:
            return False
        lines = iter([first, *lines])
    try:
        run(replay, lines, checked)
    except KeyError:  # the reader refuses a line without a kind
        return False
    return checked.verdict is Verdict.PROVED


__all__ = ["EXPLAINED", "SAMPLES", "Tampered", "changes", "every_kind", "kind_of", "tamper"]
