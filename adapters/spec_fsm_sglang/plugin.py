"""Where SGLang loads the adapter: the entry point of the group `sglang.srt.plugins`.

Installed beside SGLang it does nothing, until the environment carries a configuration
(`SPEC_FSM_CONFIG`, put there by `spec-fsm serve`). Then it checks the release it finds, registers
its hooks, and takes the place of SGLang's EAGLE worker when a server with supported options
starts. Whatever it does not know it refuses with one line, and SGLang goes on without it.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from spec_fsm import SpecFsmError
from spec_fsm_sglang.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("spec_fsm")


def activate() -> None:
    """Entry point. Registers the hooks if a configuration is there and SGLang is one it knows."""
    try:
        config = Config.from_env()
    except SpecFsmError as error:
        _refuse(str(error))
        return
    if config is None:
        return
    # Imported late: an inactive plugin must not pull SGLang's modules into every process.
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from spec_fsm_sglang import compat, hooks, rehearsal

    problem = compat.version_problem() or compat.signature_problem()
    if problem is not None:
        _refuse(problem)
        return
    HookRegistry.register(
        "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker",
        create_worker,
        HookType.AROUND,
    )
    hooks.register()
    rehearsal.register()
    if os.environ.get("SPEC_FSM_STRICT") == "1":
        from sglang.srt.managers.schedule_batch import ScheduleBatch

        from spec_fsm_sglang.ownership import STRICT

        STRICT.install(ScheduleBatch)


def create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    """Our worker class instead of `EAGLEWorkerV2`, if this server's options are supported."""
    chosen = original(algorithm, server_args)
    from sglang.srt.runtime_context import get_context
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    from spec_fsm_sglang import compat

    problem = compat.option_problem(get_context().resolved_server_args_dict())
    if problem is None and chosen is not EAGLEWorkerV2:
        problem = f"the worker {chosen.__name__} is not SGLang's own EAGLEWorkerV2"
    if problem is not None:
        _refuse(problem)
        return chosen
    from spec_fsm_sglang.worker import SpecFsmEagleWorker

    return SpecFsmEagleWorker


def _refuse(problem: str) -> None:
    logger.error("spec-fsm: off, the server runs as SGLang would: %s", problem)


__all__ = ["activate", "create_worker"]
