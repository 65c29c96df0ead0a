"""Model beside worker: histories of the formal model, led through the real worker act by act.

The histories follow every edge of the graph the model explored (`spec_fsm_model.sequences`). What
the environment decides there is done to the worker: loads at boundaries, requests that come and
go, new weights. What follows from it, the worker decides by itself, and has to stand in the
model's mode after every act. Where the two cannot go the same way (a request leaves the worker
one launch later; the worker lets nothing come between a drain and the launch after it), they are
compared again from the next moment at which nothing runs and their modes agree.
"""

from __future__ import annotations

from typing import Any

from fuzz.world import World, Wrong
from spec_fsm_model.sequences import SMALL, cover, replay

LOADS = {"load low": 0, "load middle": 50, "load high": 100}
DISABLE, ENABLE, NEVER = 99, 0, -1
"""A step by itself never changes the mode: but at a boundary of the model, no load is low."""


class Beside:
    """Leads one world through histories; `compared` counts moments at which modes were."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.compared = self.acts = self.histories = 0

    def play(self, history: list[Any]) -> None:
        """One history, from a server without requests to one again."""
        world = self.world
        world.begin()
        world._thresholds(DISABLE, NEVER)
        self.together, self.alive = True, ""
        self.histories += 1
        with world._noting():
            steps = [(step, after) for _, step, after in replay(SMALL, history)]
            for (step, after), following in zip(steps, [*steps[1:], None], strict=True):
                self.acts += 1
                world.history.append(list(step.act))
                self._act(step)
                if step.act.name == "go on after the drain":
                    # The worker drains in the launch that comes next, if one does.
                    launches = following is not None and following[0].act.name == "launch plain"
                    self.together = self.together and launches
                else:
                    self._compare(step.act.name, after)
        world.end()

    def _act(self, step: Any) -> None:
        world, name = self.world, step.act.name
        if name == "boundary":
            self._boundary(LOADS[step.act.what])
        elif name == "load new weights":
            world.on_new_weights()
        elif name == "flush the prefix cache":
            with world._counted_anew():
                world.scheduler.flush_cache()
        elif name in ("prefill a chunk", "prefill the rest"):
            if not self.alive:
                length = 40 if name == "prefill a chunk" else 6
                self.alive = world._submit(world._prompt(length, "fresh"), 400, "greedy").rid
            world._step()
        elif name.startswith("launch"):
            if self.alive:
                world._step()
        elif name in ("finished", "aborted", "retracted") and self.alive:
            self.together = False
            next(a for a in world.asked if a.rid == self.alive).aborted = True
            world.engine.abort(self.alive)
            world._drain()
            self.alive = ""

    def _boundary(self, load: int) -> None:
        """A boundary with a load of the model's, as for a batch that does not decode."""
        world = self.world
        world._thresholds(DISABLE, ENABLE)
        world.lifecycle.boundary(load)
        world._thresholds(DISABLE, NEVER)

    def _compare(self, act: str, after: Any) -> None:
        mode = self.world.lifecycle.mode
        if not self.together:
            self.together = not after.rows and not self.alive and mode is after.mode
            return
        self.compared += 1
        if mode is not after.mode:
            raise Wrong(f"after '{act}' the worker is in {mode.name}, the model {after.mode.name}")


def histories() -> list[list[Any]]:
    """The model's histories that together follow every edge of its graph."""
    return cover(SMALL)
