"""Strict mode: who may write `spec_info`, `seq_lens` and `out_cache_loc` of a batch.

With `SPEC_FSM_STRICT=1` an assignment to one of the three by code that `owners.OWNERS` does not
name raises `UnownedWrite` with file and line. SGLang's own writers are entries like ours, one per
function, with the modes in which they may write; there are no wildcards. A change made in place
bypasses assignment: it is found by comparing the tensor with a copy from its last owned write.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from spec_fsm import UnownedWrite
from spec_fsm_sglang.owners import OWNERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from spec_fsm import Mode
    from spec_fsm_sglang.owners import Owner

FIELDS = frozenset({"spec_info", "seq_lens", "out_cache_loc"})
_COPIES = "_spec_fsm_copies"
_GENERATED = "<string>"
"""File of functions that `dataclasses` generates; their caller is the writer."""


class Ownership:
    """The strict mode of one process. `mode_of` tells the mode, None without a lifecycle."""

    def __init__(self, owners: dict[tuple[str, str], Owner] = OWNERS) -> None:
        self._owners = owners
        self.mode_of: Callable[[], Mode] | None = None
        self.writes: dict[tuple[str, str, str], int] = {}
        """How often each (file, function, field) wrote: which entries a run reached."""

    def install(self, batch_class: type) -> None:
        """From now on assignments to instances of `batch_class` are checked."""
        plain_setattr: Any = batch_class.__setattr__

        def owned_setattr(batch: Any, name: str, value: Any) -> None:
            if name in FIELDS:
                self.check_write(name, sys._getframe(1))
                _remember(batch, name, value)
            plain_setattr(batch, name, value)

        batch_class.__setattr__ = owned_setattr  # type: ignore[method-assign, assignment]

    def check_write(self, field: str, frame: FrameType | None) -> None:
        """Raises UnownedWrite unless the function of `frame` may write `field` in this mode.

        Without a lifecycle (the server's options were refused) nothing is owned.
        """
        if self.mode_of is None:
            return
        while frame is not None and frame.f_code.co_filename == _GENERATED:
            frame = frame.f_back
        if frame is None:
            raise UnownedWrite(f"{field} is written by nobody that can be named")
        file = short_name(frame.f_code.co_filename)
        function = frame.f_code.co_qualname.replace(".<locals>", "")
        owner = self._owners.get((file, function))
        where = f"{file}:{frame.f_lineno} in {function}"
        if owner is None or field not in owner.fields:
            raise UnownedWrite(f"{field} is written by {where}, which does not own it")
        mode = self.mode_of()
        if mode not in owner.modes:
            allowed = ", ".join(sorted(allowed.name for allowed in owner.modes))
            raise UnownedWrite(
                f"{field} is written by {where}, an owner in {allowed} only", mode=mode
            )
        key = (file, function, field)
        self.writes[key] = self.writes.get(key, 0) + 1

    def check_in_place(self, batch: Any) -> None:
        """Raises UnownedWrite if a tensor changed since it was assigned to `batch`."""
        for field, (tensor, copy) in batch.__dict__.get(_COPIES, {}).items():
            if getattr(batch, field) is tensor and not torch.equal(tensor, copy):
                raise UnownedWrite(
                    f"{field} was changed in place since its last assignment",
                    observed=tensor.tolist(),
                    expected=copy.tolist(),
                )


def short_name(path: str) -> str:
    """A source file's path from its package on: `sglang/...` or `spec_fsm_sglang/...`."""
    for package in ("spec_fsm_sglang", "sglang"):
        marker = f"/{package}/"
        if marker in path:
            return path[path.rindex(marker) + 1 :]
    return path


def _remember(batch: Any, field: str, value: Any) -> None:
    copies = batch.__dict__.setdefault(_COPIES, {})
    if isinstance(value, torch.Tensor):
        copies[field] = (value, value.clone())
    else:
        copies.pop(field, None)


STRICT = Ownership()


__all__ = ["FIELDS", "STRICT", "Ownership", "short_name"]
