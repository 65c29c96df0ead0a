"""`spec-fsm serve`: SGLang's own HTTP server with the plugin switched on."""

from __future__ import annotations

import errno
import os
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from spec_fsm import trace_file
from spec_fsm.errors import ConfigError
from spec_fsm_sglang import running_cap, start, stash_size
from spec_fsm_sglang.config import ENV_VAR

if TYPE_CHECKING:
    from spec_fsm_sglang.config import Config


def run(argv: list[str], config: Config | None, *, cpu_overlap: bool = False) -> int:
    """Serves until SIGTERM or SIGINT and returns the exit code: 0 after a clean shutdown.

    `argv` are SGLang's flags; without `config` the server is SGLang's own. On a host without an
    accelerator (or with `--device cpu`) the CPU reference operators stand in; `cpu_overlap`
    keeps overlap scheduling there, which SGLang would turn off.

    Raises ConfigError where SGLang is not installed, for server kinds without SGLang's HTTP
    server, and for what `check_settings` refuses.
    """
    if find_spec("sglang") is None:
        raise ConfigError("SGLang is not installed here: pip install 'spec-fsm[sglang]'")
    asked = flag_value(argv, "--max-running-requests")
    if config is not None and asked is not None and asked.isdecimal():
        # Known before SGLang is imported; what its own config file says comes later.
        _refuse(running_cap.problem(config.disable_above, int(asked)))
    if config is not None and config.trace is not None:
        _refuse(trace_file.problem(config.trace))
    if on_cpu(argv):
        from spec_fsm_sglang.cpu_ops import server as cpu_server

        cpu_server.prepare()
        argv = [*argv, *cpu_server.as_flags(argv)]
        if cpu_overlap:
            cpu_server.force_overlap()
    os.environ.pop(ENV_VAR, None)
    if config is not None:
        config = config.held_to_share()
        os.environ.update(config.to_env())
        start.RESTART_FLAGS[:] = ["--spec-fsm-off"]
    return _serve_until_stopped(_resolve(argv, config))


def check_settings(config: Config, server_args: Any) -> None:
    """All that can be refused of a server that is to be on, one after another, before a model.

    `server_args`: SGLang's, resolved. Raises ConfigError.
    """
    _refuse(running_cap.problem(config.disable_above, _cfg(server_args).max_running_requests))
    _refuse(stash_size.early_problem(config, _cfg(server_args)))
    _refuse(port_problem(server_args))


def on_cpu(argv: list[str]) -> bool:
    """Whether the server that `argv` asks for runs on the CPU of this host."""
    device = flag_value(argv, "--device")
    if device is not None:
        return device == "cpu"
    import torch

    return not torch.accelerator.is_available()


def flag_value(argv: list[str], flag: str) -> str | None:
    """The value of `flag` in `argv`, given as `--flag value` or `--flag=value`; the last counts."""
    value = None
    for i, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            value = argument.partition("=")[2]
        elif argument == flag and i + 1 < len(argv):
            value = argv[i + 1]
    return value


def port_problem(server_args: Any) -> str | None:
    """Why the server could not listen, in one line; SGLang says so after it loaded its models."""
    host, port = _cfg(server_args).host or "127.0.0.1", _cfg(server_args).port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and not _cfg(server_args).enable_http_worker_reuseport:
            return f"--port is {port}: it is in use on {host}"
    return None


def _cfg(server_args: Any) -> Any:
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(server_args)


def _resolve(argv: list[str], config: Config | None) -> Any:
    """SGLang's resolved arguments; the plugin, if it is on, decides for them (`start.decide`)."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    server_args = prepare_server_args(argv)
    if config is not None:
        # As the operator gave it, by whatever spelling or file.
        _refuse(running_cap.problem(config.disable_above, server_args.max_running_requests))
    server_args.resolve_once()
    resolved = _cfg(server_args)
    if resolved.encoder_only or resolved.smg_grpc_mode or resolved.use_ray:
        raise ConfigError("serve starts SGLang's HTTP server: no encoder, gRPC or Ray mode")
    if config is None:
        return server_args
    refusal = start.refusal_of(server_args)
    if refusal is None:
        check_settings(config, server_args)
    elif refusal == start.UNDECIDED and not start.watching():
        start.off("SGLang does not load the plugin here (see SGLANG_PLUGINS)")
    return server_args


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise ConfigError(problem)


def _serve_until_stopped(server_args: Any) -> int:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.utils import kill_process_tree

    code: object = 0
    try:
        launch_server(server_args)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as stop:
        # SGLang ends a drained server this way, and a refusal a start.
        code = stop.code or 0
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return code if isinstance(code, int) else 1


__all__ = ["check_settings", "flag_value", "on_cpu", "port_problem", "run"]
