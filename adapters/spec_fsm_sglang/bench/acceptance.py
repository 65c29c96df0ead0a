"""How many drafts the target accepts: greedy answers to a file of prompts, in the real engine.

Each spec runs in an engine of its own, and so does the reference without speculation that every
output is compared with, by the demo's rule.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from spec_fsm.errors import ConfigError, one_line
from spec_fsm.laws import Shape
from spec_fsm_sglang import assets, smollm2
from spec_fsm_sglang.bench.generate import DTYPES, Answer, Task, answers
from spec_fsm_sglang.demo.compare import Comparison, Reference, Verdict, compare
from spec_fsm_sglang.demo.judge import unequal
from spec_fsm_sglang.demo.run import HEAD
from spec_fsm_sglang.demo.workload import chat_ids
from spec_fsm_sglang.serve import on_cpu

NONE: Final = "none"
LARGEST_SHAPE: Final = 1024
"""Steps, branches and draft tokens, at most."""
LARGEST_PROMPTS: Final = 64 << 20
"""Bytes of a file of prompts, at most."""
"""The spec of the run without speculation."""
GRAM: Final = 4

Progress = Callable[[str, int, int], None]
"""Called with a run's spec, its answers so far and how many it will have."""


@dataclass(frozen=True)
class Setup:
    """What is measured.

    prompts: JSON lines with `turns`, of which the first is asked; None is the shipped MT-bench.
    limit: only the first so many prompts.
    model, draft: folders as SGLang loads them; None is the shipped pair.
    device: "cpu" (fp32, stand-in operators), "cuda" (bf16) or "auto".
    reference: whether to run without speculation too and compare.
    server_args: further fields of SGLang's `ServerArgs`.
    """

    specs: Sequence[str]
    prompts: Path | None = None
    limit: int | None = None
    max_new_tokens: int = 128
    model: Path | None = None
    draft: Path | None = None
    device: str = "auto"
    reference: bool = True
    server_args: dict[str, Any] = field(default_factory=dict)


def measure(setup: Setup, progress: Progress) -> dict[str, Any]:
    """The figures of each spec under `results`; with a reference, also its own, and verdicts.

    Raises ConfigError for settings that make no sense and EngineFailed when an engine breaks.
    """
    shapes = {spec: parse_spec(spec) for spec in setup.specs}
    path = setup.prompts or assets.folder("prompts") / "mt_bench.jsonl"
    texts = first_turns(path, setup.limit)
    task = _task(setup, texts)
    found: dict[str, Any] = {
        "engine": f"SGLang {version('sglang')}, EAGLE worker V2",
        "asked": f"first turns of {path.name}, greedy",
        "max_new_tokens": setup.max_new_tokens,
        "results": [],
    }
    references = None
    if setup.reference:
        plain = _run(NONE, task, progress)
        references = [Reference(tuple(a.output_ids), tuple(a.margins)) for a in plain]
        found["reference"] = {"spec": NONE, **_common(plain, task)}
    for spec, shape in shapes.items():
        drafted = _run(spec, msgspec.structs.replace(task, shape=shape), progress)
        record = {"spec": spec, **acceptance(drafted, shape.num_steps), **_common(drafted, task)}
        if references is not None:
            record |= verdicts(references, drafted)
        found["results"].append(record)
    return found


def parse_spec(text: str) -> Shape:
    """The shape that `steps/topk/draft tokens` names; ConfigError for any other text."""
    form = "accepted is STEPS/TOPK/DRAFT_TOKENS, as 3/1/4 (a chain) or 2/4/16 (a tree)"
    parts = text.split("/")
    if len(parts) != 3 or not all(
        part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts
    ):
        raise ConfigError(f"--spec {one_line(text)}: {form}")
    steps, topk, tokens = (int(part) for part in parts)
    if max(steps, topk, tokens) > LARGEST_SHAPE:
        raise ConfigError(f"--spec {text}: {form}, each up to {LARGEST_SHAPE}")
    try:
        shape = Shape(topk=topk, num_steps=steps, num_draft_tokens=tokens)
    except ConfigError as error:
        raise ConfigError(f"--spec {text}: {error}; {form}") from None
    if topk == 1 and tokens != steps + 1:
        # SGLang would run another spec than the one asked for.
        chain = f"{steps}/1/{steps + 1}"
        raise ConfigError(f"--spec {text}: accepted for a chain of {steps} steps is {chain}")
    return shape


def first_turns(path: Path, limit: int | None = None) -> list[str]:
    """The first of each row's `turns`, of the first `limit` rows.

    Raises ConfigError naming the file and line of what is not a row, and for a file without any.
    """
    form = 'accepted are JSON lines as {"turns": ["question", ...]}'
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_PROMPTS + 1)
        if len(content) > LARGEST_PROMPTS:
            raise ConfigError(f"--prompts {path}: accepted are up to {LARGEST_PROMPTS} bytes")
        lines = content.decode("utf-8").splitlines()
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"--prompts {one_line(str(path))}: {reason}; {form}") from None
    texts: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if limit is not None and len(texts) == limit:
            break
        texts.append(_first_turn(line, f"--prompts {path}: line {number}", form))
    if not texts:
        raise ConfigError(f"--prompts {path}: no rows; {form}")
    return texts


