"""Seeded faults: one slip each in the adapter, put into a running worker.

Each is one wrong line as somebody might write it, and names the check expected to catch it.
`fault_run.py` plays the same histories with each of them; `docs/faults.md` is written from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from fuzz.world import World

Put = Callable[[World], None]


@dataclass(frozen=True)
class Fault:
    """A slip. `says`: what was done wrong.  caught_by: the check that has to catch it.

    overlap: which of the two configurations it is put into.
    """

    name: str
    says: str
    caught_by: str
    put: Put
    overlap: bool


FAULTS: dict[str, Fault] = {}


def fault(says: str, caught_by: str, *, overlap: bool = True) -> Callable[[Put], Put]:
    """Names the decorated function as a fault."""

    def named(put: Put) -> Put:
        FAULTS[put.__name__] = Fault(put.__name__, says, caught_by, put, overlap)
        return put

    return named


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """`owner.name` becomes `around(original, *arguments)`."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kw: around(original, *args, **kw))


def _write(batch: Any, field: str, value: Any) -> None:
    """Past ownership, as our own code would be past it: what stops it shall be a law."""
    batch.__dict__[field] = value


# -- the plain launch -----------------------------------------------------------------------


@fault("the plain launch keeps the relay as `spec_info`", "I1a")
def keep_spec_info(world: World) -> None:
    """The patch of the crash report."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        _write(batch, "spec_info", relay)
        return relay

    _wrap(plain, "prepare", around)


@fault("`input_ids` keep the tree's width", "I2")
def wrong_width(world: World) -> None:
    """A flag does not reset widths."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        _write(batch, "input_ids", batch.input_ids.repeat_interleave(16))
        return relay

    _wrap(plain, "prepare", around)


@fault("`out_cache_loc` keeps the draft's slots", "I3", overlap=False)
def keep_draft_slots(world: World) -> None:
    """Slots differ from tokens in a draft."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        _write(batch, "out_cache_loc", batch.out_cache_loc.repeat_interleave(8))
        return relay

    _wrap(plain, "prepare", around)


@fault("hidden states of the last token only are captured", "I16")
def wrong_capture(world: World) -> None:
    """What a plain server would ask for is less than the stash needs."""
    from spec_fsm_sglang import plain

    plain.CaptureHiddenMode = SimpleNamespace(FULL=plain.CaptureHiddenMode.LAST)


def _inputs(change: Callable[..., tuple[Any, Any, Any]]) -> None:
    """Plain launches take `change(ids, slots, lens, table, rows)` of what is right."""
    from spec_fsm_sglang import plain

    def around(right: Any, tokens: Any, rows: Any, lens: Any, table: Any) -> Any:
        return change(*right(tokens, rows, lens, table), table, rows)

    _wrap(plain, "decode_inputs", around)


@fault("the slot is the one after the last position's", "draft KV")
def slot_off_by_one(world: World) -> None:
    """`seq_lens` is read after it was advanced."""
    _inputs(lambda ids, slots, lens, table, rows: (ids, table[rows, lens].long(), lens))


@fault("the slot is another row's", "draft KV", overlap=False)
def slot_of_another(world: World) -> None:
    """Row order of a field that was not filtered."""
    _inputs(lambda ids, slots, lens, table, rows: (ids, slots.roll(1), lens))


@fault("the token is another row's", "draft KV")
def token_of_another(world: World) -> None:
    """Row order again."""
    _inputs(lambda ids, slots, lens, table, rows: (ids.roll(1), slots, lens))


@fault("`seq_lens` does not count the token being decoded", "I9", overlap=False)
def lens_not_advanced(world: World) -> None:
    """The law says committed + 1."""
    _inputs(lambda ids, slots, lens, table, rows: (ids, slots, lens - 1))


@fault("the lengths published to the next launch are one too long", "I9")
def publish_wrong_lens(world: World) -> None:
    """The old trick of adding one twice."""

    def around(plain: Any, *step: Any) -> Any:
        *launch, publish, barrier = step
        wrong = None if publish is None else (lambda lens: publish(lens + 1))
        return plain(*launch, wrong, barrier)

    _wrap(world.worker, "_plain", around)


@fault("nothing is published to the next launch", "I9")
def publish_nothing(world: World) -> None:
    """`on_publish` is forgotten."""

    def around(plain: Any, *step: Any) -> Any:
        *launch, _publish, barrier = step
        return plain(*launch, None, barrier)

    _wrap(world.worker, "_plain", around)


# -- its result -----------------------------------------------------------------------------


def _result(change: Callable[[Any, Any], None]) -> None:
    """`change(result, relay)` after a plain result was completed."""
    from spec_fsm_sglang import plain

    def around(complete: Any, result: Any, relay: Any, lens: Any, **kw: Any) -> None:
        complete(result, relay, lens, **kw)
        change(result, relay)

    _wrap(plain, "complete", around)


@fault("the relay carries the old tokens on", "I17", overlap=False)
def stale_bonus(world: World) -> None:
    """The new relay is made of the old one."""

    def change(result: Any, relay: Any) -> None:
        result.next_draft_input.bonus_tokens = relay.bonus_tokens

    _result(change)


@fault("the result says the lengths before the step", "I9", overlap=False)
def stale_new_lens(world: World) -> None:
    """Only the launch got the new ones."""

    def change(result: Any, relay: Any) -> None:
        result.new_seq_lens = result.new_seq_lens - 1

    _result(change)


@fault("a plain result is not marked as one", "UnownedWrite")
def forget_launched(world: World) -> None:
    """Its settling is then that of a speculative round."""
    world.fsm.launched = lambda batch, plan, result: None


@fault("the result repeats the tokens of the step before", "I17", overlap=False)
def repeat_tokens(world: World) -> None:
    """The new tokens go on in the relay, but the request is given the old ones."""

    def change(result: Any, relay: Any) -> None:
        result.next_token_ids = relay.bonus_tokens.clone()

    _result(change)


@fault("a field of the relay has a row less", "I7", overlap=False)
def forget_to_filter(world: World) -> None:
    """One field was filtered, the other not."""

    def change(result: Any, relay: Any) -> None:
        result.next_draft_input.topk_index = relay.topk_index[1:]

    _result(change)


@fault("between steps there is no relay", "I1b", overlap=False)
def drop_relay(world: World) -> None:
    """`spec_info` None was the first idea for PLAIN."""
    run_batch = world.scheduler.run_batch

    def run(batch: Any, *args: Any) -> Any:
        result = run_batch(batch, *args)
        if world.lifecycle.mode.name == "PLAIN":
            _write(batch, "spec_info", None)
        return result

    world.scheduler.run_batch = run


@fault("a settled plain token is not committed", "I14", overlap=False)
def not_committed(world: World) -> None:
    """`kv_committed_len` stays."""

    def around(resolve: Any, processor: Any, result: Any, batch: Any) -> Any:
        before = [req.kv.kv_committed_len for req in batch.reqs]
        tokens = resolve(processor, result, batch)
        if world.fsm.settling_plain:
            for req, committed in zip(batch.reqs, before, strict=True):
                req.kv.kv_committed_len = committed
        return tokens

    _wrap(type(world.scheduler.batch_result_processor), "_resolve_spec_v2_tokens", around)


@fault("a grammar does not advance over plain tokens", "I19", overlap=False)
def grammar_stands_still(world: World) -> None:
    """The result's tokens are taken, the cursor is not moved."""

    def around(advance: Any, processor: Any, result: Any, batch: Any) -> None:
        if not world.fsm.settling_plain:
            advance(processor, result, batch)
            return
        result.grammar_retained_tokens = [[token] for token in result.next_token_ids.tolist()]

    _wrap(type(world.scheduler.batch_result_processor), "advance_grammar_fsm", around)


