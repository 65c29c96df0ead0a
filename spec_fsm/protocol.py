"""What an engine offers to be driven by a `Lifecycle`, and the order its parts are called in.

The library decides, the engine acts.  `Engine` names the acts in the engine's own terms, and
`decode_step` is the reference order of calls around them: an engine with a scheduler loop of its
own (SGLang's is one) spreads the same calls over its loop instead of calling `decode_step`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from spec_fsm.errors import SpecFsmError
from spec_fsm.modes import Action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spec_fsm.lifecycle import Lifecycle


class SeedError(SpecFsmError):
    """An engine raises it from `rebuild` when draft KV or seeds cannot be made; PLAIN goes on."""


class Engine(Protocol):
    """One worker with a target and a draft model.

    An engine that is traced also has `rids()`, the ids of `rows()` in batch order.

    Before each forward launch, of whatever phase, the engine calls `Lifecycle.check_launch` with
    what it is about to launch; when rows come or go, `Lifecycle.joined` and `Lifecycle.left`.
    """

    def load(self) -> int:
        """Rows that decode or are about to; the same number on every rank (I11)."""

    def rows(self) -> int:
        """Rows of the decode batch that is about to be launched."""

    def settle(self) -> None:
        """Wait for the oldest result in flight and process it.

        Calls `Lifecycle.settled` once the tokens are committed, then `Lifecycle.left` for each
        row that ends.  Does nothing with no result in flight.
        """

    def plain(self, flush_upper: int, flush_lower: int, *, seeds: bool = False) -> None:
        """Launch the target alone, one token a row, and stash its hidden states.

        With flush_upper > 0 also write the missing draft KV of the ages [upper, lower), see
        `Plan`, in stream order after this launch's own hidden states are stashed.  seeds: make
        the seed of every row after that (`Plan.seeds`); only with `StashConfig.seed_ahead`, and
        what is left out or fails is made by the `rebuild` that comes next.
        """

    def speculate(self) -> None:
        """Launch draft, verify and draft extend."""

    def rebuild(self, flush_upper: int) -> None:
        """Write the draft KV of the ages [flush_upper, 0) and make the seed of every row.

        The seed is that of the last committed position, as the draft extend of a speculative
        round would have left it.  Raises SeedError before anything of the batch is changed.
        """


def decode_step(engine: Engine, lifecycle: Lifecycle) -> Action | None:
    """Issue the next decode launch; returns what was done, None without rows.

    Raises what the lifecycle raises; nothing is launched then.
    """
    if lifecycle.boundary(engine.load()):
        while lifecycle.ledger.in_flight:
            engine.settle()
    rows = engine.rows()
    if rows == 0:
        return None
    rids: Sequence[str] = getattr(engine, "rids", tuple)()
    plan = lifecycle.plan_decode(rows, rids)
    if plan.action is Action.RESEED:
        try:
            engine.rebuild(plan.flush_upper)
        except SeedError as error:
            lifecycle.reseed_failed(str(error))
            plan = lifecycle.plan_decode(rows, rids)
        else:
            lifecycle.reseeded()
    if plan.action is Action.PLAIN:
        if plan.seeds:
            engine.plain(plan.flush_upper, plan.flush_lower, seeds=True)
        else:
            engine.plain(plan.flush_upper, plan.flush_lower)
    else:
        engine.speculate()
    lifecycle.launched(plan.action, rows, plan)
    return plan.action


__all__ = ["Engine", "SeedError", "decode_step"]
