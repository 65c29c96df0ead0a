"""Plays one history with each slip, once and for ever; each in a fork of one warm process.

    python recovery_run.py overlap|serial RESULT_FILE [SLIP:once|SLIP:ever|CASE ...]
    python recovery_run.py all

A server that recovers, with every check on; what each child saw is written as JSON.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fault_run
from fault_run import restart_loop
from fuzz.configurations import TREE, Configuration
from fuzz.process import start
from fuzz.requests import Asked
from fuzz.world import Event, World
from recovery_slips import SLIPS, raised

FSM = {
    "disable_above": 4, "enable_at": 3, "dwell": 2, "flush_every": 4, "slice_tokens": 6,
    "stash_width": 64, "checks": True,
}
POOL = {"max_total_tokens": 2000, "chunked_prefill_size": 64, "max_running_requests": 16}
HOLD = 6
LIMIT = 3
GAVE_UP = "spec-fsm could not serve this request"

BEFORE: list[Event] = [
    ["admit", 10, "fresh", 45, "greedy"],
    ["admit", 5, "fresh", 30, "logprobs"],
    ["step", 4],
]
AFTER: list[Event] = [
    ["step", 2],
    ["admit", 9, "fresh", 9, "greedy"],
    ["admit", 90, "fresh", 24, "greedy"],
    ["admit", 3, "fresh", 12, "regex"],
    ["admit", 4, "fresh", 1, "greedy"],
    ["step", 9],
    ["admit", 2, "finished", 20, "greedy"],
]
LAST: list[Event] = [["admit", 6, "fresh", 40, "greedy"], ["admit", 7, "fresh", 40, "greedy"]]


class Server:
    """The world of one child, with a slip that strikes."""

    def __init__(self, world: World, times: float) -> None:
        self.world, self.times, self.struck = world, times, 0
        self.error = ""

    def strike(self) -> None:
        """Raise what the slip raises, as often as it has to."""
        if self.struck < self.times:
            self.struck += 1
            raise raised(self.error)

    def play(self, events: list[Event]) -> None:
        """Events of the history."""
        for event in events:
            self.world.do(*event)

    def drain(self) -> None:
        """Step until nothing runs; what failed with the error it has to is not judged."""
        self.world._drain()
        for asked in self.world.asked:
            reason = self.world.engine.outputs[asked.rid].finished_reason or {}
            asked.aborted |= self.gave_up(asked) and reason["status_code"] == 500

    def gave_up(self, asked: Asked) -> bool:
        """Whether a request ended with the error of a request that cannot be served."""
        reason = self.world.engine.outputs[asked.rid].finished_reason or {}
        return str(reason.get("message", "")).startswith(GAVE_UP)

    def seen(self) -> dict[str, Any]:
        """What the test compares; raises where an answer is wrong or the pool is not whole."""
        world = self.world
        world._judge()
        world._pool_is_whole()
        return {
            "status": world.fsm.status(),
            "asked": len(world.asked),
            "gave_up": sum(self.gave_up(asked) for asked in world.asked),
            "mode": world.lifecycle.mode.name,
            "struck": self.struck,
        }


def slipped(world: World, name: str, times: float) -> dict[str, Any]:
    """The history with one slip."""
    slip, server = SLIPS[name], Server(world, times)
    server.error = slip.error
    server.play(BEFORE)
    slip.put(world, server.strike)
    server.play(AFTER)
    server.drain()
    first = server.seen()
    first["record"] = record(first["status"]["flight_record"])
    folder = Path(world.fsm.recovery.records._folder)
    first["records"] = len(list(folder.glob(f"*-{os.getpid()}-*")))
    server.times = 0
    if times > 1:
        world.fsm.pin(0)
    server.play(LAST)
    server.drain()
    return {"first": first, "then": server.seen()}


def record(path: str | None) -> dict[str, Any]:
    """What a flight record holds, in short."""
    if path is None:
        return {"mode": None}
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    found["mode"] = stat.S_IMODE(os.stat(path).st_mode)
    found["lines"] = [line["kind"] for line in found["lines"]]
    return dict(found)


CASES: dict[str, Callable[[World], dict[str, Any]]] = {}


def case(function: Callable[[World], dict[str, Any]]) -> Callable[[World], dict[str, Any]]:
    """Makes `function` a case under its own name."""
    CASES[function.__name__] = function
    return function


@case
def strict(world: World) -> dict[str, Any]:
    """`SPEC_FSM_STRICT=1` or the option: the error leaves the loop, and a record with it."""
    from spec_fsm_sglang.config import Config
    from spec_fsm_sglang.recovery import Recovery

    raises = {}
    for variable in ("0", "1"):
        for option in ("recover", "raise"):
            os.environ["SPEC_FSM_STRICT"] = variable
            config = Config.of({**FSM, "on_violation": option})
            raises[f"{variable} {option}"] = Recovery(world.fsm, config)._strict
    world.fsm.recovery._strict = True
    return {"raises": raises, **ended_by(world, "guard_verify")}


@case
def device(world: World) -> dict[str, Any]:
    """Memory of the device ran out beside a plain launch: the server ends, with a record."""
    world.fsm.pin(2)
    return ended_by(world, "plain_launched", torch.OutOfMemoryError("CUDA out of memory"))


@case
def of_sglang(world: World) -> dict[str, Any]:
    """SGLang's own code raises in a speculative round: the server ends, with a record."""
    model = world.worker.target_worker.model_runner.model

    def broken(*_args: Any, **_kw: Any) -> Any:
        raise RuntimeError("by a model")

    model.forward = broken
    return ended_by(world, "guard_seed_extend")


