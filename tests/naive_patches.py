"""The patches that lead to the original crash, put into a running worker of ours.

They write through `__dict__`, past strict ownership, so that what stops them is a law and not the
name of the writer; `owned_*` writes like any code would, and is stopped by ownership.
"""

from __future__ import annotations

from typing import Any

import torch


class Launches:
    """Counts forwards of the target's model in decode mode."""

    def __init__(self, live: Any) -> None:
        self.count = 0
        model = live.worker.target_worker.model_runner.model
        forward = model.forward

        def counted(input_ids: Any, positions: Any, forward_batch: Any, **kw: Any) -> Any:
            if forward_batch.forward_mode.is_decode():
                self.count += 1
            return forward(input_ids, positions, forward_batch, **kw)

        model.forward = counted


def apply(live: Any, patch: str) -> Launches:
    """Puts the named patch in; returns the counter of decode forwards issued from now on."""
    from spec_fsm_sglang import plain

    launches = Launches(live)
    prepare = plain.prepare

    def keeps_spec_info(batch: Any, table: torch.Tensor) -> Any:
        """Skip `draft`, keep `spec_info`: the patch of the crash report."""
        relay = prepare(batch, table)
        batch.__dict__["spec_info"] = relay
        return relay

    def only_clears_it(batch: Any, table: torch.Tensor) -> Any:
        """Its first repair: `spec_info` is None, tokens and slots still have the tree's width."""
        relay = prepare(batch, table)
        width = live.worker.speculative_num_draft_tokens
        batch.__dict__["input_ids"] = batch.input_ids.repeat_interleave(width)
        batch.__dict__["out_cache_loc"] = batch.out_cache_loc.repeat_interleave(width)
        return relay

    def keeps_draft_slots(batch: Any, table: torch.Tensor) -> Any:
        """Tokens are right, `out_cache_loc` still holds the draft's slots."""
        relay = prepare(batch, table)
        batch.__dict__["out_cache_loc"] = batch.out_cache_loc.repeat_interleave(8)
        return relay

    def owned_clear(batch: Any, table: torch.Tensor) -> Any:
        """Clears `spec_info` by an ordinary assignment of a stranger."""
        relay = prepare(batch, table)
        batch.spec_info = None
        return relay

    if patch == "relay_none":
        _drop_relay(live)
    elif patch == "skips_draft":
        _skip_draft(live)
    else:
        plain.prepare = {
            "keeps_spec_info": keeps_spec_info,
            "only_clears_it": only_clears_it,
            "keeps_draft_slots": keeps_draft_slots,
            "owned_clear": owned_clear,
        }[patch]
    return launches


def _drop_relay(live: Any) -> None:
    """In PLAIN the batch carries no relay between steps."""
    run_batch = live.scheduler.run_batch

    def run(batch: Any, *args: Any) -> Any:
        result = run_batch(batch, *args)
        if live.fsm.lifecycle.mode.name == "PLAIN":
            batch.__dict__["spec_info"] = None
        return result

    live.scheduler.run_batch = run


def _skip_draft(live: Any) -> None:
    """Above five requests the worker runs the target alone, whatever the mode."""
    worker = live.worker
    forward = worker.forward_batch_generation

    def skips(batch: Any, *args: Any, **kw: Any) -> Any:
        if not batch.forward_mode.is_decode() or len(batch.reqs) <= 5:
            return forward(batch, *args, **kw)
        batch.__dict__["input_ids"] = batch.spec_info.bonus_tokens.long()
        return worker.target_worker.forward_batch_generation(batch)

    worker.forward_batch_generation = skips
