"""`spec-fsm bench`: one sub-command a measurement."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spec_fsm.errors import ConfigError, one_line
from spec_fsm_model.cli_parts import console as console_of
from spec_fsm_sglang.bench.acceptance import device_of, parse_spec
from spec_fsm_sglang.bench.arms import Bench, pair_of, prompt_ids, stoppable, whole_numbers
from spec_fsm_sglang.bench.overhead_cli import overhead

app = typer.Typer(no_args_is_help=True, help="Measure the adapter in the real engine.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]
ServerArgs = Annotated[
    list[str] | None,
    typer.Option(help="FIELD=VALUE of SGLang's ServerArgs.", show_default=False),
]
Logs = Annotated[Path | None, typer.Option(help="Folder to keep the servers' logs in.")]



app.command()(overhead)


@app.command()
def acceptance(  # noqa: PLR0913 -- one parameter a flag
    spec: Annotated[
        list[str] | None,
        typer.Option(help="STEPS/TOPK/DRAFT_TOKENS, any number of times.", show_default=False),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines with `turns`; by default MT-bench.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Only the first N prompts.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=65_536, help="Longest answer.")] = 128,
    draft: Annotated[Path | None, typer.Option(help="Another EAGLE-3 head.")] = None,
    model: Annotated[Path | None, typer.Option(help="Another target; needs --draft.")] = None,
    device: Annotated[str, typer.Option(help="cpu (fp32), cuda (bf16) or auto.")] = "auto",
    reference: Annotated[
        bool, typer.Option(help="Compare with outputs without speculation.")
    ] = True,
    server_arg: ServerArgs = None,
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
    console = console_of(stderr=True)
    runs = _Runs(console)
    try:
        found = measure(setup, runs)
    finally:
        runs.stop()
    _show_acceptance(found, console_of(stderr=as_json))
    if as_json:
        print(json.dumps(found))
    unequal = [r["spec"] for r in found["results"] if _breaks(r)]
    if unequal:
        print(f"spec-fsm: fp32 outputs differ with {', '.join(unequal)}", file=sys.stderr)
    raise typer.Exit(1 if unequal else 0)


@app.command()
def plain(  # noqa: PLR0913 -- one parameter a flag
    model: Annotated[str, typer.Option(help="smollm2, llama-8b (random weights) or tiny.")] = (
        "smollm2"
    ),
    spec: Annotated[str, typer.Option(help="STEPS/TOPK/DRAFT_TOKENS.")] = "2/4/16",
    requests: Annotated[str, typer.Option(help="Requests at a time, as 1,8,32.")] = "8",
    blocks: Annotated[int, typer.Option(min=1, max=1000, help="ABBA blocks at each size.")] = 5,
    iterations: Annotated[int, typer.Option(min=4, max=65_536, help="Steady steps a run.")] = 128,
    prompt_len: Annotated[int, typer.Option(min=1, max=65_536, help="Tokens in.")] = 64,
    output_len: Annotated[int, typer.Option(min=16, max=65_536, help="Tokens out.")] = 256,
    device: Annotated[str, typer.Option(help="cpu (fp32), cuda (bf16) or auto.")] = "auto",
    flush_every: Annotated[
        int | None, typer.Option(min=0, max=65_536, help="The setting's default.")
    ] = None,
    adaptive: Annotated[bool, typer.Option(help="Measure SGLang's own off as well.")] = False,
    profile: Annotated[
        int, typer.Option(min=0, max=10_000, help="Steps to profile in each arm.")
    ] = 0,
    server_arg: ServerArgs = None,
    logs: Logs = None,
    as_json: AsJson = False,
) -> None:
    """PLAIN against a server that never speculates: tokens a second, side by side."""
    from spec_fsm_sglang.bench import plain as bench

    config = {} if flush_every is None else {"flush_every": flush_every}
    tokens = prompt_len + output_len
    with _setting(model, spec, device, requests, tokens, server_arg, logs) as setting:
        setup = bench.Setup(
            setting,
            whole_numbers("--requests", requests),
            blocks,
            iterations,
            prompt_len,
            output_len,
            config,
            adaptive,
            profile,
        )
        found = _said(lambda say: bench.measure(setup, say))
    _show_plain(found, console_of(stderr=as_json))
    _end(found, as_json)


@app.command()
def recovery(  # noqa: PLR0913 -- one parameter a flag
    model: Annotated[str, typer.Option(help="smollm2 or tiny.")] = "smollm2",
    spec: Annotated[
        list[str] | None,
        typer.Option(help="STEPS/TOPK/DRAFT_TOKENS, any number of times.", show_default=False),
    ] = None,
    gaps: Annotated[str, typer.Option(help="Plain tokens before the switch.")] = "16,64",
    requests: Annotated[str, typer.Option(help="Requests at a time, as 1,8,32.")] = "1,8",
    rounds: Annotated[
        int,
        typer.Option(
            min=8,
            max=1_000_000,
            help="First rounds to pool for each spec and strategy, at least.",
        ),
    ] = 256,
    strategy: Annotated[
        list[str] | None, typer.Option(help="flush, at once or cold.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="cpu (fp32), cuda (bf16) or auto.")] = "auto",
    server_arg: ServerArgs = None,
    logs: Logs = None,
    as_json: AsJson = False,
) -> None:
    """Acceptance after a plain gap against an always-on draft at the same positions."""
    from spec_fsm_sglang.bench import recovery as bench

    strategies = list(dict.fromkeys(strategy or bench.STRATEGIES))
    for name in strategies:
        if name not in bench.STRATEGIES:
            accepted = ", ".join(bench.STRATEGIES)
            raise ConfigError(f"--strategy {one_line(name)}: accepted are {accepted}")
    specs = list(dict.fromkeys(spec or ("3/1/4", "2/4/16")))
    lengths, sizes = whole_numbers("--gaps", gaps), whole_numbers("--requests", requests)
    share = rounds / (len(lengths) * len(sizes) * bench.FIRST)
    with ExitStack() as stack:
        benches = {
            name: stack.enter_context(
                _setting(model, name, device, requests, 512 + max(lengths), server_arg, logs)
            )
            for name in specs
        }
        setup = bench.Setup(
            benches,
            lengths,
            {size: math.ceil(share / size) for size in sizes},
            strategies,
            prompt_ids(benches[specs[0]].pair),
        )
        found = _said(lambda say: bench.measure(setup, say))
    _show_recovery(found, console_of(stderr=as_json))
    _end(found, as_json)


@app.command()
def switch(  # noqa: PLR0913 -- one parameter a flag
    model: Annotated[str, typer.Option(help="smollm2, llama-8b (random weights) or tiny.")] = (
        "smollm2"
    ),
    spec: Annotated[str, typer.Option(help="STEPS/TOPK/DRAFT_TOKENS.")] = "3/1/4",
    requests: Annotated[str, typer.Option(help="Requests at a time, as 1,8,32.")] = "8",
    gaps: Annotated[str, typer.Option(help="Plain tokens before the switch.")] = "16,64",
    cycles: Annotated[int, typer.Option(min=2, max=1000, help="Off and on so many times.")] = 5,
    flips: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Switches of the memory run.")
    ] = 0,
    profile: Annotated[
        int, typer.Option(min=0, max=10_000, help="Steps to profile in each mode.")
    ] = 0,
    prompt_len: Annotated[int, typer.Option(min=1, max=65_536, help="Tokens in.")] = 64,
    device: Annotated[str, typer.Option(help="cpu (fp32), cuda (bf16) or auto.")] = "auto",
    server_arg: ServerArgs = None,
    logs: Logs = None,
    as_json: AsJson = False,
) -> None:
    """When a switch takes effect, the time between tokens around it, and memory over many."""
    from spec_fsm_sglang.bench import switch as bench

    lengths = whole_numbers("--gaps", gaps)
    width = parse_spec(spec).num_draft_tokens
    tokens = prompt_len + bench.output_len(cycles, max(lengths), width) + 16
    with _setting(model, spec, device, requests, tokens, server_arg, logs) as setting:
        sizes = whole_numbers("--requests", requests)
        setup = bench.Setup(setting, sizes, lengths, cycles, prompt_len, flips, profile)
        found = _said(lambda say: bench.measure(setup, say))
    shown = ("requests", "gap", "rebuild", "off_delay_launches", "plain_p99_ms", "window_p99_ms",
             "window_ratio", "per_token_ratio", "rebuild_per_256")  # fmt: skip
    rows = [{k: row[k] for k in shown} for row in found["results"]]
    _show_rows("around switches", rows, console_of(stderr=as_json))
    for name, row in (found["profiles"] or {}).items():
        text = ", ".join(f"{call} {times}" for call, times in row["waits"].items())
        console_of(stderr=as_json).print(f"{name}: the host waits, times an iteration: {text or 0}")
    if found["memory"]:
        console_of(stderr=as_json).print(f"memory: {found['memory']['growth']} bytes more")
    _end(found, as_json)


@app.command()
def graphs(  # noqa: PLR0913 -- one parameter a flag
    model: Annotated[str, typer.Option(help="smollm2, llama-8b or tiny.")] = "smollm2",
    spec: Annotated[str, typer.Option(help="STEPS/TOPK/DRAFT_TOKENS.")] = "2/4/16",
    requests: Annotated[
        int, typer.Option(min=2, max=4096, help="Every batch size up to this.")
    ] = 24,
    server_arg: ServerArgs = None,
    logs: Logs = None,
    as_json: AsJson = False,
) -> None:
    """What CUDA graphs hold when they are replayed, while modes flip at every batch size."""
    from spec_fsm_sglang.bench import graphs as bench

    with _setting(model, spec, "cuda", str(requests), 128, server_arg, logs) as setting:
        found = _said(lambda say: bench.measure(setting, say))
    line = f"evaluated {found['evaluated']}: {found['violations']} broken"
    console_of(stderr=as_json).print(line)
    if as_json:
        print(json.dumps(found))
    raise typer.Exit(0 if all(found["evaluated"].values()) and not found["violations"] else 1)


def _end(found: dict[str, Any], as_json: bool) -> None:
    """Print the result if it is asked for; exit code 1 for a measurement that was cut short."""
    if as_json:
        print(json.dumps(found))
    raise typer.Exit(0 if found["complete"] else 1)


def _show_rows(title: str, rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def _show_recovery(found: dict[str, Any], console: Console) -> None:
    shown = ("spec", "strategy", "gap", "first_rounds", "first_accept_length", "first_ratio",
             "first_lower_bound", "later_ratio", "same_text_ratio", "kv_error",
             "outputs_equal")  # fmt: skip
    rows = [*({"gap": "all"} | row for row in found["pooled"]), *found["results"]]
    _show_rows("accept length after a gap", [{k: row[k] for k in shown} for row in rows], console)


@contextmanager
def _setting(  # noqa: PLR0913 -- what several commands have in common, as their flags
    model: str,
    spec: str,
    device: str,
    requests: str,
    tokens: int,
    server_arg: list[str] | None,
    logs: Path | None,
) -> Iterator[Bench]:
    """What all arms of a measurement share; folders made for it last as long as the block."""
    shape = parse_spec(spec)
    largest = max(whole_numbers("--requests", requests))
    fields = dict(_field(text) for text in server_arg or ())
    with tempfile.TemporaryDirectory() as folder:
        pair = pair_of(model, Path(folder))
        yield Bench(pair, device_of(device), shape, largest, tokens, fields, logs)


def _said(measure: Callable[[Callable[[str], None]], dict[str, Any]]) -> dict[str, Any]:
    """Runs `measure` with its steps on standard error, timed; a live line on a terminal."""
    console, started = console_of(stderr=True), time.monotonic()
    with stoppable():
        if console.is_terminal:
            with console.status("starting") as status:
                return measure(status.update)
        return measure(lambda text: console.print(f"{time.monotonic() - started:6.0f} s  {text}"))


def _show_plain(found: dict[str, Any], console: Console) -> None:
    table = Table(title="PLAIN against a plain server: tokens a second, ABBA")
    columns = ("requests", "steady ratio", "95 % bound", "end to end", "tokens/s by arm")
    for column in columns:
        table.add_column(column, justify="right")
    for row in found["results"]:
        rates = ", ".join(f"{n} {a['steady_tokens_per_s']:.0f}" for n, a in row["arms"].items())
        ratios = (row["ratio"], row["lower_bound"], row["end_to_end_ratio"])
        table.add_row(str(row["requests"]), *(f"{ratio:.4f}" for ratio in ratios), rates)
    console.print(table)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"--server-arg {one_line(text)}: accepted is FIELD=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _breaks(result: dict[str, Any]) -> bool:
    # In bf16 another batch shape moves logits by more than a near tie allows.
    return result["dtype"] == "float32" and bool(result.get("outputs_different"))


class _Runs:
    """A bar for each run, and a line when it ends for who reads a file instead."""

    def __init__(self, console: Console) -> None:
        self._console = console
        text = TextColumn("{task.description:12}", markup=False)
        columns = (text, BarColumn(), MofNCompleteColumn())
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
