"""What the demo's run amounts to: `summary.json`, and whether each condition holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf
from typing import Any, Final

from spec_fsm_sglang.demo.compare import Comparison, Reference, Verdict, compare
from spec_fsm_sglang.demo.load import Course
from spec_fsm_sglang.demo.timeline import NS, Timeline, accept_length, switches

NOT_ON_CPU: Final = {
    "I11": "several tensor-parallel ranks",
    "I12": "graphs",
    "I13": "graphs",
}
"""Invariants that a single CPU rank never meets, with what they need."""

LEAST_REQUESTS: Final = 24
LEAST_GAP: Final = 16
LEAST_SWITCHES: Final = 2
MODES: Final = ("SPEC", "DRAINING", "PLAIN", "RESEEDING")


@dataclass(frozen=True)
class Run:
    """Everything that was recorded: the course, its trace, the server's last status, references."""

    course: Course
    timeline: Timeline
    status: Mapping[str, Any]
    references: Mapping[str, Reference]
    setting: str


def summarise(run: Run) -> dict[str, Any]:
    """The content of `summary.json`."""
    comparisons = {
        answer.job.rid: compare(run.references[answer.job.rid], answer.output_ids)
        for answer in run.course.answers
    }
    verdicts = [comparison.verdict for comparison in comparisons.values()]
    summary: dict[str, Any] = {
        "setting": run.setting,
        "modes_seen": run.timeline.modes_seen,
        "transitions": dict(run.status["transitions"]),
        "requests": len(run.course.answers),
        "outputs_equal": verdicts.count(Verdict.EQUAL),
        "outputs_near_tie": verdicts.count(Verdict.NEAR_TIE),
        "outputs_different": verdicts.count(Verdict.DIFFERENT),
        "violations": _total(run.status["violations"]),
        "checks": dict(run.status["checks"]),
        "switch_off_count": run.status["switch_off_count"],
        "switch_on_count": run.status["switch_on_count"],
        "in_flight_at_drain": run.status["in_flight_at_drain"],
        "largest_gap_rebuilt": max((gap for _, gap in run.timeline.gaps), default=0),
        "seconds": (run.course.ended_ns - run.course.phases[0][1]) / NS,
        "phases": _phases(run),
        "switches": _switches(run),
        "unequal": unequal(comparisons),
    }
    summary["conditions"] = conditions(summary)
    summary["passed"] = all(condition["holds"] for condition in summary["conditions"])
    return summary


def conditions(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each condition the demo has to meet: its name, whether it holds, and what was found."""
    requests, ties = summary["requests"], summary["outputs_near_tie"]
    same = summary["outputs_equal"] + ties
    missing = [mode for mode in MODES if mode not in summary["modes_seen"]]
    unchecked = [
        name for name, n in summary["checks"].items() if n == 0 and name not in NOT_ON_CPU
    ]
    found = [
        ("all four modes", not missing, f"missing: {', '.join(missing) or 'none'}"),
        (f"at least {LEAST_REQUESTS} requests", requests >= LEAST_REQUESTS, requests),
        (
            f"at least {LEAST_SWITCHES} switches off",
            summary["switch_off_count"] >= LEAST_SWITCHES,
            summary["switch_off_count"],
        ),
        (
            f"at least {LEAST_SWITCHES} switches on",
            summary["switch_on_count"] >= LEAST_SWITCHES,
            summary["switch_on_count"],
        ),
        ("every output equal or a near tie", same == requests, f"{same} of {requests}"),
        ("no output different", summary["outputs_different"] == 0, summary["outputs_different"]),
        ("near ties at most a tenth", ties * 10 <= requests, ties),
        ("no violation", summary["violations"] == 0, summary["violations"]),
        (
            "a result in flight when a drain began",
            summary["in_flight_at_drain"] > 0,
            summary["in_flight_at_drain"],
        ),
        (
            f"a gap of at least {LEAST_GAP} tokens rebuilt",
            summary["largest_gap_rebuilt"] >= LEAST_GAP,
            summary["largest_gap_rebuilt"],
        ),
        (
            "every invariant that applies on CPU checked",
            not unchecked and any(summary["checks"].values()),
            f"never: {', '.join(unchecked) or 'none'}",
        ),
    ]
    return [{"name": name, "holds": bool(holds), "found": str(seen)} for name, holds, seen in found]


def _total(violations: object) -> int:
    if isinstance(violations, Mapping):
        return sum(int(count) for count in violations.values())
    return int(str(violations))


def _phases(run: Run) -> list[dict[str, Any]]:
    starts = [*run.course.phases, ("", run.course.ended_ns)]
    found = []
    for (name, since), (_, until) in pairwise(starts):
        steps = run.timeline.between(since, until)
        modes = dict.fromkeys(mode for mode, _, _ in run.timeline.mode_spans(since, until))
        seconds = (until - since) / NS
        found.append(
            {
                "phase": name,
                "seconds": seconds,
                "started": sum(since <= a.started_ns < until for a in run.course.answers),
                "finished": sum(since < a.finished_ns <= until for a in run.course.answers),
                "modes": list(modes),
                "tokens_per_s": sum(step.tokens for step in steps) / seconds,
                "accept_length": accept_length(steps),
            }
        )
    return found


def _switches(run: Run) -> list[dict[str, Any]]:
    start = run.course.phases[0][1]
    found = []
    for switch in switches(run.timeline):
        record = asdict(switch)
        record = {"kind": record.pop("kind"), "at_s": (record.pop("t_ns") - start) / NS, **record}
        found.append(record)
    return found


def unequal(comparisons: Mapping[str, Comparison]) -> list[dict[str, Any]]:
    """Where each output that is not equal differs, and by how little."""
    return [
        {
            "request": rid,
            "verdict": comparison.verdict.value,
            "position": comparison.position,
            # JSON has no infinity.
            "margin": None if comparison.margin == inf else comparison.margin,
        }
        for rid, comparison in sorted(comparisons.items())
        if comparison.verdict is not Verdict.EQUAL
    ]


__all__ = ["NOT_ON_CPU", "Run", "conditions", "summarise", "unequal"]
