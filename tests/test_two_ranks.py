"""I11 on two real tensor-parallel ranks: same mode, same launch, same outputs, at every step."""

from __future__ import annotations

import functools
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine_environ import engine_environ
from rank_process import STEPS, WORLD
from spec_fsm import INVARIANTS

TESTS = Path(__file__).resolve().parent
SECONDS = 240

pytestmark = pytest.mark.timeout(SECONDS + 60)


def free_port() -> int:
    """A port at which the ranks can meet."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@functools.cache
def ranks() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each rank saw in one run of both, and the verdict on the trace that one wrote."""
    from spec_fsm_model.trace_check import check_file

    environ = engine_environ()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), str(free_port())
        command = [sys.executable, str(TESTS / "rank_process.py")]
        running = []
        for rank in range(WORLD):
            with folder.joinpath(f"log-{rank}").open("w") as log:
                arguments = [*command, str(rank), port, name]
                running.append(subprocess.Popen(arguments, env=environ, stdout=log, stderr=log))
        try:
            # A rank that waits for the other in a collective would wait for ever.
            ended = [process.wait(SECONDS) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
        logs = [folder.joinpath(f"log-{rank}").read_text()[-3000:] for rank in range(WORLD)]
        assert ended == [0] * WORLD, "\n".join(logs)
        seen = [json.loads(folder.joinpath(f"rank-{r}.json").read_text()) for r in range(WORLD)]
        return seen, check_file(folder / "right.ndjson").as_dict()


def test_ranks_take_the_same_mode_and_the_same_launch_at_every_step() -> None:
    """Modes after each step, and model, phase, rows and tokens of each forward, are equal; they
    were compared before each forward, one rank on the traced way and one on the quick way."""
    (one, two), _ = ranks()
    assert one["modes"] == two["modes"]
    assert len(one["modes"]) == STEPS
    assert one["forwards"] == two["forwards"]
    assert one["edges"] == two["edges"]
    assert [one["traced"], two["traced"]] == [True, False]
    for seen in (one, two):
        assert seen["checks"]["I11"] == len(seen["forwards"]) > 200
        assert seen["violations"] == {}


def test_a_reseed_that_fails_on_one_rank_fails_on_all() -> None:
    """The other rank, where nothing was wrong, goes back to PLAIN with it."""
    one, two = ranks()[0]
    edge = "RESEEDING RESEED_FAILED PLAIN"
    assert one["edges"][edge] == two["edges"][edge] >= 1
    # Seeds made ahead that fail and are not asked for, because load rose again, are no failure.
    assert one["failed"] == 0
    assert two["failed"] >= two["edges"][edge]


def test_modes_flip_by_load_and_by_pin() -> None:
    """Every mode is taken; PLAIN without a pin and by pin, SPEC at every load by pin."""
    (one, _), _ = ranks()
    assert set(one["modes"]) == {"SPEC", "DRAINING", "PLAIN", "RESEEDING"}
    for edge in ("SPEC LOAD_ROSE DRAINING", "DRAINING DRAINED PLAIN", "RESEEDING RESEEDED SPEC"):
        assert one["edges"][edge] >= 3, one["edges"]
    decoding = [forward for forward in one["forwards"] if forward[3] != "EXTEND"]
    kinds = {(mode, pin) for mode, pin, *_ in decoding}
    assert {("PLAIN", "AUTO"), ("PLAIN", "PLAIN"), ("SPEC", "AUTO"), ("SPEC", "SPEC")} <= kinds
    rows = [b for mode, pin, _, kind, b, _ in decoding if (mode, kind) == ("SPEC", "TARGET_VERIFY")]
    assert max(rows) > 4, "a pin holds SPEC above the threshold"


def test_the_time_of_a_pin_ends_in_the_same_step_on_both_ranks() -> None:
    """One rank's clock decides, though the other's runs five times as fast."""
    one, two = ranks()[0]
    assert one["pins_ended"] == two["pins_ended"]
    assert len(one["pins_ended"]) >= 3


def test_outputs_are_equal_and_those_of_a_server_that_never_speculates() -> None:
    """Both ranks sent the same tokens for every request, and they are the model's greedy ones."""
    (one, two), trace = ranks()
    assert one["outputs"] == two["outputs"]
    assert one["reasons"] == two["reasons"]
    assert one["wrong"] == two["wrong"] == {}
    assert len(one["outputs"]) > 40
    assert one["idle"]
    assert two["idle"]
    assert one["rows"] == two["rows"] == 0
    assert trace["verdict"] == "proved"


def test_a_rank_that_goes_by_its_own_load_is_noticed() -> None:
    """The same comparison, when one rank sees another load: I11 on both, before the launch."""
    for seen in ranks()[0]:
        # The first is the one they recovered from.
        assert seen["violations_after"] == {"ShapeViolation": 1, "I11": 1}
        assert "the ranks do not agree" in seen["parted"]
        assert seen["parted"].endswith("breaks I11)")


def test_a_violation_on_both_ranks_is_recovered_from_on_both() -> None:
    """Rows are prefilled again at the same step, outputs stay right, and SPEC comes back."""
    one, two = (seen["recovered"] for seen in ranks()[0])
    assert one["recoveries"] == two["recoveries"] == 1
    assert one["left"] == two["left"] == []
    assert one["modes"] == two["modes"]
    assert {"SPEC", "PLAIN"} <= set(one["modes"])
    assert one["modes"][-1] == "SPEC"
    assert one["outputs"] == two["outputs"]
    assert one["wrong"] == two["wrong"] == {}
    for seen in (one, two):
        assert (seen["idle"], seen["rows"]) == (True, 0)


def test_a_recovery_the_ranks_do_not_share_ends_the_server() -> None:
    """Equal: nothing is said. Other launches: both say so. One alone: it waits, and says so."""
    differ = "spec-fsm: a law was violated at different launches of the ranks"
    one, two = (seen["at_odds"] for seen in ranks()[0])
    assert one == ["", differ]
    assert two == ["", differ, "spec-fsm: a law was violated on rank 1 and not on all"]


def test_every_invariant_a_cpu_can_check_is_evaluated_on_both() -> None:
    """None is evaluated 0 times, but I12 and I13 (graphs) and I19 (no grammar is asked for)."""
    for seen in ranks()[0]:
        silent = {name for name in INVARIANTS if not seen["checks"][name]}
        assert silent == {"I12", "I13", "I19"}
