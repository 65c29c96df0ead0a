"""Training text by the target itself: thousands of rows decoded together, refilled as they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from tools.train_head.llama import Target
from tools.train_head.prompts import Exclusion, Job

USER_LIMIT = 96  # tokens; an invented user turn still open here is dropped
STEPS_PER_LOOK = 16  # decode steps between two looks at which rows have ended


@dataclass
class Corpus:
    """Token sequences end to end: row i is ``tokens[offsets[i]:offsets[i + 1]]``.

    ``greedy`` holds, at each place, the target's most likely token there, whatever was sampled.
    The answer of row i starts at place ``answer_start[i]`` of the row.
    """

    tokens: NDArray[np.uint16]
    greedy: NDArray[np.uint16]
    offsets: NDArray[np.int64]
    answer_start: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.answer_start)

    def save(self, path: Path) -> None:
        """Write everything to one ``.npz``."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Read what `save` wrote."""
        with np.load(path) as data:
            return cls(**{name: data[name] for name in cls.__dataclass_fields__})


class Decoder:
    """Rows of jobs at different places, advanced one token at a time; on a GPU by a CUDA graph.

    A row forces its job's text token by token, lets the target finish the user turn where the job
    says so, forces the assistant header after it, then samples the answer. All of that is tensor
    work of fixed shape, so a step needs nothing from the host.
    """

    def __init__(self, target: Target, rows: int, length: int, answer_limit: int) -> None:
        self.target, self.length, self.answer_limit = target, length, answer_limit
        config, device = target.config, target.device
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, length)
        self.cache = torch.zeros(*shape, config.head_dim, dtype=target.dtype, device=device)
        self.rope = target.rope(length)
        self.rows = torch.arange(rows, device=device)
        self.header = torch.tensor([], dtype=torch.long, device=device)
        self.tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
        self.greedy = torch.zeros_like(self.tokens)
        self.position = torch.zeros(rows, dtype=torch.long, device=device)
        self.forced_until = torch.zeros_like(self.position)
        self.answer_start = torch.zeros_like(self.position)
        self.temperature = torch.zeros(rows, device=device)
        self.answer_temperature = torch.zeros(rows, device=device)
        self.inventing = torch.zeros(rows, dtype=torch.bool, device=device)
        self.past_end = torch.zeros_like(self.inventing)
        self.failed = torch.zeros_like(self.inventing)
        self.finished = torch.ones_like(self.inventing)
        self._graph: torch.cuda.CUDAGraph | None = None

    def fill(self, where: Tensor, jobs: list[Job], texts: list[list[int]]) -> None:
        """Start ``jobs``, whose forced tokens are ``texts``, in the rows ``where`` int64 [n]."""
        device = self.target.device
        padded = np.zeros((len(jobs), self.length), dtype=np.int64)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        self.tokens[where] = torch.from_numpy(padded).to(device)
        lengths = torch.tensor([len(text) for text in texts], device=device)
        numbers = torch.tensor(
            [[j.temperature, j.user_temperature if j.invent else j.temperature] for j in jobs],
            device=device,
        )
        flags = torch.tensor([[j.invent, j.past_end] for j in jobs], device=device)
        self.position[where] = 0
        self.forced_until[where] = lengths
        self.answer_start[where] = lengths
        self.answer_temperature[where], self.temperature[where] = numbers.unbind(1)
        self.inventing[where], self.past_end[where] = flags.unbind(1)
        self.failed[where] = False
        self.finished[where] = False

    @torch.no_grad()
    def step(self) -> None:
        """Advance every unfinished row by one token."""
        if not self.tokens.is_cuda:
            self._step()
            return
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """Warm up and record `_step`; the rows' state is put back as it was."""
        names = [name for name, value in vars(self).items() if isinstance(value, Tensor)]
        saved = {name: getattr(self, name).clone() for name in names if name != "cache"}
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._step()
        for name, value in saved.items():
            getattr(self, name).copy_(value)

    def _step(self) -> None:
        rows, here = self.rows, self.position
        there = here + 1
        logits = self.target.decode(self.tokens[rows, here], here, self.cache, self.rope).float()
        best = logits.argmax(dim=-1)
        # Adding temperature times Gumbel noise and taking the maximum samples from the softmax;
        # at temperature 0 it is the plain maximum.
        gumbel = torch.empty_like(logits).exponential_().clamp_(min=1e-30).log_()
        sampled = logits.sub_(gumbel.mul_(self.temperature[:, None])).argmax(dim=-1)
        fixed = self.finished | (there < self.forced_until)
        chosen = torch.where(fixed, self.tokens[rows, there], sampled)
        self.tokens[rows, there] = chosen
        self.greedy[rows, there] = best
        ended = ~fixed & (chosen == self.target.config.eos_token_id)
        self._close_user_turns(ended & self.inventing, there + 1)
        limit = self.answer_start + self.answer_limit
        limit = torch.where(self.inventing, USER_LIMIT, limit).clamp(max=self.length - 1)
        out_of_room = ~fixed & (there + 1 >= limit)
        self.failed |= out_of_room & self.inventing
        answered = ended & ~self.past_end & (there >= self.answer_start)
        self.finished |= out_of_room | answered
        self.position.copy_(torch.where(self.finished, here, there))

    def _close_user_turns(self, over: Tensor, start: Tensor) -> None:
        """Force the assistant header at ``start`` in the rows ``over`` and begin their answers."""
        count = self.header.numel()
        places = start[:, None] + torch.arange(count, device=start.device)
        places = places.clamp(max=self.length - 1)
        old = self.tokens.gather(1, places)
        self.tokens.scatter_(1, places, torch.where(over[:, None], self.header, old))
        self.forced_until.copy_(torch.where(over, start + count, self.forced_until))
        self.answer_start.copy_(torch.where(over, start + count, self.answer_start))
        self.temperature.copy_(torch.where(over, self.answer_temperature, self.temperature))
        self.inventing &= ~over


