"""New weights of the target make the stash worthless: told by what was written, not by the call.

A message that asks for new weights may be refused before anything is read, may fail after half
of them, may fail on one rank, may write the draft alone, or may write everything and report a
failure because the cache could not be flushed. So each runner notes whether writing *began*, and
the lifecycle is told when that is so of the target on any rank. When in doubt, that is: once the
first weight may have been written, whatever is reported later.

| SGLang 0.5.23 | counts as written |
| --- | --- |
| outside `begin_weight_update` .. `end_weight_update` | no: refused |
| no such folder, no loader, names that cannot be listed | no: nothing was read |
| weights of other ranks that were not received | no: they were to be loaded afterwards |
| loading raised, also where SGLang loads again ("Rolling back") | yes |
| loaded, and the flush that was asked for was refused | yes |
| `end_weight_update` of the target | yes: it finishes what was loaded, or written past SGLang |
| the draft alone (`selector="draft"`, or the target refused) | no: hidden states are the target's |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookType

from spec_fsm_sglang.ranks import on_all_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"

MESSAGES = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    "end_weight_update",
)
"""Of the scheduler: each may write several runners."""

LOADS = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)
"""Of one runner: `(success, message)`."""


def load(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """One runner is to take new weights; it notes whether they began to be written.

    That is where the model's `load_weights` is called. A load that succeeds or raises may have
    gone another way (a custom loader, `direct`) and counts, too.
    """
    runner = updater.get_model_runner()
    model = updater.get_model()
    began = False
    load_weights = model.load_weights

    def noted(*args: Any, **kwargs: Any) -> Any:
        nonlocal began
        began = True
        return load_weights(*args, **kwargs)

    model.load_weights = noted
    success = True
    try:
        success, message = original(updater, *args, **kwargs)
    finally:
        del model.load_weights
        if began or success:
            runner.spec_fsm_written = True
    return success, message


def end(original: Callable[..., None], updater: Any, *args: Any, **kwargs: Any) -> None:
    """Loading is brought to its end: scales are made again, packed weights packed."""
    updater.get_model_runner().spec_fsm_written = True
    original(updater, *args, **kwargs)


def message(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """A message about weights was answered: the lifecycle learns what it did."""
    controller = getattr(manager.draft_worker, "spec_fsm", None)
    if controller is None:
        return original(manager, recv_req)
    result = original(manager, recv_req)
    written = False
    for _, runner in manager.tp_worker.weight_update_runners():
        written |= vars(runner).pop("spec_fsm_written", False)
    if not on_all_ranks(not written):
        try:
            controller.lifecycle.weights_changed()
        except Exception as error:
            controller.recovery.caught(error)
    return result


def recaptured(result: None, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    """The target's decode graphs were captured anew (`recapture_cuda_graph`): PLAIN's are, too."""
    capture = getattr(runner, "spec_fsm_recaptured", None)
    if capture is not None:
        capture()
    return result


HOOKS: tuple[tuple[str, Any, HookType], ...] = (
    *((f"{_MANAGER}.{name}", message, HookType.AROUND) for name in MESSAGES),
    *((f"{_UPDATER}.{name}", load, HookType.AROUND) for name in LOADS),
    (f"{_UPDATER}.end_weight_update", end, HookType.AROUND),
    (f"{_RUNNER}.init_decode_cuda_graph", recaptured, HookType.AFTER),
)
"""Dotted target, hook, kind; registered by `hooks.py`."""


__all__ = ["HOOKS", "end", "load", "message", "recaptured"]
