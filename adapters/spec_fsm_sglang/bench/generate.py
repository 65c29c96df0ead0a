"""Greedy answers of the real engine to a list of prompts, from a process of its own.

SGLang allows one scheduler a process, so each configuration is one: `answers` starts
`python -m spec_fsm_sglang.bench.generate`, hands it a `Task` on standard input and reads an
`Answer` a line from its standard output, each as soon as its prompt has finished.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from spec_fsm.errors import SpecFsmError
from spec_fsm.laws import Shape
from spec_fsm_sglang.config import ENV_VAR
from spec_fsm_sglang.demo.compare import margins
from spec_fsm_sglang.demo.server import end_with_parent, environment, tail

CONCURRENCY: Final = 16
"""Requests that run at a time."""
DTYPES: Final = {"cpu": "float32", "cuda": "bfloat16"}


class EngineFailed(SpecFsmError):
    """The engine's process ended without all its answers; the message ends with its log."""


class Task(msgspec.Struct, frozen=True):
    """What one process generates: at most `max_new_tokens` tokens after each prompt's ids.

    Without `shape` it runs without speculation and each answer carries its `margins`.
    `server_args` are further fields of SGLang's `ServerArgs`.
    """

    model: str
    draft: str
    device: str
    max_new_tokens: int
    prompts: list[list[int]]
    shape: Shape | None = None
    server_args: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """The answer to prompt `index`, up to and with its end-of-sequence token.

    `histogram[j]`: verify rounds that accepted j drafts. `margins`: as in `compare.Reference`.
    """

    index: int
    output_ids: list[int]
    histogram: list[int]
    margins: list[float]


def answers(task: Task, log: Path) -> Iterator[Answer]:
    """Yields every prompt's answer as it finishes; the engine's own output goes to `log`.

    Raises EngineFailed when the process ends before all of them have come.
    """
    environ = {k: v for k, v in environment().items() if k != ENV_VAR}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            preexec_fn=end_with_parent,
            env=environ,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    missing = len(task.prompts)
    with process:
        try:
            with suppress(BrokenPipeError):  # its log says why it died
                process.stdin.write(msgspec.json.encode(task))
                process.stdin.close()
            for line in process.stdout:
                yield msgspec.json.decode(line, type=Answer)
                missing -= 1
        except BaseException:  # whoever reads stops reading
            process.terminate()
            raise
    if missing or process.returncode != 0:
        code = process.returncode
        raise EngineFailed(f"the engine ended with code {code}, {missing} missing:\n{tail(log)}")


def generate(task: Task, output: IO[bytes]) -> None:
    """In the engine's process: writes an `Answer` a line.

    Raises RuntimeError where SGLang refuses a prompt, as one that its KV pool cannot hold.
    """
    from spec_fsm_sglang.inprocess import Engine

    engine = Engine(**_arguments(task))
    waiting = {_submit(engine, task, prompt): i for i, prompt in enumerate(task.prompts)}
    while waiting:
        engine.step()
        for rid in [rid for rid in waiting if engine.outputs[rid].finished]:
            found = engine.outputs.pop(rid)
            index = waiting.pop(rid)
            if (found.finished_reason or {}).get("type") == "abort":
                raise RuntimeError(f"prompt {index + 1} was refused: {found.finished_reason}")
            output.write(msgspec.json.encode(_answer(index, found)) + b"\n")
            output.flush()
    engine.close()


def _submit(engine: Any, task: Task, prompt: list[int]) -> str:
    wanted = {} if task.shape else {"return_logprob": True, "top_logprobs_num": 2}
    rid: str = engine.submit(
        prompt, max_new_tokens=task.max_new_tokens, sampling={"ignore_eos": False}, **wanted
    )
    return rid


def _answer(index: int, found: Any) -> Answer:
    tops = found.meta.get("output_top_logprobs_val") or []
    return Answer(
        index,
        [int(token) for token in found.output_ids],
        [int(rounds) for rounds in found.meta.get("spec_correct_drafts_histogram") or []],
        list(margins([[(value,) for value in position] for position in tops])),
    )


def _arguments(task: Task) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "model": Path(task.model),
        "draft": Path(task.draft) if task.shape else None,
        "device": task.device,
        "dtype": DTYPES[task.device],
        "max_running_requests": CONCURRENCY,
        "max_total_tokens": 16384,
    }
    if task.shape is not None:
        chosen |= {
            "steps": task.shape.num_steps,
            "topk": task.shape.topk,
            "num_draft_tokens": task.shape.num_draft_tokens,
        }
    return chosen | task.server_args


def main() -> None:
    """Entry point of the engine's process."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    # What SGLang prints must not stand between the answers.
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        generate(task, output)


if __name__ == "__main__":
    main()


__all__ = ["CONCURRENCY", "DTYPES", "Answer", "EngineFailed", "Task", "answers", "generate"]
