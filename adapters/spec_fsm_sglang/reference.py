"""What a plain greedy server would answer, from the model alone: no SGLang, no second scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """Where an output first leaves the greedy path, and how close the two best tokens were there.

    `margin` is in log-probability: that of the best token less that of the one given.
    """

    index: int
    expected: int
    got: int
    margin: float


@lru_cache(maxsize=4)
def _load(model: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)


@torch.no_grad()
def greedy(model: Path, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """The next `max_new_tokens` greedy tokens of each prompt, past any end-of-sequence token."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out: Tensor = _load(model).generate(
        ids,
        attention_mask=seen,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [row.tolist() for row in out[:, longest:]]


@torch.no_grad()
def first_difference(model: Path, prompt: list[int], output: list[int]) -> Difference | None:
    """The first token of `output` that is not the greedy choice, or None; one forward in all."""
    if not output:
        return None
    logits = _load(model)(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    logprobs = torch.log_softmax(logits.float(), -1)
    best, given = logprobs.argmax(-1), torch.tensor(output)
    wrong = (best != given).nonzero().flatten().tolist()
    if not wrong:
        return None
    i = wrong[0]
    margin = logprobs[i, best[i]] - logprobs[i, given[i]]
    return Difference(i, int(best[i]), int(given[i]), float(margin))
