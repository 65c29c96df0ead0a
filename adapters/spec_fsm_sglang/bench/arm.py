"""One server of a side-by-side measurement: the real engine in a process of its own.

SGLang allows one scheduler a process, so each arm is one. An arm answers commands, one JSON
object a line, and stands still in between: its scheduler waits at a boundary, so that arms can
take turns on one device without disturbing each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import IO, Any

import msgspec

from spec_fsm.errors import SpecFsmError
from spec_fsm_sglang.bench.load import ClosedLoop, Load, Measured
from spec_fsm_sglang.config import ENV_VAR
from spec_fsm_sglang.demo.server import end_with_parent, environment, tail


class ArmFailed(SpecFsmError):
    """An arm's process ended or an order failed; the message ends with its log."""


class Command(msgspec.Struct, frozen=True):
    """What an arm is told.

    verb: `start` (engine: keyword arguments of `inprocess.Engine`), `load` (load: the closed loop
    to keep running), `run` and `profile` (iterations of it), `end` (of it), `recover` (prompts,
    requests, gap, rounds: see `recovery.recover`), `switch` and `flip` (load, gap, iterations:
    see `switch.cycle`), `profile_flips` (load, iterations), `rehearse` (see `switch.rehearse`),
    `pin` (pin, one of the controller's codes), `status`.
    """

    verb: str
    engine: dict[str, Any] = {}
    load: Load | None = None
    iterations: int = 0
    prompts: list[list[int]] = []
    requests: int = 0
    gap: int = 0
    rounds: int = 0
    pin: int = 0


class Reply(msgspec.Struct, frozen=True):
    """An arm's answer; `error` is the traceback when the command failed."""

    value: Any = None
    error: str = ""


class Arm:
    """The driver's end of an arm's process."""

    def __init__(self, name: str, log: Path, environ: dict[str, str] | None = None) -> None:
        """Starts the process; `environ` comes on top of this one's, without its configuration."""
        self.name = name
        self._log = log
        base = {k: v for k, v in environment().items() if k != ENV_VAR}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                preexec_fn=end_with_parent,
                env=base | (environ or {}),
            )

    def send(self, verb: str, **fields: Any) -> None:
        """Hands a command over without waiting for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(Command(verb, **fields)) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("its process ended") from None

    def receive(self) -> Any:
        """Waits for the answer to the last `send`. Raises ArmFailed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed("its process ended")
        reply = msgspec.json.decode(line, type=Reply)
        if reply.error:
            raise self._failed(reply.error.strip())
        return reply.value

    def call(self, verb: str, **fields: Any) -> Any:
        """`send` and `receive`."""
        self.send(verb, **fields)
        return self.receive()

    def run(self, iterations: int) -> Measured:
        """Measures `iterations` steady iterations of the load."""
        return msgspec.convert(self.call("run", iterations=iterations), Measured)

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failed(self, why: str) -> ArmFailed:
        return ArmFailed(f"arm {self.name}: {why}\n{tail(self._log)}")


class _Server:
    """The arm's own end: an engine and the load it is under."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._loop: ClosedLoop | None = None

    def answer(self, command: Command) -> Any:
        return getattr(self, f"_{command.verb}")(command)

    def _start(self, command: Command) -> Any:
        from spec_fsm_sglang.inprocess import Engine

        arguments = dict(command.engine)
        for name in ("model", "draft"):
            if arguments.get(name):
                arguments[name] = Path(arguments[name])
        self._engine = Engine(**arguments)
        # SGLang's HTTP server does so too before it calls itself ready.
        self._engine.submit([5, 6, 7, 8], max_new_tokens=8)
        self._engine.run_until_idle()
        self._engine.outputs.clear()
        return self._status(command)

    def _load(self, command: Command) -> None:
        assert command.load is not None
        if self._loop is not None:
            self._loop.end()
        self._loop = ClosedLoop(self._engine, command.load)

    def _run(self, command: Command) -> Measured:
        assert self._loop is not None
        return self._loop.run(command.iterations)

    def _recover(self, command: Command) -> Any:
        from spec_fsm_sglang.bench.recovery import recover

        return recover(self._engine, command.prompts, command.requests, command.gap, command.rounds)

    def _switch(self, command: Command) -> Any:
        from spec_fsm_sglang.bench.switch import cycle

        assert command.load is not None
        return cycle(self._engine, command.load, command.gap, command.iterations)

    def _flip(self, command: Command) -> Any:
        from spec_fsm_sglang.bench.switch import flip

        assert command.load is not None
        return flip(self._engine, command.load, command.iterations)

    def _rehearse(self, _command: Command) -> None:
        from spec_fsm_sglang.bench.switch import rehearse

        rehearse(self._engine)

    def _pin(self, command: Command) -> None:
        self._engine.scheduler.model_worker.spec_fsm.pin(command.pin)

    def _profile(self, command: Command) -> Any:
        from spec_fsm_sglang.bench.profile import profiled

        assert self._loop is not None
        loop = self._loop

        def run() -> int:
            loop.run(command.iterations)
            return command.iterations

        return profiled(run)

    def _profile_flips(self, command: Command) -> Any:
        from spec_fsm_sglang.bench.profile import profiled
        from spec_fsm_sglang.bench.switch import flip

        load = command.load
        assert load is not None
        return profiled(lambda: flip(self._engine, load, command.iterations)["iterations"])

    def _end(self, _command: Command) -> None:
        if self._loop is not None:
            self._loop.end()
            self._loop = None

    def _status(self, _command: Command) -> Any:
        scheduler = self._engine.scheduler
        controller = getattr(scheduler.model_worker, "spec_fsm", None)
        found = {"kv_tokens": int(scheduler.max_total_num_tokens)}
        if controller is not None:
            found["spec_fsm"] = controller.status()
        return found


def serve(commands: IO[bytes], replies: IO[bytes]) -> None:
    """In the arm's process: answers commands until the driver closes the pipe."""
    server = _Server()
    for line in commands:
        try:
            reply = Reply(server.answer(msgspec.json.decode(line, type=Command)))
        except Exception:
            reply = Reply(error=traceback.format_exc())
        replies.write(msgspec.json.encode(reply) + b"\n")
        replies.flush()


def main() -> None:
    """Entry point of the arm's process."""
    # What SGLang prints must not stand between the replies.
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, replies)
    os._exit(0)


if __name__ == "__main__":
    main()


__all__ = ["Arm", "ArmFailed", "Command", "Reply"]
