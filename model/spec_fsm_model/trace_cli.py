"""`spec-fsm trace`: hold what a worker did against the table, and measure how fast that goes."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spec_fsm_model.cli_parts import AsJson
from spec_fsm_model.explore import Verdict
from spec_fsm_model.report import write
from spec_fsm_model.tamper import tamper
from spec_fsm_model.trace_check import TraceChecked, check_file, lines_of

trace_app = typer.Typer(no_args_is_help=True, help="Hold what a worker did against the table.")
LEAST = 100_000
"""Lines a second `trace bench` asks for."""

TraceFile = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="A trace, or one in gzip (.gz).")
]


@trace_app.command("check")
def trace_check(file: TraceFile, as_json: AsJson = False) -> None:
    """Replay a trace: every line is a step of the table, every launch is the law's."""
    began = time.perf_counter()
    found = check_file(file)
    seconds = time.perf_counter() - began
    lines = [
        f"{file.name}: {found.verdict.name.lower()}, {found.lines:,} lines, "
        f"{found.launches:,} launches, {found.lines / seconds:,.0f} lines/s"
    ]
    lines += _bad(found)
    console = Console(stderr=as_json)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        write([json.dumps({"file": file.name, **found.as_dict()})])
    raise typer.Exit(int(found.verdict))


def _bad(found: TraceChecked) -> list[str]:
    """The first bad line in words, none for a good trace."""
    lines = []
    if found.bad_line >= 0:
        lines.append(f"line {found.bad_line} (counted from 0): {found.text}")
        lines.append(f"  the line: {json.dumps(found.line)}")
    elif found.text:
        lines.append(f"after the last line: {found.text}")
    if found.expected:
        lines.append(f"  expected: {found.expected}")
    return lines


@trace_app.command("tamper")
def trace_tamper(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False)],
    every: Annotated[
        bool, typer.Option("--every-kind", help="Fail if no trace holds one of the kinds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Change one line of a trace at a time: it must no longer be proved.

    By kind of line and change.  Exit code 0 if no change is accepted; times, texts and the
    engine's own observations are explained.
    """
    try:
        found = tamper(lines_of(file) for file in files)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="FILES") from None
    console, rows = Console(stderr=as_json), defaultdict(list)
    for kind, change in found.outcomes:
        rows[kind, found.verdict(kind, change)].append(change)
    for (kind, verdict), names in sorted(rows.items()):
        text = f"{kind}: {verdict}: {len(names)}" + (
            "" if verdict == "refused" else f" ({', '.join(sorted(names))})"
        )
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        for name in names if verdict == "accepted" else ():
            console.print(f"  {name}: {found.examples[kind, name]}", markup=False, soft_wrap=True)
    for kind in found.missing():
        console.print(f"no trace holds: {kind}", markup=False, highlight=False, soft_wrap=True)
    counts = found.counts()
    console.print(
        f"tamper: {len(found.outcomes)} kinds, {counts['refused']} refused, "
        f"{counts['explained']} explained, {counts['accepted']} accepted",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    if as_json:
        write([json.dumps({"kinds": len(found.outcomes), **counts, "missing": found.missing()})])
    raise typer.Exit(int(bool(counts["accepted"] or (every and found.missing()))))


@trace_app.command("bench")
def trace_bench(
    file: TraceFile,
    seconds: Annotated[float, typer.Option(help="How long to measure.", min=0.01, max=3600)] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Replay a trace again and again: how many lines a second of one processor's time.

    Exit code 0 if the median is at least 100,000.
    """
    rates, began = [], time.perf_counter()
    while time.perf_counter() - began < seconds:
        start = time.process_time()  # other work on the machine is no part of it
        found = check_file(file)
        rates.append(found.lines / (time.process_time() - start))
        if found.verdict is not Verdict.PROVED:
            write([f"{file.name}: {found.verdict.name.lower()}", *_bad(found)])
            raise typer.Exit(int(found.verdict))
    events = sum(found.edges.values()) / found.lines
    median, best = statistics.median(rates), max(rates)
    fast = median >= LEAST
    text = (
        f"{file.name}: {found.lines:,} lines {len(rates)} times, {median:,.0f} lines/s in the "
        f"median, {best:,.0f} at best, {events:.0%} of them events; "
        f"{'' if fast else 'not '}at least {LEAST:,}"
    )
    Console(stderr=as_json).print(text, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        figures = {"lines_per_second": round(median), "best": round(best), "repeats": len(rates)}
        write([json.dumps({"file": file.name, "lines": found.lines, **figures})])
    raise typer.Exit(0 if fast else 1)


__all__ = ["LEAST", "trace_app", "trace_bench", "trace_check"]
