"""A violated law while serving: the server goes on, right answers, nothing leaked; and its ends.

A few places here; `recovery_run.py all` plays every slip at every place, once and for ever, in both
configurations (the trial `recovery`).
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine_environ import engine_environ
from recovery_run import HOLD, LIMIT, problem
from spec_fsm_sglang.flight_record import MOST

TESTS = Path(__file__).resolve().parent
PLAYED = {
    "overlap": (
        "guard_verify:once", "settled:once", "resolved:once", "guard_plain_decode:ever",
        "boundary:ever", "strict", "device", "of_sglang", "holds", "a_law",
    ),
    "serial": ("guard_draft:once", "inserted:once", "plain_launched:ever"),
}
SLIPPED = [(kind, name) for kind, names in PLAYED.items() for name in names if ":" in name]


@functools.cache
def played(kind: str) -> dict[str, Any]:
    """What the children of one configuration saw."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "found.json")
        command = [sys.executable, str(TESTS / "recovery_run.py"), kind, str(target), *PLAYED[kind]]
        done = subprocess.run(
            command, env=engine_environ(), capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return found


@pytest.mark.parametrize(("kind", "name"), SLIPPED)
def test_a_server_goes_on_after_a_violation(kind: str, name: str) -> None:
    """Once: every answer is that of a server without speculation, no slot is lost, and SPEC comes
    back. For ever: requests end, with right answers or a clear error, and once the fault is gone
    and an operator released the pin the server is as good as new. In one configuration no flight
    record can be written, and that changes nothing else."""
    assert problem(name, played(kind)[name], recorded=kind == "overlap") == ""


def test_a_law_of_the_guard_is_recovered_from() -> None:
    """No stand-in: plain launches keep `spec_info` (I1a); none is launched, prefills go on, and
    each request ends with an error after as many retractions as there may be violations."""
    found = played("overlap")["a_law"]
    assert set(found["violations"]) == {"I1a"}
    assert found["violations"]["I1a"] == found["status"]["recoveries"] > LIMIT
    assert found["gave_up"] == found["asked"] - 1, "all but the one that ends with its prefill"
    assert found["status"]["pinned_by_violation"]
    assert found["mode"] == "PLAIN"


def test_the_pin_of_a_violation_doubles_and_the_last_one_stays() -> None:
    """Held for 6, 12 and then any number of iterations; SPEC at low load and a pin of SPEC do not
    release the last one, AUTO does."""
    found = played("overlap")["holds"]
    # The iteration that recovers counts.
    assert [held for held, _for, _steps in found["held"]] == [HOLD - 1, 2 * HOLD - 1, -1]
    assert [steps for _hold, _for, steps in found["held"]] == [HOLD - 1, 2 * HOLD - 1, 0]
    assert [pinned_for for _hold, pinned_for, _steps in found["held"]] == [5, 11, None]
    assert found["modes"] == [["PLAIN", "AUTO", -1], ["PLAIN", "SPEC", -1], ["SPEC", "AUTO", 0]]


@pytest.mark.parametrize(
    ("name", "error"),
    [("strict", "ShapeViolation"), ("device", "OutOfMemoryError"), ("of_sglang", "RuntimeError")],
)
def test_what_is_not_recovered_from_leaves_a_record(name: str, error: str) -> None:
    """Strict mode and `on_violation = "raise"` raise as ever; memory of the device and SGLang's own
    errors end the server in any case; each with a flight record of a crash."""
    found = played("overlap")[name]
    assert found["ended"] == error
    record = found["record"]
    assert record["reason"] == "crash"
    assert record["violation"]["type"] == error
    assert record["lines"]


def test_the_flight_record_says_what_was_violated_where() -> None:
    """It is JSON with mode 0600: the error and its traceback, versions, options, and the last lines
    up to the violation."""
    record = played("overlap")["guard_verify:once"]["first"]["record"]
    assert record["mode"] == 0o600
    assert record["reason"] == "violation"
    assert record["violation"]["type"] == "ShapeViolation"
    assert any("run_batch" in line for line in record["violation"]["traceback"])
    assert {"spec_fsm", "sglang", "torch", "python"} <= record["versions"].keys()
    assert record["options"]["spec_fsm"]["disable_above"] == 4
    assert record["options"]["sglang"]["speculative_algorithm"] == "EAGLE3"
    assert record["options"]["shape"]["topk"] == 4
    assert record["status"]["mode"] == "SPEC"
    assert record["lines"][-1] == "violation"
    assert {"event", "steady"} <= set(record["lines"])


def test_strict_runs_and_the_option_raise() -> None:
    """Either is enough; by default a server recovers."""
    raises = played("overlap")["strict"]["raises"]
    assert raises == {"0 recover": False, "0 raise": True, "1 recover": True, "1 raise": True}


def test_a_fault_that_returns_writes_few_records() -> None:
    """More violations than records: a disk is not filled."""
    found = played("overlap")["boundary:ever"]["first"]
    assert found["status"]["recoveries"] > found["records"] == MOST
