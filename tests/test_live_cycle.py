"""The whole cycle on the real scheduler and EAGLE worker, one process a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from live import CHAIN, TREE, run

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "eagle3-tree-overlap": {**TREE, "overlap": True},
    "eagle3-tree": {**TREE, "overlap": False},
    "eagle3-chain-overlap": {**CHAIN, "overlap": True},
    "eagle3-chain": {**CHAIN, "overlap": False},
    "eagle3-chain-page4-overlap": {**CHAIN, "overlap": True, "page_size": 4},
    "eagle3-chain-page16": {**CHAIN, "overlap": False, "page_size": 16},
    "eagle-tree-overlap": {**TREE, "overlap": True, "draft": "eagle"},
    "eagle-chain": {**CHAIN, "overlap": False, "draft": "eagle"},
}
EXTEND = {"disable_above": 5, "dwell": 4, "checks": True, "strategy": "extend"}
RUNS = {name: {"config": config} for name, config in CONFIGURATIONS.items()} | {
    f"{name}-extend": {"config": CONFIGURATIONS[name], "fsm": EXTEND}
    for name in ("eagle3-tree-overlap", "eagle3-chain", "eagle-chain")
}
RESUME_ONLY = {"disable_above": 5, "dwell": 4, "checks": True, "flush_every": 0, "slice_tokens": 40}
RUNS |= {
    f"eagle3-tree-overlap-sliced-{strategy}": {
        "config": CONFIGURATIONS["eagle3-tree-overlap"],
        "fsm": {**RESUME_ONLY, "strategy": strategy},
    }
    for strategy in ("bulk", "extend")
}


def cycle(name: str) -> dict[str, Any]:
    """The cycle's result in the named run."""
    chosen = RUNS[name]
    keywords = {"fsm": chosen["fsm"]} if "fsm" in chosen else {}
    return run("cycle", **chosen["config"], **keywords)


@pytest.mark.parametrize("name", RUNS)
def test_every_mode_is_entered_and_left_twice(name: str) -> None:
    """SPEC, DRAINING, PLAIN, RESEEDING and back, at least two times each way."""
    status = cycle(name)["status"]
    assert status["switch_off_count"] >= 2
    assert status["switch_on_count"] >= 2
    assert status["mode"] == "SPEC"


@pytest.mark.parametrize("name", RUNS)
def test_outputs_are_those_of_the_model_alone(name: str) -> None:
    """Greedy outputs equal the target's own greedy path, whatever the mode did meanwhile."""
    result = cycle(name)
    assert result["different"] == {}
    lengths = sorted(len(output) for output in result["outputs"].values())
    assert lengths == sorted([150] * 4 + [20 + 3 * i for i in range(8)] * 2)


@pytest.mark.parametrize("name", RUNS)
def test_every_invariant_that_applies_was_evaluated_and_held(name: str) -> None:
    """No violation; unevaluated are only I11 (one rank), I12, I13 (graphs) and I19 (grammar)."""
    result = cycle(name)
    assert result["status"]["violations"] == 0, result["details"]
    silent = {i for i, count in result["status"]["checks"].items() if count == 0}
    assert silent <= {"I11", "I12", "I13", "I19"}


@pytest.mark.parametrize("name", RUNS)
def test_verify_accepts_every_length(name: str) -> None:
    """The tiny pair partly agrees: each number of accepted drafts from 0 to s occurs."""
    steps = RUNS[name]["config"]["steps"]
    histogram = cycle(name)["histogram"]
    assert len(histogram) == steps + 1
    assert all(histogram)


@pytest.mark.parametrize("name", [name for name in RUNS if "overlap" in name])
def test_a_drain_found_a_result_in_flight(name: str) -> None:
    """With overlap at least one DRAINING begins with a speculative result in flight."""
    assert cycle(name)["status"]["in_flight_at_drain"] >= 1


@pytest.mark.parametrize("name", [name for name in RUNS if "sliced" in name])
def test_a_long_gap_is_rebuilt_in_slices_between_plain_steps(name: str) -> None:
    """RESEEDING lasts: decoding goes on while slices of the gap are written."""
    assert cycle(name)["modes"].count("RESEEDING") >= 2


def test_plain_steps_are_no_verify_rounds() -> None:
    """A request decoded wholly in PLAIN reports no verify round."""
    rounds = cycle("eagle3-tree-overlap")["verify_rounds"]
    assert 0 in rounds.values()
