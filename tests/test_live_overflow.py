"""Requests whose gap outgrew the stash: the server stays plain for them, or runs them again."""

from __future__ import annotations

from typing import Any

import pytest

from live import CHAIN, TREE, run

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tree-overlap": {**TREE, "overlap": True},
    "chain": {**CHAIN, "overlap": False, "page_size": 4},
}


def overflow(name: str, lost_rows: str) -> dict[str, Any]:
    """Two requests of 30 plain steps over a stash of 12, then a pin to SPEC."""
    fsm = {"disable_above": 5, "dwell": 0, "checks": True, "stash_width": 12, "flush_every": 0}
    return run("overflow", **CONFIGURATIONS[name], fsm=fsm | {"lost_rows": lost_rows})


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("lost_rows", ["plain", "rerun"])
def test_overflow_costs_no_output(name: str, lost_rows: str) -> None:
    """Whatever becomes of them, every request ends with the model's own greedy path."""
    result = overflow(name, lost_rows)
    assert result["lost"] == 2
    assert result["status"]["violations"] == 0, result["details"]
    assert result["different"] == {}
    assert all(result["finished"].values())
    assert result["status"]["rows"] == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_lost_rows_hold_the_batch_plain_by_default(name: str) -> None:
    """`plain`: speculation is due but waits for the lost requests to end."""
    result = overflow(name, "plain")
    assert result["soon"] == "PLAIN"
    assert result["status"]["reruns"] == 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_lost_rows_are_run_again(name: str) -> None:
    """`rerun`: they are prefilled again and all of the batch speculates within a few steps."""
    result = overflow(name, "rerun")
    assert result["soon"] == "SPEC"
    assert result["status"]["reruns"] == 2
    assert result["status"]["lost"] == 0
    rounds = result["verify_rounds"]
    assert all(rounds[rid] for rid in [*result["old"], result["young"]])
