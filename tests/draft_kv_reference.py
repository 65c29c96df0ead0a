"""Draft KV as it would be had the draft never paused, from the target run over the whole text."""

from __future__ import annotations

from typing import Any

import torch

from spec_fsm_sglang.reference import _load


def hidden_for_draft(live: Any, tokens: list[int]) -> torch.Tensor:
    """What the draft takes from the target at each position of `tokens`: `[n, hidden]`.

    EAGLE-3: the inputs of layers 2, n//2 and n-3 side by side (SGLang's default capture).
    EAGLE: the target's last hidden state after its final norm.
    """
    model = _load(live.pair.target)
    with torch.no_grad():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    if not live.worker.speculative_algorithm.is_eagle3():
        return states[-1][0]
    layers = len(states) - 1
    return torch.cat([states[i][0] for i in (2, layers // 2, layers - 3)], dim=-1)


def worst_difference(live: Any) -> tuple[float, int]:
    """Largest absolute difference of K or V over all committed positions of the running rows.

    Also how many positions were compared. Call it in SPEC, at a boundary.
    """
    draft = live.worker.draft_worker.draft_runner
    layer = draft.model.model.layers[0].self_attn
    keys = draft.token_to_kv_pool.get_key_buffer(layer.attn.layer_id)
    values = draft.token_to_kv_pool.get_value_buffer(layer.attn.layer_id)
    table = live.scheduler.req_to_token_pool.req_to_token
    worst, compared = 0.0, 0
    for req in live.scheduler.running_batch.reqs:
        committed = req.kv.kv_committed_len
        text = list(req.origin_input_ids) + list(req.output_ids)
        if req.finished() or len(text) <= committed:
            continue
        positions = torch.arange(committed)
        tokens = torch.tensor(text[1 : committed + 1])
        key, value = expected_kv(live, tokens, hidden_for_draft(live, text[:committed]), positions)
        slots = table[req.kv.req_pool_idx, :committed].long()
        for found, wanted in ((keys[slots], key), (values[slots], value)):
            worst = max(worst, float((found - wanted).abs().max()))
        compared += committed
    return worst, compared


@torch.no_grad()
def expected_kv(
    live: Any, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V `[n, heads, head_dim]` of the draft's only layer, by the draft's own modules."""
    model = live.worker.draft_worker.draft_runner.model.model
    layer = model.layers[0]
    embeds = model.embed_tokens(tokens)
    if live.worker.speculative_algorithm.is_eagle3():
        fused = layer.hidden_norm(model.fc(hidden))
        inputs = torch.cat((layer.input_layernorm(embeds), fused), dim=-1)
    else:
        inputs = model.fc(torch.cat((embeds, hidden), dim=-1))
    attention = layer.self_attn
    qkv, _ = attention.qkv_proj(inputs)
    query, key, value = qkv.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1)
    _, key = attention.rotary_emb(positions, query.contiguous(), key.contiguous())
    shape = (len(tokens), -1, attention.head_dim)
    return key.reshape(shape), value.reshape(shape)
