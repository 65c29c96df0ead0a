"""The running-request cap of a speculating server, lifted to what a plain server would have.

SGLang caps a speculating server at 48 running requests unless told otherwise (0.5.23
`arg_groups/speculative_hook.py`, `_handle_eagle_family`), because speculation stops paying. Here
it stops instead, so the cap would only queue requests that plain decoding could serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_TARGET = "sglang.srt.arg_groups.speculative_hook._handle_eagle_family"


def lift() -> None:
    """Hooks SGLang's resolution so that an unset `--max-running-requests` stays unset.

    A plain server sizes the cap from its KV pool then (`KVCacheConfigurator.resolve_max_num_reqs`),
    and so does this one. Before `ServerArgs` are resolved; more than once does no harm.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if _TARGET not in HookRegistry._patched:
        HookRegistry.register(_TARGET, _keep_unset, HookType.AROUND)
        HookRegistry.apply_hooks()


def _keep_unset(original: Callable[[Any], None], server_args: Any) -> None:
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    unset = resolving_view(server_args).max_running_requests is None
    original(server_args)
    if unset:
        declare_resolution(server_args, "spec_fsm", max_running_requests=None)


def problem(disable_above: int, cap: int | None) -> str | None:
    """Why a server with this cap never stops speculating, in one line; None when it can.

    `cap` in requests; None is a cap not known yet.
    """
    if cap is None or disable_above < cap:
        return None
    return (
        f"disable_above is {disable_above}, but the server runs at most {cap} requests at once, "
        f"so it would never be reached: accepted are 1 to {cap - 1}"
    )


__all__ = ["lift", "problem"]
