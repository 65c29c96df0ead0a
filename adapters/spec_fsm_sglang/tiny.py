"""Tiny models for tests: a Llama target and EAGLE-3 and EAGLE drafts that partly agree with it.

Random weights almost never accept a draft token, which leaves multi-token commits, tree
compaction and rejected slots untested. So target and drafts lean on one noisy bigram table: the
token after `t` is a fixed permutation of `t`, moved by what attention brings from the context.
The draft computes the same attention as the target's first layer, from the same embeddings; the
target's other layers are small and random, and are what the draft gets wrong.

Everything follows from the seed. Hidden size 64, 8 target layers (an EAGLE-3 target needs 7, for
its captured layers [2, n // 2, n - 3] to differ), fp32, no tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTER, LAYERS = 64, 4, 2, 64, 128, 8
AUX_LAYERS = 3  # hidden states an EAGLE-3 draft reads for each token

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class TinyPair:
    """Folders of one target and its two drafts, in Hugging Face form."""

    target: Path
    eagle3: Path
    eagle: Path


@dataclass(frozen=True)
class Recipe:
    """What the weights are made from; the defaults give a pair that accepts about two in three.

    `context`: weight of what attention brings against the bigram. `noise`: size of the target's
    layers that the drafts do not have. `focus`: how sharply a head picks its positions.
    """

    vocab_size: int = 512
    draft_vocab_size: int = 448
    seed: int = 0
    context: float = 3.0
    noise: float = 0.15
    focus: float = 2.5
    logit_scale: float = 0.15


class _Parts:
    """The tensors that target and drafts share, drawn from one generator."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.random = torch.Generator().manual_seed(recipe.seed)
        vocab = recipe.vocab_size
        embed = self.normal(vocab, HIDDEN)
        # Rows of unit mean square: RMSNorm leaves them alone.
        self.embed = embed / embed.square().mean(-1, keepdim=True).sqrt()
        follow = torch.randperm(vocab, generator=self.random)
        head = torch.empty_like(self.embed)
        head[follow] = self.embed
        self.head = recipe.logit_scale * (head + 0.3 * self.normal(vocab, HIDDEN))
        self.query = recipe.focus * self._rotation()
        self.key = self._rotation()

    def normal(self, *shape: int) -> Tensor:
        drawn: Tensor = torch.randn(*shape, generator=self.random)
        return drawn

    def _rotation(self) -> Tensor:
        orthogonal: Tensor = torch.linalg.qr(self.normal(HEAD_DIM, HIDDEN))[0]
        return orthogonal

    def small(self, rows: int, cols: int) -> Tensor:
        """A random map that keeps the scale of its input, times the recipe's noise."""
        scale: float = self.recipe.noise / cols**0.5
        return scale * self.normal(rows, cols)

    def attention(self) -> Weights:
        """Heads of group 0 look at their own position, heads of group 1 at the context.

        q, k, v take one embedding of width 64; o gives the context's embedding.
        """
        eye = torch.eye(HEAD_DIM, HIDDEN)
        zero = torch.zeros(HIDDEN, HEAD_DIM)
        half = self.recipe.context / 2 * torch.eye(HIDDEN, HEAD_DIM)
        return {
            # Two heads share a key head. Self heads score their own position 32, others N(0, 4).
            "q_proj": torch.cat([4 * eye, 4 * eye, self.query, self.query.roll(1, 0)]),
            "k_proj": torch.cat([eye, self.key]),
            "v_proj": torch.cat([eye, eye]),
            "o_proj": torch.cat([zero, zero, half, half], dim=1),
        }


def write_pair(folder: Path, recipe: Recipe | None = None) -> TinyPair:
    """Writes `target`, `eagle3` and `eagle` under `folder`: a few MB, the same for a recipe."""
    parts = _Parts(recipe or Recipe())
    pair = TinyPair(folder / "target", folder / "eagle3", folder / "eagle")
    _save(pair.target, _target_weights(parts), _config(parts.recipe, "LlamaForCausalLM", LAYERS))
    draft = _config(parts.recipe, "LlamaForCausalLMEagle3", 1)
    draft["draft_vocab_size"] = parts.recipe.draft_vocab_size
    _save(pair.eagle3, _eagle3_weights(parts), draft)
    eagle = _config(parts.recipe, "LlamaForCausalLMEagle", 1)
    _save(pair.eagle, _eagle_weights(parts), eagle)
    return pair


