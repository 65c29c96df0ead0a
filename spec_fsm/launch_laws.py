"""Holds one launch against the mode x phase matrix and the shape laws.

Two readings of the same laws: `fixed_laws` turns those that are multiples of one number (the rows
of a decode launch, the tokens of a prefill) into a dense table for the path that runs several times
a step, `violation` says in words what is wrong, and is the only reading for the other ragged
phases.  A test holds one against the other.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from spec_fsm import laws
from spec_fsm._table import ALLOWED
from spec_fsm.errors import ShapeViolation
from spec_fsm.modes import Hidden, Mode, Phase, SpecInfo

FIXED_WIDTH = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND, Phase.PLAIN_DECODE)
DENSE = (*FIXED_WIDTH, Phase.PREFILL)


class Launch(NamedTuple):
    """The facts of one launch, as the engine is about to issue it.

    b: rows.  tokens, slots: lengths of `input_ids` and `out_cache_loc`.  width: see
    `laws.tokens`; None for the phases of fixed width.
    """

    phase: Phase
    b: int
    tokens: int
    slots: int
    spec_info: SpecInfo
    hidden: Hidden
    width: int | None = None


FixedLaw: TypeAlias = tuple[SpecInfo, Hidden, int, int, int]
"""spec_info, hidden, and a row's tokens, slots and other accepted slots; of a PREFILL, whose rows
are ragged, not a row's but a token's."""


def fixed_laws(shape: laws.Shape) -> tuple[tuple[FixedLaw | None, ...], ...]:
    """[mode][phase] -> the law a row (PREFILL: a token), or None where `violation` has to look."""

    def law(mode: Mode, phase: Phase) -> FixedLaw | None:
        if phase not in DENSE or phase not in ALLOWED[mode]:
            return None
        width = 1 if phase is Phase.PREFILL else None
        tokens, slots = laws.tokens(phase, 1, shape, width), laws.slots(phase, 1, shape, width)
        other = laws.window_slots(1, shape) if phase is Phase.DRAFT else slots
        return laws.spec_info(phase), laws.hidden(phase), tokens, slots, other

    return tuple(tuple(law(mode, phase) for phase in Phase) for mode in Mode)


def violation(mode: Mode, launch: Launch, shape: laws.Shape) -> ShapeViolation | None:
    """What is wrong with `launch` in `mode`, or None; first the matrix, then I1a, I16, I2, I3.

    Raises ConfigError if the phase needs a width and has none.
    """

    def broken(text: str, observed: object, expected: object, invariant: str) -> ShapeViolation:
        return ShapeViolation(
            text,
            mode=mode,
            phase=launch.phase,
            observed=observed,
            expected=expected,
            invariant=invariant,
        )

    phase, b = launch.phase, launch.b
    if phase not in ALLOWED[mode]:
        allowed = ", ".join(p.name for p in sorted(ALLOWED[mode]))
        return broken("this mode has no such launch", phase.name, allowed, "matrix")
    if phase is Phase.IDLE:
        # The laws hold for b > 0: an idle launch may carry the relay's stub or nothing.
        sizes = (b, launch.tokens, launch.slots)
        return broken("an idle launch has no rows", sizes, (0, 0, 0), "I2") if any(sizes) else None
    if b < 1:
        return broken("a launch needs rows", b, "1 row or more", "I2")
    if launch.spec_info is not (info := laws.spec_info(phase)):
        return broken("wrong spec_info", launch.spec_info.name, info.name, "I1a")
    if launch.hidden is not (hidden := laws.hidden(phase)):
        return broken("wrong hidden capture", launch.hidden.name, hidden.name, "I16")
    if launch.tokens != (tokens := laws.tokens(phase, b, shape, launch.width)):
        return broken(f"wrong number of tokens for {b} rows", launch.tokens, tokens, "I2")
    accepted = {laws.slots(phase, b, shape, launch.width)}
    if phase is Phase.DRAFT:
        accepted.add(laws.window_slots(b, shape))
    if launch.slots not in accepted:
        expected = " or ".join(str(n) for n in sorted(accepted))
        return broken(f"wrong out_cache_loc for {b} rows", launch.slots, expected, "I3")
    return None


NO_LAWS: tuple[FixedLaw | None, ...] = (None,) * len(Phase)

__all__ = ["DENSE", "FIXED_WIDTH", "NO_LAWS", "FixedLaw", "Launch", "fixed_laws", "violation"]