class Harvest:
    """Collects ended rows into a `Corpus`, leaving out failures and kept-out prompts."""

    def __init__(self, tokenizer: Tokenizer, exclusion: Exclusion) -> None:
        self.tokenizer, self.exclusion = tokenizer, exclusion
        self.tokens: list[NDArray[np.uint16]] = []
        self.greedy: list[NDArray[np.uint16]] = []
        self.answer_start: list[int] = []
        self.excluded = self.failed = self.total = 0

    def take(self, decoder: Decoder, where: Tensor) -> None:
        """Copy the rows ``where`` int64 [n] out of ``decoder``."""
        tokens, greedy = (x[where].short().cpu().numpy().view(np.uint16)
                          for x in (decoder.tokens, decoder.greedy))  # fmt: skip
        ends = (decoder.position[where] + 2).tolist()
        starts, failed = decoder.answer_start[where].tolist(), decoder.failed[where].tolist()
        prompts = self.tokenizer.decode_batch(
            [row[:start].tolist() for row, start in zip(tokens, starts, strict=True)]
        )
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if failed[i] or end - start < 4:
                self.failed += 1
            elif self.exclusion.covers(prompts[i].split("\nuser\n", 1)[-1]):
                self.excluded += 1
            else:
                self.tokens.append(tokens[i, :end].copy())
                self.greedy.append(greedy[i, :end].copy())
                self.answer_start.append(start)
                self.total += end

    def corpus(self) -> Corpus:
        """Return everything taken so far."""
        lengths = [len(row) for row in self.tokens]
        return Corpus(
            np.concatenate(self.tokens),
            np.concatenate(self.greedy),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.array(self.answer_start, dtype=np.int32),
        )


def generate(
    decoder: Decoder, jobs: Iterator[Job], harvest: Harvest, token_goal: int, seconds: float
) -> Corpus:
    """Run ``jobs`` until ``token_goal`` tokens are harvested or ``seconds`` have passed.

    Rows still running then are dropped.
    """
    encode = harvest.tokenizer.encode_batch
    header = harvest.tokenizer.encode("\n<|im_start|>assistant\n").ids
    decoder.header = torch.tensor(header, device=decoder.target.device)
    started = time.monotonic()
    where = decoder.rows
    with tqdm(total=token_goal, unit="tok", unit_scale=True, mininterval=5) as bar:
        while harvest.total < token_goal and time.monotonic() - started < seconds:
            if where.numel():
                batch = list(islice(jobs, where.numel()))
                decoder.fill(where, batch, [e.ids for e in encode([j.text for j in batch])])
            for _ in range(STEPS_PER_LOOK):
                decoder.step()
            where = decoder.finished.nonzero().flatten()
            before = harvest.total
            if where.numel():
                harvest.take(decoder, where)
            bar.update(harvest.total - before)
    return harvest.corpus()


def greedy_answers(target: Target, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """Return each prompt with its greedy continuation: up to ``new_tokens``, or to its end."""
    length = max(len(prompt) for prompt in prompts) + new_tokens + 2
    decoder = Decoder(target, len(prompts), -(-length // 16) * 16, new_tokens)
    jobs = [Job("", False, 0.0, 0.0, False)] * len(prompts)
    decoder.fill(decoder.rows, jobs, prompts)
    while not bool(decoder.finished.all()):
        for _ in range(STEPS_PER_LOOK):
            decoder.step()
    ends = (decoder.position + 2).tolist()
    return [row[:end] for row, end in zip(decoder.tokens.tolist(), ends, strict=True)]
