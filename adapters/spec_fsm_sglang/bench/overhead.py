"""What the lifecycle costs: time inside `spec_fsm` per scheduler step, in the real engine.

The real scheduler and EAGLE-3 worker run on this CPU with a tiny model, so that the steps around
the clock are real and many; the clock runs only inside `spec_fsm`. Batches of several sizes, in
SPEC and in PLAIN (with its periodic flush). Steps that change the mode are left out; steps in
which requests join and leave are in.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm_sglang.bench.meter import Meter
    from spec_fsm_sglang.inprocess import Engine

SIZES = (1, 12, 64, 256)
STEPS = {"SPEC": 300, "PLAIN": 400}
"""Steps measured at each size: enough for a 99th percentile that is not the slowest step."""
PINS = {"SPEC": 1, "PLAIN": 2}
Step = dict[str, tuple[int, int]]
"""By method of `Lifecycle`: calls in one step, and nanoseconds inside them."""


@dataclass(frozen=True)
class Row:
    """One size in one mode. Times in microseconds inside `spec_fsm`, `step_ms` the whole step.

    calls: by method of `Lifecycle`, how often a step calls it (`each_step`), what one call takes
    (`us`) and what that adds to a step's mean (`share_us`): the shares add up to `mean_us`.
    slow: the same shares in the slowest hundredth of the steps.  empty_us: what a call that does
    nothing takes at the same places; each call's own includes as much.
    """

    b: int
    mode: str
    steps: int
    mean_us: float
    p50_us: float
    p99_us: float
    step_ms: float
    empty_us: float
    calls: dict[str, dict[str, float]]
    slow: dict[str, float]


def measure(progress: Callable[[str], None]) -> dict[str, Any]:
    """All sizes and modes; `mean_us` and `p99_us` are the worst of any size and mode."""
    engine = _engine()
    from spec_fsm_sglang.bench.meter import install

    meter = install(engine.scheduler.model_worker)
    rows = []
    for b in SIZES:
        for mode in STEPS:
            progress(f"{b} requests in {mode}")
            rows.append(_measure(engine, meter, b, mode))
    engine.close()
    return {
        "mean_us": max(row.mean_us for row in rows),
        "p99_us": max(row.p99_us for row in rows),
        "results": [asdict(row) for row in rows],
    }


def _engine() -> Engine:
    config = Config.of({"disable_above": max(SIZES) + 1, "dwell": 0})  # the mode is the pin's
    os.environ.update(config.to_env())
    cpu_ops.enable()
    from spec_fsm_sglang.inprocess import Engine
    from spec_fsm_sglang.tiny import write_pair

    pair = write_pair(Path(tempfile.mkdtemp()) / "pair")
    return Engine(
        model=pair.target,
        draft=pair.eagle3,
        steps=3,
        topk=1,
        num_draft_tokens=4,
        max_running_requests=max(SIZES) + 8,
        max_total_tokens=400_000,
    )


def _measure(engine: Engine, meter: Meter, b: int, mode: str) -> Row:
    controller = engine.scheduler.model_worker.spec_fsm
    controller.pin(PINS[mode])
    draw = random.Random(b)
    waiting = [_submit(engine, draw) for _ in range(b)]
    while controller.lifecycle.rows < b or controller.lifecycle.mode.name != mode:
        engine.step()
    meter.take()
    meter.empty_ns = 0
    samples: list[Step] = []
    started = time.perf_counter()
    while len(samples) < STEPS[mode]:
        before = controller.lifecycle.mode
        engine.step()
        step = meter.take()
        if controller.lifecycle.mode is before:
            samples.append(step)
        waiting = [rid for rid in waiting if not engine.outputs[rid].finished]
        while len(waiting) < b:
            waiting.append(_submit(engine, draw))
    elapsed = time.perf_counter() - started
    for rid in waiting:
        engine.abort(rid)
    engine.run_until_idle()
    return _row(b, mode, samples, (elapsed, meter.empty_ns))


def _row(b: int, mode: str, samples: list[Step], totals: tuple[float, int]) -> Row:
    """The figures of `samples`; totals: seconds of the whole run, nanoseconds of empty calls."""
    samples = sorted(samples, key=spent_us)
    spent = [spent_us(step) for step in samples]
    at = min(len(samples) - 1, int(len(samples) * 0.99))
    calls = by_call(samples)
    made = sum(figures["each_step"] for figures in calls.values()) * len(samples)
    return Row(
        b=b,
        mode=mode,
        steps=len(samples),
        mean_us=round(sum(spent) / len(spent), 3),
        p50_us=round(spent[len(spent) // 2], 3),
        p99_us=round(spent[at], 3),
        step_ms=round(totals[0] / len(samples) * 1000, 3),
        empty_us=round(totals[1] / made / 1000, 3),
        calls=calls,
        slow={name: figures["share_us"] for name, figures in by_call(samples[at:]).items()},
    )


def spent_us(step: Step) -> float:
    """Microseconds inside `spec_fsm` in one step."""
    return sum(ns for _calls, ns in step.values()) / 1000


def by_call(samples: list[Step]) -> dict[str, dict[str, float]]:
    """Calls a step, microseconds a call and a step of each method, the costliest first."""
    found = {}
    for name in {name for step in samples for name in step}:
        calls = sum(step.get(name, (0, 0))[0] for step in samples)
        us = sum(step.get(name, (0, 0))[1] for step in samples) / 1000
        found[name] = {
            "each_step": round(calls / len(samples), 3),
            "us": round(us / calls, 3),
            "share_us": round(us / len(samples), 3),
        }
    return dict(sorted(found.items(), key=lambda item: -item[1]["share_us"]))


def _submit(engine: Engine, draw: random.Random) -> str:
    prompt = [draw.randrange(3, 500) for _ in range(draw.randrange(4, 12))]
    # Lengths differ, so that requests finish and join all the time.
    return engine.submit(prompt, max_new_tokens=draw.randrange(60, 400))


__all__ = ["SIZES", "STEPS", "Row", "by_call", "measure", "spent_us"]
