"""A SGLang plugin of the tests: strikes the server at a chosen moment of the lifecycle.

This folder on `PYTHONPATH` is a distribution, so SGLang loads it in each of its processes as it
loads any plugin; the product knows nothing of it. What to do it reads from the file named by
`SPEC_FSM_CHAOS`, an `Order` as JSON, written there by the test while the server runs. What it
did it appends to that file's name plus `.done`, one line a strike.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENV_VAR = "SPEC_FSM_CHAOS"


class Orders:
    """The order file: `{"strike": ..., "mode": ..., "times": n}`, read again at every call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = path.with_name(path.name + ".done")

    def take(self, strike: str) -> bool:
        """Whether `strike` is to happen now; uses up one of the order's times."""
        if not self.path.exists():
            return False
        order = json.loads(self.path.read_text())
        mode = _mode()
        if order["strike"] != strike or order["mode"] != mode:
            return False
        order["times"] -= 1
        if order["times"] > 0:
            write(self.path, order)
        else:
            self.path.unlink()
        with self.done.open("a") as done:
            done.write(f"{strike} in {mode}\n")
        return True


def write(path: Path, order: dict[str, Any]) -> None:
    """Puts an order in place at once: a reader sees all of it or the one before."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(order))
    draft.replace(path)


def activate() -> None:
    """Entry point: hooks beside those of the product, if a test asks for them."""
    if ENV_VAR not in os.environ:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    orders = Orders(Path(os.environ[ENV_VAR]))
    rebuild = "spec_fsm_sglang.rebuild"
    for target, strike in (
        (f"{rebuild}.BulkRebuild.flush", "flush"),
        (f"{rebuild}.seed", "seed"),
        ("sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation", "forward"),
    ):
        HookRegistry.register(target, _raising(orders, strike), HookType.AROUND)
    # Asked once an iteration, between the choice of a batch and its launch.
    boundary = "spec_fsm_sglang.controller.Controller.must_settle_first"
    HookRegistry.register(boundary, _terminating(orders), HookType.AFTER)


def _mode() -> str | None:
    from spec_fsm_sglang.ownership import STRICT

    return None if STRICT.mode_of is None else STRICT.mode_of().name


def _raising(orders: Orders, strike: str) -> Callable[..., Any]:
    """Instead of the call, an error such as a device raises."""

    def raising(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if orders.take(strike):
            raise RuntimeError(f"out of memory, says the test ({strike})")
        return original(*args, **kwargs)

    return raising


def _terminating(orders: Orders) -> Callable[..., Any]:
    """SIGTERM to the server's main process, which takes it while this one stands where it is."""

    def terminating(result: Any, *_args: Any, **_kwargs: Any) -> Any:
        if orders.take("sigterm"):
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(0.3)
        return result

    return terminating
