"""What an engine reports besides launches and results: rows that come and go, and rarer things."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spec_fsm._figures import Figures
from spec_fsm._rules import Arg
from spec_fsm.errors import ConfigError
from spec_fsm.flight import JOINED, LEFT, RESTARTED
from spec_fsm.launch_laws import NO_LAWS
from spec_fsm.modes import LEAVING, Event
from spec_fsm.plan import PLAIN_STEP

if TYPE_CHECKING:
    from spec_fsm.laws import Shape
    from spec_fsm.plan import StashConfig
    from spec_fsm.policy import Policy
    from spec_fsm.trace import Sink

_LASTING = frozenset({"checks", "transitions", "on_change", "flight", "_note", "_sink", "_trace"})
"""What `restart` keeps."""
_FINISHED = Event.FINISHED
NOTED = frozenset({Event.ADMITTED, Event.FILTERED, Event.MERGED})


class Reports(Figures):
    """The reporting half of `Lifecycle`."""

    def __init__(
        self, shape: Shape, policy: Policy, stash: StashConfig, *, trace: Sink | None = None
    ) -> None:
        super().__init__(shape, policy, stash, trace=trace)
        self._departed = 0  # rows that left since the last decode launch

    # -- membership -----------------------------------------------------------------------

    def joined(self, rid: str, committed: int, cached: int = 0) -> None:
        """PREFILLED: the last chunk of `rid` was launched; the row decodes from here on.

        Call it before the first decode launch that holds the row, with no plain launch between.
        committed: positions of the prompt.  cached: those that this launch did not compute (from
        the prefix cache or an earlier chunk), for the trace alone.  Raises IllegalEvent if `rid`
        is here already.
        """
        steady = self.steady
        if steady.issued or steady.processed:
            self._count(steady)
        if not self._ledger.join(rid):
            self._refuse(Event.PREFILLED, f"row {rid!r} joined already")
        steady.rows_hi += 1  # see `left`
        if steady.plan is PLAIN_STEP:
            steady.rows_lo += 1
        if self._trace is not None:
            figures: dict[str, object] = {"committed": committed, "cached": cached}
            self._event_line(Event.PREFILLED, self.mode, {"rid": rid, **figures})
        else:
            self._note((JOINED, rid, committed))

    def chunked(self, rid: str, length: int, cached: int = 0) -> None:
        """PREFILLED_CHUNK: a chunk of `rid` up to `length` positions was launched, not the last.

        cached: positions before the chunk, for the trace alone.  Raises IllegalEvent if `rid`
        decodes already.
        """
        if rid in self.ledger:
            self._refuse(Event.PREFILLED_CHUNK, f"row {rid!r} joined already")
        figures: dict[str, object] = {"committed": length, "cached": cached}
        self._event_line(Event.PREFILLED_CHUNK, self.mode, {"rid": rid, **figures})

    def left(self, rid: str, event: Event, committed: int = 0) -> int:
        """FINISHED, RETRACTED or ABORTED: forget `rid`; returns its committed - covered.

        The caller cuts what it inserts into the prefix cache by that many positions (I15).  A
        row that never joined gives 0.  committed: positions of the row as the engine counts them,
        for the trace alone.  Raises ConfigError for any other event.
        """
        if event is not _FINISHED and event not in LEAVING:  # `in` calls the enum's hash
            msg = f"event is {event.name}: accepted are FINISHED, RETRACTED, ABORTED"
            raise ConfigError(msg)
        ledger, steady = self._ledger, self.steady
        if steady.issued or steady.processed:
            self._count(steady)
        rows = ledger.rows
        gap = ledger.leave(rid)
        if ledger.rows < rows:
            self._departed += 1
            steady.rows_hi -= 1  # a steady state stays steady; in PLAIN each batch is of all rows
            if steady.plan is PLAIN_STEP:
                steady.rows_lo -= 1
            if steady.absent:
                steady.absent -= 1
        if self._trace is not None:
            figures: dict[str, object] = {"gap": gap, "committed": committed}
            self._event_line(event, self.mode, {"rid": rid, **figures})
        else:
            self._note((LEFT, event, rid, gap))
        return gap

    def noted(self, event: Event, batch: int) -> None:
        """ADMITTED, FILTERED or MERGED: the engine's batch holds `batch` rows now.

        An observation of the trace and nothing else: they move no counter, rows come by `joined`
        and go by `left`.  Raises ConfigError for any other event.
        """
        if event not in NOTED:
            msg = f"event is {event.name}: accepted are ADMITTED, FILTERED, MERGED"
            raise ConfigError(msg)
        self.observe(event.name, batch=batch)

    # -- what the engine reports ----------------------------------------------------------

    def reseeded(self) -> None:
        """The rest of every gap and every seed were enqueued, just before the first draft.

        Raises IllegalEvent unless the mode is RESEEDING and the rest fits one slice.
        """
        self._fire(Event.RESEEDED)

    def reseed_failed(self, why: str) -> None:
        """The engine could not rebuild: back to PLAIN, waiting twice as long each time.

        Raises IllegalEvent outside RESEEDING.
        """
        self._fire(Event.RESEED_FAILED, fields={"why": why})

    def cache_flushed(self) -> None:
        """The prefix cache was emptied.  Raises IllegalEvent while a row lives."""
        self._fire(Event.CACHE_FLUSHED)

    def weights_changed(self) -> None:
        """New weights: rows that still need hidden states stashed under the old ones are lost."""
        stale = self.ledger.stale()
        self.steady.left = -1
        arg = Arg(lost=len(stale), oldest=self.ledger.oldest_without(stale))
        self._fire(Event.WEIGHTS_CHANGED, arg, {"lost": len(stale)})
        self.ledger.lose(stale)

    def restart(self) -> None:
        """Forget every row, result in flight and wait, and stand in PLAIN, which needs the least.

        For an engine that took all its rows back after a violated law.  The pin and the counts of
        checks and transitions stay; trace and flight go on.
        """
        fresh = vars(type(self)(self.shape, self.policy, self.stash))
        self.policy.restart()
        vars(self).update((name, fresh[name]) for name in fresh.keys() - _LASTING)
        if self._trace is not None:
            self.laws = NO_LAWS
            self._trace.observed(self._where(), "restarted", {})
        else:
            self._note((RESTARTED, time.monotonic_ns()))
        self._fire(Event.LOAD_ROSE, fields={"load": 0})
        self._fire(Event.DRAINED)

    def observe(self, kind: str, **facts: int) -> None:
        """Put a line of the engine's own figures into the trace; nothing else."""
        if self._trace is not None:
            self._trace.observed(self._where(), kind, facts)


__all__ = ["NOTED", "Reports"]
