"""Draft KV of the running rows against the model run over their whole texts."""

from __future__ import annotations

from typing import Any

import torch

import draft_kv_reference


@torch.no_grad()
def difference(world: Any) -> tuple[float, int]:
    """Worst absolute difference of draft K and V over all covered positions, and their number."""
    draft = world.worker.draft_worker.draft_runner
    layer = draft.model.model.layers[0].self_attn.attn.layer_id
    pool, table = draft.token_to_kv_pool, world.scheduler.req_to_token_pool.req_to_token
    keys, values = pool.get_key_buffer(layer), pool.get_value_buffer(layer)
    worst, compared = 0.0, 0
    for req in world.scheduler.running_batch.reqs:
        if req.finished() or not req.kv.holds_kv:
            continue
        text = list(req.origin_input_ids) + list(req.output_ids)
        covered = req.kv.kv_committed_len - world.lifecycle.ledger.settled_gap(req.spec_fsm_row)
        covered = min(covered, len(text) - 1)
        hidden = draft_kv_reference.hidden_for_draft(world, text[:covered])
        expected = draft_kv_reference.expected_kv(
            world, torch.tensor(text[1 : covered + 1]), hidden, torch.arange(covered)
        )
        slots = table[req.kv.req_pool_idx, :covered].long()
        for found, wanted in zip((keys[slots], values[slots]), expected, strict=True):
            worst = max(worst, float((found - wanted).abs().max()))
        compared += covered
    return worst, compared
