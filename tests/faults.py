"""Seeded faults: one slip each in the adapter, put into a running worker.

Each is one wrong line as somebody might write it, and names the check expected to catch it.
`fault_run.py` plays the same histories with each of them; `docs/faults.md` is written from that.
Here: the plain launch, its result and its slots; `faults_draft.py` has the others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fault_kit import fault, wrap, write
from fuzz.world import World

# -- the plain launch -----------------------------------------------------------------------


@fault("the plain launch keeps the relay as `spec_info`", "I1a")
def keep_spec_info(world: World) -> None:
    """The patch of the crash report."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        write(batch, "spec_info", relay)
        return relay

    wrap(plain, "prepare", around)


@fault("`input_ids` keep the tree's width", "I2")
def wrong_width(world: World) -> None:
    """A flag does not reset widths."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        write(batch, "input_ids", batch.input_ids.repeat_interleave(16))
        return relay

    wrap(plain, "prepare", around)


@fault("`out_cache_loc` keeps the draft's slots", "I3", overlap=False)
def keep_draft_slots(world: World) -> None:
    """Slots differ from tokens in a draft."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        write(batch, "out_cache_loc", batch.out_cache_loc.repeat_interleave(8))
        return relay

    wrap(plain, "prepare", around)


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

    wrap(plain, "decode_inputs", around)


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

    wrap(world.worker, "_plain", around)


@fault("nothing is published to the next launch", "I9")
def publish_nothing(world: World) -> None:
    """`on_publish` is forgotten."""

    def around(plain: Any, *step: Any) -> Any:
        *launch, _publish, barrier = step
        return plain(*launch, None, barrier)

    wrap(world.worker, "_plain", around)


# -- its result -----------------------------------------------------------------------------


def _result(change: Callable[[Any, Any], None]) -> None:
    """`change(result, relay)` after a plain result was completed."""
    from spec_fsm_sglang import plain

    def around(complete: Any, result: Any, relay: Any, lens: Any, **kw: Any) -> None:
        complete(result, relay, lens, **kw)
        change(result, relay)

    wrap(plain, "complete", around)


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


@fault("a plain result is not marked as one", "I5")
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
            write(batch, "spec_info", None)
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

    wrap(type(world.scheduler.batch_result_processor), "_resolve_spec_v2_tokens", around)


@fault("a grammar does not advance over plain tokens", "I19", overlap=False)
def grammar_stands_still(world: World) -> None:
    """The result's tokens are taken, the cursor is not moved."""

    def around(advance: Any, processor: Any, result: Any, batch: Any) -> None:
        if not world.fsm.settling_plain:
            advance(processor, result, batch)
            return
        result.grammar_retained_tokens = [[token] for token in result.next_token_ids.tolist()]

    wrap(type(world.scheduler.batch_result_processor), "advance_grammar_fsm", around)


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

    wrap(plain, "launch", around)


@fault("each plain step takes a slot and forgets it", "I4", overlap=False)
def leak_a_slot(world: World) -> None:
    """A reservation of its own, beside the one every mode has."""
    from spec_fsm_sglang import plain

    pool = world.scheduler.token_to_kv_pool_allocator

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        pool.alloc(1)
        return prepare(batch, table)

    wrap(plain, "prepare", around)
