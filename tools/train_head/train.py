"""The training loop: multi-step unrolling, soft targets, curves, checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm  # type: ignore[import-untyped]

from tools.train_head.generate import Corpus
from tools.train_head.head import ChainCache, Eagle3Head, new_head
from tools.train_head.llama import Target
from tools.train_head.simulate import Sequence, Spec, simulate


@dataclass(frozen=True)
class Settings:
    """Everything that decides a training run besides its corpus."""

    steps: int = 5500
    batch_tokens: int = 32768
    learning_rate: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.01
    muon: bool = True
    unroll: int = 3
    decay: float = 0.8  # weight of step j is decay ** j
    draft_vocab: int = 12288
    intermediate_size: int = 1536
    held_out: int = 256  # rows at the corpus's end, never trained on
    seed: int = 0
    log_every: int = 50
    measure_every: int = 500


class Batches:
    """Right-padded batches of rows of like length, all on the device.

    Rows go to the shortest of a few lengths that holds them; the order is shuffled each epoch.
    """

    def __init__(self, corpus: Corpus, settings: Settings, device: str) -> None:
        self.settings, self.device = settings, device
        self.tokens = torch.from_numpy(corpus.tokens.astype(np.int32)).to(device)
        self.greedy = torch.from_numpy(corpus.greedy.astype(np.int32)).to(device)
        self.offsets = torch.from_numpy(corpus.offsets).to(device)
        self.starts = torch.from_numpy(corpus.answer_start).to(device)
        lengths = np.diff(corpus.offsets)[: -settings.held_out]
        longest = -(-int(np.diff(corpus.offsets).max()) // 16) * 16
        edges = sorted({-(-int(longest * share) // 16) * 16 for share in (0.45, 0.7, 0.85, 1)})
        self.longest = longest
        self.groups = {
            edge: np.flatnonzero((lengths > below) & (lengths <= edge))
            for below, edge in zip([0, *edges], edges, strict=False)
        }

    def plan(self) -> Iterator[tuple[np.ndarray, int]]:
        """Yield arguments of `gather` without end, the same for the same seed."""
        epoch = 0
        while True:
            rng = np.random.default_rng([self.settings.seed, epoch])
            plan: list[tuple[np.ndarray, int]] = []
            for edge, rows in self.groups.items():
                size = max(1, self.settings.batch_tokens // edge)
                order = rng.permutation(rows)
                plan += [(order[i : i + size], edge) for i in range(0, len(order) - size + 1, size)]
            if not plan:
                raise ValueError("the corpus is smaller than one batch")
            for index in rng.permutation(len(plan)):
                yield plan[index]
            epoch += 1

    def held_out(self) -> dict[str, Tensor]:
        """Return the rows never trained on, as one batch."""
        count = len(self.starts)
        return self.gather(np.arange(count - self.settings.held_out, count), self.longest)

    def gather(self, rows: np.ndarray, length: int) -> dict[str, Tensor]:
        """Return ``tokens``, ``greedy`` int64 and ``answer`` bool, each [len(rows), length]."""
        index = torch.from_numpy(rows).to(self.device)
        begin, end = self.offsets[index, None], self.offsets[index + 1, None]
        column = torch.arange(length, device=self.device)[None]
        inside = begin + column < end
        at = torch.where(inside, begin + column, 0)
        return {
            "tokens": torch.where(inside, self.tokens[at], 0).long(),
            "greedy": torch.where(inside, self.greedy[at], 0).long(),
            "answer": inside & (column >= self.starts[index, None]),
        }


def teach(final: Tensor, draft_embed: Tensor) -> Tensor:
    """Return the target's distribution over the draft vocabulary, [n, vocab]."""
    return F.linear(final, draft_embed).float().softmax(-1).to(final.dtype)


