"""Holds a trace of the real worker against the table.

Every line is a step of the table, or the first that is not is shown with what was expected.
Replay is deterministic: the trace says enough that nothing has to be guessed.

| of the model | of the trace | of the worker |
|---|---|---|
| mode, edge, guards | mode, to, event | Lifecycle.mode |
| State, moved by the table's effects | rows, unsettled, in_flight, gap | Ledger, by its methods |
| Policy, asked at each boundary | boundary, LOAD_ROSE, LOAD_FELL, refused, pin | Policy.event |
| plan of (mode, largest gap) | plan: action, flush, seeds | Lifecycle.plan_decode |
| rows that may be in a launch, and sit out | plan: rids | ScheduleBatch.reqs |
| laws of a phase, order of a launch's forwards | obs | ForwardBatch at ModelRunner.forward |
| launches in flight, in order | LAUNCHED, SETTLED, DECODED | result_queue |
| committed positions, row by row | PREFILLED, accepted, FINISHED ... | kv_committed_len |

A trace without its `end`, or with lines its sink dropped, is at best undetermined.  What a green
replay does not show: anything about tensors, and whether the loads are those the server had.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_fsm.errors import SpecFsmError, TraceError, one_line
from spec_fsm.modes import Mode
from spec_fsm.trace import _check_line, read_trace
from spec_fsm_model.explore import Verdict
from spec_fsm_model.replay import Replay
from spec_fsm_model.trace_fields import LinesMissing, Mismatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass
class TraceChecked:
    """What a replay found.

    lines: those accepted.  bad_line: number of the first that was not, counted from 0, or -1;
    line, text, expected: that line, what is wrong with it, and what would have been right.
    """

    verdict: Verdict = Verdict.PROVED
    lines: int = 0
    bad_line: int = -1
    line: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    expected: str = ""
    edges: Counter[str] = field(default_factory=Counter)
    launches: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON objects."""
        return {
            "verdict": self.verdict.name.lower(),
            "lines": self.lines,
            "launches": self.launches,
            "edges": dict(self.edges),
            "bad_line": self.bad_line,
            "text": self.text,
            "expected": self.expected,
        }


_ODD = (
    TypeError, ValueError, LookupError, AttributeError, OverflowError, RecursionError, SpecFsmError
)  # fmt: skip


def check_file(path: Path) -> TraceChecked:
    """Replay a trace file, which may be in gzip (`.gz`)."""
    return check_lines(read_trace(path))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace file, which may be in gzip; raises TraceError."""
    return list(read_trace(path))


def check_lines(lines: Iterable[dict[str, Any]]) -> TraceChecked:
    """Replay trace lines in order, up to the first bad one."""
    found, replay = TraceChecked(), Replay()
    source = _watched(lines, found)
    run(replay, source, found)
    found.launches = replay.launches
    for (mode, event), count in replay.edges.items():
        found.edges[f"{event.name} in {Mode(mode).name}"] = count
    return found


def run(replay: Replay, lines: Iterable[dict[str, Any]], found: TraceChecked) -> None:
    """Take `lines` up to the first bad one, and judge what the replay is left with."""
    take, source = replay.take, iter(lines)
    for line in source:
        try:
            take(line)
        except Mismatch as error:
            found.verdict, found.bad_line, found.line = Verdict.REFUTED, found.lines, line
            found.text, found.expected = error.text, error.expected
            if isinstance(error, LinesMissing):
                found.verdict = Verdict.UNDETERMINED
                _rest(source, found)
            return
        except _ODD as error:
            # A value of a type that no writer writes there, met where it is used.
            found.verdict, found.bad_line, found.line = Verdict.REFUTED, found.lines, line
            found.text = f"a field of this line is of another type: {one_line(error)}"
            return
        found.lines += 1
    if found.verdict is not Verdict.PROVED or replay.ended:
        return
    found.verdict = Verdict.UNDETERMINED
    if missing := replay.missing():
        found.text, found.expected = "the trace ends in the middle of a launch", missing
    else:
        found.text, found.expected = "the trace ends without its last line", "a line of kind end"


def _rest(lines: Iterator[dict[str, Any]], found: TraceChecked) -> None:
    """What follows lost lines cannot be replayed; a violation among it is one all the same."""
    for number, line in enumerate(lines, found.lines + 1):
        if line["kind"] == "violation":
            found.verdict, found.bad_line, found.line = Verdict.REFUTED, number, line
            found.text = f"{line.get('invariant')} was broken: {line.get('error')}"
            found.expected = "no violation"
            return


def _watched(lines: Iterable[dict[str, Any]], found: TraceChecked) -> Iterator[dict[str, Any]]:
    """`lines`, with what the reader itself refuses turned into a result."""
    try:
        yield from lines
    except TraceError as error:
        found.verdict, found.bad_line = Verdict.REFUTED, found.lines
        found.text, found.expected = error.message, str(error.expected or "")


def in_order(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Lines kept in memory, with the reader's checks of numbers and kinds."""
    for number, line in enumerate(lines):
        _check_line(number, line)
        yield line


__all__ = ["TraceChecked", "check_file", "check_lines", "in_order", "lines_of", "run"]
