"""What the core's calls of one decode step cost, in nanoseconds, at several batch sizes.

    python bench/core_steps.py [--steps 20000] [--json]

Each step makes the calls an engine makes in a scheduler iteration that changes no mode and no
membership (PLAIN includes the steps that carry a flush).  Every step is timed by itself with a
nanosecond clock; the clock's own cost is measured and not taken off.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from typing import TYPE_CHECKING

from spec_fsm import (
    Hidden,
    Lifecycle,
    Mode,
    Phase,
    Pin,
    Policy,
    PolicyConfig,
    Shape,
    SpecInfo,
    StashConfig,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES = (1, 12, 64, 256)
WARM_UP = 2_000


def server(mode: Mode, b: int) -> Lifecycle:
    """A lifecycle of b rows in SPEC or PLAIN, the tree of the original crash."""
    policy = Policy(PolicyConfig(disable_above=5, pin=Pin.SPEC))
    lifecycle = Lifecycle(Shape(4, 2, 16), policy, StashConfig())
    for i in range(b):
        lifecycle.joined(f"request-{i}", 100)
    if mode is Mode.PLAIN:
        lifecycle.pin = Pin.PLAIN
        lifecycle.boundary(b)
        lifecycle.plan_decode(b)
    return lifecycle


def spec_step(lifecycle: Lifecycle, b: int) -> None:
    """All calls of one SPEC step: three launches are checked."""
    check = lifecycle.check_launch
    lifecycle.boundary(b)
    plan = lifecycle.plan_decode(b)
    check(Phase.DRAFT, b, b * 4, b * 8, SpecInfo.DRAFT, Hidden.LAST)
    check(Phase.VERIFY, b, b * 16, b * 16, SpecInfo.VERIFY, Hidden.FULL)
    check(Phase.DRAFT_EXTEND, b, b * 16, b * 16, SpecInfo.DRAFT_EXTEND, Hidden.FULL)
    lifecycle.launched(plan.action, b, plan)
    lifecycle.settled(plan.action, b)


def plain_step(lifecycle: Lifecycle, b: int) -> None:
    """All calls of one PLAIN step; every sixteenth carries a flush."""
    lifecycle.boundary(b)
    plan = lifecycle.plan_decode(b)
    lifecycle.check_launch(Phase.PLAIN_DECODE, b, b, b, SpecInfo.NONE, Hidden.FULL)
    if plan.flush_upper:
        lifecycle.check_launch(Phase.FLUSH, b, b, b, SpecInfo.NONE, Hidden.NULL, width=b)
    lifecycle.launched(plan.action, b, plan)
    lifecycle.settled(plan.action, b)


def measure(step: Callable[[Lifecycle, int], None], mode: Mode, b: int, steps: int) -> list[int]:
    """Nanoseconds of each of `steps` steps."""
    lifecycle = server(mode, b)
    clock = time.perf_counter_ns
    for _ in range(WARM_UP):
        step(lifecycle, b)
    took = []
    for _ in range(steps):
        start = clock()
        step(lifecycle, b)
        took.append(clock() - start)
    if lifecycle.mode is not mode:
        msg = f"the mode changed to {lifecycle.mode.name}: the figures would mean nothing"
        raise RuntimeError(msg)
    return took


def figures(took: list[int]) -> dict[str, float]:
    """Mean, median and p99 of a sample, in microseconds."""
    return {
        "mean_us": statistics.fmean(took) / 1e3,
        "median_us": statistics.median(took) / 1e3,
        "p99_us": statistics.quantiles(took, n=100)[98] / 1e3,
    }


def main() -> None:
    """Print a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000, help="timed steps a figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results = {
        f"{mode.name} b={b}": figures(measure(step, mode, b, options.steps))
        for mode, step in ((Mode.SPEC, spec_step), (Mode.PLAIN, plain_step))
        for b in BATCHES
    }
    if options.json:
        print(json.dumps({"python": platform.python_version(), "results": results}))
        return
    print(f"{'':12}  mean us  median us  p99 us")
    for name, row in results.items():
        print(f"{name:12}  {row['mean_us']:7.2f}  {row['median_us']:9.2f}  {row['p99_us']:6.2f}")


if __name__ == "__main__":
    main()