def score(logits: Tensor, teacher: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy against ``teacher`` and how often ``truth`` is on top."""
    logits = logits.float()
    loss = (logits.logsumexp(-1) - (logits * teacher.float()).sum(-1)).mean()
    return loss, (logits.argmax(-1) == truth).sum()


class Trainer:
    """Holds the head, its optimiser and the curves; `run` advances and can be resumed."""

    def __init__(self, target: Target, corpus: Corpus, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.target, self.settings = target, settings
        self.batches = Batches(corpus, settings, target.device)
        draft_ids, self.coverage = pick_draft_vocab(corpus, settings.draft_vocab, target)
        self.draft_embed = target.embed[draft_ids]
        self.draft_of = torch.full((target.config.vocab_size,), -1, device=target.device)
        self.draft_of[draft_ids] = torch.arange(len(draft_ids), device=target.device)
        scale = self._aux_scale()
        self.head = new_head(target, draft_ids, scale, settings.intermediate_size)
        self.head.to(target.device)
        self.optimisers = make_optimisers(self.head, settings)
        self.schedules = [
            torch.optim.lr_scheduler.LambdaLR(optimiser, self._rate)
            for optimiser in self.optimisers
        ]
        self.done = 0
        self.seconds = 0.0
        self.curves: list[dict[str, Any]] = []
        self.teach, self.score = teach, score
        if target.device != "cpu":
            self.teach, self.score = torch.compile(teach), torch.compile(score)

    def _rate(self, step: int) -> float:
        warm = min(1.0, (step + 1) / self.settings.warmup)
        return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / self.settings.steps)))

    def _aux_scale(self) -> Tensor:
        """Return the spread of each captured channel, float32 [3h], over the held-out rows."""
        batch = self.batches.held_out()
        captured = self.target.forward(batch["tokens"][:32])[0].float()
        return captured[batch["answer"][:32]].std(dim=0).clamp(min=1e-3)

    def losses(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the right top-1 drafts by unrolled step, and how many were asked.

        A draft for place p is asked at step j of the row that holds the target's hidden states of
        place p - 2 - j; the target's own opinion is its output at place p - 1. A token outside the
        draft vocabulary cannot be drafted: it counts as a miss and teaches nothing.
        """
        tokens, length = batch["tokens"], batch["tokens"].shape[1]
        captured, final = self.target.forward(tokens)
        wanted = self.draft_of[batch["greedy"]].flatten()
        places = (batch["answer"].flatten() & (wanted >= 0)).nonzero().flatten()
        truth = wanted[places]
        with torch.no_grad():
            teacher = self.teach(final.flatten(0, 1)[places - 1], self.draft_embed)
        embeds = F.pad(F.embedding(tokens, self.target.embed), (0, 0, 0, self.settings.unroll))
        hidden, cache = self.head.fuse(captured), ChainCache()
        total, right = torch.zeros((), device=tokens.device), []
        for j in range(self.settings.unroll):
            normed, hidden = self.head.step(hidden, embeds[:, 1 + j : 1 + j + length], cache)
            logits = self.head.lm_head(normed.flatten(0, 1)[places - 2 - j])
            loss, hits = self.score(logits, teacher, truth)
            total = total + self.settings.decay**j * loss
            right.append(hits)
        return total, torch.stack(right), batch["answer"].sum()

    def run(self, seconds: float, mt_bench: list[Sequence], out: Path) -> None:
        """Train until all steps are done or ``seconds`` have passed, measuring on the way."""
        started, before = time.monotonic(), self.seconds
        mixed = torch.autocast(self.target.device.split(":")[0], torch.bfloat16,
                               enabled=self.target.device != "cpu")  # fmt: skip
        plan = islice(self.batches.plan(), self.done, None)
        if self.target.device != "cpu":
            torch._dynamo.config.recompile_limit = 64
            self.head.layer = torch.compile(self.head._layer, dynamic=True)
        bar = tqdm(total=self.settings.steps, initial=self.done, unit="step", mininterval=10)
        while self.done < self.settings.steps and time.monotonic() - started < seconds:
            with mixed:
                loss, right, rows = self.losses(self.batches.gather(*next(plan)))
            self.head.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
            for part in self._parts()[1:]:
                part.step()
            self.done += 1
            bar.update()
            self.seconds = before + time.monotonic() - started
            if self.done % self.settings.log_every == 0 or self.done == self.settings.steps:
                self._note("train", loss, right, rows)
            if self.done % self.settings.measure_every == 0 or self.done == self.settings.steps:
                with mixed, torch.no_grad():
                    self._note("held_out", *self.losses(self.batches.held_out()))
                self._measure(mt_bench)
                write_curves(self, out)
        bar.close()

    def _note(self, kind: str, loss: Tensor, right: Tensor, rows: Tensor) -> None:
        entry = {"kind": kind, "step": self.done, "seconds": round(self.seconds, 1)}
        entry |= {"loss": round(loss.item(), 4)}
        entry["top1_by_step"] = [round(x, 4) for x in (right / rows).tolist()]
        self.curves.append(entry)

    def _measure(self, mt_bench: list[Sequence]) -> None:
        compiled, self.head.layer = self.head.layer, self.head._layer
        entry: dict[str, Any] = {"kind": "accept_length", "step": self.done}
        for text in ("3/1/4", "2/4/16"):
            found = simulate(self.head, self.target.embed, mt_bench, Spec.parse(text), 128)
            entry[text] = round(found.accept_length, 4)
        self.head.layer = compiled
        self.curves.append(entry)
        tqdm.write(json.dumps(self.curves[-2:]))

    def save(self, path: Path) -> None:
        """Write everything `resume` needs."""
        parts = [part.state_dict() for part in self._parts()]
        rest = {"done": self.done, "seconds": self.seconds, "curves": self.curves}
        torch.save({"parts": parts, "settings": asdict(self.settings)} | rest, path)

    def resume(self, path: Path) -> None:
        """Go on from what `save` wrote; refuses other settings."""
        state = torch.load(path, map_location=self.target.device, weights_only=True)
        if state["settings"] != asdict(self.settings):
            raise ValueError(f"{path} was made with {state['settings']}")
        for part, saved in zip(self._parts(), state["parts"], strict=True):
            part.load_state_dict(saved)
        self.done, self.seconds, self.curves = (state[k] for k in ("done", "seconds", "curves"))

    def _parts(self) -> list[Any]:
        return [self.head, *self.optimisers, *self.schedules]


def make_optimisers(head: Eagle3Head, settings: Settings) -> list[torch.optim.Optimizer]:
    """Return Muon for the layer's matrices (if asked for) and AdamW for everything else.

    Muon's step is scaled to AdamW's size, so one learning rate serves both.
    """
    named = dict(head.named_parameters())
    inner = [p for n, p in named.items() if p.dim() == 2 and n != "lm_head.weight"]
    decay, rate = settings.weight_decay, settings.learning_rate
    groups: list[dict[str, Any]] = [
        {"params": [named["lm_head.weight"]] + ([] if settings.muon else inner)},
        {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = named["lm_head.weight"].is_cuda
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), weight_decay=decay, fused=fused)
    ]
    if settings.muon:
        optimisers.append(torch.optim.Muon(
            inner, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
        ))  # fmt: skip
    return optimisers


