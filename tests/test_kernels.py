"""PLAIN's two fused kernels against the torch operators they stand for, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPARE = """
import sys, torch
from types import SimpleNamespace
from spec_fsm_sglang import kernels

b, size = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(b)
rows, width = 140, 5
table = torch.randint(0, 1000, (rows, 50), dtype=torch.int32)
pool = torch.randperm(rows)[:b]
lens = torch.randint(0, 49, (b,))
bonus = torch.randint(0, 99, (b,), dtype=torch.int32)
wanted = kernels.decode_inputs(bonus, pool, lens, table)
found = kernels.decode_inputs_fused(bonus, pool, lens, table)
for left, right in zip(wanted, found, strict=True):
    assert left.dtype == right.dtype and torch.equal(left, right)

def stash():
    return SimpleNamespace(
        width=width,
        hidden=torch.zeros(rows, width, size),
        tokens=torch.zeros(rows, width, dtype=torch.int64),
        seeded=torch.ones(rows, dtype=torch.bool),
    )

one, other = stash(), stash()
hidden, tokens = torch.randn(b, size), torch.randint(0, 99, (b,))
kernels.record(one, pool, lens, hidden, tokens)
kernels.record_fused(other, pool, lens, hidden, tokens)
assert one.hidden.any() and not one.seeded[pool].any()
for name in ("hidden", "tokens", "seeded"):
    assert torch.equal(getattr(one, name), getattr(other, name)), name
print("equal")
"""


@pytest.mark.parametrize(("rows", "size"), [(1, 64), (3, 2500), (130, 2048)])
def test_fused_kernels_equal_the_operators(rows: int, size: int) -> None:
    """Inputs of a plain launch and the ring's write, with rows and columns beyond one block."""
    run = subprocess.run(
        [sys.executable, "-c", COMPARE, str(rows), str(size)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.stdout.strip() == "equal", run.stderr[-2000:]
