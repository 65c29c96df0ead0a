"""Seeded faults: one slip each in the adapter, put into a running worker.

Each is one wrong line as somebody might write it, and names the check expected to catch it.
`fault_run.py` plays the same histories with each of them; `docs/faults.md` is written from that.
Here: stash, rebuild, membership, ownership.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from fault_kit import fault, wrap
from fuzz.world import World

# -- the stash ------------------------------------------------------------------------------


@fault("a prefilled row is not told to the stash", "I14")
def forget_joined(world: World) -> None:
    """Its `covered` is that of the slot's last owner."""
    world.worker.stash.joined = lambda rows, lens: None


@fault("a joining row counts as covered one too far", "I14", overlap=False)
def joined_too_far(world: World) -> None:
    """Coverage off by one."""
    wrap(world.worker.stash, "joined", lambda joined, rows, lens: joined(rows, lens + 1))


@fault("the first plain step after a drain does not tell the stash", "I14", overlap=False)
def forget_drained(world: World) -> None:
    """Speculative rounds move coverage too."""

    def around(plan_decode: Any, batch: Any) -> Any:
        world.fsm._drained = False
        return plan_decode(batch)

    wrap(world.fsm, "plan_decode", around)


@fault("hidden states are kept one position too far", "draft KV")
def record_off_by_one(world: World) -> None:
    """`seq_lens` is read after it was advanced."""
    wrap(
        world.worker.stash, "record",
        lambda record, rows, at, hidden, tokens: record(rows, at + 1, hidden, tokens),
    )


@fault("the stash keeps the token before, not the one after", "draft KV", overlap=False)
def record_token_before(world: World) -> None:
    """Draft KV at p takes the embedding of token p + 1."""
    from spec_fsm_sglang import plain

    launched: list[Any] = []

    def prepare(original: Any, batch: Any, table: Any) -> Any:
        relay = original(batch, table)
        launched[:] = [batch.input_ids.clone()]
        return relay

    wrap(plain, "prepare", prepare)
    wrap(
        world.worker.stash, "record",
        lambda record, rows, at, hidden, tokens: record(rows, at, hidden, launched[0]),
    )


@fault("hidden states of another row are kept", "draft KV")
def record_of_another(world: World) -> None:
    """Row order of a field that was not filtered."""
    wrap(
        world.worker.stash, "record",
        lambda record, rows, at, hidden, tokens: record(rows, at, hidden.roll(1, 0), tokens),
    )


@fault("a plain step leaves the row seeded", "draft KV")
def keep_seeded(world: World) -> None:
    """The seed is then that of an older position, and what its extend is to write is missing."""
    stash = world.worker.stash

    def around(record: Any, rows: Any, *values: Any) -> None:
        seeded = stash.seeded[rows].clone()
        record(rows, *values)
        stash.seeded[rows] = seeded

    wrap(stash, "record", around)


@fault("the ring is read one column beside", "draft KV", overlap=False)
def read_beside(world: World) -> None:
    """Off by one in the ring."""
    wrap(world.worker.stash, "read", lambda read, rows, at: read(rows, at + 1))


# -- the rebuild ----------------------------------------------------------------------------


@fault("the flush is skipped", "I14")
def skip_flush(world: World) -> None:
    """The ledger counts it, nobody makes it."""
    world.worker.rebuild.flush = lambda batch, committed, upper, lower: None


@fault("the flush advances `covered` and writes nothing", "draft KV", overlap=False)
def write_nothing(world: World) -> None:
    """The silent kind."""
    world.worker.rebuild._write = lambda *args: None


@fault("the flush leaves out the oldest position", "draft KV")
def flush_too_short(world: World) -> None:
    """An age below `upper`; coverage is advanced all the same."""
    stash = world.worker.stash

    def around(flush: Any, batch: Any, committed: Any, upper: int, lower: int) -> None:
        flush(batch, committed, upper - 1, lower)
        stash.covered[batch.req_pool_indices] = committed.long() - lower

    wrap(world.worker.rebuild, "flush", around)


@fault("the flush counts its ages from one position later", "I14", overlap=False)
def ages_off_by_one(world: World) -> None:
    """Before or after the step that carries it?"""
    wrap(
        world.worker.rebuild, "flush",
        lambda flush, batch, committed, upper, lower: flush(batch, committed + 1, upper, lower),
    )


@fault("the flush writes into another row's slots", "draft KV")
def flush_into_another(world: World) -> None:
    """Slots looked up in another order than positions."""
    from spec_fsm_sglang import rebuild

    def around(slots_of: Any, worker: Any, rows: Any, positions: Any) -> Any:
        return slots_of(worker, rows.roll(1), positions)

    wrap(rebuild, "slots_of", around)


@fault("the flush writes everything to the sink", "draft KV", overlap=False)
def flush_to_sink(world: World) -> None:
    """The mask is the wrong way round."""
    wrap(
        world.worker.rebuild, "_write",
        lambda write, at, tokens, hidden, slots: write(at, tokens, hidden, slots * 0),
    )


@fault("the flush rotates by the wrong position", "draft KV")
def wrong_rotation(world: World) -> None:
    """Positions counted from the token, not from its predecessor."""
    wrap(
        world.worker.rebuild, "_write",
        lambda write, at, tokens, hidden, slots: write(at + 1, tokens, hidden, slots),
    )


@fault("coverage is advanced one too far by a flush", "I14")
def covered_too_far(world: World) -> None:
    """Coverage off by one."""
    stash = world.worker.stash

    def around(flush: Any, batch: Any, *args: Any) -> None:
        flush(batch, *args)
        stash.covered[batch.req_pool_indices] += 1

    wrap(world.worker.rebuild, "flush", around)


