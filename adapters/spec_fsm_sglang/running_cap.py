"""The running-request cap of a speculating server, lifted to what a plain server would have.

SGLang caps a speculating server at 48 running requests unless told otherwise (0.5.23
`arg_groups/speculative_hook.py`, `_handle_eagle_family`), because speculation stops paying. Here
it stops instead, so the cap would only queue requests that plain decoding could serve.
"""

from __future__ import annotations

import pkgutil
from typing import Any

_DECLARED_BY = "_handle_eagle_family"
_BUDGETS = (
    "sglang.srt.arg_groups.moe_hook.validate_deepep_v2_dispatch_token_budget",
    "sglang.srt.arg_groups.moe_hook.validate_flashinfer_a2a_token_budget",
    "sglang.srt.arg_groups.mega_moe_hook.validate_mega_moe_token_budget_for_model",
)
"""What SGLang checks against the cap after it was set; checked again without it."""


def lift(server_args: Any, disable_above: int) -> str | None:
    """Take SGLang's cap from resolved arguments that leave it unset; a problem leaves it there.

    A plain server sizes the cap from its KV pool then (`KVCacheConfigurator.resolve_max_num_reqs`),
    and so does this one. Returns why it cannot be lifted, or why the cap that stays would never
    be exceeded, in one line.
    """
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    declared = [
        source
        for source, fields in server_args._resolved_overrides
        if "max_running_requests" in fields
    ]
    if server_args.max_running_requests is not None or declared[-1:] != [_DECLARED_BY]:
        return problem(disable_above, resolving_view(server_args).max_running_requests)
    declare_resolution(server_args, "spec_fsm", max_running_requests=None)
    try:
        for validate in _BUDGETS:
            pkgutil.resolve_name(validate)(server_args)
    except ValueError as error:
        server_args._resolved_overrides.pop()
        return f"without SGLang's cap on running requests: {str(error).splitlines()[0]}"
    return None


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
