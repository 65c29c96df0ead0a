"""What tensor-parallel ranks agree on before they go on alike (I11)."""

from __future__ import annotations

import torch
from sglang.srt.runtime_context import get_parallel


def on_all_ranks(holds: bool) -> bool:
    """Whether it holds on every tensor-parallel rank. Every rank has to ask.

    On the host, in rare launches and messages: the device is not waited for.
    """
    group = get_parallel().tp_group
    if group.world_size == 1:
        return holds
    found = torch.tensor([int(holds)])
    torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MIN, group=group.cpu_group)
    return bool(found.item())


__all__ = ["on_all_ranks"]
