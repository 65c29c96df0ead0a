"""The host-cost bench: what it adds up, and that no call of the lifecycle escapes its clock."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from engine_environ import engine_environ
from scripts.overhead_abba import compared
from spec_fsm import Lifecycle
from spec_fsm_sglang.bench.meter import CALLS, Meter
from spec_fsm_sglang.bench.overhead import by_call, spent_us

ADAPTER = Path(__file__).resolve().parent.parent / "adapters" / "spec_fsm_sglang"
RARE = {
    "audit", "cache_flushed", "gap", "settled_gap", "state", "weights_changed", "observe",
    "violated", "restart",
}  # fmt: skip
"""Calls outside ordinary steps: checks, an operator's commands, events of a whole server."""


def test_every_call_of_a_step_is_timed() -> None:
    """Each `Lifecycle` method that the adapter calls is timed, or is named as rare."""
    called = set()
    for file in ADAPTER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                if name == "lifecycle" and callable(getattr(Lifecycle, node.func.attr, None)):
                    called.add(node.func.attr)
    assert called >= {"decide", "joined", "left", "settled"}
    assert called - set(CALLS) <= RARE, called - set(CALLS) - RARE


class _Slow:
    """A lifecycle whose `left` does something."""

    def __getattr__(self, name: str) -> object:
        return lambda *args: sum(range(20_000)) if name == "left" else None


def test_time_is_put_down_to_the_call_that_took_it() -> None:
    """The meter's figures are by method, and start anew at each `take`."""
    meter = Meter(_Slow())  # type: ignore[arg-type]
    meter.left("a", None)  # type: ignore[attr-defined]
    meter.left("b", None)  # type: ignore[attr-defined]
    meter.joined("c", 1)  # type: ignore[attr-defined]
    taken = meter.take()
    assert {name: calls for name, (calls, _ns) in taken.items()} == {"left": 2, "joined": 1}
    assert taken["left"][1] > taken["joined"][1] > 0
    assert meter.take() == {}


def test_shares_of_the_calls_add_up_to_the_mean() -> None:
    """What the calls add to a step's mean is, together, the mean."""
    steps = [{"decide": (1, 5000)}, {"decide": (1, 3000), "left": (2, 6000)}]
    calls = by_call(steps)
    assert list(calls) == ["decide", "left"]
    assert calls["left"] == {"each_step": 1.0, "us": 3.0, "share_us": 3.0}
    assert sum(call["share_us"] for call in calls.values()) == sum(map(spent_us, steps)) / 2


def test_revisions_are_compared_row_by_row() -> None:
    """The ratio is that of the means over all runs of a revision, of the same size and mode."""
    def run(*means: float) -> dict[str, object]:
        rows = [
            {"b": b, "mode": "SPEC", "mean_us": us, "p99_us": 10 * us}
            for b, us in zip((1, 64), means, strict=True)
        ]
        return {"results": rows}

    first, second = compared([run(2, 10), run(4, 10)], [run(6, 5), run(6, 15)])
    assert (first["b"], first["ratio"], first["p99_after_us"]) == (1, 2.0, 60.0)
    assert (second["b"], second["ratio"]) == (64, 1.0)


SMALL = """
import json
from spec_fsm_sglang.bench import overhead
overhead.SIZES, overhead.STEPS = (1, 3), {"SPEC": 8, "PLAIN": 8}
print(json.dumps(overhead.measure(lambda text: None)))
"""


def test_the_bench_measures_both_modes_of_the_real_engine() -> None:
    """Two sizes and a few steps of the real scheduler: the lifecycle is on, each row measured."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL],
        check=True, capture_output=True, text=True, timeout=180, env=engine_environ(),
    )  # fmt: skip
    rows = json.loads(done.stdout.splitlines()[-1])["results"]
    assert [(row["b"], row["mode"]) for row in rows] == [
        (b, mode) for b in (1, 3) for mode in ("SPEC", "PLAIN")
    ]  # fmt: skip
    for row in rows:
        assert row["steps"] == 8
        assert row["calls"]["decide"]["each_step"] == 1
        assert 0 < row["mean_us"] <= row["p99_us"]
