"""What a reseed relays is, row by row, what a prefill of the same text relays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fuzz import seeds
from fuzz.run import run_one

HISTORY = [["seeds", 1], ["seeds", 11]]


@pytest.mark.parametrize("name", ["chain-eagle-extend"])
def test_each_row_is_relayed_the_seed_of_its_prefilled_twin(name: str, tmp_path: Path) -> None:
    """Three rows that differ, rebuilt by `extend`; `test_faults.py` plays the others."""
    history = tmp_path / "history.json"
    history.write_text(json.dumps({"history": HISTORY}))
    found = run_one(name, tmp_path / "run", ["--history", str(history)], 200)
    assert found["failure"] == ""
    assert found["events"]["seeds"] == len(HISTORY)


def rows(*values: float) -> dict[str, seeds.Seed]:
    """A row for each value."""
    return {
        str(i): {field: torch.full((2,), value) for field in seeds.FIELDS}
        for i, value in enumerate(values)
    }


@pytest.mark.parametrize("field", seeds.FIELDS)
def test_a_field_of_another_row_is_found(field: str) -> None:
    """The same values in another order are not the same."""
    ours, twins = rows(1.0, 2.0, 3.0), rows(1.0, 2.0, 3.0)
    assert seeds.differences(ours, twins, seeds.FIELDS)[field] == 0
    ours["0"][field], ours["1"][field] = ours["1"][field], ours["0"][field]
    with pytest.raises(seeds.Difference, match=f"seeds: {field} is off"):
        seeds.differences(ours, twins, seeds.FIELDS)


def test_rows_that_are_alike_prove_nothing() -> None:
    """A swap of two equal rows could not be seen, so it is refused."""
    with pytest.raises(seeds.Difference, match="alike"):
        seeds.differences(rows(1.0, 1.0, 2.0), rows(1.0, 1.0, 2.0), seeds.FIELDS)
