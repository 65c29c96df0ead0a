"""Requests come, go, are aborted, retracted and chunk-prefilled in every mode."""

from __future__ import annotations

from typing import Any

import pytest

from live import CHAIN, TREE, run

FSM = {"disable_above": 4, "enable_at": 3, "dwell": 2, "checks": True, "flush_every": 5}
SMALL_POOL = {"max_total_tokens": 700, "chunked_prefill_size": 16}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tree-overlap": {**TREE, "overlap": True},
    "tree": {**TREE, "overlap": False},
    "chain-overlap-page4": {**CHAIN, "overlap": True, "page_size": 4},
    "chain-eagle": {**CHAIN, "overlap": False, "draft": "eagle"},
}


def churn(name: str, seed: int) -> dict[str, Any]:
    """One run of random events over a pool that is too small for them."""
    params = {"seed": seed, "events": 150}
    return run("churn", **CONFIGURATIONS[name], **SMALL_POOL, fsm=FSM, params=params)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_whatever_happens_outputs_are_right_and_the_pool_is_whole(name: str, seed: int) -> None:
    """Every request ends; what it got is the model's own greedy path; no slot is lost."""
    result = churn(name, seed)
    assert result["status"]["violations"] == 0, result["details"]
    assert result["different"] == {}
    assert all(result["finished"].values())
    assert result["pool_free"] + result["pool_cached"] == result["pool"]
    assert result["status"]["rows"] == 0


def test_churn_reaches_what_it_is_for() -> None:
    """Over all runs: every mode, aborts, retraction, prompts longer than a chunk."""
    results = [churn(name, seed) for name in CONFIGURATIONS for seed in (1, 2)]
    assert {mode for result in results for mode in result["modes"]} >= {"SPEC", "PLAIN"}
    assert sum(len(result["aborted"]) for result in results) > 10
    assert any(result["retracted"] for result in results)
    edges = {edge for result in results for edge in result["status"]["transitions"]}
    assert {"SPEC->DRAINING", "DRAINING->PLAIN", "PLAIN->RESEEDING", "RESEEDING->SPEC"} <= edges


def test_every_owner_writes_at_least_once() -> None:
    """The list of writers holds no entry that no run reaches, and its number is known."""
    from spec_fsm_sglang.owners import OWNERS

    runs = [churn(name, 1) for name in CONFIGURATIONS]
    runs.append(run("cycle", **TREE, overlap=True, fsm={"disable_above": 5, "dwell": 4,
                                                        "checks": True, "strategy": "extend"}))
    reached = {writer for result in runs for writer in result["writers"]}
    assert reached == {f"{file}|{function}" for file, function in OWNERS}
    assert len(OWNERS) == 16
