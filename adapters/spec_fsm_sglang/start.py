"""On or off: decided once for a server, when SGLang has resolved its arguments, before any model.

Two functions of SGLang are watched in each process that loads the plugin. At the end of the
resolution of arguments the decision is made and kept on their record, which SGLang hands to its
other processes. Where a process publishes that record, the hooks of its role are put in force, if
the record says on. A server that is off has no other hook and the arguments SGLang gave it.

What shows only later ends the start: one line and an exit code, or, with `late_refusal =
"restart"`, the same command again without the plugin. `docs/start-up.md` tells both.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from spec_fsm_sglang import compat, in_force, running_cap
from spec_fsm_sglang.config import ENV_VAR, Config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("spec_fsm")

REFUSED: Final = 2
"""Exit code of a command that refuses, as argparse and typer use it."""

LATE: Final = 78
"""Exit code by which a scheduler tells the process that started it that it refused
(EX_CONFIG of sysexits.h); that process then ends with `REFUSED`."""

UNDECIDED: Final = "the server's arguments were resolved before SGLang loaded its plugins"

RESTART_FLAGS: Final[list[str]] = []
"""What a restart without the plugin adds to the command; `spec-fsm serve` fills it."""

_COMMANDS = ("sglang", "spec-fsm", "sglang.launch_server", "sglang.cli.main", "spec_fsm_sglang.cli")
_PIPELINE = "sglang.srt.arg_groups.pipeline.run_resolution_pipeline"
_PUBLISH = "sglang.srt.runtime_context._configure_context"
_APP = "SGLANG_HTTP_SERVER_APP_PATH"
_environment: dict[str, str] = {}


def watch() -> None:
    """Register the two functions with SGLang, which puts them in force after all plugins."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    _environment.update({k: v for k, v in os.environ.items() if k != ENV_VAR})
    HookRegistry.register(_PIPELINE, decide, HookType.AFTER)
    HookRegistry.register(_PUBLISH, published, HookType.AFTER)


def watching() -> bool:
    """Whether this process has loaded the plugin with a configuration it can use."""
    return bool(_environment)


def say(line: str) -> None:
    """One line for the operator, among SGLang's own log lines."""
    print(f"spec-fsm: {line}", file=sys.stderr, flush=True)


def off(refusal: str) -> None:
    """The line of a server on which the plugin stays off."""
    logger.error("spec-fsm: off, the server runs as SGLang would: %s", refusal)


# The decision


def refusal_of(server_args: Any) -> str | None:
    """Why the plugin is off for the server of these resolved arguments; None where it is on."""
    refusal: str | None = getattr(server_args, "_spec_fsm_refusal", UNDECIDED)
    return refusal


def decide(_result: None, server_args: Any) -> None:
    """Decide for arguments that SGLang has just resolved; only those of a server that is on change.

    On a server that is on SGLang's cap for speculating servers is lifted, and where it warms up,
    it rehearses switches.
    """
    config = Config.from_env()
    if config is None:
        return
    refusal = _first_refusal(server_args, config)
    server_args._spec_fsm_refusal = refusal
    if refusal is not None:
        off(refusal)
        return
    _rehearse(server_args)


def _first_refusal(server_args: Any, config: Config) -> str | None:
    """The first reason to stay off that can be told before a model is loaded.

    The last thing asked is whether SGLang's cap can be lifted: then it is.
    """
    try:
        if not in_force.holds(_PUBLISH, published):
            return f"the hook of {_PUBLISH} is not in force"
        options = server_args.resolved_dict()
        return (
            compat.option_problem(options)
            or compat.environment_problem()
            or compat.signature_problem()
            or compat.attribute_problem()
            or _worker_problem(options, server_args)
            or compat.configured_model_problem(server_args)
            or running_cap.lift(server_args, config.disable_above)
        )
    except Exception as error:
        # Whatever it is, it must not end the start of a server that SGLang can run.
        return f"its options cannot be checked: {type(error).__name__}: {_first_line(error)}"


def _worker_problem(options: Mapping[str, Any], server_args: Any) -> str | None:
    """A platform or another plugin may have a worker class of its own for the algorithm."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    algorithm = SpeculativeAlgorithm.from_string(options["speculative_algorithm"])
    name = algorithm.create_worker(server_args).__name__
    if name in ("EAGLEWorkerV2", "SpecFsmEagleWorker"):
        return None
    return f"the worker {name} is not SGLang's own EAGLEWorkerV2"


def _rehearse(server_args: Any) -> None:
    """Ask for the rehearsal where SGLang warms up in one process that loads plugins.

    Not on the CPU, which compiles nothing. Several tokenizer workers are started by a server
    that knows no plugin: they import the application by a path, here one that loads plugins first.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    from spec_fsm_sglang import rehearsal

    cfg = resolving_view(server_args)
    if cfg.tokenizer_worker_num > 1:
        os.environ.setdefault(_APP, "spec_fsm_sglang.http_app:app")
        logger.info("spec-fsm: no rehearsal of switches with several tokenizer workers")
        return
    named = cfg.warmups.split(",") if cfg.warmups else []
    if cfg.device == "cpu" or cfg.skip_server_warmup or rehearsal.NAME in named:
        return
    declare_resolution(server_args, "spec_fsm", warmups=",".join([*named, rehearsal.NAME]))


# The processes of a server that is on


