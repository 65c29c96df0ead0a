"""Runs a scenario of `live_scenarios.py` on the real scheduler and worker, in its own process.

SGLang allows one scheduler a process, so each configuration is one. Results are cached: tests
that ask for the same scenario with the same configuration share a run.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
TREE = {"steps": 2, "topk": 4, "num_draft_tokens": 16}
CHAIN = {"steps": 3, "topk": 1, "num_draft_tokens": 4}
FSM = {"disable_above": 5, "dwell": 4, "checks": True}


def run(
    scenario: str,
    *,
    fsm: dict[str, Any] | None = FSM,
    script: str = "live_scenarios.py",
    **config: Any,
) -> dict[str, Any]:
    """The scenario's result. `fsm`: the plugin's configuration, None leaves it inactive.

    `script`: the file beside this one that holds the scenario.

    `config`: keywords of `inprocess.Engine` but the models (`draft` is "eagle3", "eagle" or
    None), and `params` for the scenario itself.
    """
    return json.loads(_run(script, scenario, json.dumps({"fsm": fsm, **config}, sort_keys=True)))


@functools.cache
def _run(script: str, scenario: str, config: str) -> str:
    environ = {k: v for k, v in os.environ.items() if k != "SPEC_FSM_CONFIG"}
    environ |= {"SPEC_FSM_STRICT": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        command = [sys.executable, str(TESTS / script), scenario, config, result.name]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"{scenario} {config} failed:\n{done.stderr[-6000:]}")
        return Path(result.name).read_text(encoding="utf-8")
