"""Adapters on a server that switches: `bench/gpu/truth.py`, here without graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from engine_environ import engine_environ

ROOT = Path(__file__).resolve().parents[1]


def test_two_adapters_and_none_in_one_batch_in_every_mode(tmp_path: Path) -> None:
    """Each output is that of a server that does not speculate, in SPEC, in PLAIN and after each
    switch, and of the model with the adapter merged into its weights."""
    record = tmp_path / "truth.json"
    command = [sys.executable, str(ROOT / "bench/gpu/truth.py"), str(record), "lora"]
    done = subprocess.run(
        [*command, "--device", "cpu", "--quick"],
        env=engine_environ(), capture_output=True, text=True, timeout=500, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = json.loads(record.read_text())["lora"]["torch_native"]
    assert found["fsm"]["equal"] == found["requests"] == 10
    assert found["fsm"]["switches"]["RESEEDING -> SPEC"] >= 2
    assert found["fsm"]["switches"]["SPEC -> PLAIN"] >= 2
