"""SGLang's decode log line and gauges, without an acceptance that nothing was measured for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC_GAUGES = (
    "spec_accept_length",
    "spec_accept_rate",
    "spec_cap_length",
    "spec_block_accept_length",
    "spec_num_steps",
    "spec_num_draft_tokens",
)
"""Fields of SGLang's `SchedulerStats` that a report sets to 0 without speculation."""


class _KeepsAcceptance:
    """SGLang's metrics collector for one report: the speculative gauges stay as they were."""

    def __init__(self, collector: Any, stats: Any) -> None:
        self._collector = collector
        self._kept = {name: getattr(stats, name) for name in SPEC_GAUGES}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collector, name)

    def log_stats(self, stats: Any) -> None:
        """Restore what the report has set to 0, and export."""
        for name, value in self._kept.items():
            setattr(stats, name, value)
        self._collector.log_stats(stats)


def report_without_acceptance(
    original: Callable[..., None], reporter: Any, *args: Any, **kwargs: Any
) -> None:
    """Make SGLang's periodic decode report of an interval that ends in PLAIN or has no round.

    SGLang 0.5.23 `report_decode_stats` divides by the rounds of the interval unless the
    scheduler's algorithm is NONE, which is also how its line comes without the acceptance. The
    gauges keep the last interval that had rounds, and rounds that are not told yet stay counted.
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    scheduler = reporter.scheduler
    algorithm, scheduler.spec_algorithm = scheduler.spec_algorithm, SpeculativeAlgorithm.NONE
    collector = getattr(reporter, "metrics_collector", None)
    if reporter.current_scheduler_metrics_enabled:
        reporter.metrics_collector = _KeepsAcceptance(collector, reporter.stats)
    try:
        original(reporter, *args, **kwargs)
    finally:
        scheduler.spec_algorithm = algorithm
        if reporter.current_scheduler_metrics_enabled:
            reporter.metrics_collector = collector


__all__ = ["SPEC_GAUGES", "report_without_acceptance"]
