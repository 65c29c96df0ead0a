"""What a decode batch is to do, and the settings of the stash the plans are made from."""

from __future__ import annotations

from dataclasses import dataclass

from spec_fsm.errors import ConfigError
from spec_fsm.modes import Action, Mode
from spec_fsm.policy import whole


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next decode batch does.

    flush_upper, flush_lower: the launch also writes the missing draft KV of the positions
        committed - flush_upper up to, not including, committed - flush_lower of each row, where
        `committed` counts every plain launch issued, the planned one included if it is plain.  A
        row whose own gap is smaller than `flush_upper` starts at its gap.  0, 0: no flush.
    seeds: nothing is missing after this plain launch, so that it may make the seeds as well (the
        extend that makes one can write what is missing on its way); with the next one, a RESEED,
        they are due.
    settle_first: nothing is to be launched until every result in flight was processed; then ask
        again.  Only `Lifecycle.decide` says so; `plan_decode` refuses instead.
    """

    action: Action
    mode: Mode
    settle_first: bool = False
    flush_upper: int = 0
    flush_lower: int = 0
    seeds: bool = False


@dataclass(frozen=True, slots=True)
class StashConfig:
    """Settings of the stash of hidden states, checked when built (raises ConfigError).

    width: hidden states kept a row, in positions (2 or more).
    flush_every: the missing draft KV is written when the largest gap reaches this many
        positions (0: only when speculation resumes; else 1 to width - 1, so that no row is lost).
    slice_width: most ages one slice of RESEEDING writes (2 or more: the plain launch that
        carries a slice opens one position itself, so slices of one would never end).
    seed_ahead: 0, or the most ages (2 or more) that a plain launch writes together with the seeds.
        The seeds then go out one launch before RESEED, which has only drafts to make, and a longer
        gap is written before them, but for its newest age.  For an engine that issues a launch
        before it processes the result before: that result waits until the launch is issued.
    """

    width: int = 64
    flush_every: int = 16
    slice_width: int = 64
    seed_ahead: int = 0

    def __post_init__(self) -> None:
        whole("width", self.width, 2)
        whole("flush_every", self.flush_every, 0, self.width - 1)
        whole("slice_width", self.slice_width, 2)
        whole("seed_ahead", self.seed_ahead, 0)
        if self.seed_ahead == 1:
            raise ConfigError("seed_ahead is 1: accepted are 0 and whole numbers from 2")


class Steady:
    """What the next decode batches do as long as nothing happens, as data in one place.

    `plan` holds for `left` more of them, while the load is `lo` to `hi` and the batch has
    `rows_lo` to `rows_hi` rows; at 0 `flush`, if there is one, is due; below 0 nothing holds.
    `absent` rows sat the last launch out and have not left yet.  `issued` counts the plans handed
    out, `processed` the results of `action` the engine reported by adding to it; both since the
    ledger last counted them.  One small object, because what a step costs is mostly fetching what
    it reads from memory anew.
    """

    __slots__ = (
        "absent", "action", "flush", "hi", "issued", "left", "lo", "plan", "processed", "rows_hi",
        "rows_lo",
    )

    def __init__(self) -> None:
        self.action: Action | None = None
        self.plan = SPECULATE
        self.flush: Plan | None = None
        self.left = -1
        self.issued = self.processed = self.absent = 0
        self.lo = self.hi = self.rows_lo = self.rows_hi = 0


def misplaced(mode: Mode, action: Action, plan: Plan) -> str:
    """What was forgotten where a decode launch does not belong in its mode or to its plan."""
    if action is not plan.action:
        return "the launch is not the one that was planned"
    if action is Action.RESEED and mode is Mode.RESEEDING:
        return "reseeded() was not called between a RESEED plan and its launch"
    return f"the plan was made in {plan.mode.name}, and the mode has changed since: plan again"


# Most steps carry no flush; their plans are made once.
SPECULATE = Plan(Action.SPECULATE, Mode.SPEC)
PLAIN_STEP = Plan(Action.PLAIN, Mode.PLAIN)
WAIT = Plan(Action.PLAIN, Mode.DRAINING, settle_first=True)

__all__ = ["PLAIN_STEP", "SPECULATE", "WAIT", "Plan", "StashConfig", "Steady", "misplaced"]
