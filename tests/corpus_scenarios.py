"""Scenarios of the public bug reports in docs/bug-corpus.md, on the real scheduler and worker.

Run by `live.run(..., script="corpus_scenarios.py")`, which starts this file in a process.
"""

from __future__ import annotations

from typing import Any

from live_scenarios import Live, main, scenario

CODES = {"AUTO": 0, "SPEC": 1, "PLAIN": 2}


def settle_in(live: Live, mode: str, most: int = 60) -> None:
    """Pins and steps until the lifecycle is in `mode`; for DRAINING the next step passes it."""
    if mode == "DRAINING":
        settle_in(live, "SPEC")
        live.fsm.pin(CODES["PLAIN"])
        return
    if mode == "RESEEDING":
        settle_in(live, "PLAIN")
        live.step(12)
    live.fsm.pin(CODES["PLAIN" if mode == "PLAIN" else "SPEC"])
    for _ in range(most):
        if live.fsm.lifecycle.mode.name == mode:
            return
        live.step()
    raise TimeoutError(f"never in {mode}: {live.modes[-most:]}")


def finish_in(live: Live, mode: str | int) -> None:
    """Steps until idle, pinned to `mode` or, if it is a number, to and fro every so many steps."""
    if isinstance(mode, int):
        flip(live, every=mode)
    else:
        live.fsm.pin(CODES[mode])
        live.finish()


