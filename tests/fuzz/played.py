"""Events that are small plays of their own: they bring about what they check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuzz import operator, seeds

if TYPE_CHECKING:
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