def ended_by(world: World, name: str, error: Exception | None = None) -> dict[str, Any]:
    """How the scheduler's loop ends with a slip that nobody recovers from."""
    server = Server(world, 1)
    server.error = SLIPS[name].error
    SLIPS[name].put(world, server.strike if error is None else lambda: raises(error))
    try:
        server.play([*BEFORE, *AFTER])
        world._drain()
    except Exception as found:
        path = world.fsm.status()["flight_record"]
        return {"ended": type(found).__name__, "record": record(path)}
    return {"ended": ""}


def raises(error: Exception) -> None:
    """Raise `error`."""
    raise error


@case
def holds(world: World) -> dict[str, Any]:
    """Three violations far apart: what each pins, for how long, and what releases the last."""
    server, fsm, lifecycle = Server(world, 0), world.fsm, world.lifecycle
    server.error = "ShapeViolation"
    SLIPS["guard_verify"].put(world, server.strike)
    held = []
    for n in range(1, LIMIT + 1):
        server.times = n
        server.play([["admit", 6, "fresh", 30, "greedy"]])
        while server.struck < n:
            world.do("step", 1)
        world.do("step", 1)
        held.append([fsm.recovery.hold, fsm.status()["pinned_for"]])
        steps = 0
        while fsm.recovery.hold > 0:
            steps += 1
            world.do("step", 1)
        held[-1].append(steps)
        server.drain()
    modes = []
    for code in (0, 1, 0):
        if code != 0 or modes:
            fsm.pin(code)
        server.play([["admit", 6, "fresh", 15, "greedy"]])
        server.drain()
        modes.append([lifecycle.mode.name, fsm.status()["pin"], fsm.recovery.hold])
    return {"held": held, "modes": modes, **server.seen()}


@case
def a_law(world: World) -> dict[str, Any]:
    """No stand-in: plain launches keep `spec_info`, and the guard finds each (I1a)."""
    import faults

    server = Server(world, 0)
    server.play(BEFORE)
    faults.keep_spec_info(world)
    server.play(AFTER)
    server.drain()
    return server.seen() | {"violations": dict(world.lifecycle.checks.violations)}


