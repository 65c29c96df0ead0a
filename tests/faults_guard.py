"""Seeded faults: a launch of the draft model whose shape is not its phase's.

What only the draft half of the launch guard sees: nothing else measures the draft's forwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

from fault_kit import FAULTS, Fault
from fuzz.world import World

EXTEND = ForwardMode.DRAFT_EXTEND_V2
PHASES = {
    "draft": ("DRAFT", lambda batch, _guard: batch.forward_mode is ForwardMode.DECODE),
    "extend": (
        "DRAFT_EXTEND", lambda batch, guard: batch.forward_mode is EXTEND and not guard.reseeding
    ),
    "seed": ("SEED_EXTEND", lambda batch, guard: batch.forward_mode is EXTEND and guard.reseeding),
}


def _longer(name: str) -> Callable[[Any], None]:
    def change(batch: Any) -> None:
        tensor = getattr(batch, name)
        setattr(batch, name, torch.cat([tensor, tensor[-1:]]))

    return change


def _no_spec_info(batch: Any) -> None:
    batch.spec_info = None


def _no_hidden(batch: Any) -> None:
    batch.capture_hidden_mode = CaptureHiddenMode.NULL


CHANGES: dict[str, tuple[str, str, Callable[[Any], None]]] = {
    "tokens": ("has a token more than its rows", "I2", _longer("input_ids")),
    "slots": ("has a slot more than its tokens", "I3", _longer("out_cache_loc")),
    "spec_info": ("carries no `spec_info`", "I1a", _no_spec_info),
    "hidden": ("captures no hidden states", "I16", _no_hidden),
}


def _put(phase: str, change: Callable[[Any], None]) -> Callable[[World], None]:
    _shown, of_phase = PHASES[phase]

    def put(world: World) -> None:
        runner, guard = world.worker.draft_worker.draft_runner, world.worker.guard
        forward = runner.forward

        def wrong(batch: Any, *args: Any, **kw: Any) -> Any:
            if of_phase(batch, guard):
                change(batch)
            return forward(batch, *args, **kw)

        runner.forward = wrong

    return put


for _phase, (_shown, _) in PHASES.items():
    for _what, (_says, _invariant, _change) in CHANGES.items():
        _name = f"{_phase}_{_what}"
        FAULTS[_name] = Fault(
            _name, f"a {_shown} launch {_says}", _invariant, _put(_phase, _change),
            overlap=_what in ("tokens", "hidden"),
        )
