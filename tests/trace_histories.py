"""Traces of random histories: a lifecycle driven by an engine without tensors."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from core_support import HIGH, LOW, TREE, make
from spec_fsm import Action, Event, Hidden, ListSink, Phase, Pin, SpecInfo, StashConfig

if TYPE_CHECKING:
    from spec_fsm import Lifecycle, Sink

Lines = list[dict[str, Any]]
LEAVE = (Event.FINISHED, Event.ABORTED, Event.RETRACTED)


class Server:
    """An engine without tensors: one result in flight, requests that come and go at random."""

    def __init__(self, seed: int, sink: Sink, flush_every: int = 0) -> None:
        stash = StashConfig(width=6, flush_every=flush_every, slice_width=2)
        self.lifecycle: Lifecycle = make(trace=sink, stash=stash)
        self.random = random.Random(seed)
        self.rows: list[str] = []
        self.committed: dict[str, int] = {}
        self.flights: list[tuple[Action, list[str]]] = []
        self.named = 0

    def step(self) -> None:
        """One scheduler iteration, with whatever happens around it."""
        lifecycle, rnd = self.lifecycle, self.random
        self.requests()
        if rnd.random() < 0.02:
            lifecycle.weights_changed()
        if rnd.random() < 0.05:
            lifecycle.pin = rnd.choice((Pin.AUTO, Pin.AUTO, Pin.SPEC, Pin.PLAIN))
        if not self.rows:
            lifecycle.cache_flushed()
            return
        wait = lifecycle.boundary(rnd.choice((LOW, LOW, 4, HIGH)))
        if rnd.random() < 0.2:
            self.requests()  # an iteration that only prefills
            return
        while self.flights and (wait or len(self.flights) > 1):
            self.settle()
        if self.rows:
            self.launch()

    def requests(self) -> None:
        """Requests that come and go."""
        lifecycle, rnd = self.lifecycle, self.random
        if len(self.rows) < 6 and rnd.random() < 0.4:
            rid = f"q{self.named}"
            self.named += 1
            lifecycle.noted(Event.ADMITTED, len(self.rows))
            cached = rnd.choice((0, 2))
            if rnd.random() < 0.3:
                lifecycle.check_launch(Phase.PREFILL, 1, 2, 2, SpecInfo.NONE, Hidden.FULL, 2)
                lifecycle.chunked(rid, cached + 2, cached)
                cached += 2
            n = 9 - cached
            lifecycle.check_launch(Phase.PREFILL, 1, n, n, SpecInfo.NONE, Hidden.FULL, n)
            lifecycle.joined(rid, 9, cached)
            self.committed[rid] = 9
            self.rows.append(rid)
            lifecycle.noted(Event.MERGED, len(self.rows))
        leave = rnd.random()
        while self.rows and leave < 0.15:
            leave += rnd.random() * 0.2
            rid = self.rows.pop(rnd.randrange(len(self.rows)))
            lifecycle.left(rid, rnd.choice(LEAVE), self.committed.pop(rid))
            lifecycle.noted(Event.FILTERED, len(self.rows))

    def launch(self) -> None:
        """The next decode launch, as the lifecycle plans it."""
        lifecycle, b = self.lifecycle, len(self.rows)
        plan = lifecycle.plan_decode(b, self.rows)
        if plan.action is Action.RESEED:
            if self.random.random() < 0.3:
                lifecycle.reseed_failed("by chance")
                plan = lifecycle.plan_decode(b, self.rows)
            else:
                seed = (SpecInfo.DRAFT_EXTEND, Hidden.FULL)
                lifecycle.check_launch(Phase.SEED_EXTEND, b, b, b, *seed, 1)
                lifecycle.reseeded()
        if plan.action is Action.PLAIN:
            lifecycle.check_launch(Phase.PLAIN_DECODE, b, b, b, SpecInfo.NONE, Hidden.FULL)
        else:
            k, s, d = TREE.topk, TREE.num_steps, TREE.num_draft_tokens
            last, full = Hidden.LAST, Hidden.FULL
            lifecycle.check_launch(Phase.DRAFT, b, b * k, b * k * s, SpecInfo.DRAFT, last)
            lifecycle.check_launch(Phase.VERIFY, b, b * d, b * d, SpecInfo.VERIFY, full)
            lifecycle.check_launch(Phase.DRAFT_EXTEND, b, b * d, b * d, SpecInfo.DRAFT_EXTEND, full)
        lifecycle.launched(plan.action, b, plan)
        self.flights.append((plan.action, list(self.rows)))

    def settle(self) -> None:
        """The oldest result."""
        action, rids = self.flights.pop(0)
        most = 1 if action is Action.PLAIN else TREE.num_steps + 1
        accepted = [self.random.randint(1, most) if r in self.committed else 0 for r in rids]
        for rid, n in zip(rids, accepted, strict=True):
            if n:
                self.committed[rid] += n
        self.lifecycle.settled(action, len(rids), accepted, rids=rids)


def history(seed: int, steps: int, flush_every: int = 0) -> Lines:
    """The trace of a random history."""
    sink = ListSink()
    server = Server(seed, sink, flush_every)
    for _ in range(steps):
        server.step()
    server.lifecycle.close()
    return sink.lines
