"""Which requests the demo sends: five phases of load over MT-bench questions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SHORT, MEDIUM, LONG = 48, 80, 160  # output tokens at most

GRAMMARS: Final = {
    114: r"The probability is [0-9]{1,2}/[0-9]{1,2}, because [a-z0-9 ,]{40,90}\.",
    117: r"There are [0-9]{1,3} integers, because [a-z0-9 ,]{40,90}\.",
    159: r"1\. [A-Za-z ]{20,60}\n2\. [A-Za-z ]{20,60}\n3\. [A-Za-z ]{20,60}\n",
}
"""Answers held to a regular expression, so that a grammar goes through every mode too (I19)."""


@dataclass(frozen=True)
class Job:
    """One request: the question it asks, the most tokens it may generate, a grammar to keep to."""

    question: int
    max_new_tokens: int
    regex: str | None = None

    @property
    def rid(self) -> str:
        """The request's id, the same on both servers."""
        return f"q{self.question}"


@dataclass(frozen=True)
class Phase:
    """A stretch of load: `jobs` are started one by one, at most `concurrency` in flight.

    The next phase begins as soon as its own concurrency lets its first job start: load rises at
    once, and falls as requests finish.
    """

    name: str
    concurrency: int
    jobs: tuple[Job, ...]


def _phase(name: str, concurrency: int, jobs: dict[int, Sequence[int]]) -> Phase:
    # Most tokens first: the long answers start under high load and outlive it, so that
    # speculation comes back to requests that decoded plain for a long while.
    ordered = (
        Job(number, tokens, GRAMMARS.get(number))
        for tokens, numbers in jobs.items()
        for number in numbers
    )
    return Phase(name, concurrency, tuple(ordered))


PHASES: Final = (
    _phase("low 1", 2, {MEDIUM: (84, 160, 82, 157)}),
    _phase(
        "high 1", 12,
        {LONG: (81, 87, 143), MEDIUM: (121, 85), SHORT: (103, 107, 114, 116, 118, 122, 150)},
    ),
    _phase("low 2", 2, {MEDIUM: (86, 159, 141, 125)}),
    _phase(
        "high 2", 12,
        {LONG: (148, 154, 155), MEDIUM: (123, 146), SHORT: (101, 102, 108, 112, 117, 120, 127)},
    ),
    _phase("low 3", 2, {MEDIUM: (153, 144, 152, 142)}),
)
"""Concurrency 2, 12, 2, 12, 2; 36 requests."""


def read_prompts(folder: Path, tokenizer: Any) -> dict[str, list[int]]:
    """Request id -> token ids of the question's first turn, in the model's chat form."""
    prompts = {}
    for line in (folder / "mt_bench.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        prompts[f"q{row['question_id']}"] = chat_ids(row["turns"][0], tokenizer)
    return prompts


def chat_ids(text: str, tokenizer: Any) -> list[int]:
    """Token ids of `text` as a user's only message, up to where the model's answer begins."""
    encoded = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    return list(encoded["input_ids"])


__all__ = ["PHASES", "Job", "Phase", "chat_ids", "read_prompts"]
