"""Seeded faults that one comparison of one check is needed for; `mutants/vacuous.py` says which."""

from __future__ import annotations

from typing import Any

from fault_kit import fault, wrap, write
from fuzz.world import World


def _prepared(change: Any) -> None:
    """`change(batch, table)` after a plain launch was prepared."""
    from spec_fsm_sglang import plain

    def around(prepare: Any, batch: Any, table: Any) -> Any:
        relay = prepare(batch, table)
        change(batch, table)
        return relay

    wrap(plain, "prepare", around)


def _after_run(world: World, change: Any) -> None:
    """`change(batch)` after each plain launch, on the batch the scheduler keeps."""
    run_batch = world.scheduler.run_batch

    def run(batch: Any, *args: Any) -> Any:
        result = run_batch(batch, *args)
        if world.lifecycle.mode.name == "PLAIN" and batch.forward_mode.is_decode():
            change(batch)
        return result

    world.scheduler.run_batch = run


# -- slots and lengths ----------------------------------------------------------------------


@fault("a row's reserve is taken for committed", "I5", overlap=False)
def reserve_committed(world: World) -> None:
    """Committed is above reserved."""

    def change(batch: Any) -> None:
        batch.reqs[0].kv.kv_committed_len = batch.reqs[0].kv.kv_allocated_len + 1

    _after_run(world, change)


@fault("a launch is planned with a reserve one slot short of what it may need", "I5", overlap=False)
def reserve_short(world: World) -> None:
    """Committed is below reserved, so only what is to come is too much."""
    from spec_fsm import laws

    def around(plan: Any, batch: Any) -> Any:
        kv = batch.reqs[0].kv
        kv.kv_allocated_len = kv.kv_committed_len + laws.alloc_len(world.lifecycle.shape) - 1
        return plan(batch)

    wrap(world.fsm, "plan_decode", around)


@fault("two rows own one slot", "I6", overlap=False)
def slot_shared(world: World) -> None:
    """A slot looked up under another row is written into the table."""

    def change(batch: Any, table: Any) -> None:
        rows = batch.req_pool_indices
        if len(rows) > 1:
            at = batch.seq_lens - 1
            table[rows[0], at[0]] = table[rows[1], at[1]]

    _prepared(change)


@fault("the slot just written is given back, and another one taken", "I6", overlap=False)
def slot_exchanged(world: World) -> None:
    """The number of free slots is right."""
    pool = world.scheduler.token_to_kv_pool_allocator

    def change(batch: Any, _table: Any) -> None:
        pool.alloc(1)
        pool.free(batch.out_cache_loc[:1])

    _prepared(change)


@fault("lengths on the host are advanced twice", "I18", overlap=False)
def host_lens_twice(world: World) -> None:
    """By the launch and by its result."""

    def change(batch: Any) -> None:
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())

    wrap(world.fsm, "plan_decode", lambda plan, batch: (change(batch), plan(batch))[1])


@fault("the sum of lengths on the host is one step behind", "I18", overlap=False)
def host_sum_behind(world: World) -> None:
    """Lengths were advanced, their sum was not."""

    def change(batch: Any) -> None:
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum()) - len(batch.reqs)

    wrap(world.fsm, "plan_decode", lambda plan, batch: (change(batch), plan(batch))[1])


# -- the relay ------------------------------------------------------------------------------


@fault("the relay of a plain result holds no token yet", "I17")
def no_token(world: World) -> None:
    """What `FutureMap` holds before a row's first result is negative."""
    from spec_fsm_sglang import plain

    def around(complete: Any, result: Any, *args: Any, **kw: Any) -> None:
        complete(result, *args, **kw)
        result.next_draft_input.bonus_tokens = -1 - result.next_token_ids

    wrap(plain, "complete", around)


@fault("a decode batch is planned without its relay", "I1b")
def relay_lost_at_plan(world: World) -> None:
    """Between the boundary and the launch."""

    def around(plan: Any, batch: Any) -> Any:
        write(batch, "spec_info", None)
        return plan(batch)

    wrap(world.fsm, "plan_decode", around)


@fault("a decode batch is planned with a relay of a row less", "I7")
def relay_short_at_plan(world: World) -> None:
    """The batch was joined, its relay was not."""

    def around(plan: Any, batch: Any) -> Any:
        batch.spec_info.bonus_tokens = batch.spec_info.bonus_tokens[1:]
        return plan(batch)

    wrap(world.fsm, "plan_decode", around)


# -- the first draft ------------------------------------------------------------------------


