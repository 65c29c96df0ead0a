"""Everything of SGLang that the adapter's source touches is in the tables that a start checks.

The lists are derived from the source: what it imports from SGLang, what it hooks and overrides, and
which attributes it reads and writes. What runs in no server (testbed, demo, bench) is left out.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import spec_fsm_sglang
from spec_fsm_sglang import touched

ADAPTER = Path(spec_fsm_sglang.__file__).parent
OUTSIDE = {
    "address", "assets", "cli", "client", "config", "diagram", "inprocess", "reference",
    "smollm2", "tiny",
}  # fmt: skip
"""Modules that run in no server of SGLang's."""

TYPES = {
    "sglang.srt.mem_cache.allocation_sizing": "a module; its three functions are listed",
    "sglang.srt.environ.envs": "an instance of Envs, which is listed",
    "sglang.srt.entrypoints.http_server.app": "handed on as it is",
    "sglang.srt.plugins.hook_registry.HookRegistry": "its methods are listed",
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm": "its methods are listed",
    "sglang.srt.managers.schedule_batch.ScheduleBatch": "its attributes and methods are listed",
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner": "the same",
}
"""Imports that are no rows themselves, and why."""

B, F = "sglang.srt.managers.schedule_batch", "sglang.srt.model_executor.forward_batch_info"
OURS = ("spec_fsm", "_spec_fsm", "__")
"""How attributes begin that we put on SGLang's objects, or that Python has on all."""
E = "sglang.srt.speculative.eagle_worker_v2"
RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
RECEIVERS = {
    "batch": f"{B}.ScheduleBatch",
    "running": f"{B}.ScheduleBatch",
    "running_batch": f"{B}.ScheduleBatch",
    "req": f"{B}.Req",
    "kv": f"{B}.ReqKvInfo",
    "scheduler": "sglang.srt.managers.scheduler.Scheduler",
    "forward_batch": f"{F}.ForwardBatch",
    "relay": "sglang.srt.speculative.eagle_info.EagleDraftInput",
    "logits_output": "sglang.srt.layers.logits_processor.LogitsProcessorOutput",
    "draft_worker": f"{E}.EagleDraftWorker",
    "target_worker": "sglang.srt.managers.tp_worker.TpModelWorker",
    "model_runner": RUNNER,
    "draft_runner": RUNNER,
    "attention": "sglang.srt.models.llama.LlamaAttention",
    "ForwardMode": f"{F}.ForwardMode",
    "CaptureHiddenMode": f"{F}.CaptureHiddenMode",
    "SpecInputType": "sglang.srt.speculative.spec_info.SpecInputType",
    "HookType": "sglang.srt.plugins.hook_registry.HookType",
}
"""What the adapter calls an object -> the class it is of."""


@cache
def sources() -> dict[str, ast.Module]:
    """The modules that run in servers, by name."""
    files = [path for path in sorted(ADAPTER.glob("*.py")) if path.stem not in OUTSIDE]
    return {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in files}


def nodes() -> Iterator[ast.AST]:
    """Every node of every such module."""
    for tree in sources().values():
        yield from ast.walk(tree)


def imported() -> set[str]:
    """Every dotted name that is imported from SGLang."""
    return {
        f"{node.module}.{alias.name}"
        for node in nodes()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.")
        for alias in node.names
    }


def listed(name: str) -> bool:
    """Whether `name` is a row of one of the tables, by that path or the one of its definition."""
    rows = touched.SIGNATURES.keys() | touched.ATTRIBUTES.keys()
    if name in rows:
        return True
    found = pkgutil.resolve_name(name)
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}" in rows


def test_every_import_is_listed() -> None:
    """Whatever the adapter imports from SGLang is looked at before a server is on."""
    assert {name for name in imported() if not listed(name)} - TYPES.keys() == set()
    assert TYPES.keys() <= imported() | {"sglang.srt.mem_cache.allocation_sizing"}


def test_every_hook_is_listed() -> None:
    """The targets of all hooks, in every role, have their parameters checked."""
    from spec_fsm_sglang import start

    hooks = [*start.hooks_of("scheduler"), *start.hooks_of("tokenizer")]
    assert len(hooks) >= 20
    assert {target for target, _hook, _kind in hooks} - touched.SIGNATURES.keys() == set()
    assert set(touched.WATCHED) <= touched.SIGNATURES.keys()


def test_every_override_is_listed() -> None:
    """A method that a class of ours has in place of SGLang's is one whose parameters are known."""
    from spec_fsm_sglang.plain_graphs import PlainGraphRunner
    from spec_fsm_sglang.worker import SpecFsmEagleWorker

    for cls in (SpecFsmEagleWorker, PlainGraphRunner):
        base = cls.__bases__[0]
        where = f"{base.__module__}.{base.__qualname__}"
        for name in vars(cls):
            if hasattr(base, name) and not name.startswith(("__", "_abc")):
                assert _listed(where, name), f"{where}.{name}"