def published(
    _result: Any, _context: Any, server_args: Any, *, role: str, ranks: Any = None
) -> None:
    """A process knows its server's arguments: put the hooks of its role in force, and look."""
    if not hasattr(server_args, "_spec_fsm_refusal"):
        server_args._spec_fsm_refusal = UNDECIDED
        off(UNDECIDED)
    if refusal_of(server_args) is not None or role not in ("scheduler", "tokenizer"):
        return
    try:
        in_force.put(hooks_of(role))
    except Exception as error:
        refuse_late(f"a hook cannot be put in force: {type(error).__name__}: {_first_line(error)}")
    verify(role)
    if role == "scheduler" and os.environ.get("SPEC_FSM_STRICT") == "1":
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        from spec_fsm_sglang.ownership import STRICT

        STRICT.install(ScheduleBatch)
    if role == "tokenizer" and _tokenizers(server_args) == 1:
        from spec_fsm_sglang import rehearsal

        rehearsal.register()


def _tokenizers(server_args: Any) -> int:
    workers: int = server_args.tokenizer_worker_num
    return workers


def hooks_of(role: str) -> tuple[in_force.Hook, ...]:
    """The hooks of a process of this role; raises KeyError for a role without hooks."""
    from sglang.srt.plugins.hook_registry import HookType

    from spec_fsm_sglang import hooks

    scheduler, tokenizer = hooks.SCHEDULER_HOOKS, hooks.TOKENIZER_HOOKS
    create = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
    info = "sglang.srt.managers.scheduler.Scheduler.get_init_info"
    wait = "sglang.srt.entrypoints.engine._wait_for_scheduler_ready"
    hooks_by_role: dict[str, tuple[in_force.Hook, ...]] = {
        "scheduler": (
            (create, create_worker, HookType.AROUND),
            (info, init_info, HookType.AFTER),
            *scheduler,
        ),
        "tokenizer": ((wait, wait_for_schedulers, HookType.AROUND), *tokenizer),
    }
    return hooks_by_role[role]


def verify(role: str) -> None:
    """Ends the start if a hook of this role is not in force in this process."""
    problem = in_force.missing(hooks_of(role))
    if problem is not None:
        refuse_late(problem)


def create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Our worker class instead of `EAGLEWorkerV2`, on a server that is on."""
    chosen = original(algorithm, server_args)
    if refusal_of(server_args) is not None:
        return chosen
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    if chosen is not EAGLEWorkerV2:
        refuse_late(f"the worker {chosen.__name__} is not SGLang's own EAGLEWorkerV2")
    from spec_fsm_sglang.worker import SpecFsmEagleWorker

    return SpecFsmEagleWorker


def init_info(info: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """What a scheduler that is ready tells the process that started it; only now its cap is known.

    Asked in servers only: an engine that steps the scheduler itself sets its own cap.
    """
    from sglang.srt.runtime_context import get_parallel

    controller = getattr(scheduler.model_worker, "spec_fsm", None)
    if controller is None:
        return info
    cap = int(scheduler.max_running_requests)
    problem = running_cap.problem(controller.disable_above, cap)
    if problem is not None:
        refuse_late(problem)
    if get_parallel().tp_rank == 0:
        say(f"speculation stops above {controller.disable_above} of at most {cap} requests")
    return {**info, "spec_fsm": True}


def wait_for_schedulers(
    original: Callable[..., list[dict[str, Any]]], readers: list[Any], procs: list[Any]
) -> list[dict[str, Any]]:
    """Where the server waits for its schedulers: one that refused ends it without a traceback."""
    try:
        infos = original(readers, procs)
    except RuntimeError:
        if any(process.exitcode == LATE for process in procs):
            end_start()
        raise
    on = [info.pop("spec_fsm", False) for info in infos]
    if len(on) == len(procs) and not all(on):
        # With a data-parallel controller in between there is one answer for all of them.
        refuse_late("a scheduler came up without the plugin")
    return infos


# What shows only later


def refuse_late(refusal: str) -> NoReturn:
    """End the start of a server that was to be on: one line, and an exit code.

    From a scheduler's process it raises SystemExit with LATE, which SGLang lets pass in silence;
    the process that waits for it ends the start.
    """
    say(f"refused at start: {refusal}")
    from sglang.srt.runtime_context import publish_role

    if publish_role() == "tokenizer":
        end_start()
    raise SystemExit(LATE)


def end_start() -> NoReturn:
    """End the process that starts the others, by `late_refusal`: exit, or again without us.

    A command ends here: SGLang has threads and sockets by now that an interpreter which goes down
    waits for. A program that uses SGLang's Engine gets SystemExit, and is never started again.
    """
    if not _is_command():
        raise SystemExit(REFUSED)
    from sglang.srt.utils import kill_process_tree

    config = Config.from_env()
    again = config is not None and config.late_refusal == "restart"
    if again:
        say("starting again without the plugin")
    kill_process_tree(os.getpid(), include_parent=False)
    sys.stdout.flush()
    sys.stderr.flush()
    if again:
        command = [sys.executable, *sys.orig_argv[1:], *RESTART_FLAGS]
        os.execve(sys.executable, command, _environment)
    os._exit(REFUSED)


def _is_command() -> bool:
    """Whether this process was started by SGLang's command or ours."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return Path(sys.argv[0]).name in _COMMANDS or getattr(spec, "name", None) in _COMMANDS


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


__all__ = [
    "LATE",
    "REFUSED",
    "RESTART_FLAGS",
    "UNDECIDED",
    "create_worker",
    "decide",
    "end_start",
    "hooks_of",
    "off",
    "published",
    "refusal_of",
    "refuse_late",
    "say",
    "verify",
    "watch",
    "watching",
]
