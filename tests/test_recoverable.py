"""Which exceptions of a serving scheduler are our own, and which are SGLang's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sglang
import torch

import spec_fsm
from spec_fsm import IllegalLaunch
from spec_fsm_sglang import recoverable as module
from spec_fsm_sglang.recoverable import passes_on, recoverable

OURS = Path(module.__file__).parent
THEIRS = Path(next(iter(sglang.__path__)))


def written_in(folder: Path, source: str = "def call(then):\n    return then()\n") -> Any:
    """A function `call` as if it stood in a file of that folder."""
    space: dict[str, Any] = {}
    exec(compile(source, str(folder / "some_module.py"), "exec"), space)
    return space["call"]


def raised(error: Exception, *folders: Path) -> Exception:
    """`error` as it comes out of functions in these folders, the outermost first."""

    def end() -> None:
        raise error

    act: Callable[[], Any] = end
    for folder in reversed(folders):
        call, inner = written_in(folder), act
        act = lambda call=call, inner=inner: call(inner)  # noqa: E731 -- a chain of calls
    with pytest.raises(type(error)) as caught:
        act()
    return caught.value


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        ([], False),
        ([THEIRS], False),
        ([OURS], True),
        ([Path(spec_fsm.__file__).parent], True),
        ([THEIRS, OURS], True),
        ([OURS, THEIRS], True),  # SGLang's function, called where SGLang would not have
        ([THEIRS, OURS, THEIRS], True),
    ],
)
def test_what_our_code_raised_or_brought_about_is_recovered_from(
    folders: list[Path], expected: bool
) -> None:
    """The frames of the traceback decide."""
    assert recoverable(raised(KeyError("gone"), *folders)) is expected


@pytest.mark.parametrize(("inner", "expected"), [(THEIRS, False), (OURS, True), (None, True)])
def test_what_only_passes_through_ours_is_sglangs(inner: Path | None, expected: bool) -> None:
    """A hook that calls the original is no cause of what that raises, but of what it raises."""
    call = passes_on(written_in(OURS))

    def fail() -> None:
        raise KeyError("gone")

    act = fail if inner is None else lambda: written_in(inner)(fail)
    with pytest.raises(KeyError) as caught:
        call(act)
    assert recoverable(caught.value) is expected


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), torch.OutOfMemoryError("a"), RuntimeError("CUDA error: an illegal access"),
        RuntimeError("NCCL error in: x"), RuntimeError("Tried: out of memory"),
        RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED"), RuntimeError("CUDNN_STATUS_x"),
        RuntimeError("CUDA driver error"), torch.distributed.DistBackendError("a"),
    ],
)  # fmt: skip
def test_what_leaves_the_device_in_doubt_is_not(error: Exception) -> None:
    """Wherever it was raised; a violated law is one wherever."""
    assert not recoverable(raised(error, OURS))
    assert recoverable(IllegalLaunch("CUDA error: no, a law"))
