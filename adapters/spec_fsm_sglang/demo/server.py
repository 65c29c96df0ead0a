"""A SGLang server in a process of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from spec_fsm.errors import SpecFsmError

START_S = 300.0
STOP_S = 60.0


class ServerFailed(SpecFsmError):
    """The server did not come up or died; the message ends with the end of its log."""


@dataclass(frozen=True)
class Server:
    """A server that answers at `url`."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> int:
        """Asks it to stop and ends what is left after 60 s; the exit code, 0 when it complied."""
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


@contextmanager
def running(flags: Sequence[str], log: Path) -> Iterator[Server]:
    """Runs `spec-fsm serve` with `flags` on a free port; yields it once it answers.

    Output goes to `log`. Raises ServerFailed when it does not answer within 300 s or ends
    before. Leaving the block stops it.
    """
    port = _free_port()
    command = [sys.executable, "-m", "spec_fsm_sglang.cli", "serve", *flags]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
            env=environment(),
        )
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        _wait_until_healthy(server, log)
        yield server
    finally:
        server.stop()


def environment() -> dict[str, str]:
    """This process's, with half the cores for tensor work unless it says how many.

    Operators on few rows are short. With a thread on every core each of them waits for whatever
    else wants a core, here 20 times as long as it computes as soon as one other process runs.
    """
    threads = max(1, (os.cpu_count() or 1) // 2)
    return {"OMP_NUM_THREADS": str(threads), **os.environ}


def end_with_parent() -> None:
    """Linux sends SIGTERM when its parent dies, so that a killed one leaves no process behind."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_healthy(server: Server, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        code = server.process.poll()
        if code is not None:
            raise ServerFailed(f"the server ended with code {code}:\n{tail(log)}")
        with suppress(httpx.HTTPError):
            if httpx.get(f"{server.url}/health", timeout=10).status_code == 200:
                return
        time.sleep(0.5)
    raise ServerFailed(f"the server did not answer within {START_S:.0f} s:\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


__all__ = ["Server", "ServerFailed", "end_with_parent", "environment", "running", "tail"]
