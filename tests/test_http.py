"""`spec-fsm serve` over HTTP: the real server on the tiny pair, pinned and released by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from spec_fsm_sglang.demo.server import Server, running
from spec_fsm_sglang.tiny import write_pair

PROMPT = [5, 6, 7, 11, 13, 17]


def generate(server: Server, tokens: int = 24) -> list[int]:
    """The greedy output ids for `PROMPT`."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": sampling}
    reply = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    reply.raise_for_status()
    output_ids: list[int] = reply.json()["output_ids"]
    return output_ids


def command(*arguments: str) -> dict[str, Any]:
    """The JSON object that `spec-fsm ARGUMENTS --json` prints last."""
    run = subprocess.run(
        [sys.executable, "-m", "spec_fsm_sglang.cli", *arguments, "--json"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the module: chain drafts with overlap, every invariant checked."""
    folder = tmp_path_factory.mktemp("http")
    pair = write_pair(folder / "pair")
    config = folder / "spec-fsm.toml"
    config.write_text("disable_above = 4\nchecks = true\n")
    flags = [
        "--model-path", str(pair.target), "--speculative-draft-model-path", str(pair.eagle3),
        "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2",
        "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16",
        "--dtype", "float32", "--skip-tokenizer-init", "--max-total-tokens", "16384",
        "--mem-fraction-static", "0.3", "--spec-fsm-cpu-overlap", "--warmups", "spec_fsm",
        "--spec-fsm-config", str(config), "--spec-fsm-trace", str(folder / "trace.ndjson"),
    ]  # fmt: skip
    with running(flags, folder / "server.log") as server:
        yield server


def test_cap_is_that_of_a_plain_server(served: Server) -> None:
    """The cap of 48 is lifted: the running requests are limited by the KV pool alone."""
    info = httpx.get(f"{served.url}/server_info", timeout=60).json()
    # 0.5.23 sizes it from the pool, 2048 at least, and half the pool's tokens at most.
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 2048


def test_rehearsal_switches_before_the_server_is_ready(served: Server) -> None:
    """The warm-up went off and on with 1, 2 and 4 requests, and left the pin as it was."""
    status = command("status", "--url", served.url)
    assert status["switch_off_count"] >= 3
    assert status["switch_on_count"] >= 3
    assert (status["pin"], status["rows"], status["violations"]) == ("AUTO", 0, 0)


def test_pins_switch_and_change_no_output(served: Server) -> None:
    """Pinned plain and back to spec, the server gives the same output through every mode."""
    expected = generate(served)
    before = command("status", "--url", served.url)
    assert before["mode"] == "SPEC"
    assert command("pin", "plain", "--url", served.url)["pin"] == "plain"
    assert generate(served) == expected
    plain = command("status", "--url", served.url)
    assert (plain["mode"], plain["switch_off_count"] - before["switch_off_count"]) == ("PLAIN", 1)
    command("pin", "spec", "--url", served.url)
    assert generate(served) == expected
    spec = command("status", "--url", served.url)
    assert (spec["mode"], spec["switch_on_count"] - before["switch_on_count"]) == ("SPEC", 1)
    command("pin", "auto", "--url", served.url)
    assert spec["checks"]["I1a"] > 0
    assert not spec["violations"]


def test_bad_request_takes_no_other_with_it(served: Server) -> None:
    """A request the server refuses is answered with an error, and the next one is served."""
    body = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 4, "top_p": 7}}
    assert httpx.post(f"{served.url}/generate", json=body, timeout=60).status_code == 400
    assert len(generate(served, 8)) == 8


def test_sigterm_ends_the_server_cleanly(served: Server) -> None:
    """SIGTERM drains the server, and it exits with code 0. Last: it ends the fixture's server."""
    assert served.process.poll() is None
    assert served.stop() == 0
