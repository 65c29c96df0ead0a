"""The forwards of one decode launch, held against its plan while a trace is replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spec_fsm.modes import Action, Phase
from spec_fsm_model.trace_fields import Mismatch

if TYPE_CHECKING:
    from spec_fsm.plan import Plan

_REBUILDS = frozenset({Phase.FLUSH, Phase.SEED_EXTEND})
_SPECULATIVE = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND)


class Launching:
    """A decode launch from its plan to its last forward.

    A speculative one drafts (`drafts` forwards, or none where a CUDA graph replays them all),
    verifies, and extends the draft (not told where a graph replays it).  A plain one decodes,
    then writes what its plan says.  A RESEED writes before it drafts.  forwards: those seen.
    """

    def __init__(self, plan: Plan, rids: list[str], drafts: int, seeds_due: bool) -> None:
        self.plan, self.rids = plan, rids
        self.seeds_due = seeds_due
        self.forwards = 0
        self.launched = self.reseeded = False
        self._drafts = drafts
        self._count = dict.fromkeys(Phase, 0)

    def forward(self, phase: Phase) -> None:
        """One forward passed its law; raises Mismatch if it is not its turn."""
        if not self._in_turn(phase):
            expected = self.missing() or "no further forward of this launch"
            raise Mismatch(f"{phase.name} of a {self.plan.action.name} launch", expected)
        self._count[phase] += 1
        self.forwards += 1

    def _in_turn(self, phase: Phase) -> bool:
        count, plan = self._count, self.plan
        plain = plan.action is Action.PLAIN
        if phase is Phase.FLUSH and (count[phase] or count[Phase.SEED_EXTEND]):
            # Once more after a seed made ahead that failed; the result tells how many there were.
            return plan.seeds and count[phase] < 2
        if phase in _REBUILDS:
            ahead = bool(plan.flush_upper) and bool(count[Phase.PLAIN_DECODE])
            return ahead if plain else plan.action is Action.RESEED and not self.reseeded
        if plain or phase not in _SPECULATIVE:
            return plain and phase is Phase.PLAIN_DECODE and not count[phase]
        if phase is Phase.DRAFT:
            return count[phase] < self._drafts and not count[Phase.VERIFY]
        if phase is Phase.VERIFY:
            return not count[phase] and count[Phase.DRAFT] in (0, self._drafts)
        return bool(count[Phase.VERIFY]) and not count[phase]

    def missing(self) -> str:
        """What the launch still needs, or empty."""
        plan, count = self.plan, self._count
        if plan.action is Action.RESEED and not self.reseeded:
            return "RESEEDED or RESEED_FAILED"
        if plan.action is Action.PLAIN:
            if not count[Phase.PLAIN_DECODE]:
                return "its PLAIN_DECODE forward"
        elif not count[Phase.VERIFY]:
            return "its DRAFT and VERIFY forwards"
        return "" if self.launched else "its LAUNCHED"

    def reseed(self) -> None:
        """RESEEDED; raises Mismatch unless this launch reseeds and made the seeds it needs."""
        if self.plan.action is not Action.RESEED or self.reseeded or self.launched:
            raise Mismatch("RESEEDED that was not planned", "a plan RESEED before it")
        if self.seeds_due and not self._count[Phase.SEED_EXTEND]:
            raise Mismatch("RESEEDED without seeds", "a SEED_EXTEND forward before it")
        self.reseeded = True


__all__ = ["Launching"]