@fault("the seed is not made", "I8", overlap=False)
def skip_seed(world: World) -> None:
    """RESEEDED without a seed."""
    from spec_fsm_sglang import rebuild

    rebuild.seed = lambda *args: None


@fault("the seed is not made, but its flag is set", "rounds")
def stale_seed(world: World) -> None:
    """The silent kind: nothing but acceptance shows it."""
    from spec_fsm_sglang import rebuild

    def around(seed: Any, *args: Any) -> None:
        *what, relay = args
        seed(*what, copy.copy(relay))

    wrap(rebuild, "seed", around)


@fault("the seed made ahead is not handed on", "rounds")
def drop_seed(world: World) -> None:
    """The launch that reseeds finds that of an earlier position, and its flag set."""
    from spec_fsm_sglang import plain

    wrap(plain, "complete", lambda complete, *args, **_: complete(*args, with_seed=False))


@fault("seeds count as made ahead that were not", "I8", overlap=False)
def seed_taken_for_made(world: World) -> None:
    """The launch that reseeds makes none."""

    def around(reseed: Any, fsm: Any, *args: Any) -> Any:
        world.worker._ahead = fsm.lifecycle.ledger.t_launched, None
        return reseed(fsm, *args)

    wrap(world.worker, "_reseed", around)


@fault("the seed is that of the position before", "draft KV", overlap=False)
def seed_off_by_one(world: World) -> None:
    """The window of the seed extend starts one too early."""
    from spec_fsm_sglang import rebuild

    def around(run: Any, *batch: Any) -> Any:
        *what, window = batch
        return run(*what, type(window)(*(positions - 1 for positions in window)))

    wrap(rebuild, "run_draft_extend", around)


@fault("the extend that makes the seeds leaves out what was missing before", "draft KV")
def seed_too_short(world: World) -> None:
    """It begins at the last position, as if a flush had come before it."""
    from spec_fsm_sglang import rebuild

    def around(seed: Any, *args: Any) -> None:
        *what, _missing, relay = args
        seed(*what, 0, relay)

    wrap(rebuild, "seed", around)


@fault("what a failed seed was to write stays missing", "I14")
def failed_seed_leaves_a_hole(world: World) -> None:
    """No flush in its place, though the ledger counts one."""
    from spec_fsm_sglang import rebuild

    worker = world.worker

    def failing(_seed: Any, *_args: Any) -> None:
        raise MemoryError("no memory for the seeds")

    def around(seed_ahead: Any, *args: Any) -> None:
        flush, worker._flush_or_retry = worker._flush_or_retry, lambda *_: None
        try:
            seed_ahead(*args)
        finally:
            worker._flush_or_retry = flush

    wrap(rebuild, "seed", failing)
    wrap(worker, "_seed_ahead", around)


# -- membership -----------------------------------------------------------------------------


@fault("what a leaving row inserts into the prefix cache is not cut", "I15", overlap=False)
def skip_cut(world: World) -> None:
    """I15's cut; the holes are the next request's."""

    def around(right: Any, req: Any, up_to: int, tokens: int) -> int:
        right(req, up_to, tokens)
        return up_to

    wrap(world.fsm, "insertable", around)


@fault("the cut is one position short", "I15", overlap=False)
def cut_too_short(world: World) -> None:
    """The key of n positions has n + 1 tokens, not n + 2."""

    def around(right: Any, req: Any, up_to: int, tokens: int) -> int:
        left = world.lifecycle.ledger.settled_gap(req.spec_fsm_row)
        allowed: int = right(req, up_to, tokens)
        return min(up_to, allowed + 1) if left and req.finished() else allowed

    wrap(world.fsm, "insertable", around)


@fault("a row that leaves stays on the ledger", "I15")
def forget_left(world: World) -> None:
    """One of the two ways out is not hooked."""
    world.fsm._forget = lambda req: 0


@fault("a prefilled row is not told to the ledger", "I7", overlap=False)
def forget_prefilled(world: World) -> None:
    """A stranger in the batch."""
    world.fsm.prefilled = lambda batch: None


@fault("rows that ended while a drain settled are launched again", "I10")
def keep_finished(world: World) -> None:
    """`filter_batch` after the drain is forgotten."""
    world.fsm.before_run = lambda batch: None


@fault("a drain does not wait for the result in flight", "I17")
def drain_without_waiting(world: World) -> None:
    """The scheduler launches before it settles."""
    world.fsm.must_settle_first = lambda scheduler, batch: False


@fault("a weight update is not told", "new weights", overlap=False)
def forget_weights(world: World) -> None:
    """Stashed hidden states of the old weights would be used."""
    world.lifecycle.weights_changed = lambda: None


@fault("a reseed is not told before the first draft", "UnownedWrite")
def forget_reseeded(world: World) -> None:
    """The mode still is RESEEDING, in which a draft's slots have no owner."""
    world.fsm.reseeded = lambda batch: None


# -- ownership ------------------------------------------------------------------------------


@fault("somebody else assigns `seq_lens`", "UnownedWrite")
def stranger_writes(world: World) -> None:
    """A patch elsewhere."""
    wrap(world.fsm, "plan_decode", lambda plan, batch: (_stranger(batch), plan(batch))[1])


def _stranger(batch: Any) -> None:
    batch.seq_lens = batch.seq_lens.clone()


@fault("somebody changes `seq_lens` in place", "UnownedWrite", overlap=False)
def change_in_place(world: World) -> None:
    """Not an assignment, so found by comparison."""

    def around(boundary: Any, scheduler: Any) -> None:
        running = scheduler.running_batch
        if world.lifecycle.mode.name == "PLAIN" and not running.is_empty():
            torch.Tensor.add_(running.seq_lens, 1)
        boundary(scheduler)

    wrap(world.fsm, "before_choice", around)
