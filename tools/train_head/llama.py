"""The target in plain torch: a Llama that reports the hidden states an EAGLE-3 head reads.

Written out because the two things needed here are awkward with a general library: one decode step
with fixed shapes (so that a CUDA graph can replay it for thousands of rows at different positions)
and a full forward that keeps three intermediate layers and nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tools.train_head.decode_attention import decode_attention


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama, as its ``config.json`` names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    eos_token_id: int

    @classmethod
    def load(cls, folder: Path) -> LlamaConfig:
        """Read ``folder/config.json``."""
        raw = json.loads((folder / "config.json").read_text())
        raw.setdefault("rope_theta", (raw.get("rope_parameters") or {}).get("rope_theta"))
        return cls(**{name: raw[name] for name in cls.__dataclass_fields__})

    @property
    def captured_layers(self) -> list[int]:
        """The layers whose input EAGLE-3 reads: 2, n // 2 and n - 3, as SGLang picks them."""
        n = self.num_hidden_layers
        return [2, n // 2, n - 3]


def rope_table(length: int, head_dim: int, theta: float, device: Any) -> tuple[Tensor, Tensor]:
    """Return cos and sin, float32 [length, head_dim], for rotary embedding in half-split order."""
    exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
    angles = torch.arange(length, device=device)[:, None] * theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embedding to ``x`` [..., heads, head_dim]; ``cos``, ``sin`` [..., head_dim]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x * cos.unsqueeze(-2) + turned * sin.unsqueeze(-2)).to(x.dtype)


def _before_attention(
    x: Tensor, layer: dict[str, Tensor], rope: tuple[Tensor, Tensor], config: LlamaConfig
) -> tuple[Tensor, Tensor, Tensor]:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    normed = F.rms_norm(x, (config.hidden_size,), layer["input_norm"], config.rms_norm_eps)
    qkv = F.linear(normed, layer["qkv"])
    qkv = qkv.view(*qkv.shape[:-1], heads + 2 * kv_heads, config.head_dim)
    q, kv = qkv[..., :heads, :], qkv[..., heads:, :]
    k, v = kv[..., :kv_heads, :], kv[..., kv_heads:, :]
    return rotate(q, *rope), rotate(k, *rope), v


def _after_attention(
    x: Tensor, attended: Tensor, layer: dict[str, Tensor], config: LlamaConfig
) -> Tensor:
    x = x + F.linear(attended, layer["o"])
    normed = F.rms_norm(x, (config.hidden_size,), layer["mlp_norm"], config.rms_norm_eps)
    gate, up = F.linear(normed, layer["gate_up"]).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, layer["down"])


class Target:
    """A Llama with fused projections, for inference only.

    ``folder`` is a Hugging Face folder with a tied output head. ``compiled`` fuses the element-wise
    parts of a layer (the same two kernels serve every layer).
    """

    def __init__(
        self, folder: Path, device: str, dtype: torch.dtype, compiled: bool = False
    ) -> None:
        self.config = LlamaConfig.load(folder)
        self.device, self.dtype = device, dtype
        raw = load_file(folder / "model.safetensors")
        raw = {k: v.to(device=device, dtype=dtype) for k, v in raw.items()}
        self.embed = raw["model.embed_tokens.weight"]
        self.norm = raw["model.norm.weight"]
        self.layers = [_fuse(raw, i) for i in range(self.config.num_hidden_layers)]
        self._before, self._after = _before_attention, _after_attention
        if compiled:
            self._before = torch.compile(_before_attention)
            self._after = torch.compile(_after_attention)

    def rope(self, length: int) -> tuple[Tensor, Tensor]:
        """Return the rotary table for ``length`` positions."""
        return rope_table(length, self.config.head_dim, self.config.rope_theta, self.device)

    def final(self, x: Tensor) -> Tensor:
        """Apply the last norm; multiply by ``embed`` to get logits."""
        return F.rms_norm(x, (self.config.hidden_size,), self.norm, self.config.rms_norm_eps)

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Run ``tokens`` int64 [b, t] from position 0.

        Returns the captured hidden states [b, t, 3h] and the last layer's normed output [b, t, h].
        """
        x = F.embedding(tokens, self.embed)
        rope, captured = self.rope(tokens.shape[1]), []
        for index, layer in enumerate(self.layers):
            if index in self.config.captured_layers:
                captured.append(x)
            q, k, v = (y.transpose(1, 2) for y in self._before(x, layer, rope, self.config))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = self._after(x, out.transpose(1, 2).flatten(2), layer, self.config)
        return torch.cat(captured, dim=-1), self.final(x)

    @torch.no_grad()
    def decode(
        self, tokens: Tensor, positions: Tensor, cache: Tensor, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Run one token a row and return logits [b, vocab].

        ``tokens`` and ``positions`` are int64 [b]; ``cache`` [layers, 2, b, kv_heads, length, dim]
        is written at ``positions`` and read up to them.
        """
        batch = tokens.shape[0]
        kv_heads, dim = self.config.num_key_value_heads, self.config.head_dim
        rows = torch.arange(batch, device=tokens.device)
        x = F.embedding(tokens, self.embed)
        here = (rope[0][positions], rope[1][positions])
        for layer, (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = self._before(x, layer, here, self.config)
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            # The query heads that share a KV head become its "query positions", so that K and V
            # are read once.
            grouped = q.view(batch, kv_heads, -1, dim)
            out = decode_attention(grouped, keys, values, positions)
            x = self._after(x, out.reshape(batch, -1), layer, self.config)
        return F.linear(self.final(x), self.embed)


def _fuse(raw: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    def get(name: str) -> Tensor:
        return raw[f"model.layers.{index}.{name}.weight"]

    return {
        "input_norm": get("input_layernorm"),
        "mlp_norm": get("post_attention_layernorm"),
        "qkv": torch.cat([get(f"self_attn.{p}_proj") for p in "qkv"]),
        "o": get("self_attn.o_proj"),
        "gate_up": torch.cat([get("mlp.gate_proj"), get("mlp.up_proj")]),
        "down": get("mlp.down_proj"),
    }
