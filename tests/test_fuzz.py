"""The fuzzer's `ci` profile: the same examples each time, over every configuration."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from fuzz import run
from fuzz.configurations import CONFIGURATIONS, MODEL

EXAMPLES = {**dict.fromkeys(CONFIGURATIONS, 18), MODEL: 20}
SCENARIOS = sorted(Path(__file__).parent.joinpath("scenarios").glob("*.json"))

pytestmark = pytest.mark.timeout(1500)


@functools.cache
def results() -> list[dict[str, Any]]:
    """One run of all configurations, shared by the tests."""
    # Seeds that differ, so that the configurations do not all play the same examples.
    arguments = {
        name: ["--examples", str(examples), "--seed", str(seed)]
        for seed, (name, examples) in enumerate(EXAMPLES.items())
    }
    return run.run_all(arguments, 600)


def test_nothing_goes_wrong_whatever_happens() -> None:
    """No violation, every answer right, the pool whole, draft KV true, every trace accepted."""
    wrong = [line for found in results() for line in run.problems(found)]
    assert not wrong, "\n".join(wrong)
    for line in run.report(results()):
        print(line)


def test_everything_is_evaluated_and_every_edge_taken() -> None:
    """No invariant is evaluated 0 times; each mode edge is taken; rounds accept 1 to s + 1."""
    assert run.unseen(results()) == []


def test_lost_rows_aborts_and_retractions_happen() -> None:
    """Requests are aborted and retracted, rows are lost."""
    departures = run.added(results(), "departures")
    assert min(departures[event] for event in ("FINISHED", "ABORTED", "RETRACTED")) > 5
    assert sum(found["lost"] for found in results()) > 0


def test_the_worker_stands_where_the_model_stands() -> None:
    """Histories of the model, led through the worker: the same mode after every launch."""
    (found,) = (found for found in results() if found["name"] == MODEL)
    assert found["failure"] == ""
    assert found["histories"] == EXAMPLES[MODEL]
    assert found["compared"] > found["acts"] // 3 > 300


def test_every_owner_of_a_batch_field_is_reached() -> None:
    """Strict ownership is on, and its list holds no entry that no configuration reaches."""
    from spec_fsm_sglang.owners import OWNERS

    reached = {writer for found in results() for writer in found["writers"]}
    assert reached == {f"{file}|{function}" for file, function in OWNERS}


def test_a_long_run_that_reaches_too_little_fails() -> None:
    """Half an hour needs its steps, each edge often, and every history of the model."""
    edges = dict.fromkeys(run.MODE_EDGES, run.LEAST_EDGE)
    beside = {"histories": 9, "histories_known": 9, "steps": 1}
    enough = {"steps": run.LEAST_STEPS - 1, "edges": edges}
    assert run.short([beside, enough]) == []
    edge = run.MODE_EDGES[2]
    assert run.short([beside, {**enough, "edges": {**edges, edge: 49}}]) == [
        f"the edge {edge} was taken 49 times, not 50"
    ]
    assert run.short([{**beside, "steps": 0}, enough]) == ["19999 steps are fewer than 20000"]
    part = {**beside, "histories": 8}
    assert run.short([part, enough]) == ["8 of the model's 9 histories were played"]
    assert run.short([{"steps": 1}, enough]) == ["0 of the model's 0 histories were played"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_a_history_that_once_failed_passes(path: Path, tmp_path: Path) -> None:
    """Each scenario was found by the fuzzer and is run again as it was."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    found = run.run_one(stored["configuration"], tmp_path, ["--history", str(path)], 120)
    assert run.problems(found) == []
    assert found["steps"] > 0
