"""What the core's calls of one decode step cost, in microseconds, at several batch sizes.

    python bench/core_steps.py [--steps 20000] [--json]

Each step makes the calls an engine makes in a scheduler iteration that changes no mode and no
membership (PLAIN includes the steps that carry a flush), once by the plain calls and once the
quick way: launches compared with the remembered ones, one `decide`, results counted.

The steps come one after the other, so code and data stay in the caches.  In a server they do not:
there a call costs several times as much, however little it does, which is what the quick way is
for.  `spec-fsm bench overhead` measures that in the real engine.  `clock` is an empty step measured
the same way; it is not taken off.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from typing import TYPE_CHECKING

from spec_fsm import (
    Action,
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

    Step = Callable[[Lifecycle, int], None]

BATCHES = (1, 12, 64, 256)
WARM_UP = 2_000
LAUNCHES = {
    Action.SPECULATE: (
        (Phase.DRAFT, (4, 8, SpecInfo.DRAFT, Hidden.LAST)),
        (Phase.VERIFY, (16, 16, SpecInfo.VERIFY, Hidden.FULL)),
        (Phase.DRAFT_EXTEND, (16, 16, SpecInfo.DRAFT_EXTEND, Hidden.FULL)),
    ),
    Action.PLAIN: ((Phase.PLAIN_DECODE, (1, 1, SpecInfo.NONE, Hidden.FULL)),),
}
"""Tokens and slots a row, spec_info and hidden capture of the launches of each action."""


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


def quick_step(lifecycle: Lifecycle, b: int) -> None:
    """The same step by one `decide`, its result by a count."""
    plan = lifecycle.decide(b, b)
    for phase, facts in LAUNCHES[plan.action]:
        law = lifecycle.laws[phase]
        if law is not None and law[:4] == (facts[2], facts[3], facts[0], facts[1]):
            lifecycle.checks.launches += 1
        else:
            lifecycle.check_launch(phase, b, facts[0] * b, facts[1] * b, *facts[2:])
    if plan.action is lifecycle.steady.action:
        lifecycle.steady.processed += 1
    else:
        lifecycle.settled(plan.action, b)


def empty_step(_lifecycle: Lifecycle, _b: int) -> None:
    """What the clock and a call cost by themselves."""


STEPS: dict[str, tuple[Mode, Step]] = {
    "SPEC": (Mode.SPEC, spec_step),
    "SPEC quick": (Mode.SPEC, quick_step),
    "PLAIN": (Mode.PLAIN, plain_step),
    "PLAIN quick": (Mode.PLAIN, quick_step),
    "clock": (Mode.SPEC, empty_step),
}


def measure(name: str, b: int, steps: int) -> dict[str, float]:
    """Figures of one way to step in one mode at one batch size, in microseconds."""
    mode, step = STEPS[name]
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
    return {
        "mean_us": statistics.fmean(took) / 1e3,
        "median_us": statistics.median(took) / 1e3,
        "p99_us": statistics.quantiles(took, n=100)[98] / 1e3,
    }


def main() -> None:
    """Print a table, or with --json one object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000, help="timed steps a figure")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    results = {f"{name} b={b}": measure(name, b, options.steps) for name in STEPS for b in BATCHES}
    if options.json:
        print(json.dumps({"python": platform.python_version(), "results": results}))
        return
    print(f"{'us':18}" + "".join(f"{figure:>9}" for figure in ("mean", "median", "p99")))
    for name, row in results.items():
        print(f"{name:18}" + "".join(f"{value:9.2f}" for value in row.values()))


if __name__ == "__main__":
    main()