# -- slots ----------------------------------------------------------------------------------


@fault("the slot just written is given back", "I4")
def free_too_early(world: World) -> None:
    """Free lists trust their callers."""
    from spec_fsm_sglang import plain

    pool = world.scheduler.token_to_kv_pool_allocator

    def around(launch: Any, target: Any, graphs: Any, batch: Any, barrier: Any) -> Any:
        result = launch(target, graphs, batch, barrier)
        pool.free(batch.out_cache_loc[:1])
        return result

    _wrap(plain, "launch", around)


@fault("each plain step takes a slot and forgets it", "I4", overlap=False)
def leak_a_slot(world: World) -> None:
    """A reservation of its own, beside the one every mode has."""
    from spec_fsm_sglang import plain

    pool = world.scheduler.token_to_kv_pool_allocator

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        pool.alloc(1)
        return prepare(batch, table)

    _wrap(plain, "prepare", around)


# -- the stash ------------------------------------------------------------------------------


@fault("a prefilled row is not told to the stash", "I14")
def forget_joined(world: World) -> None:
    """Its `covered` is that of the slot's last owner."""
    world.worker.stash.joined = lambda rows, lens: None


@fault("a joining row counts as covered one too far", "I14", overlap=False)
def joined_too_far(world: World) -> None:
    """Coverage off by one."""
    _wrap(world.worker.stash, "joined", lambda joined, rows, lens: joined(rows, lens + 1))


@fault("the first plain step after a drain does not tell the stash", "I14", overlap=False)
def forget_drained(world: World) -> None:
    """Speculative rounds move coverage too."""

    def around(plan_decode: Any, batch: Any) -> Any:
        world.fsm._drained = False
        return plan_decode(batch)

    _wrap(world.fsm, "plan_decode", around)


