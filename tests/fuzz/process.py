"""Fuzzes one configuration in this process, and writes what it saw.

The configuration `model-beside` plays histories of the formal model instead of random ones: the
first N, or all of them, which takes as long as it takes.

    python -m fuzz.process NAME FOLDER [--examples N | --minutes M | --history FILE] [--seed S]

`FOLDER` receives `result.json` and the trace. A failure leaves its history in the result: stored
under `tests/scenarios/`, it is run again by every test run. Exit code 0 whatever was found;
anything else is a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.configurations import BESIDE, CONFIGURATIONS, MODEL, Configuration

if TYPE_CHECKING:
    from fuzz.world import World

BETWEEN_LOOKS = 4
"""Examples between two looks at the clock."""


def start(config: Configuration, folder: Path, *, traced: bool | None = None) -> World:
    """The world of a configuration, strict, with its files in `folder`."""
    from spec_fsm_sglang import cpu_ops
    from spec_fsm_sglang.config import Config

    traced = config.traced if traced is None else traced
    trace = folder / "trace.ndjson" if traced else None
    settings = config.fsm if trace is None else {**config.fsm, "trace": str(trace)}
    os.environ.update(Config.of(settings).to_env())
    os.environ["SPEC_FSM_STRICT"] = "1"
    cpu_ops.enable()
    from fuzz.world import World

    return World(config, folder, trace)


def fuzz(world: World, *, examples: int, minutes: float, seed: int | None) -> None:
    """`examples` of them, or as many as `minutes` allow if those are not 0.

    Ends early with the first that fails; `world.failure` then says what was wrong.
    """
    until = time.monotonic() + 60 * minutes
    if not minutes:
        some(world, examples, seed)
        return
    seed = seed or 0
    while world.failure is None and time.monotonic() < until:
        some(world, BETWEEN_LOOKS, seed)
        seed += 1


def some(world: World, examples: int, seed: int | None) -> None:
    """Examples from one seed; None: the same ones in every run."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import seed as seeded
    from hypothesis.stateful import run_state_machine_as_test

    from fuzz.machine import machine

    # An engine in which something raised stands anywhere, so nothing can be run again to shrink
    # it here: the history is kept as it is.
    chosen = settings(
        max_examples=examples, stateful_step_count=16, derandomize=seed is None, deadline=None,
        database=None, phases=(Phase.generate,), suppress_health_check=tuple(HealthCheck),
        print_blob=False, report_multiple_bugs=False,
    )
    test: Callable[..., None] = machine(world)
    if seed is not None:
        test = seeded(seed)(test)
    try:
        run_state_machine_as_test(test, settings=chosen)
    except Exception:
        if world.failure is None:
            raise


def replay(world: World, path: Path) -> None:
    """A stored history, from an idle engine to an idle engine."""
    try:
        world.run(json.loads(path.read_text(encoding="utf-8"))["history"])
    except Exception:
        if world.failure is None:
            raise


def beside(world: World, *, examples: int) -> dict[str, int]:
    """The first `examples` histories of the model, all of them if there are fewer."""
    from fuzz.beside import Beside, histories

    leader, known = Beside(world), histories()
    for history in known[:examples]:
        try:
            leader.play(history)
        except Exception:
            if world.failure is None:
                raise
            break
    return {
        "histories": leader.histories,
        "histories_known": len(known),
        "acts": leader.acts,
        "compared": leader.compared,
    }


def result(world: World) -> dict[str, Any]:
    """What one process saw, as JSON."""
    from spec_fsm_sglang.ownership import STRICT

    status = world.fsm.status()
    failure = world.failure
    return {
        "steps": world.steps,
        "examples": world.examples,
        "edges": _edges(world),
        "trace": _traced(world),
        "checks": status["checks"],
        "violations": status["violations"],
        "events": dict(world.kinds),
        "most_accepted": world.config.steps + 1,
        "accepted": {str(n): count for n, count in sorted(world.accepted.items())},
        "tokens": world.judge.tokens,
        "ties": world.judge.ties,
        "answers": world.judge.answers,
        "kv_positions": world.kv_positions,
        "worst_kv": world.worst_kv,
        "departures": dict(world.departures),
        "lost": world.lost,
        "modes": dict(world.modes),
        "writers": sorted({f"{file}|{function}" for file, function, _field in STRICT.writes}),
        "failure": "" if failure is None else "".join(traceback.format_exception(failure)),
        "history": world.failed_history,
    }


def _edges(world: World) -> dict[str, int]:
    """How often each edge that may change the mode was taken."""
    edges = {
        f"{source} {event} {target}": count
        for (source, event, target), count in world.lifecycle.transitions.items()
    }
    return {**edges, "RESEEDING SLICE_DONE RESEEDING": world.slices}


def _traced(world: World) -> dict[str, Any] | None:
    from spec_fsm_model.trace_check import check_file

    return None if world.trace is None else check_file(world.trace).as_dict()


def finish(world: World) -> None:
    """Ends the engine and writes the trace's last lines."""
    world.engine.close()
    world.lifecycle.close()


def main() -> None:
    """One configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*CONFIGURATIONS, MODEL])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--history", type=Path, help="play this stored history and nothing else")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    known = {**CONFIGURATIONS, MODEL: BESIDE}
    # A stored history may move the thresholds, which a trace has once.
    traced = None if chosen.history is None else False
    world = start(known[chosen.name], chosen.folder, traced=traced)
    began, cpu = time.monotonic(), time.process_time()
    played: dict[str, int] = {}
    if chosen.history is not None:
        replay(world, chosen.history)
    elif chosen.name == MODEL:
        played = beside(world, examples=chosen.examples)
    else:
        fuzz(world, examples=chosen.examples, minutes=chosen.minutes, seed=chosen.seed)
    spent = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    finish(world)
    found = {"name": chosen.name, **spent, **played, **result(world)}
    (chosen.folder / "result.json").write_text(json.dumps(found), encoding="utf-8")
    # The scheduler leaves threads behind that would keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
