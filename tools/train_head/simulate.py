"""Accept length without a server: what EAGLE's chain and tree would accept, in plain torch.

Greedy verification commits exactly the target's greedy continuation, so that text can be produced
first and every place in it tried as the start of a round. The draft's keys at committed places
always come from the target's hidden states (SGLang rewrites them after each round), which is the
head's first step; so one pass over a sequence drafts from all its places at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.train_head.head import ChainCache, Eagle3Head
from tools.train_head.llama import Target


@dataclass(frozen=True)
class Spec:
    """SGLang's three numbers: ``speculative_num_steps``, ``..._eagle_topk``, ``..._draft_tokens``.

    A chain (topk 1) of any length, or a tree of two steps.
    """

    steps: int
    topk: int
    num_draft_tokens: int

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read ``steps/topk/num_draft_tokens``."""
        return cls(*(int(number) for number in text.split("/")))

    def __str__(self) -> str:
        return f"{self.steps}/{self.topk}/{self.num_draft_tokens}"


@dataclass
class Sequence:
    """A prompt with the target's greedy answer: ``tokens`` int64 [n], the answer from ``start``."""

    tokens: Tensor
    start: int
    captured: Tensor  # [n, 3h], the target's hidden states


@dataclass
class Acceptance:
    """Rounds by accepted drafts; the accept length counts the bonus token too."""

    counts: list[int] = field(default_factory=list)

    @property
    def accept_length(self) -> float:
        """Mean tokens a round."""
        return 1 + sum(self.counts) / max(1, len(self.counts))

    def histogram(self, steps: int) -> list[int]:
        """Return how many rounds accepted 0, 1, ... ``steps`` drafts."""
        return [self.counts.count(accepted) for accepted in range(steps + 1)]


def sequences(target: Target, answers: list[list[int]], starts: list[int]) -> list[Sequence]:
    """Run the target over each answer once and keep what the head needs."""
    result = []
    for answer, start in zip(answers, starts, strict=True):
        tokens = torch.tensor(answer, device=target.device)
        result.append(Sequence(tokens, start, target.forward(tokens[None])[0][0]))
    return result


@torch.no_grad()
def simulate(
    head: Eagle3Head, embed: Tensor, data: list[Sequence], spec: Spec, new_tokens: int
) -> Acceptance:
    """Return the acceptance over ``data``, each answer cut after ``new_tokens`` tokens."""
    total = Acceptance()
    for sequence in data:
        accepted = _accepted_from_everywhere(head, embed, sequence, spec).tolist()
        # Row t drafts from place t + 2 on; the first round follows the prefill's own token.
        row, end = sequence.start - 1, min(len(sequence.tokens), sequence.start + new_tokens) - 2
        while row < end:
            total.counts.append(accepted[row])
            row += accepted[row] + 1
    return total


def _accepted_from_everywhere(
    head: Eagle3Head, embed: Tensor, sequence: Sequence, spec: Spec
) -> Tensor:
    """Return, int64 [n - 1], how many drafts a round starting at each row would see accepted."""
    tokens, rows = sequence.tokens, len(sequence.tokens) - 1
    hidden = head.fuse(sequence.captured[None, :rows])
    embeds = F.embedding(tokens[None, 1:], embed).to(hidden.dtype)
    # Past the known answer nothing counts as accepted.
    padded = F.pad(tokens, (0, spec.steps + 1), value=-1)
    truth = torch.stack([padded[2 + i : 2 + i + rows] for i in range(spec.steps)])
    cache = ChainCache()
    normed, hidden = head.step(hidden, embeds, cache)
    if spec.topk == 1:
        return _chain(head, embed, (normed, hidden, cache), truth)
    if spec.steps != 2:
        raise ValueError(f"trees of two steps only, not {spec}")
    return _tree(head, embed, (normed, hidden, cache), (truth, spec))


def _chain(
    head: Eagle3Head, embed: Tensor, first: tuple[Tensor, Tensor, ChainCache], truth: Tensor
) -> Tensor:
    normed, hidden, cache = first
    drafts = _best(head, normed)
    alive = drafts == truth[0]
    accepted = alive.long()
    for expected in truth[1:]:
        embeds = F.embedding(drafts[None], embed).to(hidden.dtype)
        normed, hidden = head.step(hidden, embeds, cache)
        drafts = _best(head, normed)
        alive = alive & (drafts == expected)
        accepted += alive
    return accepted


def _best(head: Eagle3Head, normed: Tensor) -> Tensor:
    """Return the likeliest draft of each row as a target id, int64 [t], from [1, t, h]."""
    return head.draft_ids[head.lm_head(normed[0]).argmax(dim=-1)]


def _tree(
    head: Eagle3Head,
    embed: Tensor,
    first: tuple[Tensor, Tensor, ChainCache],
    goal: tuple[Tensor, Spec],
) -> Tensor:
    (normed, hidden, cache), (truth, spec) = first, goal
    scores, index = head.lm_head(normed[0]).float().softmax(-1).topk(spec.topk)  # [rows, k]
    children = head.draft_ids[index]
    embeds = F.embedding(children.T, embed).to(hidden.dtype)  # one batch entry a candidate
    normed, _ = head.step(hidden.repeat(spec.topk, 1, 1), embeds, cache.branch(spec.topk))
    second, index = head.lm_head(normed).float().softmax(-1).topk(spec.topk)  # [k, rows, k]
    grandchildren = head.draft_ids[index].transpose(0, 1)  # [rows, k, k]
    products = scores[..., None] * second.transpose(0, 1)
    # The num_draft_tokens - 1 best of both levels are verified.
    every = torch.cat([scores, products.flatten(1)], dim=-1)
    kept = torch.zeros_like(every, dtype=torch.bool)
    kept.scatter_(1, every.topk(spec.num_draft_tokens - 1).indices, True)
    hit = (children == truth[0][:, None]) & kept[:, : spec.topk]
    deep = (grandchildren == truth[1][:, None, None]).flatten(1) & kept[:, spec.topk :]
    deeper = deep.view_as(grandchildren).any(-1) & hit
    return hit.any(-1).long() + deeper.any(-1).long()
