"""A warm-up that SGLang runs before it calls a server ready: every mode, at several batch sizes.

A kernel that is compiled or loaded the first time it is launched makes the requests of that step
wait, for a second and more where it is compiled. SGLang's own warm-up decodes one request; the
first switch of a fresh server would pay for plain decoding, the rebuild and larger batches.
A server on which the plugin is on asks for this one by SGLang's `--warmups` (`start.decide`),
except on the CPU, which compiles nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

logger = logging.getLogger("spec_fsm")

NAME = "spec_fsm"
TOKENS = 64
ATTEMPTS = 4
_PROMPT = [3, 4, 5, 6]
_AUTO, _SPEC, _PLAIN = 0, 1, 2


def register() -> None:
    """Make the warm-up known to SGLang under `NAME`; more than once does no harm."""
    from sglang.srt.entrypoints.warmup import warmup

    warmup(NAME)(rehearse)


async def rehearse(_disaggregation_mode: str, manager: Any) -> None:
    """Decode plainly and switch speculation on again with 1, 2, 4, … requests; then unpin."""
    replicas = await _replicas(manager)
    if not replicas:
        return
    started = time.monotonic()
    sizes = batch_sizes(replicas[0]["disable_above"])
    try:
        for size in sizes:
            await _rehearse_with(manager, size)
    finally:
        await _pin(manager, {"AUTO": _AUTO, "SPEC": _SPEC, "PLAIN": _PLAIN}[replicas[0]["pin"]])
    logger.info(
        "spec-fsm: rehearsed switches with %s requests in %.1f s", sizes, time.monotonic() - started
    )


def batch_sizes(disable_above: int) -> list[int]:
    """Powers of two up to the threshold, and the threshold itself: what may have to be rebuilt."""
    sizes = [1]
    while sizes[-1] * 2 < disable_above:
        sizes.append(sizes[-1] * 2)
    return [*sizes, disable_above] if disable_above > sizes[-1] else sizes


async def _rehearse_with(manager: Any, size: int) -> None:
    for _ in range(ATTEMPTS):
        if await _switched_with(manager, size):
            return
    logger.warning(
        "spec-fsm: a switch with %d requests could not be rehearsed: they ended before it, %d "
        "times; the first one that clients see may be slow",
        size,
        ATTEMPTS,
    )


async def _switched_with(manager: Any, size: int) -> bool:
    """Whether the way back to SPEC was gone before the requests ended: it is asked for by hand.

    `size` requests for each data-parallel replica: SGLang deals them out in turn.
    """
    await _pin(manager, _PLAIN)
    every = size * len(await _replicas(manager))
    requests = asyncio.gather(*(_generate(manager) for _ in range(every)))
    # Plain steps first, as many as pass while the scheduler is asked; then the way back.
    while not requests.done():
        found = await _replicas(manager)
        rows = sum(replica["rows"] for replica in found)
        if rows == every and all(replica["mode"] == "PLAIN" for replica in found):
            break
    await _pin(manager, _SPEC)
    await requests
    return all(replica["mode"] == "SPEC" for replica in await _replicas(manager))


async def _generate(manager: Any) -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput

    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    request = GenerateReqInput(input_ids=list(_PROMPT), sampling_params=sampling)
    async for _ in manager.generate_request(request, None):
        pass


async def _pin(manager: Any, code: int) -> None:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    await manager.set_internal_state(SetInternalStateReq(server_args={"spec_fsm_pin": code}))


async def _replicas(manager: Any) -> list[dict[str, Any]]:
    """The status of each replica's lifecycle; none where the plugin is off in any of them."""
    found = [state.get("spec_fsm") for state in await manager.get_internal_state()]
    return [] if None in found else found


__all__ = ["NAME", "batch_sizes", "register", "rehearse"]
