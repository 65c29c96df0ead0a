"""Which errors of a rebuild are worth another try: those of devices, memory and files.

SGLang and torch raise RuntimeError for what a device or its memory refuses (`OutOfMemoryError`,
CUDA and NCCL errors). An attribute that is not there, an argument that is not taken or a missing
key is a mistake in code, ours or the release's: a retry would fail for ever, and hide it.
"""

from __future__ import annotations

from spec_fsm import ProgrammingError

_FAILURES = (RuntimeError, MemoryError, OSError)
_MISTAKES = (NotImplementedError, RecursionError)
"""Of the classes above, but never a device's."""


def is_mistake(error: Exception) -> bool:
    """Whether `error` comes from code, so that the same call would raise it again."""
    return isinstance(error, _MISTAKES) or not isinstance(error, _FAILURES)


def mistake(error: Exception, where: str) -> ProgrammingError:
    """The error to raise in place of `error`, which `where` met."""
    return ProgrammingError(f"{where} met an error in code, {type(error).__name__}: {error}")


__all__ = ["is_mistake", "mistake"]
