"""The trace: one JSON line for each event, plan, observation and refusal; off without a sink.

Lines are newline-delimited JSON.  Every line has `seq` (0, 1, 2 ...) and `t_ns` (a monotonic
clock).  They are written after the change they tell of, by the thread that made it, so the trace
can be replayed line by line without a search.

| kind | fields | written when |
|---|---|---|
| start | v, shape, policy, stash | the lifecycle is built: always line 0 |
| event | event, mode, to, rows, unsettled | an edge of the table was followed; rows and unsettled |
|       |                                  | are those after it |
|       | load | LOAD_ROSE, LOAD_FELL |
|       | rid, committed | PREFILLED, PREFILLED_CHUNK |
|       | rid, gap | FINISHED, RETRACTED, ABORTED; gap is committed - covered of settled launches |
|       | rid | STASH_DROPPED |
|       | batch | ADMITTED, FILTERED, MERGED: rows the engine's batch holds |
|       | action, batch, flush | LAUNCHED, decode launches only |
|       | action, batch, accepted?, rids? | SETTLED, DECODED |
|       | upper, lower | FLUSHED, SLICE_DONE |
|       | why | RESEED_FAILED |
|       | lost | WEIGHTS_CHANGED: rows it made lost |
| plan | action, mode, rows, flush | a decode batch was planned |
| obs | mode, phase, b, tokens, slots, spec_info, hidden | a launch passed its check |
| obs | mode, what, any integers | the engine observed something of its own |
| refused | event, mode, reason | an event changed nothing |
| violation | invariant, mode, error | a check failed |
"""

from __future__ import annotations

import atexit
import gzip
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from spec_fsm.errors import TraceError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spec_fsm.launch_laws import Launch
    from spec_fsm.laws import Shape
    from spec_fsm.modes import Event, Mode
    from spec_fsm.plan import Plan, StashConfig
    from spec_fsm.policy import PolicyConfig

VERSION = 1
FLUSH_NS = 1_000_000_000
LONGEST_LINE = 1 << 20
"""Bytes of a line that is read at most; the writer's longest name a batch of rows."""
KINDS = frozenset({"start", "event", "plan", "obs", "refused", "violation"})


class Sink(Protocol):
    """Where trace lines go."""

    def write(self, line: dict[str, Any]) -> None:
        """Take one line; `seq` and `t_ns` are the sink's to add."""


class FileSink:
    """A file of trace lines, written whole lines at a time.

    Buffered; what is buffered is written out at the first line that comes a second or more after
    the last time, and at `close`, which also runs when the process ends by itself.  A process
    that is killed leaves whole lines.  Raises TraceError if the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            # Not buffered by Python: a flush is one write of whole lines.
            self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 -- closed by close()
        except OSError as error:
            msg = f"trace file {path} cannot be written: {error.strerror}"
            raise TraceError(msg) from None
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._seq = 0
        self._flushed_ns = time.monotonic_ns()
        atexit.register(self.close)

    def write(self, line: dict[str, Any]) -> None:
        """Take one line."""
        now = time.monotonic_ns()
        self._lines.append(self._encode({"seq": self._seq, "t_ns": now, **line}) + b"\n")
        self._seq += 1
        if now - self._flushed_ns >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write out what is buffered."""
        if self._lines:
            self._file.write(b"".join(self._lines))
            self._lines.clear()
        self._flushed_ns = time.monotonic_ns()

    def close(self) -> None:
        """Write out the rest and close; a second call does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()
            atexit.unregister(self.close)


class ListSink:
    """Keeps the lines in a list, for tests and short looks."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, line: dict[str, Any]) -> None:
        """Take one line."""
        self.lines.append({"seq": len(self.lines), "t_ns": time.monotonic_ns(), **line})


class Tracer:
    """Words the lines of one lifecycle; the lifecycle holds one, or None when tracing is off."""

    def __init__(self, sink: Sink) -> None:
        self._write = sink.write

    def start(self, shape: Shape, policy: PolicyConfig, stash: StashConfig) -> None:
        """Line 0: what the server is configured as."""
        settings = {"shape": asdict(shape), "policy": asdict(policy), "stash": asdict(stash)}
        self._write({"kind": "start", "v": VERSION, **settings})

    def event(
        self,
        event: Event,
        modes: tuple[Mode, Mode],
        counts: tuple[int, int],
        fields: Mapping[str, object],
    ) -> None:
        """An edge was followed; modes: before and after; counts: rows and unsettled after."""
        line = {"kind": "event", "event": event.name, "mode": modes[0].name, "to": modes[1].name}
        self._write({**line, "rows": counts[0], "unsettled": counts[1], **fields})

    def plan(self, plan: Plan, rows: int) -> None:
        """A decode batch of `rows` rows was planned."""
        line = {"kind": "plan", "action": plan.action.name, "mode": plan.mode.name, "rows": rows}
        self._write({**line, "flush": [plan.flush_upper, plan.flush_lower]})

    def launch(self, mode: Mode, launch: Launch) -> None:
        """A launch passed its check."""
        self._write(
            {
                "kind": "obs",
                "mode": mode.name,
                "phase": launch.phase.name,
                "b": launch.b,
                "tokens": launch.tokens,
                "slots": launch.slots,
                "spec_info": launch.spec_info.name,
                "hidden": launch.hidden.name,
            }
        )

    def observed(self, mode: Mode, what: str, facts: Mapping[str, int]) -> None:
        """The engine observed something of its own."""
        self._write({"kind": "obs", "mode": mode.name, "what": what, **facts})

    def refused(self, event: Event, mode: Mode, reason: str) -> None:
        """An event changed nothing."""
        self._write({"kind": "refused", "event": event.name, "mode": mode.name, "reason": reason})

    def violation(self, invariant: str, mode: Mode, error: str) -> None:
        """A check failed."""
        self._write(
            {"kind": "violation", "invariant": invariant, "mode": mode.name, "error": error}
        )


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


__all__ = ["KINDS", "VERSION", "FileSink", "ListSink", "Sink", "Tracer", "read_trace"]