@fault("hidden states are kept one position too far", "draft KV")
def record_off_by_one(world: World) -> None:
    """`seq_lens` is read after it was advanced."""
    _wrap(
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

    _wrap(plain, "prepare", prepare)
    _wrap(
        world.worker.stash, "record",
        lambda record, rows, at, hidden, tokens: record(rows, at, hidden, launched[0]),
    )


@fault("hidden states of another row are kept", "draft KV")
def record_of_another(world: World) -> None:
    """Row order of a field that was not filtered."""
    _wrap(
        world.worker.stash, "record",
        lambda record, rows, at, hidden, tokens: record(rows, at, hidden.roll(1, 0), tokens),
    )


@fault("a plain step leaves the row seeded", "rounds")
def keep_seeded(world: World) -> None:
    """The seed is then that of an older position."""
    stash = world.worker.stash

    def around(record: Any, rows: Any, *values: Any) -> None:
        seeded = stash.seeded[rows].clone()
        record(rows, *values)
        stash.seeded[rows] = seeded

    _wrap(stash, "record", around)


@fault("the ring is read one column beside", "draft KV", overlap=False)
def read_beside(world: World) -> None:
    """Off by one in the ring."""
    _wrap(world.worker.stash, "read", lambda read, rows, at: read(rows, at + 1))


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

    _wrap(world.worker.rebuild, "flush", around)


@fault("the flush counts its ages from one position later", "I14", overlap=False)
def ages_off_by_one(world: World) -> None:
    """Before or after the step that carries it?"""
    _wrap(
        world.worker.rebuild, "flush",
        lambda flush, batch, committed, upper, lower: flush(batch, committed + 1, upper, lower),
    )


@fault("the flush writes into another row's slots", "draft KV")
def flush_into_another(world: World) -> None:
    """Slots looked up in another order than positions."""
    from spec_fsm_sglang import rebuild

    def around(slots_of: Any, worker: Any, rows: Any, positions: Any) -> Any:
        return slots_of(worker, rows.roll(1), positions)

    _wrap(rebuild, "slots_of", around)


@fault("the flush writes everything to the sink", "draft KV", overlap=False)
def flush_to_sink(world: World) -> None:
    """The mask is the wrong way round."""
    _wrap(
        world.worker.rebuild, "_write",
        lambda write, at, tokens, hidden, slots: write(at, tokens, hidden, slots * 0),
    )


@fault("the flush rotates by the wrong position", "draft KV")
def wrong_rotation(world: World) -> None:
    """Positions counted from the token, not from its predecessor."""
    _wrap(
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

    _wrap(world.worker.rebuild, "flush", around)


@fault("the seed is not made", "I8", overlap=False)
def skip_seed(world: World) -> None:
    """RESEEDED without a seed."""
    from spec_fsm_sglang import rebuild

    rebuild.seed = lambda *args: None


@fault("the seed is not made, but its flag is set", "rounds")
def stale_seed(world: World) -> None:
    """The silent kind: nothing but acceptance shows it."""
    from spec_fsm_sglang import rebuild

    def wrong(_worker: Any, stash: Any, batch: Any, _committed: Any) -> None:
        stash.seeded[batch.req_pool_indices] = True

    rebuild.seed = wrong


@fault("the seed is that of the position before", "draft KV", overlap=False)
def seed_off_by_one(world: World) -> None:
    """The window of the seed extend starts one too early."""
    from spec_fsm_sglang import rebuild

    def around(run: Any, *batch: Any) -> Any:
        *what, first, committed = batch
        return run(*what, first - 1, committed - 1)

    _wrap(rebuild, "run_draft_extend", around)


# -- membership -----------------------------------------------------------------------------


@fault("what a leaving row inserts into the prefix cache is not cut", "draft KV", overlap=False)
def skip_cut(world: World) -> None:
    """I15's cut; the holes are the next request's."""

    def around(right: Any, req: Any, up_to: int, tokens: int) -> int:
        right(req, up_to, tokens)
        return up_to

    _wrap(world.fsm, "insertable", around)


@fault("the cut is one position short", "I15", overlap=False)
def cut_too_short(world: World) -> None:
    """The key of n positions has n + 1 tokens, not n + 2."""
    checks = world.fsm.checks

    def around(right: Any, req: Any, up_to: int, tokens: int) -> int:
        left = world.lifecycle.ledger.settled_gap(req.rid)
        allowed = right(req, up_to, tokens)
        if left and req.finished():
            allowed = min(up_to, allowed + 1)
            checks.at_insert(req, allowed - tokens, req.kv.kv_committed_len - left)
        return allowed

    _wrap(world.fsm, "insertable", around)


@fault("a row that leaves stays on the ledger", "I7")
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
    _wrap(world.fsm, "plan_decode", lambda plan, batch: (_stranger(batch), plan(batch))[1])


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

    _wrap(world.fsm, "before_choice", around)
