"""The EAGLE-3 draft head, as SGLang's ``LlamaForCausalLMEagle3`` computes it, for training.

Row t of a sequence pairs the target's captured hidden states at place t with the embedding of the
token at place t + 1 and predicts the token at place t + 2. When drafts are chained, step j of the
row takes its own output of step j - 1 instead of the target's hidden states, the next token's
embedding and position t + j; it attends to the first step's keys up to place t and to its own
keys of steps 1 to j. Training runs the same steps over all rows at once ("training-time test",
EAGLE-3, arXiv 2503.01840, section 3.2), so the head learns on its own outputs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tools.train_head.llama import LlamaConfig, Target, rope_table, rotate

MAX_POSITIONS = 8192
LAYER = "midlayer."  # EAGLE-3's name for the one layer; SGLang maps it to layers.0


@dataclass
class ChainCache:
    """Keys and values of one pass: the first step's [b, heads, t, dim], then one pair a step."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def branch(self, times: int) -> ChainCache:
        """Return a copy for ``times`` candidate tokens a row, stacked along the batch."""
        return ChainCache(
            [k.repeat(times, 1, 1, 1) for k in self.keys],
            [v.repeat(times, 1, 1, 1) for v in self.values],
        )


class Eagle3Head(nn.Module):
    """One decoder layer over [embedding, hidden], between ``fc`` and a reduced output head.

    ``draft_ids`` int64 [draft_vocab] are the target's token ids in ascending order;
    ``aux_scale`` float32 [3h] divides the captured hidden states, whose layers differ in size by
    orders of magnitude. It is folded into ``fc`` when saved, so nothing outside sees it.
    """

    draft_ids: Tensor
    aux_scale: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: LlamaConfig, draft_ids: Tensor, aux_scale: Tensor, intermediate_size: int
    ) -> None:
        super().__init__()
        self.config = config
        hidden, dim = config.hidden_size, config.head_dim
        self.intermediate_size = intermediate_size
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = nn.Linear(2 * hidden, (heads + 2 * kv_heads) * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, hidden, bias=False)
        self.gate_up_proj = nn.Linear(hidden, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden, bias=False)
        self.lm_head = nn.Linear(hidden, len(draft_ids), bias=False)
        self.input_layernorm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        self.norm = nn.RMSNorm(hidden, eps=config.rms_norm_eps)
        cos, sin = rope_table(MAX_POSITIONS, dim, config.rope_theta, "cpu")
        for name, value in {"cos": cos, "sin": sin}.items():
            self.register_buffer(name, value, persistent=False)
        self.layer = self._layer  # training may put a compiled one here
        self.register_buffer("draft_ids", draft_ids)
        self.register_buffer("aux_scale", aux_scale)

    def fuse(self, captured: Tensor) -> Tensor:
        """Return the first step's hidden input [..., h] from ``captured`` [..., 3h]."""
        # The residual stream stays in float32 under autocast.
        fused: Tensor = self.fc(captured.float() / self.aux_scale)
        return fused.float()

    def step(self, hidden: Tensor, embeds: Tensor, cache: ChainCache) -> tuple[Tensor, Tensor]:
        """Run one step of every row and add its keys and values to ``cache``.

        ``hidden`` and ``embeds`` are [b, t, h]. Returns what ``lm_head`` takes and what the next
        step takes as ``hidden``, both [b, t, h].
        """
        normed, hidden, key, value = self.layer(hidden, embeds, cache.keys, cache.values)
        cache.keys.append(key)
        cache.values.append(value)
        return normed, hidden

    def _layer(
        self, hidden: Tensor, embeds: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        config, length, depth = self.config, hidden.shape[1], len(keys)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        x = torch.cat([self.input_layernorm(embeds.float()), self.hidden_norm(hidden)], dim=-1)
        qkv = self.qkv_proj(x).unflatten(-1, (-1, config.head_dim))
        q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=-2)
        rope = self.cos[depth : depth + length], self.sin[depth : depth + length]
        q, k = rotate(q, *rope).transpose(1, 2), rotate(k, *rope).transpose(1, 2)
        k = k.repeat_interleave(heads // kv_heads, dim=1)
        v = v.transpose(1, 2).repeat_interleave(heads // kv_heads, dim=1)
        out = _attend(q, [*keys, k], [*values, v]).transpose(1, 2).flatten(2)
        hidden = hidden + self.o_proj(out)
        gate, up = self.gate_up_proj(self.post_attention_layernorm(hidden)).chunk(2, dim=-1)
        hidden = hidden + self.down_proj(F.silu(gate) * up)
        return self.norm(hidden), hidden, k, v

    def parameter_count(self) -> int:
        """Return how many weights the saved head has."""
        return sum(p.numel() for p in self.parameters())


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Attend causally to the first step's keys and, place by place, to the later steps'."""
    if len(keys) == 1:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    length = q.shape[2]
    q = q * q.shape[3] ** -0.5
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    past = (q @ keys[0].transpose(-1, -2)).masked_fill(future, float("-inf"))
    own = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
    weights = torch.cat([past, *own], dim=-1).softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    out = weights[..., :length] @ values[0]
    for index, value in enumerate(values[1:]):
        out = out + weights[..., length + index, None] * value
    return out


def new_head(
    target: Target, draft_ids: Tensor, aux_scale: Tensor, intermediate_size: int
) -> Eagle3Head:
    """Return an untrained head that starts as the target's last layer.

    Its input is then the third captured layer, its output the target's own output layer.
    """
    head = Eagle3Head(target.config, draft_ids.cpu(), aux_scale.float().cpu(), intermediate_size)
    hidden, last = target.config.hidden_size, target.layers[-1]
    with torch.no_grad():
        for parameter in (p for p in head.parameters() if p.dim() == 2):
            nn.init.normal_(parameter, std=0.3 * parameter.shape[1] ** -0.5)
        head.fc.weight[:, 2 * hidden :] = torch.diag(head.aux_scale[2 * hidden :])
        head.qkv_proj.weight[:, hidden:] = last["qkv"]
        head.hidden_norm.weight.copy_(last["input_norm"])
        head.o_proj.weight.copy_(last["o"])
        head.post_attention_layernorm.weight.copy_(last["mlp_norm"])
        if head.intermediate_size == target.config.intermediate_size:
            head.gate_up_proj.weight.copy_(last["gate_up"])
            head.down_proj.weight.copy_(last["down"])
        head.norm.weight.copy_(target.norm)
        head.lm_head.weight.copy_(target.embed[draft_ids])
    return head


# Our name for each part of the layer, and the file's; fused projections are several there.
_LAYER_PARTS = {
    "qkv_proj": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "o_proj": ["self_attn.o_proj"],
    "gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
    "down_proj": ["mlp.down_proj"],
    "input_layernorm": ["input_layernorm"],
    "hidden_norm": ["hidden_norm"],
    "post_attention_layernorm": ["post_attention_layernorm"],
}


def save_head(head: Eagle3Head, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``SHA256SUMS`` as SGLang loads them.

    ``d2t`` int64 [draft_vocab] holds target id minus draft id, ``t2d`` bool [vocab] which target
    ids the draft can produce.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {k.removesuffix(".weight"): v.detach().cpu() for k, v in head.state_dict().items()}
    heads, kv_heads = head.config.num_attention_heads, head.config.num_key_value_heads
    sizes = {
        "qkv_proj": [n * head.config.head_dim for n in (heads, kv_heads, kv_heads)],
        "gate_up_proj": [head.intermediate_size] * 2,
    }
    weights: dict[str, Tensor] = {}
    for ours, theirs in _LAYER_PARTS.items():
        parts = state[ours].split(sizes.get(ours, len(state[ours])))
        weights |= {f"{LAYER}{n}.weight": part for n, part in zip(theirs, parts, strict=True)}
    weights["fc.weight"] = state["fc"] / state["aux_scale"]
    weights |= {"norm.weight": state["norm"], "lm_head.weight": state["lm_head"]}
    tensors = {k: v.to(dtype).contiguous() for k, v in weights.items()}
    ids = state["draft_ids"]
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    tensors["t2d"][ids] = True
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_sglang_config(head, dtype), indent=2) + "\n")
    names = ("config.json", "model.safetensors")
    sums = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (folder / "SHA256SUMS").write_text("".join(sums))


def _sglang_config(head: Eagle3Head, dtype: torch.dtype) -> dict[str, object]:
    config = head.config
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": head.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "max_position_embeddings": MAX_POSITIONS,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": len(head.draft_ids),
        "target_hidden_size": config.hidden_size,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.eos_token_id,
        "dtype": str(dtype).removeprefix("torch."),
        # SGLang adds 1: it captures the input of layers 2, 15 and 27, its own default for 30.
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [i - 1 for i in config.captured_layers],
        },
    }


def load_head(folder: Path, config: LlamaConfig) -> Eagle3Head:
    """Read what `save_head` wrote, as float32, with the scale already folded in."""
    raw = load_file(folder / "model.safetensors")
    draft_ids = raw["d2t"] + torch.arange(len(raw["d2t"]))
    width = raw[f"{LAYER}mlp.up_proj.weight"].shape[0]
    head = Eagle3Head(config, draft_ids, torch.ones(3 * config.hidden_size), width)
    weights = {f"{name}.weight": raw[f"{name}.weight"] for name in ("fc", "norm", "lm_head")}
    for ours, theirs in _LAYER_PARTS.items():
        weights[f"{ours}.weight"] = torch.cat([raw[f"{LAYER}{name}.weight"] for name in theirs])
    head.load_state_dict({k: v.float() for k, v in weights.items()}, strict=False)
    return head
