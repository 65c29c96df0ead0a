"""I12 and I13: what the graph buffers hold at the moment a graph is replayed. GPU only.

Part of the checks an operator switches on (`checks = true`, `SPEC_FSM_STRICT=1`): every look
waits for the device. All four sets of graphs pass here: PLAIN's, verify's, the draft's and the
draft extend's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from spec_fsm_sglang.worker import SpecFsmEagleWorker

Expect = Callable[[str, bool, str], None]


def watch(worker: SpecFsmEagleWorker, expect: Expect) -> None:
    """Look at the buffers before each replay; `expect(invariant, holds, detail)` is told."""
    draft = worker.draft_worker
    runners = {
        "plain": worker.plain_graphs.graphs,
        "verify": worker.target_worker.model_runner.decode_cuda_graph_runner,
        "draft": draft.cuda_graph_runner,
        "draft extend": draft.cuda_graph_runner_for_draft_extend,
    }
    for name, runner in runners.items():
        if getattr(runner, "backend", None) is not None:
            _watch(name, runner, expect)


def _watch(name: str, runner: Any, expect: Expect) -> None:
    replay = runner.backend.replay
    if getattr(replay, "spec_fsm_watched", False):
        return  # of a set that was not captured again

    def watched(shape_key: Any, forward_batch: Any, **kwargs: Any) -> Any:
        look(name, runner, forward_batch, expect)
        return replay(shape_key, forward_batch, **kwargs)

    watched.spec_fsm_watched = True  # type: ignore[attr-defined]
    runner.backend.replay = watched


def look(name: str, runner: Any, forward_batch: Any, expect: Expect) -> None:
    """The rows of the batch are in the buffers (I13) and the rows that pad it are reset (I12)."""
    rows, padded, buffers = runner.raw_bs, runner.bs, runner.buffers
    where = f"{name} graph of {padded} for {rows} rows"
    for field in ("req_pool_indices", "seq_lens"):
        held, given = getattr(buffers, field), getattr(forward_batch, field)
        same = torch.equal(held[:rows].to(torch.int64), given[:rows].to(torch.int64))
        expect("I13", same, f"{where}: {field} holds {held[:rows].tolist()}, not the batch's")
    if padded == rows:
        return
    reset = {"req_pool_indices": 0, "seq_lens": runner.seq_len_fill_value}
    for field, value in reset.items():
        pad = getattr(buffers, field)[rows:padded]
        expect("I12", bool((pad == value).all()), f"{where}: {field} padded with {pad.tolist()}")
    if name in ("plain", "verify"):
        width = runner.captured_req_width
        pad = buffers.out_cache_loc[rows * width : padded * width]
        expect("I12", not pad.any(), f"{where}: out_cache_loc padded with {pad.tolist()}")


__all__ = ["look", "watch"]
