"""What PLAIN costs: this adapter pinned PLAIN against a server that never speculates.

Both servers run on one device and take turns, ABBA: each block gives one ratio of tokens a second
in which a drift of the machine cancels. Requests join and leave all the time (`load.py`).
"""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spec_fsm_sglang.bench.arm import Arm
from spec_fsm_sglang.bench.arms import (
    Bench,
    Say,
    adaptive_server,
    keeping,
    plain_server,
    spec_fsm_server,
    started,
)
from spec_fsm_sglang.bench.load import Load, Measured

BASE: Final = "plain server"
OURS: Final = "spec-fsm PLAIN"


@dataclass(frozen=True)
class Setup:
    """What is measured.

    sizes: requests at a time. blocks: ABBA blocks a size. iterations: steady steps a run.
    config: keys of the adapter's configuration. adaptive: measure SGLang's own "off" as well.
    profile: iterations to profile in each arm at each size, 0 for none.
    """

    bench: Bench
    sizes: list[int]
    blocks: int
    iterations: int
    prompt_len: int
    output_len: int
    config: dict[str, Any]
    adaptive: bool = False
    profile: int = 0


def measure(setup: Setup, say: Say) -> dict[str, Any]:
    """Starts the arms, measures every size; `worst_ratio` is the smallest median of any size.

    Stopped before the end, it returns the sizes it has. Raises Stopped if there is none.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers = {
            BASE: plain_server(setup.bench),
            OURS: spec_fsm_server(setup.bench, pin="plain", **setup.config),
        }
        if setup.adaptive:
            for skip in (False, True):
                label = "adaptive step 0" + (", extend skipped" if skip else "")
                servers[label] = adaptive_server(setup.bench, folder, skip_extend=skip)
        results: list[dict[str, Any]] = []
        status = None
        with keeping(results, say), started(servers, setup.bench.logs or folder, say) as arms:
            results.extend(_size(setup, arms, size, say) for size in setup.sizes)
            status = {name: arm.call("status") for name, arm in arms.items()}
    return {
        "complete": status is not None,
        "worst_ratio": min(row["ratio"] for row in results),
        "worst_lower_bound": min(row["lower_bound"] for row in results),
        "results": results,
        "status": status,
    }


def _size(setup: Setup, arms: dict[str, Arm], size: int, say: Say) -> dict[str, Any]:
    load = Load(size, waves_of(size), setup.prompt_len, setup.output_len, setup.bench.pair.vocab)
    for arm in arms.values():
        arm.call("load", load=load)
        say(f"{size} requests: warming {arm.name}")
        # The first generation of requests is staggered, and every graph and kernel is warm.
        arm.run(min(setup.output_len, setup.iterations))
    runs: dict[str, list[Measured]] = {name: [] for name in arms}
    for block in range(setup.blocks):
        say(f"{size} requests: block {block + 1} of {setup.blocks}")
        for name in (BASE, OURS, OURS, BASE):
            runs[name].append(arms[name].run(setup.iterations))
        for name in arms:
            if name not in (BASE, OURS):
                runs[name].append(arms[name].run(setup.iterations))
    row: dict[str, Any] = {"requests": size, **compared(runs[BASE], runs[OURS])}
    row["arms"] = {name: summary(found) for name, found in runs.items()}
    if setup.profile:
        names = (BASE, OURS)
        row["profile"] = {n: arms[n].call("profile", iterations=setup.profile) for n in names}
    for arm in arms.values():
        arm.call("end")
    return row


def waves_of(requests: int) -> int:
    """Groups the requests come in: some leave every 16 steps of a 256-token output."""
    return min(requests, 16)


def compared(base: list[Measured], ours: list[Measured]) -> dict[str, Any]:
    """Ratios of tokens a second, ours to base, one an ABBA block (two runs of each).

    ratio, end_to_end_ratio: medians over blocks, of steady decode and of everything.
    lower_bound: one-sided 95 % bound of the mean ratio, by Student's t.
    """
    steady = _block_ratios([run.steady_rate for run in base], [run.steady_rate for run in ours])
    whole = _block_ratios([run.rate for run in base], [run.rate for run in ours])
    return {
        "ratio": round(statistics.median(steady), 4),
        "lower_bound": round(lower_bound(steady), 4),
        "ratios": [round(ratio, 4) for ratio in steady],
        "end_to_end_ratio": round(statistics.median(whole), 4),
        "end_to_end_lower_bound": round(lower_bound(whole), 4),
    }


def _block_ratios(base: list[float], ours: list[float]) -> list[float]:
    pairs = range(0, len(base), 2)
    return [sum(ours[i : i + 2]) / sum(base[i : i + 2]) for i in pairs]


def lower_bound(values: list[float]) -> float:
    """One-sided 95 % lower bound of the mean of `values`; with one value, that value."""
    if len(values) < 2:
        return values[0]
    from scipy.stats import t  # type: ignore[import-untyped]

    spread = statistics.stdev(values) / math.sqrt(len(values))
    return float(statistics.mean(values) - t.ppf(0.95, len(values) - 1) * spread)


def summary(runs: list[Measured]) -> dict[str, Any]:
    """Medians over an arm's runs: tokens a second, and the time between two tokens."""
    gaps = sorted(gap for run in runs for gap in run.gaps_ms)
    return {
        "steady_tokens_per_s": round(statistics.median(run.steady_rate for run in runs), 2),
        "tokens_per_s": round(statistics.median(run.rate for run in runs), 2),
        "step_ms_p50": round(percentile(gaps, 0.5), 4),
        "step_ms_p99": round(percentile(gaps, 0.99), 4),
        "steps": len(gaps),
    }


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` of the `ordered` values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


__all__ = ["BASE", "OURS", "Setup", "compared", "lower_bound", "measure", "percentile", "summary"]
