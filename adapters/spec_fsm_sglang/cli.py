"""The `spec-fsm` command. Each sub-command's work is in a module of its own."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spec_fsm.errors import ConfigError, SpecFsmError
from spec_fsm_model.cli import app as model
from spec_fsm_model.cli import trace_app as trace
from spec_fsm_sglang.bench.cli import app as bench
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.smollm2 import ModelUnavailable

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Speculative decoding that turns off under load and on again.",
)


app.add_typer(bench, name="bench")
app.add_typer(model, name="model")
app.add_typer(trace, name="trace")


class PinMode(StrEnum):
    """What an operator may ask a running server for."""

    AUTO = "auto"
    SPEC = "spec"
    PLAIN = "plain"


Url = Annotated[str, typer.Option(help="The server's address.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Every other flag is SGLang's own: see `sglang serve --help`.",
)
def serve(  # noqa: PLR0913 -- one parameter a flag
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--spec-fsm-config", help="TOML file, docs/configuration.md.")
    ] = None,
    disable_above: Annotated[
        int | None,
        typer.Option("--spec-fsm-disable-above", help="Stop speculating above N requests."),
    ] = None,
    pin_mode: Annotated[
        PinMode | None, typer.Option("--spec-fsm-pin", help="Hold a mode from the start.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--spec-fsm-trace", help="Write the lifecycle's trace here.")
    ] = None,
    off: Annotated[
        bool, typer.Option("--spec-fsm-off", help="SGLang's server without the plugin.")
    ] = False,
    cpu_overlap: Annotated[
        bool, typer.Option("--spec-fsm-cpu-overlap", help="On CPU, keep overlap scheduling.")
    ] = False,
) -> None:
    """Start SGLang's HTTP server with speculation that stops under load and starts again."""
    from spec_fsm_sglang import serve as server

    given = {
        "disable_above": disable_above,
        "pin": None if pin_mode is None else pin_mode.value,
        "trace": None if trace is None else str(trace.resolve()),
    }
    chosen = None if off else _config(config, {k: v for k, v in given.items() if v is not None})
    raise typer.Exit(server.run(context.args, chosen, cpu_overlap=cpu_overlap))


def _config(path: Path | None, flags: dict[str, Any]) -> Config:
    if path is None and "disable_above" not in flags:
        raise ConfigError("serve needs --spec-fsm-config FILE or --spec-fsm-disable-above N")
    return Config.of(flags) if path is None else Config.load(path, **flags)


@app.command()
def status(url: Url = "http://127.0.0.1:30000", as_json: AsJson = False) -> None:
    """Show the mode of a running server, its switches and its checked invariants."""
    from spec_fsm_sglang import client

    found = client.status(url)
    if as_json:
        print(json.dumps(found))
        return
    table = Table(title=url, show_header=False)
    for key, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {count}" for name, count in value.items())
        table.add_row(key, str(value))
    Console().print(table)


@app.command()
def pin(mode: PinMode, url: Url = "http://127.0.0.1:30000", as_json: AsJson = False) -> None:
    """Hold a running server in `spec` or `plain` whatever the load, or release it with `auto`."""
    from spec_fsm_sglang import client

    client.pin(url, mode.value)
    if as_json:
        print(json.dumps({"url": url, "pin": mode.value}))
    else:
        print(f"{url}: pinned {mode.value}")


@app.command()
def diagram() -> None:
    """Print the state diagram of the table that runs, in Mermaid."""
    from spec_fsm_sglang.diagram import mermaid

    print(mermaid(), end="")


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Option("--report", help="Where the report goes; emptied first.")
    ] = Path("demo-report"),
    draft: Annotated[
        Path | None, typer.Option(help="Another EAGLE-3 head for SmolLM2-135M-Instruct.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the main job on a real server on this machine and compare every output."""
    from spec_fsm_sglang.demo.run import run

    summary = run(folder, Console(stderr=as_json), draft)
    if as_json:
        print(json.dumps(summary))
    failed = [c["name"] for c in summary["conditions"] if not c["holds"]]
    if failed:
        print(f"spec-fsm: demo failed: {'; '.join(failed)}", file=sys.stderr)
    raise typer.Exit(1 if failed else 0)


def main() -> None:
    """Entry point of the command: refusals are one line on standard error and exit code 2."""
    try:
        app()
    except (SpecFsmError, ModelUnavailable) as error:
        print(f"spec-fsm: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
