"""Processes that tests start, as forks of this one: only those have the mutant it has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import live_process

TESTS = Path(__file__).resolve().parent.parent
_KEPT = Path(tempfile.gettempdir()) / "unmeasured"
_MEASURE: Any = None


def in_place_of_processes(measure: Any) -> None:
    """From here on; `measure`: a running `coverage`, which the forks then continue, or None."""
    import live

    global _KEPT, _MEASURE
    _KEPT, _MEASURE = Path(tempfile.mkdtemp()), measure
    live._in_process = lambda script, arguments, log: played(  # type: ignore[assignment]
        [script, *arguments], live.engine_environ(), log, live.SECONDS, os.devnull
    )
    started = subprocess.run

    def run(command: Any, **how: Any) -> Any:
        scripts = [part for part in command if str(part).startswith(str(TESTS))]
        if not scripts or not scripts[0].endswith(".py"):
            return started(command, **how)
        return as_run(command[command.index(scripts[0]) :], **how)

    subprocess.run = run  # type: ignore[assignment]


def as_run(
    arguments: list[str], *, env: dict[str, str], timeout: float, **how: Any
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns, its two outputs in one."""
    log, given = _KEPT / "log", _KEPT / "input"
    log.write_text("")
    given.write_text(how.get("input", ""))
    code = played(arguments, env, str(log), int(timeout), str(given))
    text = log.read_text(encoding="utf-8", errors="replace")
    return subprocess.CompletedProcess(arguments, code, text, text)


def played(command: list[str], environ: dict[str, str], log: str, seconds: int, given: str) -> int:
    """The exit code of a script, with arguments, that runs in a fork as a program of its own."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        os.dup2(os.open(given, os.O_RDONLY), 0)
        end = os._exit

        def ending(code: int) -> None:
            keep()
            end(code)

        os._exit = ending  # type: ignore[assignment]
        live_process.child(command[0], command[1:], environ, log)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def keep() -> None:
    """Leaves what this fork ran for the process that measures."""
    if _MEASURE is not None:
        found = of_coverage(_MEASURE)
        (_KEPT / f"{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


def of_coverage(measure: Any) -> dict[str, dict[str, list[Any]]]:
    """Lines and arcs that were run, by module."""
    measure.stop()
    data = measure.get_data()
    files = {Path(file).stem: file for file in data.measured_files()}
    return {
        "lines": {name: sorted(data.lines(file)) for name, file in files.items()},
        "arcs": {name: sorted(data.arcs(file)) for name, file in files.items()},
    }


def with_forks(found: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
    """What this process and all its forks ran."""
    for path in _KEPT.glob("*.json"):
        theirs = json.loads(path.read_text(encoding="utf-8"))
        for kind, by_module in theirs.items():
            for module, lines in by_module.items():
                known = {tuple(n) if kind == "arcs" else n for n in found[kind].get(module, ())}
                more = {tuple(n) if kind == "arcs" else n for n in lines}
                found[kind][module] = sorted(known | more)
    return found


__all__ = ["in_place_of_processes", "of_coverage", "with_forks"]
