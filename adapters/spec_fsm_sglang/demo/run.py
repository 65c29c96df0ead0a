"""Runs the demo: two servers one after the other, the same requests to both, then the report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from spec_fsm_sglang import assets, client, smollm2
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.demo import report, timeline
from spec_fsm_sglang.demo.compare import Reference
from spec_fsm_sglang.demo.judge import Run, summarise
from spec_fsm_sglang.demo.load import Course, Driver
from spec_fsm_sglang.demo.server import running
from spec_fsm_sglang.demo.workload import PHASES, Job, read_prompts

HEAD: Final = "smollm2-135m-eagle3"
SETTING: Final = (
    "SmolLM2-135M-Instruct in fp32 with an EAGLE-3 tree of 2 steps, topk 4 and 16 draft tokens, on "
    "SGLang's HTTP server with overlap scheduling, on CPU. Speculation stops above 5 requests; "
    "every output is compared with a server started without speculation."
)
SPECULATION: Final = (
    "--speculative-algorithm", "EAGLE3",
    "--speculative-num-steps", "2",
    "--speculative-eagle-topk", "4",
    "--speculative-num-draft-tokens", "16",
)  # fmt: skip
REFERENCE_CONCURRENCY: Final = 12


def run(folder: Path, console: Console, draft: Path | None = None) -> dict[str, Any]:
    """Runs everything and writes the report into `folder`, which is emptied; returns the summary.

    `draft`: another EAGLE-3 head for SmolLM2 than the one that ships.

    Raises ServerFailed, RequestFailed or ServerProblem where the run itself breaks.
    """
    started = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = Config.load(Path(__file__).with_name("demo.toml"))
    model, prompts = _prepare(console)
    references = _references(console, folder, model, prompts)
    models = (model, draft or assets.folder(HEAD))
    course, status = _course(console, folder, models, prompts)
    events = timeline.read(folder / "trace.ndjson")
    summary = summarise(Run(course, events, status, references, SETTING))
    summary["total_seconds"] = time.monotonic() - started
    limits = (config.disable_above, config.enable_threshold)
    report.draw(folder / "timeline.png", events, course, limits)
    report.write(folder, summary)
    _show(console, folder, summary)
    return summary


def _prepare(console: Console) -> tuple[Path, dict[str, list[int]]]:
    console.print("model: SmolLM2-135M-Instruct (converted once, then cached)")
    model = smollm2.convert()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return model, read_prompts(assets.folder("prompts"), tokenizer)


def _flags(model: Path) -> list[str]:
    return [
        "--model-path", str(model), "--dtype", "float32",
        "--max-total-tokens", "16384", "--mem-fraction-static", "0.3", "--random-seed", "0",
    ]  # fmt: skip


def _references(
    console: Console, folder: Path, model: Path, prompts: dict[str, list[int]]
) -> dict[str, Reference]:
    jobs = _jobs()
    console.print("server 1 of 2: without speculation, for the reference outputs (starts in 30 s)")
    with (
        running(["--spec-fsm-off", *_flags(model)], folder / "reference-server.log") as server,
        _bar(console) as bar,
    ):
        task = bar.add_task("reference outputs", total=len(jobs))
        driver = Driver(server.url, prompts, lambda _course, done: bar.update(task, completed=done))
        return driver.references(jobs, REFERENCE_CONCURRENCY)


def _course(
    console: Console, folder: Path, models: tuple[Path, Path], prompts: dict[str, list[int]]
) -> tuple[Course, dict[str, Any]]:
    console.print("server 2 of 2: with speculation that stops above 5 requests (starts in 30 s)")
    flags = [
        *_flags(models[0]), *SPECULATION,
        # The stash has a row for each: with SGLang's 2048 it would be larger than the KV pool.
        "--max-running-requests", "24",
        "--speculative-draft-model-path", str(models[1]),
        "--spec-fsm-config", str(Path(__file__).with_name("demo.toml")),
        "--spec-fsm-trace", str(folder / "trace.ndjson"),
        "--spec-fsm-cpu-overlap",
    ]  # fmt: skip
    with running(flags, folder / "server.log") as server:
        with _bar(console) as bar:
            driver = Driver(server.url, prompts, _Progress(console, bar))
            course = driver.run(PHASES)
        return course, client.status(server.url)


class _Progress:
    """A line for each phase, and a bar with the requests in flight."""

    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("", total=len(_jobs()))
        self._phases = 0

    def __call__(self, course: Course, in_flight: int) -> None:
        if len(course.phases) > self._phases:
            self._phases = len(course.phases)
            phase = PHASES[self._phases - 1]
            self._console.print(f"  phase {phase.name}: concurrency {phase.concurrency}")
        name = PHASES[max(self._phases, 1) - 1].name
        text = f"{name}, {in_flight} in flight"
        self._bar.update(self._task, completed=len(course.answers), description=text)


def _jobs() -> list[Job]:
    return [job for phase in PHASES for job in phase.jobs]


def _bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description:24}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _show(console: Console, folder: Path, summary: dict[str, Any]) -> None:
    console.print(_table("Phases", summary["phases"]))
    console.print(_table("Switches", summary["switches"]))
    for condition in summary["conditions"]:
        mark = ("holds", "green") if condition["holds"] else ("FAILS", "bold red")
        console.print(Text.assemble(mark, f"  {condition['name']}: {condition['found']}"))
    console.print(
        f"outputs: {summary['outputs_equal']} equal, {summary['outputs_near_tie']} near ties, "
        f"{summary['outputs_different']} different; "
        f"{sum(summary['checks'].values())} checks, {summary['violations']} violations"
    )
    console.print("On this CPU the demo shows safety and equal outputs, not speed.")
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)


def _table(title: str, records: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for key in records[0] if records else ():
        table.add_column(key.replace("_", " "))
    for record in records:
        table.add_row(*(report.shown(value) for value in record.values()))
    return table


__all__ = ["run"]
