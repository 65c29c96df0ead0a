"""A trace file costs a server nothing but lines: it never waits, never raises, never overwrites."""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from spec_fsm import FileSink, TraceError, read_trace, trace_file

START = {"kind": "start", "v": 2}


def write(sink: FileSink, lines: int) -> None:
    """A start and so many plans less one."""
    for i in range(lines):
        sink.write({"kind": "plan"} if i else START)


def fill(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """From now on the disk has so many bytes left."""
    real = os.write

    def full(fd: int, data: Any) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(fd, bytes(data[:room]))
        room -= written
        return written

    monkeypatch.setattr(trace_file.os, "write", full)


def test_a_file_is_the_owners_alone_and_whole(tmp_path: Path) -> None:
    """Mode 0600, also of a file that was there with another; every line, in order."""
    path = tmp_path / "trace.ndjson"
    path.write_text("old")
    path.chmod(0o644)
    sink = FileSink(path)
    write(sink, 5)
    sink.close()
    sink.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line["seq"] for line in read_trace(path)] == list(range(5))
    assert sink.status() == {
        "path": str(path), "writing": False, "lines": 5, "dropped": 0, "error": "",
    }


def test_a_sink_without_a_line_leaves_an_empty_file(tmp_path: Path) -> None:
    """Closed before its first line it needs no thread."""
    sink = FileSink(tmp_path / "trace.ndjson")
    sink.close()
    assert (tmp_path / "trace.ndjson").read_bytes() == b""


def test_the_first_error_is_the_one_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that hung past `close` and fails then ended the trace before: one line in the log."""
    sink = FileSink(tmp_path / "trace.ndjson")
    with caplog.at_level(logging.ERROR, logger="spec_fsm"):
        sink._stop(TimeoutError(errno.ETIMEDOUT, "too late"))
        sink._stop(OSError(errno.EIO, "broken"))
    sink.close()
    assert sink.error == "ETIMEDOUT: too late"
    assert len(caplog.records) == 1


def test_a_line_after_a_pause_is_written_too(tmp_path: Path) -> None:
    """The thread that wrote the first lines is still there for those that come later."""
    sink = FileSink(tmp_path / "trace.ndjson")
    write(sink, 2)
    thread = sink._thread
    until = time.monotonic() + 30
    while sink._pending.is_set() and time.monotonic() < until:
        time.sleep(0.01)
    assert not sink._pending.is_set()
    sink.write({"kind": "plan"})
    assert sink._thread is thread
    sink.close()
    assert len(list(read_trace(tmp_path / "trace.ndjson"))) == 3


@pytest.mark.parametrize(("fits", "left"), [(0, b"old\n"), (4, b"old\none\n"), (6, b"old\none\n")])
def test_a_write_that_fails_midway_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int, left: bytes
) -> None:
    """fits: bytes for which there is room, none, a line, or a line and a half."""
    path = tmp_path / "trace.ndjson"
    path.write_bytes(b"old\n")
    fill(monkeypatch, fits)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    with pytest.raises(OSError, match="No space left"):
        trace_file._write_all(fd, b"one\ntwo\n")
    os.close(fd)
    assert path.read_bytes() == left


def bad_paths(folder: Path) -> dict[str, Path]:
    """Paths no trace can go to."""
    os.mkfifo(folder / "fifo")
    (folder / "file").write_text("kept")
    return {
        "no folder": folder / "no" / "trace",
        "a folder": folder,
        "a FIFO": folder / "fifo",
        "a device": Path("/dev/null"),
        "a file as folder": folder / "file" / "trace",
        "a name too long": folder / ("x" * 300),
        "a NUL": Path(f"{folder}/a\0b"),
    }


def test_every_bad_path_is_refused_in_one_line(tmp_path: Path) -> None:
    """Whatever is wrong with it: a TraceError that names the path, at once, before any line."""
    for name, path in bad_paths(tmp_path).items():
        with pytest.raises(TraceError, match="cannot be written") as caught:
            FileSink(path)
        assert "\n" not in str(caught.value), name
        if name != "a NUL":
            assert trace_file.problem(path) == str(caught.value), name


def test_a_path_is_tried_without_a_trace_of_it(tmp_path: Path) -> None:
    """Trying a path makes no file and changes none."""
    path = tmp_path / "trace.ndjson"
    assert trace_file.problem(path) is None
    assert not path.exists()
    path.write_text("kept")
    assert trace_file.problem(path) is None
    assert path.read_text() == "kept"


def test_a_second_server_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """The file of a living writer is neither truncated nor written by another."""
    path = tmp_path / "trace.ndjson"
    first = FileSink(path)
    write(first, 3)
    assert "another server writes it" in str(trace_file.problem(path))
    with pytest.raises(TraceError, match="another server writes it"):
        FileSink(path)
    first.close()
    assert len(list(read_trace(path))) == 3
    FileSink(path).close()


def test_a_file_system_without_locks_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where files cannot be locked there is a trace, unlocked, and the log says so."""
    caplog.set_level(logging.INFO)

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(trace_file.fcntl, "flock", refuse)
    sink = FileSink(tmp_path / "trace.ndjson")
    write(sink, 2)
    sink.close()
    assert len(list(read_trace(tmp_path / "trace.ndjson"))) == 2
    assert "spec-fsm: the trace is not locked: no locks" in caplog.text


