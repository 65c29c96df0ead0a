"""`spec-fsm bench`: one sub-command a measurement."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spec_fsm.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Measure the adapter in the real engine.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]

MEAN_BUDGET_US, P99_BUDGET_US = 5.0, 20.0


@app.command()
def overhead(as_json: AsJson = False) -> None:
    """Time inside `spec_fsm` per scheduler step that changes no mode, at 1 to 256 requests."""
    from spec_fsm_sglang.bench.overhead import measure

    console = Console(stderr=True)
    with console.status("starting the engine") as status:
        found = measure(lambda text: status.update(f"measuring {text}"))
    _show(found, Console(stderr=as_json))
    if as_json:
        print(json.dumps(found))
    within = found["mean_us"] <= MEAN_BUDGET_US and found["p99_us"] <= P99_BUDGET_US
    if not within:
        print(
            f"spec-fsm: over budget: mean {found['mean_us']} us (at most {MEAN_BUDGET_US}), "
            f"p99 {found['p99_us']} us (at most {P99_BUDGET_US})",
            file=sys.stderr,
        )
    raise typer.Exit(0 if within else 1)


def _show(found: dict[str, Any], console: Console) -> None:
    table = Table(title="time inside spec_fsm per scheduler step")
    for column in ("requests", "mode", "steps", "mean us", "p50 us", "p99 us", "whole step ms"):
        table.add_column(column, justify="right")
    for row in found["results"]:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


@app.command()
def acceptance(  # noqa: PLR0913 -- one parameter a flag
    spec: Annotated[
        list[str] | None,
        typer.Option(help="STEPS/TOPK/DRAFT_TOKENS, any number of times.", show_default=False),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with `turns`; by default MT-bench.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    draft: Annotated[Path | None, typer.Option(help="Another EAGLE-3 head.")] = None,
    model: Annotated[Path | None, typer.Option(help="Another target; needs --draft.")] = None,
    device: Annotated[str, typer.Option(help="cpu (fp32), cuda (bf16) or auto.")] = "auto",
    reference: Annotated[
        bool, typer.Option(help="Compare with outputs without speculation.")
    ] = True,
    server_arg: Annotated[
        list[str] | None,
        typer.Option(help="FIELD=VALUE of SGLang's ServerArgs.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How many drafts are accepted over a file of prompts, greedily, and equal outputs.

    Exit code 1 when an fp32 output differs from that without speculation.
    """
    from spec_fsm_sglang.bench.acceptance import Setup, measure

    setup = Setup(
        specs=tuple(dict.fromkeys(spec or ("3/1/4", "2/4/16"))),
        prompts=prompts,
        limit=limit,
        max_new_tokens=max_new_tokens,
        model=model,
        draft=draft,
        device=device,
        reference=reference,
        server_args=dict(_field(text) for text in server_arg or ()),
    )
    console = Console(stderr=True)
    runs = _Runs(console)
    try:
        found = measure(setup, runs)
    finally:
        runs.stop()
    _show_acceptance(found, Console(stderr=as_json))
    if as_json:
        print(json.dumps(found))
    unequal = [r["spec"] for r in found["results"] if _breaks(r)]
    if unequal:
        print(f"spec-fsm: fp32 outputs differ with {', '.join(unequal)}", file=sys.stderr)
    raise typer.Exit(1 if unequal else 0)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"--server-arg {text}: accepted is FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _breaks(result: dict[str, Any]) -> bool:
    # In bf16 another batch shape moves logits by more than a near tie allows.
    return result["dtype"] == "float32" and bool(result.get("outputs_different"))


class _Runs:
    """A bar for each run, and a line when it ends for who reads a file instead."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console)
        self._tasks: dict[str, Any] = {}
        self._started = 0.0

    def stop(self) -> None:
        """Leaves the bars as they are, if there are any."""
        if self._tasks:
            self._bar.stop()

    def __call__(self, spec: str, done: int, total: int) -> None:
        if spec not in self._tasks:
            self._bar.start()  # only here, so that a refusal stays one line
            self._tasks[spec] = self._bar.add_task(spec, total=total)
            self._started = time.monotonic()
        self._bar.update(self._tasks[spec], completed=done)
        if done == total or (not self._console.is_terminal and done % 10 == 0):
            seconds = time.monotonic() - self._started
            self._console.print(f"{spec}: {done} of {total} prompts, {seconds:.0f} s")


def _show_acceptance(found: dict[str, Any], console: Console) -> None:
    console.print(f"{found['asked']}, at most {found['max_new_tokens']} new tokens")
    console.print("accept length: tokens a round, accepted drafts and the bonus token")
    steps = max((len(row["by_position"]) for row in found["results"]), default=0)
    table = Table(caption="rounds, share of them: with j drafts accepted, with at least j")
    for column in ("spec", "accept length", *(f"{j}" for j in range(steps + 1)),
                   *(f"≥{j}" for j in range(1, steps + 1)), "distinct 4-grams"):  # fmt: skip
        table.add_column(column, justify="right")
    for row in found["results"]:
        length, shares = f"{row['accept_length']:.2f}", [f"{p:.2f}" for p in row["by_position"]]
        counts = [str(count) for count in row["histogram"]]
        pad = [""] * (steps - len(shares))
        distinct = f"{row['distinct_4grams']:.2f}"
        table.add_row(row["spec"], length, *counts, *pad, *shares, *pad, distinct)
    if "reference" in found:
        blank = [""] * (2 * steps + 2)
        table.add_row("none", *blank, f"{found['reference']['distinct_4grams']:.2f}")
    console.print(table)
    for row in found["results"]:
        line = f"{row['spec']}: {row['prompts']} prompts, {row['tokens']} tokens, "
        line += f"{row['device']} {row['dtype']}"
        if "outputs_equal" in row:
            line += f"; against no speculation {row['outputs_equal']} equal, "
            line += f"{row['outputs_near_tie']} near ties, {row['outputs_different']} different"
        console.print(line, soft_wrap=True)


__all__ = ["app"]
