"""Closed-loop load for an in-process engine: so many requests, always joining and leaving.

The requests come in waves. At the start the waves have outputs of different lengths, so that from
then on one wave ends and the next of its kind joins every `output_len / waves` steps. Between two
joins every iteration is a decode step of all requests: that is what "steady decode" measures; the
whole, with its prefills, is reported beside it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from spec_fsm_sglang.inprocess import Engine

SETTLE = 2
"""Iterations after a prefill that do not count as steady: the prefill's own result is read in
the next one under overlap scheduling."""


class Load(msgspec.Struct, frozen=True):
    """requests: how many run at a time. waves: groups they come in, at most `requests`.
    prompt_len, output_len: tokens. vocab: prompt tokens are drawn below it.
    """

    requests: int
    waves: int
    prompt_len: int
    output_len: int
    vocab: int


class Measured(msgspec.Struct, frozen=True):
    """One run. Times in seconds.

    steady_tokens, steady_s: committed tokens and time of the steady decode iterations alone.
    tokens, seconds: of everything. gaps_ms: duration of every steady iteration, in ms, in order.
    """

    steady_tokens: int
    steady_s: float
    tokens: int
    seconds: float
    gaps_ms: list[float]

    @property
    def steady_rate(self) -> float:
        """Tokens a second of steady decode."""
        return self.steady_tokens / self.steady_s

    @property
    def rate(self) -> float:
        """Tokens a second of the whole run."""
        return self.tokens / self.seconds


@dataclass
class ClosedLoop:
    """Keeps `load` running in `engine`; `run` measures some more iterations of it."""

    engine: Engine
    load: Load
    _waves: dict[int, list[str]] = field(default_factory=dict)
    _finished: int = 0

    def __post_init__(self) -> None:
        self._draw = random.Random(0)
        waves, each = self.load.waves, self.load.output_len // self.load.waves
        for wave in range(waves):
            self._join(wave, each * (wave + 1))

    def _join(self, wave: int, output_len: int) -> None:
        share = self.load.requests // self.load.waves
        extra = wave < self.load.requests % self.load.waves
        self._waves[wave] = [
            self.engine.submit(
                [self._draw.randrange(3, self.load.vocab) for _ in range(self.load.prompt_len)],
                max_new_tokens=max(2, output_len),
            )
            for _ in range(share + extra)
        ]

    def ended(self) -> list[int]:
        """Waves of which every request has finished."""
        outputs = self.engine.outputs
        return [
            wave for wave, rids in self._waves.items() if all(outputs[r].finished for r in rids)
        ]

    def replace(self, waves: list[int]) -> None:
        """Submit `waves` anew."""
        for wave in waves:
            for rid in self._waves[wave]:
                self._finished += len(self.engine.outputs.pop(rid).output_ids)
            self._join(wave, self.load.output_len)

    def committed(self) -> int:
        """Tokens settled so far, those of running requests included."""
        outputs = self.engine.outputs
        running = self.engine.scheduler.running_batch.reqs
        # A request that has just finished is in one of the two, or in both.
        return (
            self._finished
            + sum(len(output.output_ids) for output in outputs.values() if output.finished)
            + sum(len(r.output_ids) for r in running if not outputs[r.rid].finished)
        )

    def run(self, iterations: int) -> Measured:
        """Let the engine's loop run freely until it made `iterations` steady iterations."""
        meter = _Meter(self, iterations)
        self.engine.run_freely(meter.boundary)
        return meter.result()

    def end(self) -> None:
        """Abort everything and wait until nothing runs."""
        for rids in self._waves.values():
            for rid in rids:
                if not self.engine.outputs[rid].finished:
                    self.engine.abort(rid)
        self.engine.run_until_idle()
        self.engine.outputs.clear()


class _Meter:
    """Reads the clock at every boundary and tells steady iterations from the others.

    Tokens are counted at both ends of a stretch of steady iterations, not at each of them.
    """

    def __init__(self, loop: ClosedLoop, iterations: int) -> None:
        self._loop = loop
        self._wanted = iterations
        self._since_prefill = 0
        self._then = self._began = self._ended = 0.0
        self._steady: list[float] = []
        self._steady_tokens = self._opened = 0
        self._at_start = self._at_end = 0

    def boundary(self) -> bool:
        """At each boundary of the scheduler's loop; False when enough was measured."""
        now, loop = time.perf_counter(), self._loop
        if self._began:
            self._account(now)
        else:
            self._began, self._at_start = now, loop.committed()
        self._then = now
        enough, ended = len(self._steady) >= self._wanted, loop.ended()
        if self._since_prefill >= SETTLE and (enough or ended):
            self._steady_tokens += loop.committed() - self._opened
            self._since_prefill = 0
        if enough:
            self._ended, self._at_end = now, loop.committed()
            return False
        loop.replace(ended)
        return True

    def _account(self, now: float) -> None:
        batch: Any = self._loop.engine.scheduler.cur_batch_for_debug
        if batch is None and self._since_prefill >= SETTLE:
            # Nothing is left to launch; the last step's result was waited for and read in it.
            self._steady.append(now - self._then)
            return
        if batch is None or batch.forward_mode.is_extend():
            self._since_prefill = 0
            return
        self._since_prefill += 1
        if self._since_prefill >= SETTLE:
            self._steady.append(now - self._then)
        elif self._since_prefill == SETTLE - 1:
            self._opened = self._loop.committed()

    def result(self) -> Measured:
        """What was measured."""
        return Measured(
            steady_tokens=self._steady_tokens,
            steady_s=sum(self._steady),
            tokens=self._at_end - self._at_start,
            seconds=self._ended - self._began,
            gaps_ms=[round(gap * 1000, 4) for gap in self._steady],
        )


__all__ = ["ClosedLoop", "Load", "Measured"]
