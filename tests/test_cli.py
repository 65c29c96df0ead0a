"""The command line: what is passed through, what is refused, and in how many words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spec_fsm_sglang import cli, client, running_cap, serve
from spec_fsm_sglang.config import Config


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `spec-fsm ARGUMENTS` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "spec_fsm_sglang.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"COLUMNS": "200"},
    )


class Called(Exception):
    """Stands for the server that would have run."""


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Config | None, bool]]:
    """What `serve.run` was called with, in place of a server."""
    calls: list[tuple[list[str], Config | None, bool]] = []

    def record(argv: list[str], config: Config | None, *, cpu_overlap: bool) -> int:
        calls.append((argv, config, cpu_overlap))
        return 0

    monkeypatch.setattr(serve, "run", record)
    return calls


def invoke(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command in this process; its exit code."""
    monkeypatch.setattr(sys, "argv", ["spec-fsm", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    code = stop.value.code
    assert isinstance(code, int)
    return code


def test_serve_passes_sglang_flags_through(
    monkeypatch: pytest.MonkeyPatch, called: list[tuple[list[str], Config | None, bool]]
) -> None:
    """Flags that are not ours reach SGLang unchanged and in order; ours make the configuration."""
    sglang = ["--model-path", "m", "--tp=2", "--speculative-eagle-topk", "4", "--quantize"]
    ours = ["--spec-fsm-disable-above", "8", "--spec-fsm-pin", "plain", "--spec-fsm-cpu-overlap"]
    assert invoke(monkeypatch, "serve", *sglang[:3], *ours, *sglang[3:]) == 0
    assert called == [(sglang, Config(disable_above=8, pin="plain"), True)]


def test_serve_reads_the_file_and_lets_flags_win(
    monkeypatch: pytest.MonkeyPatch,
    called: list[tuple[list[str], Config | None, bool]],
    tmp_path: Path,
) -> None:
    """A configuration file counts where no flag says otherwise."""
    path = tmp_path / "c.toml"
    path.write_text("disable_above = 8\ndwell = 3\n")
    assert invoke(
        monkeypatch, "serve", "--spec-fsm-config", str(path), "--spec-fsm-disable-above", "6"
    ) == 0
    assert called[0][1] == Config(disable_above=6, dwell=3)


def test_serve_off_needs_no_configuration(
    monkeypatch: pytest.MonkeyPatch, called: list[tuple[list[str], Config | None, bool]]
) -> None:
    """`--spec-fsm-off` is SGLang's own server."""
    assert invoke(monkeypatch, "serve", "--spec-fsm-off", "--model-path", "m") == 0
    assert called == [(["--model-path", "m"], None, False)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve"], "serve needs --spec-fsm-config FILE or --spec-fsm-disable-above N"),
        (["serve", "--spec-fsm-disable-above", "0"], "disable_above is 0: accepted are"),
        (["serve", "--spec-fsm-config", "missing.toml"], "missing.toml: No such file"),
        (["status", "--url", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1"),
        (["pin", "plain", "--url", "http://127.0.0.1:1"], "no answer from http://127.0.0.1:1"),
    ],
)
def test_refusals_are_one_line_and_exit_2(arguments: list[str], expected: str) -> None:
    """Bad input: one line on standard error, nothing on standard output, exit code 2."""
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("spec-fsm: error: ")
    assert expected in line


def test_threshold_at_the_cap_is_refused() -> None:
    """A threshold the server can never exceed is refused, in one line, before SGLang starts."""
    result = run("serve", "--spec-fsm-disable-above", "16", "--max-running-requests", "16")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "disable_above is 16, but the server runs at most 16 requests" in line
    assert "accepted are 1 to 15" in line


def test_serve_without_sglang_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where SGLang is not installed, serve says how to install it."""
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    assert invoke(monkeypatch, "serve", "--spec-fsm-disable-above", "5") == 2
    assert "pip install 'spec-fsm[sglang]'" in capsys.readouterr().err


def test_cap_problem() -> None:
    """Below the cap there is no problem, nor before the cap is known."""
    assert running_cap.problem(15, 16) is None
    assert running_cap.problem(15, None) is None
    assert running_cap.problem(16, 16) is not None


def test_flag_value_knows_both_spellings() -> None:
    """`--flag value` and `--flag=value` are found, the last one counts, and none is None."""
    assert serve.flag_value(["--device", "cuda", "--device=cpu"], "--device") == "cpu"
    assert serve.flag_value(["--devices=x", "--device"], "--device") is None


# A server that answers like SGLang's


class Answers(BaseHTTPRequestHandler):
    """Serves `/server_info` and takes `/set_internal_state`."""

    state: ClassVar[dict[str, Any]] = {}
    bodies: ClassVar[list[Any]] = []

    def do_GET(self) -> None:
        """The internal state."""
        self._send({"internal_states": [self.state]})

    def do_POST(self) -> None:
        """Records the body; accepted where the plugin runs."""
        length = int(self.headers["Content-Length"])
        self.bodies.append(json.loads(self.rfile.read(length)))
        self._send(["spec_fsm" in self.state])

    def _send(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of such a server, with the plugin running in PLAIN."""
    monkeypatch.setattr(Answers, "state", {"spec_fsm": {"mode": "PLAIN", "checks": {"I2": 3}}})
    monkeypatch.setattr(Answers, "bodies", [])
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_status_prints_one_json_object_last(url: str) -> None:
    """`--json` prints the status as the last line; without it a person can read it."""
    result = run("status", "--url", url, "--json")
    assert json.loads(result.stdout.splitlines()[-1]) == Answers.state["spec_fsm"]
    readable = run("status", "--url", url).stdout
    assert "PLAIN" in readable
    assert "I2 3" in readable


def test_pin_sends_its_number(url: str) -> None:
    """Each pin reaches the server as the number SGLang lets through."""
    for mode, code in (("auto", 0), ("spec", 1), ("plain", 2)):
        result = run("pin", mode, "--url", url, "--json")
        assert json.loads(result.stdout.splitlines()[-1])["pin"] == mode
        assert Answers.bodies[-1] == {"server_args": {"spec_fsm_pin": code}}


def test_server_without_plugin_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the plugin does not run, status and pin say so instead of succeeding."""
    monkeypatch.setattr(Answers, "state", {})
    with pytest.raises(client.ServerProblem, match="runs without spec-fsm"):
        client.status(url)
    with pytest.raises(client.ServerProblem, match="did not take the pin"):
        client.pin(url, "plain")


def test_command_needs_no_prover_and_no_engine_to_start() -> None:
    """z3, matplotlib and torch are loaded by the commands that use them, not at the start."""
    code = (
        "import sys, spec_fsm_sglang.cli;"
        "print([m for m in ('z3', 'matplotlib', 'torch', 'sglang') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
