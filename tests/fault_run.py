"""Plays the histories with each seeded fault; each in a fork of one warm process.

    python fault_run.py overlap|serial RESULT_FILE [FAULT ...]

An engine starts once. Every fault runs in a forked child, so that what it breaks is gone with it;
first a child without any shows that the histories alone are clean.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fault_kit import known
from fuzz.configurations import TREE, Configuration
from fuzz.process import start
from fuzz.world import Event, World, Wrong

FSM = {
    "disable_above": 4, "enable_at": 3, "dwell": 2, "flush_every": 4, "slice_tokens": 6,
    "stash_width": 64, "checks": True,
}
POOL = {"max_total_tokens": 2000, "chunked_prefill_size": 64, "max_running_requests": 16}
NONE = "none"
Play = Callable[[World, str], dict[str, Any]]
HANGS = 180
"""Seconds after which a child is ended."""

HISTORY: list[Event] = [
    ["admit", 10, "fresh", 60, "greedy"],
    ["admit", 5, "fresh", 50, "logprobs"],
    ["admit", 7, "fresh", 40, "greedy"],
    ["step", 5],
    ["admit", 9, "fresh", 9, "greedy"],
    ["admit", 3, "fresh", 12, "regex"],
    ["admit", 4, "fresh", 3, "greedy"],
    ["step", 7],
    ["check_kv"],
    ["new_weights"],
    ["step", 25],
    ["idle", 1],
    ["admit", 10, "fresh", 60, "greedy"],
    ["admit", 12, "fresh", 40, "greedy"],
    ["step", 3],
    ["pin", 2],
    ["step", 6],
    ["check_kv"],
    ["admit", 3, "fresh", 2, "greedy"],
    ["step", 5],
    ["pin", 1],
    ["step", 3],
    ["check_kv"],
    # Some end in PLAIN, between two flushes; then one goes on with what each has left.
    ["pin", 2],
    ["admit", 8, "fresh", 6, "greedy"],
    ["step", 12],
    ["admit", 2, "finished", 40, "greedy"],
    ["admit", 2, "finished", 40, "greedy"],
    ["step", 2],
    ["check_kv"],
    ["pin", 0],
    ["idle", 0],
    # Rows that end in the very round a drain waits for.
    *[["admit", 5 + n, "fresh", n, "greedy"] for n in (2, 3, 4, 12)],
    ["step", 2],
    ["pin", 2],
    ["step", 4],
    ["pin", 0],
    ["idle", 0],
    # One row may accept the same by chance.
    *[["rounds", 12 + 5 * gap, gap] for gap in (3, 6, 9, 14)],
]

HISTORIES: dict[str, list[Event]] = {
    "main": HISTORY,
    # The rows of one batch after a gap, each against a twin.
    "seeds": [["seeds", 5]],
    # Requests that are aborted one step after the other, so that not all are at a flush.
    "aborted": [
        *[["admit", 5 + n, "fresh", 60, "greedy"] for n in range(4)],
        ["step", 4], ["pin", 2], ["step", 9],
        *[event for n in (3, 2, 1) for event in (["abort", n], ["step", 1])],
        ["step", 3], ["pin", 0], ["idle", 0],
    ],
    "answers": [["admit", 5, "fresh", 12, "logprobs"], ["step", 2], ["pin", 2], ["idle", 0]],
    "operator": [["admit", 5, "fresh", 9, "greedy"], ["step", 3], ["operator", 2], ["idle", 0]],
}


def main() -> None:
    """Every fault of one configuration."""
    kind, target, *chosen = sys.argv[1:]
    overlap = kind == "overlap"
    world = warm(kind)
    names = chosen or [name for name, fault in known().items() if fault.overlap is overlap]
    found = {}
    for name in [NONE, *names]:
        found[name] = in_fork(world, name)
        Path(target).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


def warm(kind: str) -> World:
    """A running engine, of which each fork plays one fault."""
    config = Configuration({**TREE, **POOL, "overlap": kind == "overlap"}, FSM, traced=False)
    world = start(config, Path(tempfile.mkdtemp()))
    # A fork cannot compile grammars, whose compiler has threads; so a flush shall keep them.
    world.scheduler.grammar_manager.grammar_backend.reset = lambda: None
    world.run(HISTORY)
    torch.set_num_threads(1)  # a fork has no threads of OpenMP's
    return world


def in_fork(world: World, name: str, play: Play | None = None) -> dict[str, Any]:
    """What became of the history with the fault `name`, run by a child: `played`, or `play`."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(HANGS)
        faulthandler.dump_traceback_later(HANGS - 5)
        with os.fdopen(write, "w", encoding="utf-8") as pipe:
            json.dump((play or played)(world, name), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        return {"caught_by": "the child died", "text": "", "at": 0, "seconds": 0.0}
    found: dict[str, Any] = json.loads(text)
    return found


def played(world: World, name: str, events: int | None = None) -> dict[str, Any]:
    """The check that caught the fault, or an empty one."""
    began = time.monotonic()
    restart_loop(world)
    if name != NONE:
        known()[name].put(world)
    try:
        for history in HISTORIES if name == NONE else [known()[name].history]:
            if events is None or events == len(HISTORIES[history]):
                world.run(HISTORIES[history])
                continue
            world.begin()
            for event in HISTORIES[history][:events]:
                world.do(*event)
    except Exception as error:
        caught, text = caught_by(error), f"{type(error).__name__}: {error}"
    else:
        caught, text = "", ""
    seconds = round(time.monotonic() - began, 1)
    return {"caught_by": caught, "text": text[:300], "at": len(world.history), "seconds": seconds}


def restart_loop(world: World) -> None:
    """A fork has but one thread: the scheduler's loop begins anew, in one of its own."""
    from spec_fsm_sglang.inprocess import _SteppedLoop

    # The threads of the process group are gone too; with one rank there is nothing to reduce.
    torch.distributed.all_reduce = lambda *args, **kw: None
    engine = world.engine
    engine._loop = _SteppedLoop(engine.scheduler.run_event_loop)
    engine._loop.start()


def caught_by(error: BaseException) -> str:
    """An invariant's id, an error's class, or the fuzzer's check by what it says."""
    if isinstance(error, Wrong):
        text = str(error)
        for check in ("draft KV", "new weights", "rounds", "seeds", "operator", "metrics"):
            if text.startswith(check):
                return check
        return "answers" if "wrong answers" in text else "pool" if "idle with" in text else text
    invariant = getattr(error, "invariant", None)
    if invariant:
        return str(invariant)
    if type(error).__module__.startswith("spec_fsm"):
        return type(error).__name__
    return "SGLang"


if __name__ == "__main__":
    main()
