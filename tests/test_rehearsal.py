"""The warm-up `spec-fsm serve` asks for; `test_http.py` runs it on a real server."""

from __future__ import annotations

import pytest

from spec_fsm_sglang.rehearsal import batch_sizes
from spec_fsm_sglang.serve import with_warmup


@pytest.mark.parametrize(
    ("disable_above", "sizes"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (48, [1, 2, 4, 8, 16, 32, 48])],
)
def test_sizes_reach_the_threshold(disable_above: int, sizes: list[int]) -> None:
    """Every size that may have to be rebuilt is near one that was rehearsed."""
    assert batch_sizes(disable_above) == sizes


def test_named_warmups_are_kept() -> None:
    """The operator's own warm-ups run too, before ours."""
    assert with_warmup(["--port", "1"]) == ["--port", "1", "--warmups", "spec_fsm"]
    assert with_warmup(["--warmups", "a,b"])[-1] == "a,b,spec_fsm"
