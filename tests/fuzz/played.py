"""Events that are small plays of their own: they bring about what they check."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fuzz import operator, seeds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuzz.world import World


class Wrong(AssertionError):
    """Something the fuzzer itself checks does not hold."""


class Played:
    """Events of a `World`, which is what `self` always is."""

    def on_seeds(self: Any, gap: int) -> None:
        """What a reseed relays after a gap is, row by row, what a prefill relays."""
        world: World = self
        world._drain()
        world._fail(flush=0, seed=0)
        try:
            seeds.compare(world, gap)
        except seeds.Difference as error:
            raise Wrong(str(error)) from None
        world.fsm.pin(0)

    def on_operator(self: Any, code: int) -> None:
        """A pin set by request; one that means nothing is refused, and the state says how it is."""
        found = operator.problem(self, code)
        if found:
            raise Wrong(found)

    def on_reruns(self: Any) -> None:
        """With `rerun` every row that lost its stash was prefilled again, and each is counted."""
        world: World = self
        outputs = (world.engine.outputs[asked.rid] for asked in world.asked)
        retracted = sum(output.meta["retraction_counts"] for output in outputs)
        lost = world.config.fsm.get("lost_rows") == "rerun"
        reruns = operator.state(world)["reruns"] - world.reruns_before
        if reruns != retracted or (reruns > 0) != lost:
            raise Wrong(f"operator: {reruns} reruns are shown, {retracted} requests retracted")

    def on_cancel_drain(self: Any) -> None:
        """A pin and its withdrawal one boundary later, before a decode batch could be drained."""
        self.fsm.pin(2)
        self._submit(self._prompt(6, "fresh"), 4, "greedy")
        self._step()
        self.fsm.pin(1)
        self._step()
        self.fsm.pin(0)

    def on_warm(self: Any, entries: int) -> None:
        """Writes of draft KV are warmed, as on a server with graphs, and padded from here on."""
        self.worker._cold_entries = entries
        self.worker._warm()

    def _rounds_counted(self: Any) -> tuple[int, int]:
        """Verify rounds of single rows: those SGLang reports, and those that were settled."""
        reporter = self.scheduler.metrics_reporter
        reported = reporter.spec_total_num_forward_ct + reporter.spec_num_forward_ct
        return reported, sum(self.accepted.values())

    @contextmanager
    def _counted_anew(self: Any) -> Iterator[None]:
        """A flush of the prefix cache, which makes SGLang count its rounds anew."""
        self._metrics_are_of_rounds()
        yield
        self._rounds_before = self._rounds_counted()

    def _metrics_are_of_rounds(self: Any) -> None:
        """Plain steps are no verify rounds, and every round is one, in SGLang's metrics."""
        (reported, settled), before = self._rounds_counted(), self._rounds_before
        if reported - before[0] != settled - before[1]:
            raise Wrong(f"metrics: {reported - before[0]} of {settled - before[1]} rounds")
