"""The `spec-fsm` command. Each sub-command's work is in a module of its own."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from spec_fsm.errors import ConfigError, SpecFsmError, one_line
from spec_fsm_model.cli import app as model
from spec_fsm_model.cli import trace_app as trace
from spec_fsm_model.cli_parts import console
from spec_fsm_sglang.address import Keys, hide_arguments, keys_of, seconds_of
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


DEFAULT_URL = "http://127.0.0.1:30000"
Url = Annotated[str, typer.Option(help="The server's address.")]
ApiKey = Annotated[
    str | None,
    typer.Option(envvar="SPEC_FSM_API_KEY", help="The server's --api-key.", show_default=False),
]
AdminKey = Annotated[
    str | None,
    typer.Option(
        envvar="SPEC_FSM_ADMIN_API_KEY",
        help="The server's --admin-api-key; `pin` wants it where there is one.",
        show_default=False,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="SPEC_FSM_API_KEY_FILE", help="File with the --api-key.", show_default=False
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="SPEC_FSM_ADMIN_API_KEY_FILE",
        help="File with the --admin-api-key.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, max=600, help="Seconds to wait for a whole answer.")
]
_KEYS = (
    "Give a key by its variable or in a file: other users of the host can read a command line. "
    "It is sent in a header and shown nowhere."
)
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


@app.command(epilog=_KEYS)
def status(  # noqa: PLR0913 -- one parameter a flag
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    admin_api_key: AdminKey = None,
    api_key_file: ApiKeyFile = None,
    admin_api_key_file: AdminKeyFile = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show the mode of every replica of a running server, switches and checked invariants."""
    from spec_fsm_sglang import client

    keys = _keys((api_key, admin_api_key), (api_key_file, admin_api_key_file))
    server = client.Client.of(url, keys, timeout)
    found = server.replicas()
    if not any(found):
        raise client.off(server.address)
    if as_json:
        print(json.dumps(found[0] if len(found) == 1 else {"replicas": found}))
    else:
        _show_status(str(server.address), found)
    silent = sum(replica is None for replica in found)
    if silent:
        raise client.ServerProblem(
            f"{silent} of the {len(found)} replicas of {server.address} run without spec-fsm"
        )


def _show_status(title: str, replicas: list[dict[str, Any] | None]) -> None:
    """One column a replica, one row a key of any of them."""
    table = Table(title=title, show_header=False)
    for key in dict.fromkeys(key for replica in replicas for key in replica or {}):
        table.add_row(one_line(key), *(_cell(replica, key) for replica in replicas))
    console().print(table)


def _cell(replica: dict[str, Any] | None, key: str) -> str:
    if replica is None:
        return "off"
    value = replica.get(key, "")
    if isinstance(value, dict):
        return ", ".join(one_line(f"{name} {count}") for name, count in value.items())
    return one_line(value)


@app.command(epilog=_KEYS)
def pin(  # noqa: PLR0913 -- one parameter a flag
    mode: PinMode,
    time_to_live: Annotated[
        str | None,
        typer.Option("--for", help="The pin ends by itself after this time: 30s, 10m, 2h, 1d."),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    admin_api_key: AdminKey = None,
    api_key_file: ApiKeyFile = None,
    admin_api_key_file: AdminKeyFile = None,
    timeout: Timeout = 30.0,
    as_json: AsJson = False,
) -> None:
    """Hold all replicas of a server in `spec` or `plain`, or release them with `auto`; or none."""
    from spec_fsm_sglang import client

    keys = _keys((api_key, admin_api_key), (api_key_file, admin_api_key_file))
    seconds = None if time_to_live is None else seconds_of(time_to_live)
    server = client.Client.of(url, keys, timeout)
    server.pin(mode.value, seconds)
    if as_json:
        print(json.dumps({"url": str(server.address), "pin": mode.value, "for_s": seconds}))
    else:
        until = "" if time_to_live is None else f" for {time_to_live}"
        print(f"{server.address}: pinned {mode.value}{until}")


def _keys(
    given: tuple[str | None, str | None], files: tuple[Path | None, Path | None]
) -> Keys:
    """The keys, and a command line that shows them to no other user of the host any more."""
    hide_arguments(tuple(key for key in given if key))
    return keys_of(given, files)


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

    summary = run(folder, console(stderr=as_json), draft)
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
        # The end of a server's log may follow; what comes from elsewhere is no control sequence.
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in str(error))
        print(f"spec-fsm: error: {text}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
