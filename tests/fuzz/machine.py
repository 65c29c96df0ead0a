"""Hypothesis chooses what happens to the engine."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fuzz.loads import PATTERNS
from fuzz.requests import KINDS
from fuzz.world import FINISHED, World

OUTPUTS = st.sampled_from((1, 2, 3, 5, 9, 20, 45))
PROMPTS = st.sampled_from((1, 2, 7, 16, 23, 24, 25, 60))
FEW = st.integers(1, 4)
RARE = ("idle", "flush_cache", "fail_rebuild", "new_weights")
TIMED = ("idle", "fail_rebuild")


class Machine(RuleBasedStateMachine):
    """Requests, aborts, pins, thresholds, load patterns and failures, in any order.

    Every example begins and ends with the engine idle.
    """

    world: World

    @initialize()
    def begin(self) -> None:
        """A new example."""
        self.world.begin()

    @rule(
        prompt=PROMPTS,
        start=st.sampled_from(("fresh", "shared", FINISHED)),
        tokens=OUTPUTS,
        kind=st.sampled_from(tuple(KINDS)),
        steps=st.integers(0, 3),
    )
    def admit(self, steps: int, **asked: Any) -> None:
        """One request."""
        self.world.do("admit", *(asked[name] for name in ("prompt", "start", "tokens", "kind")))
        self.world.do("step", steps)

    @rule(count=st.integers(2, 7), tokens=OUTPUTS, steps=st.integers(1, 8))
    def admit_more(self, count: int, tokens: int, steps: int) -> None:
        """Several equal ones, enough to cross the threshold."""
        for i in range(count):
            self.world.do("admit", 3 + 4 * i, "fresh", tokens + i, "greedy")
        self.world.do("step", steps)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        """Time passes."""
        self.world.do("step", steps)

    @rule(which=st.integers(0, 15), steps=st.integers(0, 2))
    def abort(self, which: int, steps: int) -> None:
        """One request is given up, waiting, chunked, running or in flight."""
        self.world.do("abort", which)
        self.world.do("step", steps)

    @rule(code=st.integers(0, 2), steps=FEW)
    def pin(self, code: int, steps: int) -> None:
        """The operator pins or releases the mode."""
        self.world.do("pin", code)
        self.world.do("step", steps)

    @rule(disable=st.integers(1, 8), enable=st.integers(1, 8))
    def thresholds(self, disable: int, enable: int) -> None:
        """The operator moves the thresholds."""
        self.world.do("thresholds", disable, enable)

    @rule(requests=st.integers(6, 12), steps=st.integers(5, 40))
    def starve(self, requests: int, steps: int) -> None:
        """The pool runs out."""
        self.world.do("starve", requests)
        self.world.do("step", steps)

    @rule(pattern=st.sampled_from(PATTERNS), size=st.integers(2, 8), period=st.integers(1, 6))
    def load(self, pattern: str, size: int, period: int) -> None:
        """A whole load pattern."""
        self.world.do("load", pattern, size, period)

    @rule(gap=st.integers(1, 8))
    def fail_reseed(self, gap: int) -> None:
        """Speculation is to resume, and its first rebuild fails."""
        self.world.do("fail_reseed", gap)

    @rule()
    def cancel_drain(self) -> None:
        """A drain is called off."""
        self.world.do("cancel_drain")

    @rule(what=st.sampled_from(RARE), times=FEW)
    def rare(self, what: str, times: int) -> None:
        """What happens to a server a few times a day."""
        self.world.do(what, *((times,) if what in TIMED else ()))

    @rule(prompt=PROMPTS, gap=st.integers(1, 20))
    def rounds(self, prompt: int, gap: int) -> None:
        """Acceptance after a gap is acceptance after a prefill."""
        self.world.do("rounds", prompt, gap)

    @rule()
    def check_kv(self) -> None:
        """Draft KV against its recomputation."""
        self.world.do("check_kv")

    def teardown(self) -> None:
        """The example ends idle and whole."""
        self.world.end()


def machine(world: World) -> type[Machine]:
    """The machine over the engine of `world`."""
    return type("Bound", (Machine,), {"world": world})
