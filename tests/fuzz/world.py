"""One engine for many examples, and the events that can happen to it, as plain data.

An event is a list: its name and its arguments, all of them JSON. A list of events is a history;
Hypothesis makes histories, scenarios are stored ones, and both are run by `World.run`. Whatever
is wrong raises, from the event during which it was noticed: strict mode and the invariants
raise in the scheduler's loop, the rest here.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fuzz import draft_kv, loads
from fuzz.configurations import Configuration
from fuzz.played import Played, Wrong
from fuzz.requests import KINDS, Asked, Judge
from live_scenarios import write_tokenizer

Event = list[Any]
KV_ERROR = 1e-4
KV_EVERY = 20
"""Steps between two recomputations of the draft KV, besides those an event asks for."""
MOST_STEPS = 3000
FINISHED = "finished"


class World(Played):
    """The engine of one configuration, what was asked of it, and what was seen."""

    def __init__(self, config: Configuration, folder: Path, trace: Path | None) -> None:
        """Starts the engine: seconds, once a process. The environment is the caller's."""
        from spec_fsm_sglang.inprocess import Engine
        from spec_fsm_sglang.tiny import write_pair

        self.config = config
        self.pair = write_pair(folder / "pair")
        write_tokenizer(self.pair.target)
        self.engine = Engine(
            model=self.pair.target,
            draft=getattr(self.pair, config.draft),
            algorithm=config.draft.upper(),
            skip_tokenizer_init=False,
            grammar_backend="xgrammar",
            **config.engine,
        )
        self.scheduler = self.engine.scheduler
        self.worker = self.scheduler.model_worker
        self.fsm = self.worker.spec_fsm
        self.lifecycle = self.fsm.lifecycle
        self.judge = Judge(self.pair.target)
        self.trace = trace
        self.steps = self.examples = self.kv_positions = 0
        self.worst_kv = 0.0
        self.kinds: Counter[str] = Counter()
        self.accepted: Counter[int] = Counter()
        self.rounds: list[int] = []
        self.failure: Exception | None = None
        self.failed_history: list[Event] = []
        self.modes: Counter[str] = Counter()
        self.slices = self.lost = 0
        self._failures = {"flush": 0, "seed": 0}
        self.departures: Counter[str] = Counter()
        self._watch_failures()
        self._watch_accepted()
        self._watch_departures()
        # SGLang collects garbage when the cache is flushed: 2 s over what the imports left.
        gc.collect()
        gc.freeze()
        self._begin()

    def _begin(self) -> None:
        self.asked: list[Asked] = []
        self.history: list[Event] = []
        self.random = random.Random(0)
        self._next = 0
        self.rounds.clear()
        self._since_begin = 0
        self.reruns_before = self.fsm.reruns
        self._rounds_before = self._rounds_counted()

    # -- running events -------------------------------------------------------------------

    def do(self, *event: Any) -> None:
        """One event; raises what is wrong."""
        self.history.append(list(event))
        name, *arguments = event
        self.kinds[name] += 1
        with self._noting():
            getattr(self, f"on_{name}")(*arguments)

    def run(self, history: Iterable[Event]) -> None:
        """A history from its beginning to the end of its example."""
        self.begin()
        for event in history:
            self.do(*event)
        self.end()

    def begin(self) -> None:
        """A fresh example: nothing asked, thresholds as configured, the mode SPEC."""
        self._begin()
        self._thresholds(self.config.fsm["disable_above"], self.config.fsm["enable_at"])
        self._fail(flush=0, seed=0)
        self.fsm.pin(1)
        while self.lifecycle.mode.name != "SPEC":
            self._submit([5, 6, 7], 2, "greedy")
            self._drain()
        self.fsm.pin(0)
        self.engine.outputs.clear()
        self.asked.clear()
        self.examples += 1

    def end(self) -> None:
        """Everything is answered rightly, the pool is whole, and the cache holds nothing wrong."""
        with self._noting():
            self.fsm.pin(1)
            self._drain()
            self._judge()
            self._pool_is_whole()
            self.on_flush_cache()
            self._pool_is_whole()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keeps the first thing that went wrong: afterwards the engine may stand anywhere."""
        if self.failure is not None:
            raise Wrong("the engine is of no more use") from self.failure
        try:
            yield
        except Exception as error:
            self.failure = error
            self.failed_history = list(self.history)
            raise

    # -- events ---------------------------------------------------------------------------

    def on_admit(self, prompt: int, start: str, tokens: int, kind: str) -> None:
        """Ask for `tokens` after a prompt of `prompt` tokens, which begins as `start` says.

        "fresh": at random. "shared": as all shared ones do. "finished": with all that an earlier
        request of this example read and wrote.
        """
        self._submit(self._prompt(prompt, start), tokens, kind)

    def on_step(self, times: int) -> None:
        """Iterations of the scheduler."""
        for _ in range(times):
            self._step()

    def on_abort(self, which: int) -> None:
        """Abort one of the unfinished requests, wherever it is."""
        alive = self._alive()
        if alive:
            asked = alive[which % len(alive)]
            asked.aborted = True
            self.engine.abort(asked.rid)

    def on_pin(self, code: int) -> None:
        """0 AUTO, 1 SPEC, 2 PLAIN."""
        self.fsm.pin(code)

    def on_thresholds(self, disable_above: int, enable_at: int) -> None:
        """Move both thresholds under the running server."""
        self._thresholds(disable_above, min(enable_at, disable_above))

    def on_starve(self, requests: int) -> None:
        """So many long answers at once that the pool runs out and requests are retracted."""
        for _ in range(requests):
            self._submit(self._prompt(20, "fresh"), 60, "greedy")

    def on_load(self, pattern: str, size: int, period: int) -> None:
        """A load pattern, played to its end."""
        for wait, batch in loads.arrivals(pattern, size, period, self.random):
            for prompt, tokens in batch:
                self._submit(self._prompt(prompt, "fresh"), tokens, "greedy")
            self.on_step(wait)

    def on_idle(self, steps: int) -> None:
        """Let everything finish, then run empty iterations."""
        self._drain()
        self.on_step(steps)

    def on_flush_cache(self) -> None:
        """Empty the prefix cache; SGLang refuses while anything runs."""
        from sglang.srt.managers.io_struct import FlushCacheReqInput

        with self._counted_anew():
            self.engine.send(FlushCacheReqInput())
            self._step()

    def on_fail_rebuild(self, times: int) -> None:
        """The next `times` flushes and seeds raise."""
        self._fail(flush=times, seed=times)

    def on_fail_reseed(self, steps: int) -> None:
        """A gap of about `steps`, then a return to SPEC whose first seeds raise."""
        self.fsm.pin(2)
        self._submit(self._prompt(8, "fresh"), 3 * steps + 12, "greedy")
        self.on_step(steps + 2)
        self._fail(seed=1)
        self.fsm.pin(1)
        self.on_step(steps)
        self.fsm.pin(0)

    def on_new_weights(self) -> None:
        """What the server does after a weight update: stashed hidden states mean nothing now."""
        from spec_fsm_sglang.weight_updates import message

        lifecycle = self.lifecycle
        stale = [rid for rid in lifecycle.ledger._base if not lifecycle.seeded(rid)]
        lost = lifecycle.lost + len(stale)
        target = self.worker.target_worker
        target.model_runner.spec_fsm_written = True
        message(
            lambda *_: None, SimpleNamespace(draft_worker=self.worker, tp_worker=target), None
        )
        if lifecycle.lost != lost:
            raise Wrong(f"new weights: {lifecycle.lost} rows are lost, not {lost}")

    def on_rounds(self, prompt: int, gap: int) -> None:
        """A row that comes back after a gap accepts what one prefilled at that point accepts."""
        self._drain()
        self.on_flush_cache()
        self._fail(flush=0, seed=0)
        self.fsm.pin(1)
        first = self._submit(self._prompt(prompt, "fresh"), gap + 50, "greedy")
        self.on_step(4)
        self.fsm.pin(2)
        self.on_step(gap)
        self.fsm.pin(1)
        self.rounds.clear()
        reqs = self.scheduler.running_batch.reqs
        while reqs and not self.rounds and not reqs[0].finished():
            self._step()
        if not self.rounds:
            return  # earlier failures made the server wait longer than the row lived
        start = len(reqs[0].origin_input_ids) + len(reqs[0].output_ids) - self.rounds[0] - 1
        self._drain()
        resumed = list(self.rounds)
        self.on_flush_cache()
        self.rounds.clear()
        text = first.prompt + list(self.engine.outputs[first.rid].output_ids)
        self._submit(text[:start], len(text) - start, "greedy")
        self._drain()
        self.fsm.pin(0)
        if resumed != self.rounds:
            raise Wrong(f"rounds after a gap: {resumed}, after a prefill: {self.rounds}")

    def on_check_kv(self) -> None:
        """Draft KV of every covered position is what the model gives for the whole text."""
        worst, compared = draft_kv.difference(self)
        self.worst_kv = max(self.worst_kv, worst)
        self.kv_positions += compared
        if worst > KV_ERROR:
            raise Wrong(f"draft KV is {worst:.3g} off its recomputation ({compared} positions)")

    # -- their parts ----------------------------------------------------------------------

    def _alive(self) -> list[Asked]:
        outputs = self.engine.outputs
        return [a for a in self.asked if not a.aborted and not outputs[a.rid].finished]

    def _step(self) -> None:
        self.engine.step()
        self.steps += 1
        mode = self.lifecycle.mode.name
        self.modes[mode] += 1
        self.lost += self.lifecycle.lost > 0
        self._since_begin += 1
        if self._since_begin % KV_EVERY == 0:
            self.on_check_kv()
        if mode != "PLAIN":
            for asked in self.asked:
                asked.speculated = True

    def _drain(self) -> None:
        for _ in range(MOST_STEPS):
            if self.engine.idle:
                return
            self._step()
        alive = [a.rid for a in self._alive()]
        raise Wrong(f"not idle after {MOST_STEPS} steps, unfinished: {alive}")

    def _prompt(self, length: int, start: str) -> list[int]:
        draw = self.random.randrange
        fresh = [draw(3, 500) for _ in range(length)]
        if start == "shared":
            return ([7 + i for i in range(40)] + fresh)[: max(length, 1) + 20]
        outputs = self.engine.outputs
        done = [a for a in self.asked if outputs[a.rid].finished and not a.aborted]
        if start == FINISHED and done:
            asked = done[draw(len(done))]
            return (asked.prompt + list(outputs[asked.rid].output_ids))[:200] + fresh[:4]
        return fresh

    def _submit(self, prompt: list[int], tokens: int, kind: str) -> Asked:
        chosen = KINDS[kind]
        # Of equal length: SGLang aborts every waiting request whose id begins with the one given.
        rid = f"e{self.examples:06}q{self._next:04}"
        self._next += 1
        self.engine.submit(
            prompt, max_new_tokens=tokens, rid=rid, sampling=dict(chosen.sampling), **chosen.fields
        )
        speculated = self.lifecycle.mode.name != "PLAIN"
        self.asked.append(Asked(rid, prompt, tokens, kind, speculated=speculated))
        return self.asked[-1]

    def _thresholds(self, disable_above: int, enable_at: int) -> None:
        """There is no operator's way to do this, so what `Policy` keeps of them is set.

        Not where a trace is written: it names the thresholds once, and is held against them.
        """
        if self.trace is not None:
            return
        policy = self.lifecycle.policy
        policy._disable, policy._enable = disable_above, enable_at
        # Assigning the pin makes the lifecycle ask the policy anew.
        self.lifecycle.pin = policy.pin

    def _judge(self) -> None:
        problems = self.judge.problems(self.asked, self.engine.outputs)
        if problems:
            raise Wrong(f"{len(problems)} wrong answers: " + "; ".join(problems[:5]))

    def _pool_is_whole(self) -> None:
        free = self.scheduler.token_to_kv_pool_allocator.available_size()
        cached = self.scheduler.tree_cache.evictable_size()
        pool = self.scheduler.max_total_num_tokens
        if free + cached != pool:
            raise Wrong(f"idle with {free} slots free and {cached} cached, of {pool}")
        if self.lifecycle.rows:
            raise Wrong(f"idle with {self.lifecycle.rows} rows on the ledger")
        free_rows = self.scheduler.req_to_token_pool.available_size()
        if free_rows != self.scheduler.req_to_token_pool.size:
            raise Wrong(f"idle with {free_rows} rows of {self.scheduler.req_to_token_pool.size}")

    # -- what is put into the worker ------------------------------------------------------

    def _fail(self, **times: int) -> None:
        """The next `times` calls of each kind named raise."""
        self._failures |= times

    def _watch_failures(self) -> None:
        from spec_fsm_sglang import rebuild

        flush, seed = self.worker.rebuild.flush, rebuild.seed

        def strike(kind: str) -> None:
            if self._failures[kind]:
                self._failures[kind] -= 1
                raise RuntimeError("the fuzzer lets this rebuild fail")

        def watched(batch: Any, committed: Any, upper: int, lower: int) -> None:
            # Beside a plain step the worker tries again position by position; that succeeds.
            if upper - lower > 1:
                strike("flush")
            flush(batch, committed, upper, lower)
            reseeding = self.lifecycle.mode.name == "RESEEDING"
            self.slices += reseeding and lower > 0 and upper - lower > 1

        def watched_seed(*args: Any) -> None:
            strike("seed")
            seed(*args)

        self.worker.rebuild.flush, rebuild.seed = watched, watched_seed

    def _watch_departures(self) -> None:
        left = self.lifecycle.left

        def counted(rid: str, event: Any, committed: int) -> int:
            self.departures[event.name] += 1
            return int(left(rid, event, committed))

        self.lifecycle.left = counted

    def _watch_accepted(self) -> None:
        settled: Callable[..., None] = self.fsm.settled

        def counted(batch: Any, result: Any) -> None:
            action = getattr(result, "spec_fsm_action", None)
            if action is not None and action.name != "PLAIN":
                accepted = result.accept_lens.tolist()
                self.accepted.update(accepted)
                self.rounds.extend(accepted)
            settled(batch, result)

        self.fsm.settled = counted
