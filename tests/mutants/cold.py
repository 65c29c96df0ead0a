"""Forks of a process that has imported SGLang and nothing of the adapter that is mutated."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from mutants.histories import History, Setup


def imported() -> None:
    """Imports what a start imports, without the adapter's modules."""
    from spec_fsm_sglang.cpu_ops import server

    os.environ["SPEC_FSM_STRICT"] = "1"
    server.prepare()
    import torch
    import transformers  # noqa: F401
    import xgrammar  # noqa: F401

    torch.set_num_threads(1)


def play_cold(setup: Setup, history: History) -> None:
    """Starts the engine with a trace, plays, ends it, and has the trace checked."""
    if history.tests:
        run_tests(history)
        return
    from fuzz.process import finish, start

    world = start(history.start or setup.configuration, Path(tempfile.mkdtemp()), traced=True)
    history.play(world)
    finish(world)
    check_trace(world)
    check_settings(world)


def check_trace(world: Any) -> None:
    """The trace is a path of the model, to its last line."""
    from fuzz.world import Wrong
    from spec_fsm_model.trace_check import check_file

    found = check_file(world.trace).as_dict()
    if found["verdict"] != "proved":
        raise Wrong(f"trace: {found}")


def check_settings(world: Any) -> None:
    """What the trace begins with is what was configured."""
    start = json.loads(world.trace.read_text(encoding="utf-8").split("\n", 1)[0])
    fsm, engine = world.config.fsm, world.config.engine
    wanted = {
        "policy": {
            "disable_above": fsm["disable_above"], "enable_at": fsm["enable_at"],
            "dwell": fsm["dwell"], "pin": fsm["pin"].upper(),
        },
        "stash": {
            "width": fsm["stash_width"], "flush_every": fsm["flush_every"],
            "slice_width": max(2, fsm["slice_tokens"] // fsm["enable_at"]),
            "seed_ahead": engine["num_draft_tokens"] if engine["overlap"] else 0,
        },
        "shape": {"topk": engine["topk"], "num_steps": engine["steps"],
                  "num_draft_tokens": engine["num_draft_tokens"],
                  "page_size": engine.get("page_size", 1)},
    }
    for part, values in wanted.items():
        if start[part] != values:
            raise AssertionError(f"settings: {part} is {start[part]}, configured {values}")


def run_tests(history: History) -> None:
    """Runs them by pytest, here; raises the first that fails."""
    import pytest

    import live

    if not history.processes:
        # A process of its own would not have the mutant.
        live.run = lambda *_args, **_config: pytest.skip("a process")  # type: ignore[assignment]
    folder = Path(__file__).resolve().parent.parent
    failed: list[str] = []

    class Watch:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.append(report.nodeid)

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-o",
               "addopts="]
    tests = [str(folder / test) for test in history.tests]
    code = pytest.main([*options, *tests], plugins=[Watch()])
    if code:
        raise AssertionError(f"{failed[0] if failed else f'pytest ended with {code}'}")
