"""After a gap the draft model stands where it would stand had it never paused."""

from __future__ import annotations

from typing import Any

import pytest

from live import CHAIN, TREE, run

SPEC = {"disable_above": 50, "dwell": 0, "checks": True}


@pytest.mark.parametrize("strategy", ["bulk", "extend"])
@pytest.mark.parametrize("draft", ["eagle3", "eagle"])
@pytest.mark.parametrize("flush_every", [0, 7])
def test_draft_kv_is_that_of_an_always_on_draft(
    strategy: str, draft: str, flush_every: int
) -> None:
    """fp32: no K or V of a committed position differs by 1e-4 after a gap of 40."""
    fsm = {**SPEC, "strategy": strategy, "flush_every": flush_every}
    result = run("draft_kv", **TREE, draft=draft, fsm=fsm, params={"gap": 40})
    assert result["compared"] > 600
    assert result["worst"] < 1e-4


@pytest.mark.parametrize("shape", [TREE, CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize(("overlap", "gap"), [(True, 40), (False, 1), (True, 2), (False, 40)])
def test_rounds_after_a_gap_are_those_after_a_prefill(
    shape: dict[str, Any], overlap: bool, gap: int
) -> None:
    """A resumed row and a row prefilled up to the same position accept the same, round by round."""
    result = run(
        "same_rounds", **shape, overlap=overlap, disable_radix_cache=True, fsm=SPEC,
        params={"gap": gap},
    )
    assert len(result["resumed"]) > 20
    assert result["resumed"] == result["prefilled"]
    assert result["different"] == {}


@pytest.mark.parametrize("page_size", [1, 8])
def test_the_prefix_cache_holds_nothing_beyond_covered(page_size: int) -> None:
    """I15: a request that ends in PLAIN is cut at its covered positions, floored to a page."""
    fsm = {**SPEC, "flush_every": 0}
    result = run("prefix_cache", **CHAIN, page_size=page_size, fsm=fsm)
    assert result["inserted"] == result["prompt"] // page_size * page_size
    assert result["worst"] < 1e-4
    assert result["different"] == {}


def test_a_flushed_request_enters_the_prefix_cache_up_to_its_last_flush() -> None:
    """With a flush every 7 steps, at most 7 positions of a request that ends in PLAIN are cut."""
    result = run("prefix_cache", **CHAIN, fsm={**SPEC, "flush_every": 7}, params={"tokens": 30})
    assert result["prompt"] + 30 - 1 - 7 <= result["inserted"] <= result["prompt"] + 30 - 1
    assert result["worst"] < 1e-4


@pytest.mark.parametrize("overlap", [True, False])
def test_a_failing_rebuild_costs_no_request(overlap: bool) -> None:
    """Two failures, then success: PLAIN goes on, the mode comes back, outputs are right."""
    fsm = {**SPEC, "dwell": 2}
    result = run("reseed_failure", **TREE, overlap=overlap, fsm=fsm, params={"failures": 2})
    assert result["status"]["transitions"]["RESEEDING->PLAIN"] == 2
    assert result["status"]["switch_on_count"] >= 1
    assert result["different"] == {}
    # Code that asks for an attribute that is not there is no failed rebuild, to be tried again.
    raised = ["ProgrammingError", "AttributeError"]
    assert result["mistakes"] == {"rebuild": raised, "flush": raised}
