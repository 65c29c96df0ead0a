"""Where SGLang loads the adapter: the entry point of the group `sglang.srt.plugins`.

Installed beside SGLang it does nothing, until the environment carries a configuration
(`SPEC_FSM_CONFIG`, put there by `spec-fsm serve`). Then it checks the release it finds and leaves
the rest to `start`, which decides for each server whether the plugin is on. Whatever it does not
know it refuses with one line, and SGLang goes on without it.
"""

from __future__ import annotations

from spec_fsm import SpecFsmError
from spec_fsm_sglang.config import Config


def activate() -> None:
    """Entry point. Nothing is hooked without a configuration, or in a release it does not know."""
    try:
        config = Config.from_env()
    except SpecFsmError as error:
        problem: str | None = str(error)
    else:
        if config is None:
            return
        from spec_fsm_sglang import compat

        problem = compat.version_problem() or compat.signature_problem(compat.WATCHED)
    # Imported late: an inactive plugin must not pull SGLang's modules into every process.
    from spec_fsm_sglang import start

    if problem is None:
        start.watch()
    else:
        start.off(problem)


__all__ = ["activate"]
