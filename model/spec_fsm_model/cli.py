"""`spec-fsm model`: a verdict each, and its exit code.

0 proved, 1 refuted, 2 undetermined.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spec_fsm_model import pinned
from spec_fsm_model.check import BASELINE, Checked, check, counts, judge
from spec_fsm_model.cli_parts import AsJson, need_z3
from spec_fsm_model.explore import MOST_STATES, Verdict
from spec_fsm_model.fault_cli import register
from spec_fsm_model.progress import progress_all
from spec_fsm_model.promela import SYSTEMS
from spec_fsm_model.report import story, write
from spec_fsm_model.trace_cli import trace_app

if TYPE_CHECKING:
    from spec_fsm_model.prove import Proof

app = typer.Typer(no_args_is_help=True, help="Check the lifecycle's table, for every history.")
register(app)


@app.callback()
def _group() -> None:
    """Check the lifecycle's table, for every history."""


@app.command("check")
def model_check(
    most: Annotated[
        int,
        typer.Option(
            help="States a search may visit before it is given up.", min=1, max=1 << 32
        ),
    ] = MOST_STATES,
    pin: Annotated[
        bool, typer.Option("--pin", help="Pin the counts found as the ones expected from now on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Visit every state a server can reach, within bounds, and check every claim in each."""
    console = Console(stderr=True)
    with console.status("searching"):
        found = check(most)
    if pin and all(f.verdict is Verdict.PROVED for f in found.found):
        baseline: dict[str, Any] = {
            "check": {f.bounds.name: counts(f) for f in found.found},
            "table": pinned.table(),
            "alone": {system.name: system.explore() for system in SYSTEMS},
        }
        BASELINE.write_text(json.dumps(baseline, indent=2) + "\n")
        console.print(f"pinned in {BASELINE.name}")
        found = judge(found.found, baseline["check"])
    _show(found, Console(stderr=as_json))
    if as_json:
        write([json.dumps(found.as_dict())])
    raise typer.Exit(int(found.verdict))


def _show(checked: Checked, console: Console) -> None:
    caption = "\n".join(f"{f.bounds.name}: {f.bounds.stated()}" for f in checked.found)
    table = Table(title="every reachable state, within bounds", caption=caption)
    for head in ("bounds", "verdict", "states", "edges", "depth", "s"):
        table.add_column(head, justify="left" if head in ("bounds", "verdict") else "right")
    for f in checked.found:
        sizes = (f"{f.states:,}", f"{f.edges:,}", str(f.depth), f"{f.seconds:.1f}")
        table.add_row(f.bounds.name, f.verdict.name.lower(), *sizes)
    table.add_row("all", checked.verdict.name.lower(), f"{checked.states:,}", f"{checked.edges:,}")
    console.print(table, soft_wrap=True)
    for found in checked.found:
        for line in story(found):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    for edge in checked.unfired:
        console.print(f"no search follows the edge {edge}", markup=False)
    for text in checked.drift:
        console.print(f"counts have changed: {text}", markup=False, soft_wrap=True)


@app.command("progress")
def model_progress(as_json: AsJson = False) -> None:
    """Show that drains and reseeds end, that no mode is out of reach, and that dwell holds."""
    console = Console(stderr=True)
    with console.status("searching"):
        found = progress_all()
    verdict = Verdict.PROVED
    lines = []
    for f in found:
        lines.append(f"{f.bounds.name}: {f.verdict.name.lower()}, {f.states:,} states")
        if f.broken:
            lines.append(f"  breaks {f.broken}: {f.detail}")
            lines += [f"  {n}. {act}" for n, act in enumerate(f.history, 1)]
    if any(f.verdict is Verdict.REFUTED for f in found):
        verdict = Verdict.REFUTED
    elif any(f.verdict is Verdict.UNDETERMINED for f in found):
        verdict = Verdict.UNDETERMINED
    shown = Console(stderr=as_json)
    for line in [*lines, f"verdict: {verdict.name.lower()}"]:
        shown.print(line, markup=False, highlight=False, soft_wrap=True)
    if as_json:
        write([json.dumps({"verdict": verdict.name.lower(), "searches": len(found)})])
    raise typer.Exit(int(verdict))


@app.command("explain")
def model_explain(
    name: Annotated[str, typer.Argument(help="An event, mode, phase, guard, effect or invariant.")],
) -> None:
    """Say what a name of the lifecycle means, what it prevents, and where it is checked."""
    need_z3()
    from spec_fsm_model.explain import UnknownName, explain

    try:
        write(explain(name))
    except UnknownName as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from None


@app.command("docs")
def model_docs(
    folder: Annotated[Path, typer.Argument(file_okay=False, help="Where the pages go.")] = Path(
        "docs/generated"
    ),
) -> None:
    """Write the pages and the drawing of the table."""
    from spec_fsm_model.pages import write_all  # matplotlib: a second to import

    write([str(file) for file in write_all(folder)])


@app.command("prove")
def model_prove(
    timeout: Annotated[
        int | None,
        typer.Option(
            help="Milliseconds z3 may take for one question.",
            min=1,
            max=86_400_000,
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove every claim for any number of rows, sizes and launches in flight, with z3."""
    need_z3()
    from spec_fsm_model.prove import Prover
    from spec_fsm_model.prove_question import TIMEOUT_MS

    console = Console(stderr=True)
    with console.status("proving"):
        proof = Prover(timeout or TIMEOUT_MS).prove()
    _show_proof(proof, Console(stderr=as_json))
    if as_json:
        write([json.dumps(proof.as_dict())])
    raise typer.Exit(int(proof.verdict))


def _show_proof(proof: Proof, console: Console) -> None:
    lines = [f"{kind}: {count:,} obligations" for kind, count in proof.obligations.items()]
    for failure in proof.failures:
        lines += [str(failure), *(f"  {line}" for line in failure.lines)]
    lines += [f"clause '{name}': {why}" for name, why in proof.needed.items()]
    lines += [f"no obligation leans on the guard {name}" for name in proof.idle_guards]
    lines.append(f"verdict: {proof.verdict.name.lower()}, {proof.seconds:.1f} s")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


__all__ = ["app", "trace_app"]
