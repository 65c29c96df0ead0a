"""The trace: one JSON line for each event, plan and observation, off unless a sink is given."""

from __future__ import annotations

import atexit
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

VERSION = 1
FLUSH_NS = 1_000_000_000


class Sink(Protocol):
    """Where trace lines go."""

    def write(self, line: dict[str, Any]) -> None:
        """Take one line; `seq` and `t_ns` are the sink's to add."""


class FileSink:
    """Appends lines to a file of newline-delimited JSON."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 -- closed by close()
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._seq = 0
        self._flushed_ns = time.monotonic_ns()
        atexit.register(self.close)

    def write(self, line: dict[str, Any]) -> None:
        """Take one line; written out at least once a second while lines come."""
        now = time.monotonic_ns()
        self._lines.append(self._encode({"seq": self._seq, "t_ns": now, **line}) + b"\n")
        self._seq += 1
        if now - self._flushed_ns >= FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Write out what is buffered, whole lines in one call."""
        if self._lines:
            self._file.write(b"".join(self._lines))
            self._lines.clear()
        self._flushed_ns = time.monotonic_ns()

    def close(self) -> None:
        """Write out the rest and close; calling it again does nothing."""
        if not self._file.closed:
            self.flush()
            self._file.close()
            atexit.unregister(self.close)


__all__ = ["VERSION", "FileSink", "Sink"]
