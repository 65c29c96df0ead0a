"""Two adapters for the tiny target, and the target with each of them merged into its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file

ADAPTERS: Final = ("a", "b")
RANK: Final = 8
SIZE: Final = 0.3
"""Of an adapter's product against the weights it is added to: enough to change most tokens."""


def write(target: Path, folder: Path) -> dict[str | None, Path]:
    """Writes adapters `a` and `b`; for each (and None) the folder of a model that has it merged."""
    config = json.loads((target / "config.json").read_text())
    merged: dict[str | None, Path] = {None: target}
    for seed, name in enumerate(ADAPTERS, 1):
        tensors = _tensors(config, seed)
        _write_adapter(folder / name, tensors)
        merged[name] = _merge(target, folder / f"merged-{name}", tensors)
    return merged


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of every projection of a layer."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return {
        "self_attn.q_proj": (hidden, q),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (q, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }


def _tensors(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """`model.layers.N.PROJECTION.lora_A` `[r, inputs]` and `.lora_B` `[outputs, r]`."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in _shapes(config).items():
            key = f"model.layers.{layer}.{name}"
            down = torch.randn(RANK, inputs, generator=random) / inputs**0.5
            up = torch.randn(outputs, RANK, generator=random) / RANK**0.5
            tensors |= {f"{key}.lora_A": down, f"{key}.lora_B": SIZE * up}
    return tensors


def _write_adapter(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    names = {f"base_model.model.{name}.weight": tensor for name, tensor in tensors.items()}
    save_file(names, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-2] for name in tensors})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _merge(target: Path, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(target, folder)
    weights = load_file(target / "model.safetensors")
    for name in {name.rsplit(".", 1)[0] for name in tensors}:
        weights[f"{name}.weight"] += tensors[f"{name}.lora_B"] @ tensors[f"{name}.lora_A"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
