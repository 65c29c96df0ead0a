"""Model folders of a real size without weights, for throughput: SGLang fills them at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

LLAMA_8B: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "torch_dtype": "bfloat16",
}
"""The shape of Llama-3.1-8B (its published config.json)."""

_HEAD: Final = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": 32000,
}


def write_llama_8b(folder: Path) -> tuple[Path, Path]:
    """Config folders of a target and an EAGLE-3 head of that shape; needs `load_format=dummy`."""
    found = []
    for name, config in (("target", LLAMA_8B), ("eagle3", LLAMA_8B | _HEAD)):
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        found.append(path)
    return found[0], found[1]


__all__ = ["LLAMA_8B", "write_llama_8b"]
