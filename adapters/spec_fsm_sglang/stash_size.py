"""Whether the stash fits its share of the KV pool: as far as known before a model is loaded, and
exactly once the pools exist.

Before, only what is certain refuses: the fewest rows a server can have, the least a position can
take, and the largest KV pool the arguments or the device allow.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spec_fsm_sglang.config import Config

SHARE_OF_KV: Final = 0.01
"""Of the KV pool's bytes, what the stash may take where the configuration names no share."""
_SMALLEST_ITEM, _LARGEST_ITEM = 2, 4
"""Bytes of one number: hidden states are kept in the target's dtype, half or single precision."""


def problem(config: Config, kv_bytes: int, position_bytes: int) -> str | None:
    """Why a stash of the configured width is refused, in one line; None where it fits.

    `position_bytes`: of one position of every row. A width that is not configured always fits:
    it is made to (`stash.fit`), but for the two positions that are the least that works.
    """
    if config.stash_width is None or config.stash_share is None:
        return None
    asked, allowed = config.stash_width * position_bytes, int(kv_bytes * config.stash_share)
    if asked <= allowed:
        return None
    fits, share = allowed // position_bytes, asked / kv_bytes
    widths = f"2 to {fits}" if fits >= 2 else "none at this share (leave it out for the least)"
    return (
        f"stash_width is {config.stash_width}: the stash would take {100 * share:.3g} % of the KV "
        f"pool ({asked / 1e6:,.1f} MB of {kv_bytes / 1e6:,.1f} MB), and stash_share allows "
        f"{100 * config.stash_share:.3g} %: accepted are widths {widths}, or a stash_share of "
        f"{share:.3g} or more"
    )


def early_problem(config: Config, options: Any) -> str | None:
    """As `problem`, from SGLang's resolved arguments alone; None where they leave it open."""
    sizes = _model_sizes(str(options.model_path))
    if sizes is None or config.stash_width is None:
        return None
    hidden, token_numbers = sizes
    capped = options.max_running_requests
    replicas = max(1, options.dp_size or 1)
    rows = config.disable_above + 1 if capped is None else max(1, capped // replicas)
    tokens = options.max_total_tokens
    if tokens is None:
        kv_bytes = _device_bytes(str(options.device))
    else:
        kv_bytes = tokens * token_numbers * _LARGEST_ITEM
    item = _LARGEST_ITEM if options.dtype == "float32" else _SMALLEST_ITEM
    return problem(config, kv_bytes, rows * hidden * item) if kv_bytes else None


def _model_sizes(folder: str) -> tuple[int, int] | None:
    """Hidden size and numbers a token's KV takes at most, from a local `config.json`; or None."""
    try:
        content = json.loads((Path(folder) / "config.json").read_bytes())
        text = content.get("text_config", content)
        hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
        heads = int(text["num_attention_heads"])
        width = int(text.get("head_dim") or hidden // heads)
        kv_heads = int(text.get("num_key_value_heads") or heads)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
            ZeroDivisionError):  # fmt: skip
        # A model of another kind, or one that is not on this host yet: checked once it is loaded.
        return None
    if min(hidden, layers, width, kv_heads) < 1:
        return None
    return hidden, 2 * layers * kv_heads * width


def _device_bytes(device: str) -> int:
    """Memory of the largest device, more than any KV pool on it; 0 where nobody says."""
    import torch

    if device == "cuda" and torch.cuda.is_available():
        count = torch.cuda.device_count()
        return max(torch.cuda.get_device_properties(i).total_memory for i in range(count))
    if device != "cpu":
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


__all__ = ["SHARE_OF_KV", "early_problem", "problem"]