def _seed(change: Any) -> None:
    from spec_fsm_sglang import rebuild

    def around(seed: Any, *args: Any) -> None:
        _worker, stash, _host, batch, *_ = args
        seed(*args)
        change(stash, batch.req_pool_indices)

    wrap(rebuild, "seed", around)


@fault("a seed is made, and its row not marked", "I8", overlap=False)
def seed_not_marked(world: World) -> None:
    """Coverage is right."""
    _seed(lambda stash, rows: stash.seeded.index_fill_(0, rows.long(), False))


@fault("a seed is made, and its row covered one short", "I8", overlap=False)
def seed_covers_short(world: World) -> None:
    """The mark is right."""

    def change(stash: Any, rows: Any) -> None:
        stash.covered[rows] -= 1

    _seed(change)


# -- answers --------------------------------------------------------------------------------


@fault("a plain step puts out the token after the best", "answers", history="answers")
def wrong_token(world: World) -> None:
    """Relay, result and request agree on it."""
    from spec_fsm_sglang import plain

    def around(launch: Any, *args: Any) -> Any:
        result = launch(*args)
        result.next_token_ids = (result.next_token_ids + 1) % 500
        return result

    wrap(plain, "launch", around)


@fault("plain logprobs are of another temperature", "answers", overlap=False, history="answers")
def wrong_logprobs(world: World) -> None:
    """Tokens are right."""
    from spec_fsm_sglang import plain

    def around(shape: Any, output: Any) -> None:
        shape(output)
        if output.next_token_logprobs is not None:
            output.next_token_logprobs = output.next_token_logprobs * 0.5

    wrap(plain, "_shape_logprobs", around)


# -- the end --------------------------------------------------------------------------------


def _at_the_last_release(world: World, change: Any) -> None:
    """`change()` when a request leaves and nothing else runs."""
    cache = world.scheduler.tree_cache
    on_release = cache.on_release

    def released(req: Any, **kw: Any) -> Any:
        found = on_release(req, **kw)
        if world.lifecycle.rows == 0:
            change()
        return found

    cache.on_release = released


@fault("the last request to leave takes a slot along", "SGLang")
def slot_lost_at_the_end(world: World) -> None:
    """Nothing of ours runs that would look; SGLang does when it is idle."""
    pool = world.scheduler.token_to_kv_pool_allocator
    _at_the_last_release(world, lambda: pool.alloc(1))


@fault("the last request to leave takes its row along", "SGLang", overlap=False)
def row_lost_at_the_end(world: World) -> None:
    """A row of `req_to_token`."""
    pool = world.scheduler.req_to_token_pool
    _at_the_last_release(world, lambda: pool.free_slots.pop())


# -- the operator ---------------------------------------------------------------------------


@fault("a pin is taken, and nothing is pinned", "operator", history="operator")
def pin_ignored(world: World) -> None:
    """The answer says yes."""
    world.fsm.pins.obey = lambda order: True


@fault("any number is a pin", "operator", history="operator")
def pin_of_any_number(world: World) -> None:
    """3 is taken for 1."""
    from spec_fsm_sglang import operator_pin

    class Codes(dict[Any, Any]):
        def __contains__(self, code: object) -> bool:
            return True

        def __missing__(self, code: float) -> Any:
            return self[1]

    operator_pin.PIN_CODES = Codes(operator_pin.PIN_CODES)


@fault("the state shows the load's mode, not the lifecycle's", "operator", history="operator")
def state_is_another(world: World) -> None:
    """What `/server_info` says is a second truth."""
    wrap(world.fsm, "status", lambda status: {**status(), "mode": "DRAINING"})


@fault("a bad setting beside a pin is said to be taken", "operator", history="operator")
def half_applied(world: World) -> None:
    """Only the pin is looked at."""
    state = type(world.scheduler.internal_state)
    set_internal_state = state.set_internal_state

    def around(self: Any, request: Any) -> Any:
        pins = {k: v for k, v in request.server_args.items() if k == "spec_fsm_pin"}
        return set_internal_state(self, type(request)(server_args=pins))

    state.set_internal_state = around


@fault("launches in flight at a drain are subtracted", "operator", history="operator")
def drains_subtracted(world: World) -> None:
    """A sign."""
    wrap(world.fsm, "status", lambda status: {**status(), "in_flight_at_drain": -1})


@fault("plain steps count as verify rounds", "metrics", history="answers")
def plain_counted(world: World) -> None:
    """SGLang's acceptance would sink with every plain step."""
    reporter = world.scheduler.metrics_reporter

    def change(batch: Any) -> None:
        reporter.spec_num_forward_ct += len(batch.reqs)

    _after_run(world, change)
