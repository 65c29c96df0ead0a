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
        self.by_call = dict.fromkeys(CALLS, (0, 0))
        """By method: calls since the last `take`, and nanoseconds inside them."""
        self.empty_ns = 0
        """What calls of a function that does nothing took, one ahead of each of those calls."""
        for name in CALLS:
            setattr(self, name, self._timed(name, getattr(lifecycle, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter_ns

        def timed(*args: Any, **kwargs: Any) -> Any:
            clock()  # the clock's own code is fetched before, not within, what it measures
            before = clock()
            _nothing(*args, **kwargs)
            started = clock()
            try:
                return call(*args, **kwargs)
            finally:
                spent = clock() - started
                self.empty_ns += started - before
                calls, sum_ns = self.by_call[name]
                self.by_call[name] = calls + 1, sum_ns + spent

        return timed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lifecycle, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "pin":
            self._lifecycle.pin = value
        else:
            super().__setattr__(name, value)

    def take(self) -> dict[str, tuple[int, int]]:
        """Calls and nanoseconds of each method that was called since the last `take`."""
        taken = {name: figures for name, figures in self.by_call.items() if figures[0]}
        self.by_call.update(dict.fromkeys(taken, (0, 0)))
        return taken


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """What any call costs at the place where the lifecycle is called."""


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
