"""A file of trace lines that never holds up, and never ends, the server that writes it.

The scheduler's thread turns a line into bytes and appends it to a queue in memory; a thread of its
own writes.  A disk that is slow costs lines, which are counted and named where they are missing
(`dropped`); a disk that refuses ends the trace, which is logged once, and the server goes on.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import stat
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from spec_fsm.errors import TraceError

logger = logging.getLogger(__name__)

WRITE_EVERY_S = 0.25
"""A line is on its way to the file this long after it was taken, at most."""
CLOSE_S = 5.0
"""Longest wait of `close` for what is queued."""
QUEUE_BYTES = 32 << 20
"""Most bytes that wait to be written; lines beyond are dropped."""


class FileSink:
    """A trace file, mode 0600, that one process writes whole lines to.

    Raises TraceError, naming path and reason, if the path is no regular file, cannot be written
    or is being written by another process; the file is then left as it was.  Later failures are
    logged once, and `error` tells them.  What is queued is written at `close`, which also runs
    when the process ends by itself; a process that is killed leaves whole lines.  A forked child
    writes nothing.
    """

    def __init__(self, path: str | Path, queue_bytes: int = QUEUE_BYTES) -> None:
        self.path = str(path)
        self.error = ""
        """Why nothing is written any more, or empty."""
        self.lines = 0
        """Lines taken and not dropped."""
        self.dropped = 0
        """Lines lost: too many waited, or nothing is written any more."""
        self._fd = _open(self.path)
        os.ftruncate(self._fd, 0)
        self._most = queue_bytes
        self._encode = msgspec.json.Encoder().encode
        self._queue: deque[bytes] = deque()
        # Bytes put into the queue and taken from it, each written by one thread only.
        self._put = self._taken = 0
        self._missing = 0  # dropped since the last line was taken
        self._open = True
        self._pid = os.getpid()
        self._pending, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        _SINKS.add(self)
        atexit.register(self.close)

    def write(self, line: dict[str, Any]) -> None:
        """Take one line; never waits and never raises."""
        if not self._open:
            self.dropped += 1
            return
        if self._put - self._taken > self._most:
            self._missing += 1
            self.dropped += 1
            return
        if self._missing:
            missing, self._missing = self._missing, 0
            self._take({"kind": "dropped", "lines": missing})
        self._take(line)
        if not self._pending.is_set():
            self._begin()
            self._pending.set()

    def _take(self, line: dict[str, Any]) -> None:
        numbered = {"seq": self.lines, "t_ns": time.monotonic_ns(), **line}
        try:
            raw = self._encode(numbered)
        except (ValueError, TypeError, OverflowError):
            raw = self._encode(_plain(numbered))
        self.lines += 1
        self._put += len(raw) + 1
        self._queue.append(raw + b"\n")

    def status(self) -> dict[str, Any]:
        """What a server shows of its trace."""
        return {
            "path": self.path,
            "writing": self._open,
            "lines": self.lines,
            "dropped": self.dropped,
            "error": self.error,
        }

    def close(self) -> None:
        """Write out the rest and close, waiting CLOSE_S at most; a second call does nothing."""
        if not self._open:
            return
        if self._missing:
            missing, self._missing = self._missing, 0
            self._take({"kind": "dropped", "lines": missing})
        self._open = False
        atexit.unregister(self.close)
        thread = self._thread
        if thread is None:
            self._write_out()
            self._shut()
            return
        self._closing.set()
        self._pending.set()
        thread.join(CLOSE_S)
        if thread.is_alive():
            self._stop(TimeoutError(errno.ETIMEDOUT, "the last lines could not be written in time"))

    # -- the writing thread ---------------------------------------------------------------

    def _begin(self) -> None:
        """Start the thread with the first line: what forks before then forks without it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="spec-fsm-trace", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set() and not self.error:
            self._pending.wait()
            self._closing.wait(WRITE_EVERY_S)
            self._pending.clear()
            self._write_out()
        self._write_out()
        self._shut()

    def _write_out(self) -> None:
        """Write what is queued; an error ends the trace."""
        while self._queue and not self.error:
            lines = [self._queue.popleft() for _ in range(min(len(self._queue), 4096))]
            raw = b"".join(lines)
            try:
                _write_all(self._fd, raw)
            except OSError as error:
                self._stop(error)
            self._taken += len(raw)

    def _stop(self, error: OSError) -> None:
        """Announce, once, why the trace ends here."""
        self._open = False
        if not self.error:
            self.error = f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"
            logger.error("spec-fsm: no more trace in %s, %s", self.path, self.error)
            self._queue.clear()

    def _shut(self) -> None:
        os.close(self._fd)
        _SINKS.discard(self)

    def _forget(self) -> None:
        """In a forked child: the file is the parent's."""
        self._open = False
        self._queue.clear()
        atexit.unregister(self.close)
        os.close(self._fd)


def problem(path: str | Path) -> str | None:
    """Why a trace could not be written to `path` now, in one line, or None; changes no file."""
    there = os.path.lexists(path)
    try:
        os.close(_open(str(path)))
    except TraceError as error:
        return error.message
    if not there:
        Path(path).unlink(missing_ok=True)
    return None


def _open(path: str) -> int:
    """A descriptor of the file, locked and not truncated; raises TraceError."""
    try:
        # O_NONBLOCK: a FIFO without a reader fails instead of waiting for one.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        fd = os.open(path, flags, 0o600)
    except (OSError, ValueError) as error:
        raise _refused(path, error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        _lock(fd)
        os.fchmod(fd, 0o600)
    except OSError as error:
        os.close(fd)
        raise _refused(path, error) from None
    return fd


def _lock(fd: int) -> None:
    """Raise OSError if another process writes the file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another server writes it") from None
    except OSError as error:
        # A file system without locks: two servers on one file are not told apart there.
        logger.info("spec-fsm: the trace is not locked: %s", error.strerror)


def _refused(path: str, error: Exception) -> TraceError:
    why = str(error)
    if isinstance(error, OSError):
        why = f"{errno.errorcode.get(error.errno or 0, 'error')}, {error.strerror}"
    return TraceError(f"trace file {path!r} cannot be written: {why}")


def _write_all(fd: int, raw: bytes) -> None:
    """Write whole lines; where that fails midway the line begun is cut off again."""
    view = memoryview(raw)
    written = 0
    try:
        while written < len(raw):
            written += os.write(fd, view[written:])
    except OSError:
        extra = written - (raw.rfind(b"\n", 0, written) + 1)
        if extra:
            os.ftruncate(fd, os.fstat(fd).st_size - extra)
        raise


def _plain(value: Any) -> Any:
    """A value that can be encoded: texts without lone surrogates, and texts for the rest."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and value.bit_length() < 64:
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


_SINKS: weakref.WeakSet[FileSink] = weakref.WeakSet()


def _in_child() -> None:
    for sink in list(_SINKS):
        sink._forget()
    _SINKS.clear()


os.register_at_fork(after_in_child=_in_child)

__all__ = ["CLOSE_S", "QUEUE_BYTES", "WRITE_EVERY_S", "FileSink", "problem"]
