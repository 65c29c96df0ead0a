"""What an operator's requests find: the pin as it is set, and a state that is the server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuzz.world import World

PINS = {0: "AUTO", 1: "SPEC", 2: "PLAIN"}
NO_PINS = (3, -1, 0.5)


def problem(world: World, code: int) -> str:
    """Sets the pin by the scheduler's own request, after some that mean nothing; what is wrong."""
    before = world.lifecycle.pin.name
    for wrong in NO_PINS:
        if set_pin(world, wrong) or world.lifecycle.pin.name != before:
            return f"operator: a pin of {wrong} is taken"
    if not set_pin(world, code) or world.lifecycle.pin.name != PINS[code]:
        return f"operator: a pin of {code} gives {world.lifecycle.pin.name}"
    if set_pin(world, code, max_micro_batch_size=1, no_such_setting=1):
        return "operator: a setting SGLang refuses is taken beside a pin"
    shown = state(world)
    for name, is_ in truth(world).items():
        if shown.get(name) != is_:
            return f"operator: {name} is shown as {shown.get(name)}, and is {is_}"
    # Of each drain, the launches before the last one; with overlap one at most.
    drains = sum(n for (_, _, to), n in world.lifecycle.transitions.items() if to == "DRAINING")
    most = drains if world.config.engine["overlap"] else 0
    if not 0 <= shown["in_flight_at_drain"] <= most:
        return f"operator: {shown['in_flight_at_drain']} in flight at {drains} drains"
    return ""


def truth(world: World) -> dict[str, Any]:
    """What the state must show, from the parts themselves."""
    lifecycle, stash = world.lifecycle, world.worker.stash
    taken = lifecycle.transitions
    edges = {(source, target): 0 for source, _event, target in taken}
    for (source, _event, target), count in taken.items():
        edges[source, target] += count
    buffers = (stash.hidden, stash.tokens, stash.covered, stash.seeded)
    return {
        "mode": lifecycle.mode.name,
        "pin": lifecycle.pin.name,
        "disable_above": world.config.fsm["disable_above"],
        "transitions": {f"{source}->{target}": count for (source, target), count in edges.items()},
        "switch_off_count": edges.get(("DRAINING", "PLAIN"), 0),
        "switch_on_count": edges.get(("RESEEDING", "SPEC"), 0),
        "violations": 0,
        "rows": lifecycle.rows,
        "lost": lifecycle.lost,
        "max_gap": lifecycle.max_gap,
        "stash_bytes": sum(b.numel() * b.element_size() for b in buffers),
    }


def set_pin(world: World, code: float, **others: int) -> bool:
    """Whether `/set_internal_state` says that it took it."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    request = SetInternalStateReq(server_args={"spec_fsm_pin": code, **others})
    return bool(world.scheduler.set_internal_state(request).updated)


def state(world: World) -> dict[str, Any]:
    """What `/server_info` shows under `spec_fsm`."""
    from sglang.srt.managers.io_struct import GetInternalStateReq

    found: dict[str, Any] = world.scheduler.get_internal_state(GetInternalStateReq()).internal_state
    return dict(found["spec_fsm"])
