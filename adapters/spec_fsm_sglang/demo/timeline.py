"""Reads a trace of `spec_fsm` into what a person wants to see: modes, switches, rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

NS: Final = 1e9
ROUNDS_AROUND_SWITCH: Final = 10
"""Verify rounds before and after a switch over which its accept lengths are averaged."""


@dataclass(frozen=True)
class Step:
    """One settled decode launch: what it committed, row by row (`accepted` sums to its tokens)."""

    t_ns: int
    speculative: bool
    accepted: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens committed."""
        return sum(self.accepted)


@dataclass(frozen=True)
class ModeChange:
    """An edge between two modes. `load` is known where the policy asked for the change."""

    t_ns: int
    event: str
    source: str
    target: str
    rows: int
    unsettled: int
    load: int | None


@dataclass
class Timeline:
    """Everything the report shows, in order of time.

    `gaps`: for each time RESEEDING was entered, the largest gap then, in tokens.
    """

    changes: list[ModeChange] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def modes_seen(self) -> list[str]:
        """The modes, in the order in which they were first entered; every server starts in SPEC."""
        seen = dict.fromkeys(["SPEC"])
        seen.update(dict.fromkeys(change.target for change in self.changes))
        return list(seen)

    def mode_spans(self, start_ns: int, end_ns: int) -> list[tuple[str, int, int]]:
        """(mode, from, to) covering the interval, without empty spans."""
        spans, mode, since = [], "SPEC", start_ns
        for change in self.changes:
            t_ns = min(max(change.t_ns, start_ns), end_ns)
            if t_ns > since:
                spans.append((mode, since, t_ns))
            mode, since = change.target, t_ns
        if end_ns > since:
            spans.append((mode, since, end_ns))
        return spans

    def between(self, start_ns: int, end_ns: int) -> list[Step]:
        """The steps settled in the interval."""
        return [step for step in self.steps if start_ns <= step.t_ns < end_ns]


@dataclass(frozen=True)
class Switch:
    """Speculation turned off (DRAINED) or on again (RESEEDED).

    `in_flight`: results in flight when DRAINING was entered (off); `gap`: largest gap rebuilt, in
    tokens (on). Accept lengths are means over the rounds next to the switch on either side of
    the plain stretch; None where there was none.
    """

    kind: str
    t_ns: int
    load: int | None
    in_flight: int
    gap: int
    accept_before: float | None
    accept_after: float | None


def read(path: Path) -> Timeline:
    """The timeline of the trace at `path`; a line cut off by a kill is left out."""
    decode = msgspec.json.Decoder(type=dict[str, Any]).decode
    lines = path.read_bytes().split(b"\n")
    return of([decode(line) for line in lines[:-1] if line])


def of(lines: Iterable[dict[str, Any]]) -> Timeline:
    """The timeline of the lines of a trace."""
    timeline = Timeline()
    entered = False
    for line in lines:
        if line["kind"] == "plan" and entered and line["mode"] == "RESEEDING":
            timeline.gaps.append((line["t_ns"], line["flush"][0]))
            entered = False
        if line["kind"] != "event":
            continue
        if line["event"] in ("SETTLED", "DECODED"):
            accepted = tuple(line.get("accepted", ()))
            timeline.steps.append(Step(line["t_ns"], line["event"] == "SETTLED", accepted))
        if line["mode"] != line["to"]:
            entered = line["to"] == "RESEEDING"
            timeline.changes.append(
                ModeChange(
                    line["t_ns"], line["event"], line["mode"], line["to"], line["rows"],
                    line["unsettled"], line.get("load"),
                )
            )
    return timeline


def switches(timeline: Timeline) -> list[Switch]:
    """Every completed switch, in order of time."""
    found = []
    rose: ModeChange | None = None
    fell: ModeChange | None = None
    for change in timeline.changes:
        if change.target == "DRAINING":
            rose = change
        elif change.target == "RESEEDING":
            fell = change
        elif change.event == "DRAINED" and rose is not None:
            found.append(_switch(timeline, "off", change, rose))
        elif change.event == "RESEEDED" and fell is not None:
            found.append(_switch(timeline, "on", change, fell))
    return found


def _switch(timeline: Timeline, kind: str, change: ModeChange, asked: ModeChange) -> Switch:
    rounds = [step for step in timeline.steps if step.speculative]
    before = [step for step in rounds if step.t_ns <= change.t_ns][-ROUNDS_AROUND_SWITCH:]
    after = [step for step in rounds if step.t_ns > change.t_ns][:ROUNDS_AROUND_SWITCH]
    gap = max((g for t, g in timeline.gaps if asked.t_ns <= t <= change.t_ns), default=0)
    return Switch(
        kind, change.t_ns, asked.load, asked.unsettled if kind == "off" else 0, gap,
        accept_length(before), accept_length(after),
    )


def accept_length(steps: Sequence[Step]) -> float | None:
    """Mean tokens a row commits in a verify round, bonus included; None without any."""
    rows = [count for step in steps if step.speculative for count in step.accepted]
    return sum(rows) / len(rows) if rows else None


def binned(
    steps: Sequence[Step], start_ns: int, end_ns: int, width_ns: int
) -> list[tuple[float, float, float | None]]:
    """(middle of the bin in s since start, tokens per second, accept length), bin after bin."""
    bins: list[list[Step]] = [[] for _ in range(max(1, -(-(end_ns - start_ns) // width_ns)))]
    for step in steps:
        if start_ns <= step.t_ns < end_ns:
            bins[(step.t_ns - start_ns) // width_ns].append(step)
    seconds = width_ns / NS
    return [
        ((i + 0.5) * seconds, sum(step.tokens for step in inside) / seconds, accept_length(inside))
        for i, inside in enumerate(bins)
    ]


__all__ = [
    "ModeChange",
    "Step",
    "Switch",
    "Timeline",
    "accept_length",
    "binned",
    "of",
    "read",
    "switches",
]
