"""The environment of a process that a test starts an engine in."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def engine_environ() -> dict[str, str]:
    """This process's, but for the plugin's configuration: strict, one thread, tests on the path."""
    environ = {name: value for name, value in os.environ.items() if name != "SPEC_FSM_CONFIG"}
    return environ | {"SPEC_FSM_STRICT": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