def test_the_writing_thread_has_a_name(tmp_path: Path) -> None:
    """A dump of a server's threads says whose it is, from the first line until the close."""
    sink = FileSink(tmp_path / "trace.ndjson")
    write(sink, 1)
    assert "spec-fsm-trace" in {thread.name for thread in threading.enumerate()}
    sink.close()


def test_a_full_disk_ends_the_trace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line with path and errno; whole lines stay; later lines are counted as dropped."""
    sink = FileSink(tmp_path / "trace.ndjson")
    fill(monkeypatch, 100)
    with caplog.at_level(logging.ERROR):
        write(sink, 50)
        sink.close()
        sink.write({"kind": "plan"})
    assert [record.getMessage() for record in caplog.records] == [
        f"spec-fsm: no more trace in {sink.path}, ENOSPC: No space left on device"
    ]
    assert (sink.status()["writing"], sink.error[:6]) == (False, "ENOSPC")
    assert sink.dropped == 1
    left = (tmp_path / "trace.ndjson").read_bytes()
    assert left.endswith(b"}\n")
    assert 0 < left.count(b"\n") < 50


def test_a_disk_that_hangs_costs_lines_and_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`write` never waits; what it drops stands in the trace with its count, `seq` counts on."""
    path, go, real = tmp_path / "trace.ndjson", threading.Event(), os.write
    monkeypatch.setattr(trace_file, "WRITE_EVERY_S", 0)

    def slow(fd: int, data: Any) -> int:
        go.wait(20)
        return real(fd, data)

    monkeypatch.setattr(trace_file.os, "write", slow)
    sink = FileSink(path, queue_bytes=500)
    write(sink, 200)
    lost = sink.dropped
    assert 100 < lost < 200
    go.set()
    while sink._put != sink._taken:
        pass
    sink.write({"kind": "plan"})
    for _ in range(200):
        sink.write({"kind": "plan"})
    sink.close()
    lines = list(read_trace(path))
    told = [line["lines"] for line in lines if line["kind"] == "dropped"]
    assert told[0] == lost
    assert sum(told) == sink.dropped
    assert sink.lines == len(lines)


def test_close_gives_up_on_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a process does not wait for ever."""
    go = threading.Event()
    monkeypatch.setattr(trace_file, "CLOSE_S", 0.05)
    monkeypatch.setattr(trace_file.os, "write", lambda _fd, data: go.wait(20) and len(data))
    sink = FileSink(tmp_path / "trace.ndjson")
    write(sink, 3)
    sink.close()
    assert sink.error.startswith("ETIMEDOUT")
    go.set()
    assert sink._thread is not None
    sink._thread.join(5)


def test_texts_no_encoder_takes_are_written_readably(tmp_path: Path) -> None:
    """Lone surrogates, huge numbers and odd objects in a line end nothing."""
    sink = FileSink(tmp_path / "trace.ndjson")
    sink.write(START)
    odd = {"rid": "a\ud800b", "n": 1 << 80, "of": [object(), {"k\udfff": (1.5, None, True)}]}
    sink.write({"kind": "plan", **odd})
    sink.close()
    line = list(read_trace(tmp_path / "trace.ndjson"))[1]
    assert (line["rid"], line["n"]) == ("a\\ud800b", str(1 << 80))
    assert line["of"][1] == {"k\\udfff": [1.5, None, True]}


def test_a_line_is_a_snapshot(tmp_path: Path) -> None:
    """What changes after `write` does not change the line."""
    sink, rids = FileSink(tmp_path / "trace.ndjson"), ["a"]
    sink.write({**START, "rids": rids})
    rids.append("b")
    sink.close()
    assert next(read_trace(tmp_path / "trace.ndjson"))["rids"] == ["a"]


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """A child has no part in its parent's file, and its end closes nothing of it."""
    sink = FileSink(tmp_path / "trace.ndjson")
    write(sink, 2)
    pid = os.fork()
    if pid == 0:  # pragma: no cover -- runs in the child
        sink.write({"kind": "plan"})
        sink.close()
        os._exit(0 if not sink._open else 1)
    assert os.waitpid(pid, 0)[1] == 0
    sink.write({"kind": "plan"})
    sink.close()
    assert len(list(read_trace(tmp_path / "trace.ndjson"))) == 3


def test_what_a_child_forgets(tmp_path: Path) -> None:
    """The handler that runs in a child lets go of every sink."""
    sink = FileSink(tmp_path / "trace.ndjson")
    write(sink, 2)
    trace_file._in_child()
    assert not sink._open
    assert sink not in trace_file._SINKS
    gc.collect()


SCRIPT = """
import os, signal, sys, time
from spec_fsm import FileSink
sink = FileSink(sys.argv[1])
for i in range(50):
    sink.write({"kind": "plan" if i else "start", "v": 2})
    if i == 40 and sys.argv[2] != "end":
        while sink._put != sink._taken: time.sleep(0.01)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "term":
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("how", "code", "least"),
    [("end", 0, 50), ("kill", -signal.SIGKILL, 41), ("term", -signal.SIGTERM, 41)],
)
def test_a_process_leaves_whole_lines(tmp_path: Path, how: str, code: int, least: int) -> None:
    """A process that ends leaves every line; one that is killed what was written, whole."""
    path = tmp_path / "trace.ndjson"
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path), how], check=False)
    assert done.returncode == code
    assert least <= len(list(read_trace(path))) <= 50