def problem(name: str, found: dict[str, Any], *, recorded: bool = True) -> str:
    """What is wrong with a child's history, or empty."""
    if "error" in found:
        return str(found)
    (first, then), once = (found["first"], found["then"]), name.endswith(":once")
    status, slip = first["status"], SLIPS[name.partition(":")[0]]
    # A grammar may be ahead of the tokens that were lost with their result.
    lost = name == "resolved:once"
    held = status["recoveries"] >= LIMIT
    expected = {
        "struck": first["struck"] > 0,
        "counted": status["violations"] == first["struck"] or not once,
        "recovered": status["recoveries"] == 1 if once else status["recoveries"] > 1,
        "held": status["pinned_by_violation"] == held or not held,
        "plain while held": first["mode"] == "PLAIN" or not held,
        "failed": first["gave_up"] <= int(lost) if once or not slip.plain else first["gave_up"] > 0,
        "recorded": (first["record"].get("reason") == "violation") is recorded,
        "named": not recorded or first["record"]["violation"]["type"] == slip.error,
        "as good as new": then["mode"] == "SPEC" and not then["status"]["pinned_by_violation"],
        "none failed since": then["gave_up"] == first["gave_up"],
    }
    wrong = [what for what, holds in expected.items() if not holds]
    return f"{name}: not {', '.join(wrong)}: {found}" if wrong else ""


def main() -> None:
    """Every slip, or those named, of one configuration; `all`: of both, judged."""
    if sys.argv[1] == "all":
        sys.exit(everything())
    kind, target, *chosen = sys.argv[1:]
    folder = Path(tempfile.mkdtemp())
    if kind == "serial":
        # A file: no record can be written, and that is no reason to end.
        folder = folder / "file"
        folder.touch()
    os.environ["SPEC_FSM_FLIGHT_DIR"] = str(folder)
    config = Configuration({**TREE, **POOL, "overlap": kind == "overlap"}, FSM, traced=False)
    world = start(config, Path(tempfile.mkdtemp()))
    # A fork cannot compile grammars, whose compiler has threads; so a flush shall keep them.
    world.scheduler.grammar_manager.grammar_backend.reset = lambda: None
    world.run([*BEFORE, *AFTER, *LAST])
    torch.set_num_threads(1)  # a fork has no threads of OpenMP's
    slips = [f"{name}:{times}" for name in SLIPS for times in ("once", "ever")]
    found = {}
    for name in chosen or slips:
        found[name] = fault_run.in_fork(world, name, played)
        Path(target).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


def everything() -> int:
    """Play every slip in both configurations; a line each, and what is wrong."""
    wrong = total = 0
    for kind in ("overlap", "serial"):
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "found.json")
            with Path(folder, "log").open("w", encoding="utf-8") as log:
                command = [sys.executable, __file__, kind, str(target)]
                subprocess.run(command, stdout=log, stderr=log, check=True)
            for name, found in json.loads(target.read_text(encoding="utf-8")).items():
                told = problem(name, found, recorded=kind == "overlap")
                wrong, total = wrong + bool(told), total + 1
                status = found.get("first", {}).get("status", {})
                print(f"{kind} {name}: {status.get('recoveries')} recoveries, "
                      f"{status.get('failed_by_violation')} failed{told and f'; WRONG {told}'}")
    print(f"recovery: {total} histories, {wrong} wrong")
    return int(wrong > 0)


def played(world: World, name: str) -> dict[str, Any]:
    """One child's history; "error" says how it ended if it did not come to its end."""
    began = time.process_time()
    recovery = world.fsm.recovery
    recovery._strict, recovery.first_hold = False, HOLD
    check_kv = world.on_check_kv
    # Until the recovery the ledger is what is in doubt.
    world.on_check_kv = lambda: None if recovery.due else check_kv()
    restart_loop(world)
    world.begin()
    slip, _, times = name.partition(":")
    try:
        if slip in SLIPS:
            found = slipped(world, slip, 1 if times == "once" else 1 << 30)
        else:
            found = CASES[slip](world)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}", "events": len(world.history)}
        found["violation"] = str(recovery.due)
    return found | {"seconds": round(time.process_time() - began, 2)}


if __name__ == "__main__":
    main()
