"""Exceptions of a serving scheduler after which serving can go on.

A violated law always is one. So is any other exception that our own code raised, or brought about:
what it broke is the lifecycle's state, and a recovery starts that afresh. SGLang dies of what it
raises by itself, and of whatever leaves the device or the process group in doubt.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import sglang
import torch

import spec_fsm
from spec_fsm import SpecFsmError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    F = TypeVar("F", bound=Callable[..., Any])

_DEVICE: tuple[type[BaseException], ...] = (
    MemoryError, torch.OutOfMemoryError, torch.AcceleratorError, torch.distributed.DistError,
)
_DEVICE_WORDS = ("CUDA error", "CUDA driver", "NCCL error", "out of memory", "CUBLAS", "CUDNN")


def _folder(file: str) -> str:
    return f"{Path(file).parent}/"


_OURS = _folder(spec_fsm.__file__), _folder(__file__)
_THEIRS = tuple(f"{path}/" for path in sglang.__path__)
_PASSES_ON: set[CodeType] = set()


def passes_on(function: F) -> F:
    """Mark a function that calls what SGLang would have called without us.

    An exception that only passes through such functions is SGLang's own.
    """
    _PASSES_ON.add(function.__code__)
    return function


def recoverable(error: Exception) -> bool:
    """Whether serving goes on after `error`: a violated law, or another fault of our own code.

    Not if it tells of memory or of a device: nothing on that device can be relied on any more.
    """
    if isinstance(error, SpecFsmError):
        return True
    if isinstance(error, _DEVICE) or any(word in str(error) for word in _DEVICE_WORDS):
        return False
    return _ours(error)


def _ours(error: Exception) -> bool:
    """Whether our code raised it, or called what raised it where SGLang alone would not have."""
    called = raised = False
    for frame, _line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if code.co_filename.startswith(_OURS):
            raised = True
            called = called or code not in _PASSES_ON
        elif code.co_filename.startswith(_THEIRS):
            raised = False
    return called or raised


__all__ = ["passes_on", "recoverable"]
