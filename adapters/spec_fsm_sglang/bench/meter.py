"""A nanosecond clock around every call from the adapter into `spec_fsm`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm import Lifecycle
    from spec_fsm_sglang.worker import SpecFsmEagleWorker

CALLS = (
    "decide",
    "boundary",
    "plan_decode",
    "check_launch",
    "launched",
    "settled",
    "joined",
    "chunked",
    "left",
    "reseeded",
    "reseed_failed",
)
"""Every method of `Lifecycle` that the adapter calls while serving."""


class Meter:
    """Stands in for a worker's lifecycle and adds up the time spent inside it, per step.

    Tensor work, and what the adapter does around the calls, is outside the clock.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self.spent_ns = 0
        self.calls = 0
        for name in CALLS:
            setattr(self, name, self._timed(getattr(lifecycle, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            clock()  # the clock's own code is fetched before, not within, what it measures
            started = clock()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent_ns += clock() - started
                self.calls += 1

        return timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lifecycle, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "pin":
            self._lifecycle.pin = value
        else:
            super().__setattr__(name, value)

    def take(self) -> int:
        """Nanoseconds since the last `take`."""
        spent, self.spent_ns = self.spent_ns, 0
        return spent


def install(worker: SpecFsmEagleWorker) -> Meter:
    """Put a meter between a worker and its lifecycle; the adapter cannot tell the difference."""
    controller = worker.spec_fsm
    if controller is None:
        raise ValueError("the worker has no lifecycle to measure")
    meter = Meter(controller.lifecycle)
    controller.lifecycle = meter  # type: ignore[assignment]
    worker.guard.lifecycle = meter  # type: ignore[assignment]
    return meter


__all__ = ["CALLS", "Meter", "install"]
