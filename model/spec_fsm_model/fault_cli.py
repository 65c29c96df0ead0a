"""`spec-fsm model mutate`, `sequences` and `spin`: what puts the checks themselves to the test."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from spec_fsm_model.cli_parts import AsJson, need_z3
from spec_fsm_model.explore import BOUNDS, Verdict
from spec_fsm_model.report import write
from spec_fsm_model.seeded import story
from spec_fsm_model.sequences import LONGEST, SMALL, lines
from spec_fsm_model.spin import NotInstalled, spin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm_model.mutate import Mutated

_ALL_BOUNDS = {bounds.name: bounds for bounds in (SMALL, *BOUNDS) if not bounds.skew}


def register(app: typer.Typer) -> None:
    """Add the commands to `spec-fsm model`."""
    app.command("mutate")(model_mutate)
    app.command("sequences")(model_sequences)
    app.command("spin")(model_spin)


def model_mutate(
    stories: Annotated[
        bool, typer.Option("--stories", help="Tell how each seeded bug comes about.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Name every fault and what found it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put every single fault into the table, and see that a check finds it."""
    need_z3()
    from spec_fsm_model.mutate import mutate  # z3: a second to import

    console = Console(stderr=True)
    with console.status("trying faults"):
        found = mutate()
    shown = Console(stderr=as_json)
    for line in totals(found):
        shown.print(line, markup=False, highlight=False, soft_wrap=True)
    for j in found.judged:
        if every or j.by in ("exact", "equivalent", "survives"):
            text = f"{j.by}: {j.kind}: {j.what}: {j.detail}"
            shown.print(text, markup=False, highlight=False, soft_wrap=True)
    for refuted in found.seeded:
        broken = ", ".join(refuted.broken) or "nothing"
        text = f"seeded: {refuted.bug.what}: breaks {broken} after {len(refuted.history)} acts"
        shown.print(text, markup=False, highlight=False, soft_wrap=True)
        for line in story(refuted) if stories else ():
            shown.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    shown.print(f"verdict: {found.verdict.name.lower()}, {found.seconds:.0f} s")
    if as_json:
        write([json.dumps(found.as_dict())])
    raise typer.Exit(int(found.verdict))


def totals(found: Mutated) -> Iterator[str]:
    """How many faults of each kind there are, and what finds them first."""
    for kind in dict.fromkeys(j.kind for j in found.judged):
        by = Counter(j.by for j in found.judged if j.kind == kind)
        yield f"{kind}: {by.total()}: {', '.join(f'{name} {n}' for name, n in by.most_common())}"
    by = found.by
    yield f"all: {by.total()}: {', '.join(f'{name} {n}' for name, n in by.most_common())}"
    yield f"{by['survives']} survive, {by['exact']} are found by a comparison of cells alone"


def model_sequences(
    out: Annotated[Path, typer.Option("--out", dir_okay=False, help="Where they go.")],
    bounds: Annotated[str, typer.Option(help=f"One of: {', '.join(_ALL_BOUNDS)}.")] = SMALL.name,
    longest: Annotated[
        int, typer.Option(help="Acts of one history, at most.", min=1, max=100_000)
    ] = LONGEST,
) -> None:
    """Write histories that follow every edge of an explored graph, as JSON lines."""
    if bounds not in _ALL_BOUNDS:
        accepted = ", ".join(_ALL_BOUNDS)
        text = f"{bounds!r} names no bounds: accepted are {accepted}"
        raise typer.BadParameter(text, param_hint="--bounds")
    written = list(lines(_ALL_BOUNDS[bounds], longest))
    out.write_text("\n".join(written) + "\n")
    write([f"{len(written) - 1} histories within '{bounds}' in {out}"])


def _texts() -> Iterator[tuple[str, str]]:
    """The Promela models by name."""
    from spec_fsm_model import export, promela

    yield from ((system.name, system.export()) for system in promela.SYSTEMS)
    yield from ((bounds.name, export.export(bounds).promela) for bounds in export.SEARCHES)


def model_spin(
    required: Annotated[
        bool, typer.Option("--required", help="Fail where SPIN is not installed.")
    ] = False,
    export: Annotated[
        Path | None, typer.Option(file_okay=False, help="Also write the Promela models here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Export searches and the table to Promela and let SPIN count the same states and edges."""
    if export is not None:
        export.mkdir(parents=True, exist_ok=True)
        for name, text in _texts():
            file = export / f"{name.replace(',', '').replace(' ', '_')}.pml"
            file.write_text(text)
    shown = Console(stderr=as_json)
    try:
        found = spin()
    except NotInstalled as error:
        shown.print(f"not run: {error}")
        if as_json:
            write([json.dumps({"verdict": "not run", "why": str(error)})])
        raise typer.Exit(int(Verdict.UNDETERMINED) if required else 0) from None
    for f in found:
        here, there, pinned = (
            f"{states:,} states and {edges:,} edges"
            for states, edges in ((f.states, f.edges), f.spin, f.pinned)
        )
        text = f"{f.name}: {here} here, {there} in SPIN, {pinned} pinned"
        shown.print(
            f"{text}: {f.verdict.name.lower()}, {f.seconds:.0f} s", markup=False, highlight=False
        )
    verdict = max(f.verdict for f in found)
    shown.print(f"verdict: {verdict.name.lower()}")
    if as_json:
        counts = {f.name: {"states": f.states, "edges": f.edges, "spin": f.spin} for f in found}
        write([json.dumps({"verdict": verdict.name.lower(), "systems": counts})])
    raise typer.Exit(int(verdict))


__all__ = ["model_mutate", "model_sequences", "model_spin", "register", "totals"]