def _config(recipe: Recipe, architecture: str, layers: int) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": recipe.vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _mlp(parts: _Parts) -> Weights:
    return {
        "mlp.gate_proj": parts.normal(INTER, HIDDEN) / HIDDEN**0.5,
        "mlp.up_proj": parts.normal(INTER, HIDDEN) / HIDDEN**0.5,
        "mlp.down_proj": parts.small(HIDDEN, INTER),
    }


def _noise_attention(parts: _Parts) -> Weights:
    return {
        "q_proj": 2 * parts.normal(HEADS * HEAD_DIM, HIDDEN) / HIDDEN**0.5,
        "k_proj": parts.normal(KV_HEADS * HEAD_DIM, HIDDEN) / HIDDEN**0.5,
        "v_proj": parts.normal(KV_HEADS * HEAD_DIM, HIDDEN) / HIDDEN**0.5,
        "o_proj": 2 * parts.small(HIDDEN, HEADS * HEAD_DIM),
    }


def _layer(prefix: str, attention: Weights, mlp: Weights, norms: tuple[str, ...]) -> Weights:
    named = {f"self_attn.{name}": tensor for name, tensor in attention.items()} | mlp
    weights = {f"{prefix}.{name}.weight": tensor for name, tensor in named.items()}
    return weights | {f"{prefix}.{name}.weight": torch.ones(HIDDEN) for name in norms}


def _target_weights(parts: _Parts) -> Weights:
    weights: Weights = {
        "model.embed_tokens.weight": parts.embed,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": parts.head,
    }
    for i in range(LAYERS):
        attention = parts.attention() if i == 0 else _noise_attention(parts)
        norms = ("input_layernorm", "post_attention_layernorm")
        weights |= _layer(f"model.layers.{i}", attention, _mlp(parts), norms)
    return weights


def _eagle3_weights(parts: _Parts) -> Weights:
    """The draft's residual is the hidden state it is given; its attention replaces that by the
    newest token: the self heads add this token's embedding and take the old hidden state away."""
    recipe = parts.recipe
    old = (1 + 0.5 * recipe.context**2) ** 0.5  # mean size of a hidden state
    shared = parts.attention()
    none = torch.zeros(HEAD_DIM, HIDDEN)
    eye = torch.eye(HEAD_DIM, HIDDEN)
    self_value = torch.cat([eye, -old * eye], dim=1)
    half = torch.eye(HIDDEN, HEAD_DIM) / 2
    attention = {
        "q_proj": torch.cat([shared["q_proj"], none.repeat(HEADS, 1)], dim=1),
        "k_proj": torch.cat([shared["k_proj"], none.repeat(KV_HEADS, 1)], dim=1),
        "v_proj": torch.cat([self_value, torch.cat([eye, none], dim=1)]),
        "o_proj": torch.cat([half, half, shared["o_proj"][:, 2 * HEAD_DIM :]], dim=1),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    hot = torch.randperm(recipe.vocab_size, generator=parts.random)[: recipe.draft_vocab_size]
    hot = hot.sort().values
    to_draft = torch.zeros(recipe.vocab_size, dtype=torch.bool)
    to_draft[hot] = True
    return {
        **_layer("midlayer", attention, _mlp(parts), norms),
        "fc.weight": torch.eye(HIDDEN).repeat(1, AUX_LAYERS) / AUX_LAYERS,
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": parts.head[hot],
        # Offsets from draft ids to target ids, as EAGLE-3 checkpoints store them.
        "d2t": hot - torch.arange(len(hot)),
        "t2d": to_draft,
    }


def _eagle_weights(parts: _Parts) -> Weights:
    """EAGLE's `fc` joins embedding and hidden state; head and embeddings come from the target."""
    fc = torch.cat([torch.eye(HIDDEN), parts.small(HIDDEN, HIDDEN)], dim=1)
    weights = _layer("layers.0", parts.attention(), _mlp(parts), ("post_attention_layernorm",))
    return {**weights, "fc.weight": fc, "fc.bias": torch.zeros(HIDDEN)}


def _save(folder: Path, weights: Weights, config: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
