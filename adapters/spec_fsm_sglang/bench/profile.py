"""What a profiler sees of a run: how busy the GPU was, and which calls made the host wait."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
"""Runtime calls in which the host waits for the device (`cudaMemcpy` without Async)."""


KEPT = 1200
"""Kernels of the timeline."""


def profiled(run: Callable[[], int]) -> dict[str, Any]:
    """Runs `run` under torch's profiler; figures per iteration, of which it returns the number.

    gpu_busy: share of the time between the first and the last kernel in which one ran.
    kernels: launched. waits: calls in which the host waited, by name. top: the kernels that took
    most time, in microseconds. timeline: start, duration (us) and name of some two steps' kernels
    in the middle. Needs a GPU: on the CPU there are no kernels and gpu_busy is 0.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        iterations = run()
    kernels: list[tuple[float, float]] = []
    timeline: list[tuple[float, float, str]] = []
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        if str(event.device_type()).endswith("CUDA"):
            start, duration = event.start_ns() / 1e3, event.duration_ns() / 1e3
            kernels.append((start, start + duration))
            timeline.append((start, duration, name[:60]))
            spent[name[:80]] += duration
        elif name.startswith("cuda"):
            calls[name] += 1
    busy, span = _covered(kernels)
    timeline.sort()
    middle = timeline[len(timeline) // 2 :][:KEPT]
    return {
        "gpu_busy": round(busy / span, 4) if span else 0.0,
        "gpu_busy_us": round(busy / iterations, 1),
        "gpu_span_us": round(span / iterations, 1),
        "kernels": round(len(kernels) / iterations, 2),
        "waits": {n: round(calls[n] / iterations, 3) for n in WAITS if calls[n]},
        "calls": {n: round(c / iterations, 2) for n, c in calls.most_common(12)},
        "top": {name: round(us / iterations, 2) for name, us in spent.most_common(40)},
        "timeline": [[round(t - middle[0][0], 2), round(us, 2), n] for t, us, n in middle],
    }


def _covered(spans: list[tuple[float, float]]) -> tuple[float, float]:
    """Time covered by at least one of `spans`, and the time from the first to the last end."""
    if not spans:
        return 0.0, 0.0
    spans = sorted(spans)
    busy, end = 0.0, spans[0][0]
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy, end - spans[0][0]


__all__ = ["profiled"]
