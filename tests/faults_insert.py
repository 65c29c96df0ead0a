"""Seeded faults: what a request that was aborted leaves in the prefix cache is not cut.

SGLang inserts the prefix of an aborted request as it does that of any other; a retracted one
inserts nothing.
"""

from __future__ import annotations

from typing import Any

from fault_kit import FAULTS, Fault
from fuzz.world import World


def _is_aborted(req: Any) -> bool:
    return type(req.finished_reason).__name__ == "FINISH_ABORT"


def _forget_gap(world: World) -> None:
    """The gap of an aborted request is taken for 0: it decoded nothing that counts."""
    forget = world.fsm._forget

    def forgets(req: Any) -> int:
        gap: int = forget(req)
        return 0 if _is_aborted(req) else gap

    world.fsm._forget = forgets


def _insert_all(world: World) -> None:
    """The cut is made for requests that finished by themselves alone."""
    insertable = world.fsm.insertable

    def uncut(req: Any, up_to: int, tokens: int) -> int:
        allowed: int = insertable(req, up_to, tokens)
        return up_to if _is_aborted(req) else allowed

    world.fsm.insertable = uncut


_SLIPS = {
    "aborted_without_gap": ("the gap of an aborted request is forgotten", _forget_gap),
    "aborted_uncut": ("what an aborted request inserts is not cut", _insert_all),
}
for _name, (_says, _put) in _SLIPS.items():
    for _overlap in (True, False):
        _full = f"{_name}{'' if _overlap else '_serial'}"
        FAULTS[_full] = Fault(_full, _says, "I15", _put, _overlap, "aborted")
