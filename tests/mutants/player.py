"""A process that plays one configuration's histories with mutants, each in a fork.

    python -m mutants.player CONFIGURATION SOCKET

A warm configuration has its engine running: a mutant is put into the fork's functions. A cold one
has SGLang imported and nothing of the adapter: a fork imports the mutant and starts its own
engine. A connection is a job: `{"history", "mutant", "measure"}` in, what was found out.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutants import pool, put
from mutants.histories import CONFIGURATIONS, HISTORIES, History, Setup
from mutants.tree import Mutant


def main() -> None:
    """Serves until it is ended."""
    name, address = sys.argv[1:]
    setup = CONFIGURATIONS[name]
    folder = Path(tempfile.mkdtemp())
    play = cold(setup) if setup.cold else warm(setup, folder)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    while True:
        connection, _ = server.accept()
        if os.fork():
            connection.close()
            continue
        server.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with connection, connection.makefile("rw", encoding="utf-8") as stream:
            job = json.loads(stream.readline())
            signal.alarm(job["seconds"])
            faulthandler.dump_traceback_later(max(1, job["seconds"] - 2))
            stream.write(json.dumps(one(job, play)) + "\n")
            stream.flush()
        os._exit(0)


Play = Callable[[History, "Mutant | None"], None]


def one(job: dict[str, Any], play: Play) -> dict[str, Any]:
    """What became of one job: who caught it, after how long, which lines and arcs were run."""
    history = HISTORIES[job["history"]]
    mutant = None if job["mutant"] is None else Mutant(**job["mutant"])
    if mutant is not None:
        mutant = Mutant(**{**job["mutant"], "lines": tuple(job["mutant"]["lines"])})
    measure = start_measuring() if job["measure"] else None
    began, caught, text = time.monotonic(), "", ""
    try:
        if history.processes:
            from mutants import forks

            forks.in_place_of_processes(measure)
        play(history, mutant)
    except BaseException as error:
        caught, text = caught_by(error), f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began, 1)
    found = {"caught_by": caught, "text": " ".join(text.split())[:240], "seconds": seconds}
    return found if measure is None else {**found, **measured(measure)}


def caught_by(error: BaseException) -> str:
    """As the seeded faults name what caught them."""
    import fault_run

    return fault_run.caught_by(error)


def warm(setup: Setup, folder: Path) -> Play:
    """An engine that runs; a history goes over it as over a fresh one."""
    import torch

    from fuzz.process import start

    os.environ["SPEC_FSM_FLIGHT_DIR"] = str(folder)
    world = start(setup.configuration, folder, traced=False)
    world.scheduler.grammar_manager.grammar_backend.reset = lambda: None
    for history in HISTORIES.values():
        if history.configuration == setup.name:
            world.run(history.events)
            break
    torch.set_num_threads(1)

    def play(history: History, mutant: Mutant | None) -> None:
        import fault_run

        if not history.slip:  # whose play begins so itself
            fault_run.restart_loop(world)
        if mutant is not None and not put.into_running(mutant):
            return
        history.play(world)

    return play


def cold(setup: Setup) -> Play:
    """SGLang, ready to be started with an adapter that is still to be imported."""
    from mutants.cold import imported, play_cold

    imported()

    def play(history: History, mutant: Mutant | None) -> None:
        if mutant is not None:
            put.before_import(mutant)
        play_cold(setup, history)

    return play


def start_measuring() -> Any:
    """Coverage of the adapter from here on."""
    import coverage

    files = [str(pool.path_of(module)) for module in pool.modules()]
    measure = coverage.Coverage(branch=True, include=files, data_file=None)
    measure.start()
    return measure


def measured(measure: Any) -> dict[str, Any]:
    """Lines and arcs that were run, by module, also in forks of this process."""
    from mutants import forks

    return forks.with_forks(forks.of_coverage(measure))


if __name__ == "__main__":
    main()
