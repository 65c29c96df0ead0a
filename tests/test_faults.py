"""Every seeded fault of the adapter is caught, by the check that is expected to catch it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fault_page
from engine_environ import engine_environ
from fault_kit import known

TESTS = Path(__file__).resolve().parent
FAULTS = known()
PAGE = TESTS.parent / "docs" / "faults.md"

pytestmark = pytest.mark.timeout(900)


def play(kind: str) -> dict[str, Any]:
    """The faults of one configuration, in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as target:
        command = [sys.executable, str(TESTS / "fault_run.py"), kind, target.name]
        done = subprocess.run(
            command, env=engine_environ(), capture_output=True, text=True, timeout=800, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(Path(target.name).read_text(encoding="utf-8"))
        return found


@functools.cache
def record() -> dict[str, dict[str, Any]]:
    """What became of the histories, by configuration and fault."""
    with ThreadPoolExecutor(2) as pool:
        overlap, serial = pool.map(play, ("overlap", "serial"))
    return {"overlap": overlap, "serial": serial}


@pytest.mark.parametrize("kind", ["overlap", "serial"])
def test_without_a_fault_nothing_is_caught(kind: str) -> None:
    """The histories alone are clean, so what is caught is the fault."""
    assert record()[kind]["none"]["caught_by"] == "", record()[kind]["none"]["text"]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_its_check(name: str) -> None:
    """The check the fault names is the one that stops it."""
    fault = FAULTS[name]
    found = record()["overlap" if fault.overlap else "serial"][name]
    assert found["caught_by"] == fault.caught_by, found["text"]


def test_there_are_faults_enough() -> None:
    """At least 25, against many checks of different kinds."""
    assert len(FAULTS) >= 25
    assert len({fault.caught_by for fault in FAULTS.values()}) >= 12


def test_the_page_is_what_the_run_found() -> None:
    """`docs/faults.md` is written from this run's record: who catches what, and how soon."""
    assert PAGE.read_text(encoding="utf-8") == fault_page.page(record())