def _listed(where: str, name: str) -> bool:
    return f"{where}.{name}" in touched.SIGNATURES or (
        name in touched.ATTRIBUTES.get(where, "").split()
    )


def test_every_attribute_of_a_known_object_is_listed() -> None:
    """`batch.x` is in ScheduleBatch's row, and so for every object that has a name of its own."""
    seen = set()
    for node in nodes():
        if not isinstance(node, ast.Attribute):
            continue
        inner = node.value
        name = inner.id if isinstance(inner, ast.Name) else getattr(inner, "attr", "")
        cls = RECEIVERS.get(name.lstrip("_"))
        if cls is not None and not node.attr.startswith(OURS):
            seen.add(name.lstrip("_"))
            assert _listed(cls, node.attr), f"{name}.{node.attr} is not in the row of {cls}"
    assert {"batch", "req", "scheduler", "relay", "draft_worker", "model_runner"} <= seen


def test_every_other_attribute_is_ours_or_listed() -> None:
    """An attribute that neither we, Python nor torch define is of SGLang, and in some row."""
    rows = {name for names in touched.ATTRIBUTES.values() for name in names.split()}
    rows |= {name.rpartition(".")[2] for name in touched.SIGNATURES}
    known = rows | _defined_here() | _of_python_and_torch()
    used = {node.attr for node in nodes() if isinstance(node, ast.Attribute)}
    unknown = {name for name in used - known if not name.startswith(OURS)}
    assert unknown - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() <= unknown


ELSEWHERE = {
    "total_memory": "torch's, of a device that a CPU host does not have",
    "_resolved_overrides": "put on the record by the resolution; without it the start is refused",
}
"""Attributes of SGLang's that no row can hold, and why."""


@cache
def _defined_here() -> set[str]:
    """Every name that a class, function, assignment or annotation of this project defines."""
    import spec_fsm

    found: set[str] = set()
    folders = (ADAPTER, ADAPTER / "cpu_ops", Path(spec_fsm.__file__).parent)
    for path in (file for folder in folders for file in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
            elif isinstance(node, ast.Assign):
                found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                found.add(node.attr)
    return found


@cache
def _of_python_and_torch() -> set[str]:
    """What tensors, Python's own objects and the imported modules have."""
    import asyncio
    import collections
    import contextlib
    import datetime
    import errno
    import http
    import json
    import logging
    import multiprocessing.process
    import os
    import pathlib
    import platform
    import re
    import socket
    import sys
    import tempfile
    import time
    import traceback
    import types

    import msgspec
    import triton

    modules = (asyncio, ast, builtins, errno, inspect, json, logging, os, pathlib, pkgutil, re,
               socket, sys, time, torch, torch.cuda, torch.distributed, torch.nn.functional, triton,
               triton.language, msgspec, platform, tempfile, traceback)  # fmt: skip
    things = (torch.Tensor, torch.Size, torch.cuda.Event, torch.cuda.Stream, Path, str, dict, list,
              tuple, set, int, BaseException, OSError, SystemExit, type, object, logging.Logger,
              inspect.Signature, len, lambda: None, (lambda: None).__code__, socket.socket,
              torch.distributed.ReduceOp, sys._getframe(), os.environ, asyncio.Future,
              contextlib.ExitStack, multiprocessing.process.BaseProcess, re.compile(""),
              types.CellType, torch.nn.Linear(1, 1), collections.deque, datetime.datetime,
              http.HTTPStatus)  # fmt: skip
    found = set(dir(torch.accelerator)) | set(dir(torch.nn.Module))
    for thing in (*modules, *things):
        found |= set(dir(thing))
    return found


@pytest.mark.parametrize(
    ("table", "change", "says"),
    [
        ("SIGNATURES", {"sglang.srt.managers.schedule_batch.Req.finished": ("self", "x")}, "takes"),
        ("ATTRIBUTES", {"sglang.srt.managers.schedule_batch.Req": "no_such_name"}, "no attribute"),
        ("ATTRIBUTES", {"sglang.srt.managers.schedule_batch.NoClass": "x"}, "is not there"),
    ],
)
def test_a_row_that_does_not_hold_is_a_refusal(
    table: str, change: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table is looked at: a row that is wrong for this release is one line, naming it."""
    from spec_fsm_sglang import compat

    check = {"SIGNATURES": compat.signature_problem, "ATTRIBUTES": compat.attribute_problem}[table]
    assert check() is None
    problem = check(change)  # type: ignore[arg-type]
    assert problem is not None
    assert says in problem
    assert next(iter(change)) in problem
