"""`spec-fsm serve`: SGLang's own HTTP server with the plugin switched on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from spec_fsm.errors import ConfigError
from spec_fsm_sglang import rehearsal, running_cap, stash_size
from spec_fsm_sglang.config import ENV_VAR

if TYPE_CHECKING:
    from spec_fsm_sglang.config import Config

REFUSED = 2
"""Exit code when the options make no sense together, as argparse and typer use it."""


def run(argv: list[str], config: Config | None, *, cpu_overlap: bool = False) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code: 0 after a clean shutdown.

    `argv` are SGLang's flags; without `config` the server is SGLang's own. On a host without an
    accelerator (or with `--device cpu`) the CPU reference operators stand in; `cpu_overlap`
    keeps overlap scheduling there, which SGLang would turn off.

    Raises ConfigError where SGLang is not installed, for a threshold that the server's cap never
    lets be reached, and for server kinds without SGLang's HTTP server.
    """
    if find_spec("sglang") is None:
        raise ConfigError("SGLang is not installed here: pip install 'spec-fsm[sglang]'")
    asked = flag_value(argv, "--max-running-requests")
    if config is not None and asked is not None and asked.isdecimal():
        # Known before SGLang is imported; what its own config file says comes later.
        _refuse(running_cap.problem(config.disable_above, int(asked)))
    if on_cpu(argv):
        from spec_fsm_sglang.cpu_ops import server as cpu_server

        cpu_server.prepare()
        argv = [*argv, *cpu_server.as_flags(argv)]
        if cpu_overlap:
            cpu_server.force_overlap()
    elif config is not None:
        argv = with_warmup(argv)
    os.environ.pop(ENV_VAR, None)
    if config is not None:
        config = config.held_to_share()
        os.environ.update(config.to_env())
    server_args = _resolve(argv, config)
    return _serve_until_stopped(server_args, _Ready(config))


def on_cpu(argv: list[str]) -> bool:
    """Whether the server that `argv` asks for runs on the CPU of this host."""
    device = flag_value(argv, "--device")
    if device is not None:
        return device == "cpu"
    import torch

    return not torch.accelerator.is_available()


def with_warmup(argv: list[str]) -> list[str]:
    """`argv` with this adapter's warm-up beside those it names."""
    named = flag_value(argv, "--warmups")
    return [*argv, "--warmups", rehearsal.NAME if named is None else f"{named},{rehearsal.NAME}"]


def flag_value(argv: list[str], flag: str) -> str | None:
    """The value of `flag` in `argv`, given as `--flag value` or `--flag=value`; the last counts."""
    value = None
    for i, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
        elif argument == flag and i + 1 < len(argv):
            value = argv[i + 1]
    return value


def _resolve(argv: list[str], config: Config | None) -> Any:
    """SGLang's resolved arguments, with the cap of a plain server when the plugin is on."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    if config is not None:
        running_cap.lift()
    server_args = prepare_server_args(argv)
    server_args.resolve_once()
    resolved = resolving_view(server_args)
    if resolved.encoder_only or resolved.smg_grpc_mode or resolved.use_ray:
        raise ConfigError("serve starts SGLang's HTTP server: no encoder, gRPC or Ray mode")
    if config is not None:
        _refuse(running_cap.problem(config.disable_above, resolved.max_running_requests))
        _refuse(stash_size.early_problem(config, resolved))
    return server_args


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise ConfigError(problem)


class _Ready:
    """Called by SGLang, in a thread, once the server answers: only now the cap is known."""

    def __init__(self, config: Config | None) -> None:
        self._config = config
        self.problem: str | None = None

    def __call__(self) -> None:
        if self._config is None:
            return
        cap = int(_internal_state()["effective_max_running_requests_per_dp"])
        self.problem = running_cap.problem(self._config.disable_above, cap)
        if self.problem is not None:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        say(f"speculation stops above {self._config.disable_above} of at most {cap} requests")


def _internal_state() -> dict[str, Any]:
    from sglang.srt.entrypoints.http_server import get_global_state

    manager = get_global_state().tokenizer_manager
    waiting = asyncio.run_coroutine_threadsafe(manager.get_internal_state(), manager.event_loop)
    states: list[dict[str, Any]] = waiting.result(timeout=60)
    return states[0]


def _serve_until_stopped(server_args: Any, ready: _Ready) -> int:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.utils import kill_process_tree

    code: object = 0
    try:
        launch_server(server_args, launch_callback=ready)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as stop:
        # SGLang ends a drained server this way.
        code = stop.code or 0
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    _refuse(ready.problem)
    return code if isinstance(code, int) else 1


def say(line: str) -> None:
    """One line for the operator, among SGLang's own log lines."""
    print(f"spec-fsm: {line}", file=sys.stderr, flush=True)


__all__ = ["REFUSED", "flag_value", "on_cpu", "run", "say"]
