"""Runs a scenario of `live_scenarios.py` on the real scheduler and worker, in its own process.

SGLang allows one scheduler a process, so each configuration is one, forked from one that has
imported SGLang (`live_process.py`). Results are cached: tests that ask for the same scenario with
the same configuration share a run.

Every run leaves a trace, which must be a path of the model. Two kinds do not (`UNTRACED`): with a
trace every step is told, and none is decided the quick way that servers have.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine_environ import engine_environ

TESTS = Path(__file__).resolve().parent
TREE = {"steps": 2, "topk": 4, "num_draft_tokens": 16}
CHAIN = {"steps": 3, "topk": 1, "num_draft_tokens": 4}
UNTRACED = {
    "pinned": "steady steps, which are there to be decided the quick way",
    "naive_patch": "a launch that is refused, which a trace tells as the violation it is",
}
SECONDS = 300
"""After which an engine's process is ended."""
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
    with tempfile.TemporaryDirectory() as folder:
        result, trace = Path(folder, "result.json"), Path(folder, "trace.ndjson")
        settings = json.loads(config)
        traced = scenario not in UNTRACED and "trace" not in (settings["fsm"] or {"trace": 0})
        if traced:
            settings["fsm"]["trace"] = str(trace)
        arguments, log = [scenario, json.dumps(settings), str(result)], Path(folder, "log")
        code = _in_process(str(TESTS / script), arguments, str(log))
        if code != 0:
            told = log.read_text(encoding="utf-8", errors="replace")[-6000:]
            raise AssertionError(f"{scenario} {config} failed, exit code {code}:\n{told}")
        if traced:
            _check(trace, f"{scenario} {config}")
        return result.read_text(encoding="utf-8")


def _in_process(script: str, arguments: list[str], log: str) -> int:
    """Exit code of a script that ran as a program of its own; negative: ended by that signal."""
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    order = [script, arguments, engine_environ(), log, SECONDS]
    print(json.dumps(order), file=parent.stdin, flush=True)
    answer = parent.stdout.readline()
    if not answer:
        _parent.cache_clear()
        raise AssertionError(f"the process that starts engines ended: {parent.wait()}")
    return int(answer)


@functools.cache
def _parent() -> subprocess.Popen[str]:
    """The process engines are forked from; it ends with this one, whose pipe it reads."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(TESTS / "live_process.py")],
        env=engine_environ(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def _check(trace: Path, run: str) -> None:
    """The trace of a run is a path of the model, from its first line to its last."""
    from spec_fsm_model.explore import Verdict
    from spec_fsm_model.trace_check import check_file

    found = check_file(trace)
    if found.verdict is not Verdict.PROVED or not found.lines:
        raise AssertionError(f"{run}: its trace is no path of the model: {found}")
