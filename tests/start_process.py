"""Resolves a server's arguments as SGLang does and as it does with the plugin, and compares.

A process of its own: the plugin is loaded here as SGLang loads it. Reads cases as JSON from
standard input, `{"name": {"fields": {...}, "environ": {...}}}`, and prints what differs in each.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import sys
from typing import Any

from spec_fsm_sglang import cpu_ops

Case = dict[str, dict[str, Any]]


class Lines(logging.Handler):
    """Keeps what the plugin says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """One line more."""
        self.lines.append(record.getMessage())


def resolved(fields: dict[str, Any], *, watched: bool) -> dict[str, Any]:
    """The arguments and the environment after a resolution, with the plugin watching or without."""
    from sglang.srt.arg_groups import pipeline
    from sglang.srt.server_args import ServerArgs

    kept, watching = dict(os.environ), pipeline.run_resolution_pipeline
    if not watched:
        pipeline.run_resolution_pipeline = inspect.unwrap(watching)
    record = ServerArgs(**fields)
    try:
        record.resolve_once()
        found = {"args": json.loads(json.dumps(record.resolved_dict(), default=str))}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    finally:
        pipeline.run_resolution_pipeline = watching
    found["environ"] = dict(os.environ)
    os.environ.clear()
    os.environ.update(kept)
    return found | {"record": record}


def compare(case: Case, said: Lines) -> dict[str, Any]:
    """What the plugin changed of the arguments, the environment and SGLang's functions."""
    from sglang.srt.runtime_context import SpawnRanks, publish

    from spec_fsm_sglang import in_force, start

    os.environ.update(case.get("environ", {}))
    plain = resolved(case["fields"], watched=False)
    said.lines.clear()
    ours = resolved(case["fields"], watched=True)
    lines = list(said.lines)
    for name in case.get("environ", {}):
        del os.environ[name]
    result = {
        "refusal": getattr(ours["record"], "_spec_fsm_refusal", "not decided"),
        "said": lines,
        "error": plain.get("error"),
        "same_error": plain.get("error") == ours.get("error"),
        "environ": sorted(dict(plain["environ"].items() ^ ours["environ"].items())),
        "args": {
            name: [value, ours["args"][name]]
            for name, value in plain.get("args", {}).items()
            if value != ours.get("args", {}).get(name)
        },
    }
    if "error" not in ours:
        for role in ("tokenizer", "scheduler"):
            publish(ours["record"], role=role, ranks=SpawnRanks(world_rank=0, gpu_id=0))
            hooks = start.hooks_of(role)
            result[role] = sum(in_force.holds(target, hook) for target, hook, _ in hooks)
            result[f"{role}_hooks"] = len(hooks)
    return result


def warmups() -> dict[str, str | None]:
    """The warm-ups of a server on a GPU, for what its operator asked for."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    from spec_fsm_sglang.start import _rehearse

    asked: dict[str, dict[str, Any]] = {
        "none": {},
        "theirs": {"warmups": "a,b"},
        "ours": {"warmups": "spec_fsm,a"},
        "skipped": {"skip_server_warmup": True},
        "two tokenizers": {"tokenizer_worker_num": 2},
    }
    found = {}
    for name, fields in asked.items():
        record = ServerArgs(model_path="m", device="cuda", **fields)
        _rehearse(record)
        found[name] = resolving_view(record).warmups
    return found


def main() -> None:
    """Compares every case; the cases in which the plugin is on come last."""
    cpu_ops.enable()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    said = Lines()
    logging.getLogger("spec_fsm").addHandler(said)
    cases: dict[str, Case] = json.load(sys.stdin)
    results: dict[str, Any] = {name: compare(case, said) for name, case in cases.items()}
    results["warmups"] = warmups()
    print(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