def _first_turn(line: str, where: str, form: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError(f"{where} is not JSON; {form}") from None
    turns = row.get("turns") if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        shown = "no turns" if turns is None else f"turns {json.dumps(turns)[:60]}"
        raise ConfigError(f"{where} has {shown}; {form}")
    return turns[0]


def acceptance(drafted: Sequence[Answer], steps: int) -> dict[str, Any]:
    """Over all verify rounds of all answers; each commits its accepted drafts and a bonus token.

    `histogram[j]`: rounds with j accepted drafts, j = 0..steps. `by_position[j - 1]`: share of
    rounds with at least j, the chance that position j is accepted. `accept_length`: mean tokens
    committed a round. Without any round, as where every answer is one token, the means are 0.
    """
    histogram = [0] * (steps + 1)
    for answer in drafted:
        for accepted, rounds in enumerate(answer.histogram):
            histogram[accepted] += rounds
    rounds = sum(histogram)
    by_position = [sum(histogram[j:]) / max(rounds, 1) for j in range(1, steps + 1)]
    return {
        # The mean of accepted drafts is the sum over j of the chance of at least j.
        "accept_length": round(1 + sum(by_position), 4) if rounds else 0.0,
        "histogram": histogram,
        "by_position": [round(share, 4) for share in by_position],
        "rounds": rounds,
    }


def distinct_grams(outputs: Iterable[Sequence[int]], n: int = GRAM) -> float:
    """Share of the n-grams of tokens that are the first of their kind within their own output.

    1.0 says that no output repeats itself; outputs shorter than n have none. 0 without any.
    """
    every = distinct = 0
    for output in outputs:
        grams = [tuple(output[i : i + n]) for i in range(len(output) - n + 1)]
        every += len(grams)
        distinct += len(set(grams))
    return round(distinct / every, 4) if every else 0.0


def verdicts(references: Sequence[Reference], drafted: Sequence[Answer]) -> dict[str, Any]:
    """How many outputs are equal to the reference, near ties or different, and the last two."""
    comparisons: dict[str, Comparison] = {
        f"prompt {answer.index + 1}": compare(reference, answer.output_ids)
        for reference, answer in zip(references, drafted, strict=True)
    }
    kinds = [comparison.verdict for comparison in comparisons.values()]
    return {
        "outputs_equal": kinds.count(Verdict.EQUAL),
        "outputs_near_tie": kinds.count(Verdict.NEAR_TIE),
        "outputs_different": kinds.count(Verdict.DIFFERENT),
        "unequal": unequal(comparisons),
    }


def _common(found: Sequence[Answer], task: Task) -> dict[str, Any]:
    outputs = [answer.output_ids for answer in found]
    return {
        "distinct_4grams": distinct_grams(outputs),
        "prompts": len(outputs),
        "tokens": sum(len(output) for output in outputs),
        "device": task.device,
        "dtype": DTYPES[task.device],
    }


def _task(setup: Setup, texts: Sequence[str]) -> Task:
    if find_spec("sglang") is None:
        raise ConfigError("SGLang is not installed here: pip install 'spec-fsm[sglang]'")
    if setup.model is not None and setup.draft is None:
        raise ConfigError(f"--model {setup.model} needs --draft: the shipped head fits its own")
    for flag, folder in (("--model", setup.model), ("--draft", setup.draft)):
        if folder is not None and not (folder / "config.json").is_file():
            raise ConfigError(f"{flag} {folder}: no config.json; accepted is a model's folder")
    device = device_of(setup.device)
    model = setup.model or smollm2.convert()
    draft = setup.draft or assets.folder(HEAD)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return Task(
        model=str(model.resolve()),
        draft=str(draft.resolve()),
        device=device,
        max_new_tokens=setup.max_new_tokens,
        prompts=[chat_ids(text, tokenizer) for text in texts],
        server_args=setup.server_args,
    )


def device_of(asked: str) -> str:
    """`cpu` or `cuda` for what was asked; ConfigError for what is not there."""
    if asked == "auto":
        return "cpu" if on_cpu([]) else "cuda"
    if asked not in DTYPES:
        raise ConfigError(f"--device {asked}: accepted are cpu, cuda and auto")
    if asked == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--device cuda: no CUDA device here; accepted are cpu and auto")
    return asked


def _run(spec: str, task: Task, progress: Progress) -> list[Answer]:
    """The answers in the prompts' order."""
    total = len(task.prompts)
    progress(spec, 0, total)
    found: list[Answer] = []
    with tempfile.TemporaryDirectory() as folder:
        for answer in answers(task, Path(folder) / "engine.log"):
            found.append(answer)
            progress(spec, len(found), total)
    return sorted(found, key=lambda answer: answer.index)


__all__ = [
    "NONE",
    "Setup",
    "acceptance",
    "device_of",
    "distinct_grams",
    "first_turns",
    "measure",
    "parse_spec",
    "verdicts",
]
