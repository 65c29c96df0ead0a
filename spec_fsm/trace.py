"""The trace: one JSON line for each step a lifecycle takes; off without a sink.

Lines are newline-delimited JSON.  Every line has `seq` (0, 1, 2 ...) and `t_ns` (a monotonic
clock).  They are written after the change they tell of, by the thread that made it, so the trace
can be replayed line by line without a search.  Nothing in a line is told for its own sake: times,
texts (`why`, `error`) and the engine's own observations aside, each field follows from the lines
before it or is told a second time, so that a line that is lost, moved or changed shows
(`spec-fsm trace tamper`).

Every line but `start`, `dropped` and `violation` tells where the lifecycle stands after it:

- `at`: iterations so far (calls of `boundary`), the clock that all ranks share
- `mode`, of an event the one it came in
- `rows`: rows that decode
- `unsettled`, `in_flight`: speculative and all decode launches whose result is due

| kind | further fields | written when |
|---|---|---|
| start | v, shape, policy, stash | the lifecycle is built: always line 0 |
| boundary | load, loads | the policy is asked; `loads` is the sum of all loads so far |
| event | event, to | an edge of the table was followed |
|       | load | LOAD_ROSE, LOAD_FELL |
|       | rid, committed, cached, chunks | PREFILLED: positions, those that were not computed now, |
|       |                                | and chunks before this one |
|       | rid, committed, cached | PREFILLED_CHUNK |
|       | rid, gap, committed, epoch | FINISHED, RETRACTED, ABORTED; gap is committed - |
|       |                            | covered of settled launches, `committed` the |
|       |                            | engine's own count |
|       | rid | STASH_DROPPED |
|       | action, batch, flush | LAUNCHED, decode launches only |
|       | action, batch, accepted, | SETTLED, DECODED: positions each row committed (0: it had |
|       | rids, forwards           | left), and forwards observed for the launch |
|       | upper, lower | FLUSHED, SLICE_DONE |
|       | why, forwards | RESEED_FAILED |
|       | lost, epoch | WEIGHTS_CHANGED: rows it made lost |
|       | epoch | CACHE_FLUSHED; epoch counts these, changes of weights, and pins |
| plan | action, flush, seeds, rids | a decode batch was planned; its rows in order |
| obs | phase, b, tokens, slots, spec_info, hidden | a forward passed its check |
| obs | what, facts | the engine observed something of its own |
| pin | pin, was, epoch | the operator pinned or released |
| refused | event, reason | an event changed nothing |
| violation | mode, invariant, error | a check failed |
| dropped | lines | so many lines are missing here: the sink could not keep up |
| end | pin, epoch, tokens, left, shape, policy, stash | the lifecycle is closed: the last line |
"""

from __future__ import annotations

import gzip
import time
import zlib
from collections import Counter, deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from spec_fsm.errors import TraceError, one_line
from spec_fsm.modes import LEAVING, Event, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spec_fsm.launch_laws import Launch
    from spec_fsm.laws import Shape
    from spec_fsm.modes import Mode, Pin
    from spec_fsm.plan import Plan, StashConfig
    from spec_fsm.policy import PolicyConfig

VERSION = 2
LONGEST_LINE = 1 << 20
"""Bytes of a line that is read at most; the writer's longest name a batch of rows."""
KINDS = frozenset(
    {
        "start", "boundary", "event", "plan", "obs", "pin", "refused", "violation", "dropped",
        "end",
    }
)
_NO_LAUNCH = frozenset({Phase.PREFILL, Phase.MIXED, Phase.IDLE})
"""Phases that belong to no decode launch."""
_RESULTS = frozenset({Event.SETTLED, Event.DECODED})
_EPOCHS = frozenset({Event.CACHE_FLUSHED, Event.WEIGHTS_CHANGED})


class Sink(Protocol):
    """Where trace lines go."""

    def write(self, line: dict[str, Any]) -> None:
        """Take one line; `seq` and `t_ns` are the sink's to add."""


