"""`spec-fsm bench overhead`: its tables, and whether the budget is kept."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

MEAN_BUDGET_US, P99_BUDGET_US = 5.0, 20.0
FIGURES = ("b", "mode", "steps", "mean_us", "p50_us", "p99_us", "step_ms")


def overhead(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")] = (
        False
    ),
) -> None:
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
        table.add_row(*(str(row[name]) for name in FIGURES))
    console.print(table)
    table = Table(title="where it goes: microseconds a step by call of the lifecycle")
    for column in ("requests", "mode", "call", "calls a step", "us a call", "us a step", "slowest"):
        table.add_column(column, justify="right")
    for row in found["results"]:
        for name, call in row["calls"].items():
            figures = (call["each_step"], call["us"], call["share_us"], row["slow"].get(name, 0))
            table.add_row(str(row["b"]), row["mode"], name, *(str(value) for value in figures))
    console.print(table)


__all__ = ["MEAN_BUDGET_US", "P99_BUDGET_US", "overhead"]