def flip(live: Live, every: int, most: int = 2000) -> None:
    """Steps until idle, pinning SPEC and PLAIN in turn."""
    for i in range(most):
        if live.engine.idle:
            return
        if i % every == 0:
            live.fsm.pin(1 + i // every % 2)
        live.step()
    raise TimeoutError(f"not idle after {most} steps")


def whole(live: Live) -> dict[str, Any]:
    """The scenario's result, and how many slots of the pool are neither free nor cached."""
    free = live.scheduler.token_to_kv_pool_allocator.available_size()
    cached = live.scheduler.tree_cache.evictable_size()
    return {
        "lost_slots": live.scheduler.max_total_num_tokens - free - cached,
        **live.result(),
    }


@scenario
def retracted_in(live: Live) -> dict[str, Any]:
    """A pool too small for its requests, some of one token only; how often each phase retracted."""
    from sglang.srt.managers.schedule_batch import Req

    retracted: list[int] = []
    reset = Req.reset_for_retract

    def counted(req: Any, *args: Any, **kw: Any) -> Any:
        retracted[-1] += 1
        return reset(req, *args, **kw)

    Req.reset_for_retract = counted
    for mode in live.params["modes"]:
        retracted.append(0)
        for i in range(12):
            live.submit(120 if i % 3 else 1, live.prompt(4, 20))
        finish_in(live, mode)
    return {"retracted": retracted, **whole(live)}


@scenario
def emptied(live: Live) -> dict[str, Any]:
    """All rows end at once, in each mode; the next requests meet an empty batch."""
    for mode in ("SPEC", "PLAIN", "SPEC", "PLAIN"):
        rids = [live.submit(400) for _ in range(2)]
        live.step(3)
        settle_in(live, mode)
        for rid in rids:
            live.engine.abort(rid)
        live.submit(12)
        live.fsm.pin(CODES["PLAIN" if mode == "SPEC" else "SPEC"])
        live.step(4)
        live.submit(9)
        live.finish()
    return whole(live)


@scenario
def aborted_in(live: Live) -> dict[str, Any]:
    """Rows are aborted with a launch in flight; newcomers take their slots in that very step."""
    stayed = [live.submit(150) for _ in range(2)]
    for mode in ("SPEC", "DRAINING", "PLAIN", "RESEEDING"):
        going = [live.submit(150, live.prompt(30, 40)) for _ in range(3)]
        live.step(4)
        settle_in(live, mode)
        before = live.fsm.lifecycle.mode.name
        for rid in going:
            live.engine.abort(rid)
        stayed += [live.submit(20, live.prompt(30, 40)) for _ in range(3)]
        live.step(8)
        assert mode in (before, "DRAINING")
    live.fsm.pin(0)
    live.finish()
    lengths = {rid: len(live.engine.outputs[rid].output_ids) for rid in stayed}
    return {"stayed": lengths, **whole(live)}


@scenario
def context_limit(live: Live) -> dict[str, Any]:
    """Requests that run to the last position the server allows, in each of `modes`."""
    limit = live.scheduler.max_req_len
    for mode in live.params["modes"]:
        for i in range(6):
            live.submit(500, live.prompt(limit - 40 + 3 * i, limit - 39 + 3 * i))
        finish_in(live, mode)
    ends = [len(prompt) + len(live.engine.outputs[rid].output_ids)
            for rid, prompt in live.prompts.items()]  # fmt: skip
    return {"limit": limit, "ends": ends, **whole(live)}


@scenario
def settings(live: Live) -> dict[str, Any]:
    """The server's resolved arguments before and after switches; how wide the stash is."""
    from sglang.srt.runtime_context import get_context

    before = repr(sorted(get_context().resolved_server_args_dict().items(), key=str))
    for _ in range(3):
        live.submit(40)
    flip(live, every=3)
    after = repr(sorted(get_context().resolved_server_args_dict().items(), key=str))
    return {"same": before == after, "stash": live.worker.stash.hidden.shape[-1], **whole(live)}


@scenario
def grammars(live: Live) -> dict[str, Any]:
    """Constrained requests, again and again in each of `modes`; without speculation once."""
    for phase, mode in enumerate(live.params["modes"]):
        for i, request in enumerate(live.params["requests"]):
            live.random.seed(i)
            live.submit(rid=f"{phase}-{i}", **request)
        if live.fsm is None:
            live.finish()
        else:
            finish_in(live, mode)
    return whole(live)


@scenario
def forwards(live: Live) -> dict[str, Any]:
    """How many forwards target and draft make, and over how many tokens, in plain steps."""
    for _ in range(4):
        live.submit(200)
    live.step(3)
    settle_in(live, "PLAIN")
    live.step(2)
    counts = {"target": 0, "target_tokens": 0, "draft": 0}

    def count(runner: Any, name: str) -> None:
        forward = runner.model.forward

        def counted(input_ids: Any, *args: Any, **kw: Any) -> Any:
            counts[name] += 1
            if name == "target":
                counts["target_tokens"] += len(input_ids)
            return forward(input_ids, *args, **kw)

        runner.model.forward = counted

    count(live.worker.target_worker.model_runner, "target")
    count(live.worker.draft_worker.draft_runner, "draft")
    live.step(30)
    plain = dict(counts)
    settle_in(live, "SPEC")
    live.step(2)
    live.finish()
    return {"plain": plain, "draft_in_spec": counts["draft"], **whole(live)}


@scenario
def flapping(live: Live) -> dict[str, Any]:
    """Load around the threshold: a short request comes soon after the one before has left."""
    for _ in range(live.params["steady"]):
        live.submit(600)
    live.step(6)
    for _ in range(120):
        short = live.submit(2, live.prompt(3, 5))
        while not live.engine.outputs[short].finished:
            live.step()
        live.step(3)
        if len(live.modes) > 120:
            break
    steps = len(live.modes)
    for rid in list(live.prompts):
        live.engine.abort(rid)
    live.finish()
    return {"steps": steps, **whole(live)}


@scenario
def long_prefill(live: Live) -> dict[str, Any]:
    """As many rows as speculation allows, and a prompt of many chunks beside them."""
    for _ in range(live.params["steady"]):
        live.submit(120)
    live.step(20)
    start = len(live.modes)
    rid = live.submit(1, live.prompt(200, 201))
    while not live.engine.outputs[rid].output_ids:
        live.step()
    during = live.modes[start:-2]
    live.finish()
    return {"during": during, **whole(live)}


@scenario
def new_weights(live: Live) -> dict[str, Any]:
    """The target's weights are loaded again in PLAIN: stashed states are of no use any more."""
    for _ in range(3):
        live.submit(60)
    live.step(3)
    settle_in(live, "PLAIN")
    live.step(5)
    live.reload_target()
    live.step(2)
    lost = live.fsm.lifecycle.lost
    live.fsm.pin(CODES["SPEC"])
    live.step(10)
    held = live.fsm.lifecycle.mode.name
    live.finish()
    live.submit(30)
    live.finish()
    return {"lost": lost, "held": held, **whole(live)}


@scenario
def rounds_after_many_gaps(live: Live) -> dict[str, Any]:
    """Accept lengths of a row that saw a dozen gaps, and of one prefilled up to where it stands."""
    rounds = live.watch_rounds()
    live.submit(500, live.prompt(10, 11), rid="resumed")
    live.step(4)
    for i in range(24):
        live.fsm.pin(2 - i % 2)
        live.step(3 + i % 5)
    while live.fsm.lifecycle.mode.name != "SPEC":
        live.step()
    return live.beside_twin("resumed", rounds) | whole(live)


if __name__ == "__main__":
    main()