class ListSink:
    """Keeps the lines in a list, for tests and short looks."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        """Take one line."""
        self.lines.append({"seq": len(self.lines), "t_ns": time.monotonic_ns(), **line})


class Where(NamedTuple):
    """Where a lifecycle stands; see the fields every line has."""

    mode: Mode
    rows: int
    unsettled: int
    in_flight: int


class Settings(NamedTuple):
    """What a lifecycle was built with."""

    shape: Shape
    policy: PolicyConfig
    stash: StashConfig

    def fields(self) -> dict[str, Any]:
        """The settings as JSON objects."""
        return {
            "shape": asdict(self.shape),
            "policy": asdict(self.policy),
            "stash": asdict(self.stash),
        }


class Tracer:
    """Words the lines of one lifecycle; the lifecycle holds one, or None when tracing is off.

    Counts what the lines tell as totals.  A line is made of new objects and never changed.
    """

    def __init__(self, sink: Sink, settings: Settings) -> None:
        self._write = sink.write
        self._settings = settings
        self._at = self._loads = self._epoch = self._tokens = 0
        self._chunks: Counter[str] = Counter()
        self._left = dict.fromkeys(sorted(event.name for event in LEAVING), 0)
        self._forwards: deque[int] = deque()  # observed for each decode launch planned, in order
        self._ended = False
        self._write({"kind": "start", "v": VERSION, **settings.fields()})

    def _line(self, kind: str, where: Where) -> dict[str, Any]:
        mode, rows, unsettled, in_flight = where
        return {
            "kind": kind,
            "at": self._at,
            "mode": mode.name,
            "rows": rows,
            "unsettled": unsettled,
            "in_flight": in_flight,
        }

    def boundary(self, where: Where, load: int) -> None:
        """The policy is about to be asked."""
        self._at += 1
        self._loads += load
        line = self._line("boundary", where)
        self._write({**line, "load": load, "loads": self._loads})

    def event(
        self, event: Event, to: Mode, where: Where, fields: Mapping[str, object]
    ) -> None:
        """An edge was followed from the mode of `where` to `to`; the counts are those after it."""
        line = self._line("event", where)
        line["event"], line["to"] = event.name, to.name
        line.update(fields)
        self._count(event, line)
        self._write(line)

    def _count(self, event: Event, line: dict[str, Any]) -> None:
        """Add the totals that the event moves."""
        if event in _RESULTS:
            self._tokens += sum(line.get("accepted", ()))
            line["forwards"] = self._forwards.popleft() if self._forwards else 0
        elif event is Event.PREFILLED:
            line["chunks"] = self._chunks.pop(line["rid"], 0)
        elif event is Event.PREFILLED_CHUNK:
            self._chunks[line["rid"]] += 1
        elif event in LEAVING:
            self._left[event.name] += 1
            line["epoch"] = self._epoch
            self._chunks.pop(line["rid"], None)
        elif event is Event.RESEED_FAILED:
            line["forwards"] = self._forwards.pop() if self._forwards else 0
        elif event in _EPOCHS:
            self._epoch += 1
            line["epoch"] = self._epoch

    def plan(self, where: Where, plan: Plan, rids: Sequence[str]) -> None:
        """A decode batch of `rids` was planned."""
        self._forwards.append(0)
        line = self._line("plan", where)
        line["action"], line["seeds"] = plan.action.name, int(plan.seeds)
        line["flush"] = [plan.flush_upper, plan.flush_lower]
        line["rids"] = list(rids)
        self._write(line)

    def launch(self, where: Where, launch: Launch) -> None:
        """A forward passed its check."""
        if self._forwards and launch.phase not in _NO_LAUNCH:
            self._forwards[-1] += 1
        line = self._line("obs", where)
        line["phase"], line["b"] = launch.phase.name, launch.b
        line["tokens"], line["slots"] = launch.tokens, launch.slots
        line["spec_info"], line["hidden"] = launch.spec_info.name, launch.hidden.name
        self._write(line)

    def observed(self, where: Where, what: str, facts: Mapping[str, int]) -> None:
        """The engine observed something of its own."""
        self._write({**self._line("obs", where), "what": what, "facts": dict(facts)})

    def pinned(self, where: Where, pin: Pin, was: Pin) -> None:
        """The operator pinned or released."""
        self._epoch += 1
        told = {"pin": pin.name, "was": was.name, "epoch": self._epoch}
        self._write({**self._line("pin", where), **told})

    def refused(self, where: Where, event: Event, reason: str) -> None:
        """An event changed nothing."""
        self._write({**self._line("refused", where), "event": event.name, "reason": reason})

    def violation(self, mode: Mode, invariant: str, error: str) -> None:
        """A check failed."""
        self._write(
            {"kind": "violation", "mode": mode.name, "invariant": invariant, "error": error}
        )

    def end(self, where: Where, pin: Pin) -> None:
        """The last line: totals, and the settings again; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        line = self._line("end", where)
        line["pin"], line["epoch"], line["tokens"] = pin.name, self._epoch, self._tokens
        self._write({**line, "left": dict(self._left), **self._settings.fields()})


def read_trace(path: str | Path) -> Iterator[dict[str, Any]]:
    """The lines of a trace file in order.

    Raises TraceError, naming the line, where one is no JSON object of a known kind, where `seq`
    does not count up from 0, or where line 0 is not a start of this version; and where the file,
    which may be in gzip (`.gz`), cannot be read. Never holds more than one line.
    """
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number, raw in enumerate(_raw_lines(Path(path))):
        try:
            line = decode(raw)
        except (ValueError, RecursionError) as error:
            msg = f"line {number} is no JSON object: {one_line(error)}"
            raise TraceError(msg) from None
        _check_line(number, line)
        yield line


def _raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file or of one in gzip, each of LONGEST_LINE bytes at most."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            number = 0
            while raw := file.readline(LONGEST_LINE + 1):
                if len(raw) > LONGEST_LINE:
                    msg = f"line {number} is longer than {LONGEST_LINE} bytes"
                    raise TraceError(msg)
                yield raw
                number += 1
    except (OSError, EOFError, zlib.error) as error:
        msg = f"the file cannot be read: {one_line(error)}"
        raise TraceError(msg) from None


def _check_line(number: int, line: dict[str, Any]) -> None:
    if line.get("seq") != number:
        msg = f"line {number} is out of sequence"
        raise TraceError(msg, observed=line.get("seq"), expected=number)
    kind = line.get("kind")
    known = isinstance(kind, str) and kind in KINDS
    if not known or (number == 0) is not (kind == "start"):
        msg = f"line {number} is of the wrong kind"
        expected = "start" if number == 0 else ", ".join(sorted(KINDS - {"start"}))
        raise TraceError(msg, observed=line.get("kind"), expected=expected)
    if number == 0 and line.get("v") != VERSION:
        msg = "the trace is of another version"
        raise TraceError(msg, observed=line.get("v"), expected=VERSION)


__all__ = ["KINDS", "VERSION", "ListSink", "Settings", "Sink", "Tracer", "Where", "read_trace"]
