"""The servers that are measured side by side, and how their models are chosen."""

from __future__ import annotations

import json
import random
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spec_fsm.errors import ConfigError, SpecFsmError, one_line
from spec_fsm.laws import Shape
from spec_fsm_sglang import assets, smollm2
from spec_fsm_sglang.bench.acceptance import first_turns
from spec_fsm_sglang.bench.arm import Arm
from spec_fsm_sglang.bench.dummy import write_llama_8b
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.demo.run import HEAD
from spec_fsm_sglang.demo.workload import chat_ids

Say = Callable[[str], None]

LARGEST: Final = 65_536
"""Requests or tokens in a list of sizes, at most."""
MODELS: Final = ("smollm2", "llama-8b", "tiny")
DTYPES: Final = {"cpu": "float32", "cuda": "bfloat16"}
SKIP_EXTEND: Final = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


class Stopped(SpecFsmError):
    """A measurement was told to end (SIGINT, SIGTERM); what it has by then is its result."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Raises Stopped at the first SIGINT or SIGTERM inside the block; the next ones do nothing."""

    def stop(number: int, _frame: object) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_IGN)
        raise Stopped(f"stopped by {signal.Signals(number).name}")

    kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def keeping(found: list[Any], say: Say) -> Iterator[None]:
    """Ends the block when the measurement is stopped, if anything was `found` by then."""
    try:
        yield
    except Stopped as stop:
        if not found:
            raise
        say(f"{stop}: what was measured until now is kept")


@dataclass(frozen=True)
class Pair:
    """A target, its draft head and what they need of SGLang. vocab: ids below it are prompts."""

    target: Path
    draft: Path
    vocab: int
    server_args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """What every arm of one measurement shares.

    pair: the models. device: cpu or cuda. shape: of speculation. requests: most at a time.
    tokens: longest request, prompt and output. server_args: further fields of `ServerArgs`.
    """

    pair: Pair
    device: str
    shape: Shape
    requests: int
    tokens: int
    server_args: dict[str, Any]
    logs: Path | None = None

    def engine(self, *, draft: bool) -> dict[str, Any]:
        """Keyword arguments of `inprocess.Engine`."""
        slack = 8 + self.shape.num_draft_tokens * 2
        chosen: dict[str, Any] = {
            "model": str(self.pair.target),
            "draft": str(self.pair.draft) if draft else None,
            "steps": self.shape.num_steps,
            "topk": self.shape.topk,
            "num_draft_tokens": self.shape.num_draft_tokens,
            "device": self.device,
            "dtype": DTYPES[self.device],
            "max_running_requests": self.requests,
            "max_total_tokens": self.requests * (self.tokens + slack) + 1024,
        }
        if self.device != "cpu":
            chosen |= {"mem_fraction_static": 0.85, "cuda_graph_max_bs_decode": self.requests}
        return chosen | self.pair.server_args | self.server_args


def pair_of(name: str, folder: Path) -> Pair:
    """The pair called `name`; folders that have to be made are made below `folder`."""
    if name == "smollm2":
        return Pair(smollm2.convert(), assets.folder(HEAD), 49152)
    if name == "llama-8b":
        target, draft = write_llama_8b(folder)
        return Pair(target, draft, 128000, {"load_format": "dummy"})
    if name == "tiny":
        from spec_fsm_sglang.tiny import write_pair

        tiny = write_pair(folder / "tiny")
        return Pair(tiny.target, tiny.eagle3, 500)
    raise ConfigError(f"--model {one_line(name)}: accepted are {', '.join(MODELS)}")


def prompt_ids(pair: Pair) -> list[list[int]]:
    """First turns of MT-bench through the model's own chat template; random ids without one."""
    if not (pair.target / "tokenizer_config.json").is_file():
        draw = random.Random(0)
        return [[draw.randrange(3, pair.vocab) for _ in range(24)] for _ in range(80)]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    texts = first_turns(assets.folder("prompts") / "mt_bench.jsonl")
    return [chat_ids(text, tokenizer) for text in texts]


def plain_server(bench: Bench) -> tuple[dict[str, Any], dict[str, str]]:
    """A server without speculation: its engine arguments and its environment."""
    return bench.engine(draft=False), {}


def spec_fsm_server(bench: Bench, **config: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A server with this adapter; `config` are keys of its configuration."""
    settings = {"disable_above": max(1, bench.requests - 1), "dwell": 0} | config
    return bench.engine(draft=True), Config.of(settings).to_env()


def adaptive_server(
    bench: Bench, folder: Path, *, skip_extend: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """SGLang's own adaptive speculation held at step 0, its "off"; a chain, which it asks for."""
    path = folder / "adaptive.json"
    path.write_text(json.dumps({"1": {"candidate_steps": [0]}}) + "\n")
    chain = {"steps": 0, "topk": 1, "num_draft_tokens": 1}
    own = {"speculative_adaptive": True, "speculative_adaptive_config": str(path)}
    return bench.engine(draft=True) | chain | own, {SKIP_EXTEND: "1" if skip_extend else "0"}


@contextmanager
def started(
    servers: dict[str, tuple[dict[str, Any], dict[str, str]]], logs: Path, say: Say
) -> Iterator[dict[str, Arm]]:
    """Starts every server at once and yields them when all are up. Raises ArmFailed."""
    arms: dict[str, Arm] = {}
    logs.mkdir(parents=True, exist_ok=True)
    try:
        for name, (engine, environ) in servers.items():
            arms[name] = Arm(name, logs / f"{re.sub('[^A-Za-z0-9]+', '-', name)}.log", environ)
            arms[name].send("start", engine=engine)
        for name, arm in arms.items():
            say(f"starting {name}")
            arm.receive()
        yield arms
    finally:
        for arm in arms.values():
            arm.close()


def whole_numbers(flag: str, text: str) -> list[int]:
    """The list that `8,32,64` names; ConfigError for any other text."""
    parts: Sequence[str] = [part.strip() for part in text.split(",")]
    # Seven digits are above the limit already, and Python reads no more than 4300.
    right = [part.isascii() and part.isdecimal() and len(part) <= 6 for part in parts]
    if not all(right) or not all(0 < int(part) <= LARGEST for part in parts):
        raise ConfigError(
            f"{flag} {one_line(text)}: accepted are whole numbers from 1 to {LARGEST}, as 8,32,64"
        )
    return [int(part) for part in parts]


__all__ = [
    "MODELS",
    "Bench",
    "Pair",
    "Stopped",
    "adaptive_server",
    "keeping",
    "pair_of",
    "plain_server",
    "spec_fsm_server",
    "started",
    "stoppable",
    "whole_numbers",
]