def pick_draft_vocab(corpus: Corpus, size: int, target: Target) -> tuple[Tensor, float]:
    """Return the ``size`` tokens the target answers with most, ascending, and their share."""
    inside = np.concatenate([
        np.arange(begin + start, end) for begin, start, end
        in zip(corpus.offsets[:-1], corpus.answer_start, corpus.offsets[1:], strict=True)
    ])  # fmt: skip
    counts = np.bincount(corpus.greedy[inside], minlength=target.config.vocab_size)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:size])
    return torch.from_numpy(chosen).to(target.device), float(counts[chosen].sum() / counts.sum())


def write_curves(trainer: Trainer, out: Path) -> None:
    """Write ``training.json``: settings, curves, and what the run cost."""
    out.mkdir(parents=True, exist_ok=True)
    corpus = trainer.batches
    report = {
        "settings": asdict(trainer.settings),
        "steps_done": trainer.done,
        "train_seconds": round(trainer.seconds, 1),
        "corpus_tokens": len(corpus.tokens),
        "corpus_rows": len(corpus.starts),
        "draft_vocab_coverage": round(trainer.coverage, 5),
        "parameters": trainer.head.parameter_count(),
        "curves": trainer.curves,
    }
    (out / "training.json").write_text(json.dumps(report, indent=1) + "\n")
