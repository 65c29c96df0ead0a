"""What the real worker did is what the table allows: its traces are paths of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from live import CHAIN, TREE, run
from spec_fsm_model.explore import Verdict
from spec_fsm_model.trace_check import check_file

FSM = {"disable_above": 4, "enable_at": 3, "dwell": 2, "checks": True, "flush_every": 5}
SMALL_POOL = {"max_total_tokens": 700, "chunked_prefill_size": 16}
COMMITTED = sorted(Path(__file__).parent.joinpath("traces").glob("*.ndjson.gz"))
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "tree-overlap": {**TREE, "overlap": True},
    "chain": {**CHAIN, "overlap": False},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_run_of_the_real_worker_is_a_path_of_the_model(name: str, tmp_path: Path) -> None:
    """Requests that come, go, are aborted and retracted: every line of the trace is a step."""
    trace = tmp_path / "trace.ndjson"
    fsm = {**FSM, "trace": str(trace)}
    params = {"seed": 3, "events": 150}
    result = run("churn", **CONFIGURATIONS[name], **SMALL_POOL, fsm=fsm, params=params)
    found = check_file(trace)
    assert found.verdict is Verdict.PROVED, found
    assert found.lines > 300
    assert found.launches > 50
    mode_events = ("LOAD_ROSE", "LOAD_FELL", "DRAINED", "RESEEDED", "RESEED_FAILED")
    switches = sum(n for e, n in found.edges.items() if e.startswith(mode_events))
    assert 4 <= switches == sum(result["status"]["transitions"].values())


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: p.stem)
def test_a_committed_trace_is_still_a_path(path: Path) -> None:
    """A trace of an earlier run of the real worker is accepted by the table of today."""
    found = check_file(path)
    assert found.verdict is Verdict.PROVED, found


def test_there_is_a_committed_trace() -> None:
    """The test above has something to look at."""
    assert COMMITTED
