"""The shape laws, proved for any b, k, s, d and page size that a draft can have.

The laws are `spec_fsm.laws`' own, over z3 integers.  What is asked of each:

DENSE      A launch of b rows is b times a launch of one, in tokens and in slots, and a prefill of
           w tokens w times one of one token, whatever its rows: the table the hot path multiplies
           (`launch_laws.fixed_laws`) says what the laws say, for every b and w.
RESERVE    No decode launch takes more slots of a row than `alloc_len`, and `reserve` holds two of
           them.  The induction of I5 in `prove_claims` ("settings") leans on nothing else.
CRASH      A plain launch is never as wide as a verify or a draft extend of the same rows: what
           those leave behind in a batch cannot pass as plain (I2, I3).
GRAPH      A graph that may replay a launch has buffers for all its tokens (I2, I13), and none of
           two tokens a row or more replays a plain launch.
ATTENTION  No row attends beyond the slots it may own.
CARRIES    Outside SPEC a decode launch has no `spec_info`, in SPEC each has its phase's (I1a);
           PLAIN_DECODE captures what the stash keeps (I16).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import z3

from spec_fsm import laws
from spec_fsm.launch_laws import FIXED_WIDTH
from spec_fsm.modes import Hidden, Mode, Phase, SpecInfo
from spec_fsm_model.symbolic import Z3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spec_fsm.ops import Term

SPECULATIVE = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND)


class AnyShape(NamedTuple):
    """A `Shape` of integers that are not known."""

    topk: Term = z3.Int("k")
    num_steps: Term = z3.Int("s")
    num_draft_tokens: Term = z3.Int("d")
    page_size: Term = z3.Int("page")

    @property
    def plans_window(self) -> Term:
        """`laws.window_planned` of these."""
        return laws.window_planned(self, Z3)


SHAPE = AnyShape()
ROWS = z3.Int("b")
GIVEN = (laws.possible(SHAPE, Z3), ROWS >= 1)
"""What is known of the sizes: a draft can have them, and there is a row."""


class Law(NamedTuple):
    """One obligation: a law's name, what it is about, and the term to be shown."""

    name: str
    at: str
    holds: Term


def shape_laws() -> Iterator[Law]:
    """The obligations about sizes; no table is in them."""
    for phase in FIXED_WIDTH:
        yield from _dense(phase)
        yield _reserve(phase)
        yield from _graph(phase)
        committed = z3.Int("committed")
        seen = laws.attention_len(phase, committed, SHAPE)
        owned = committed + laws.alloc_len(SHAPE, Z3)
        yield Law("ATTENTION", phase.name, seen <= owned)
    yield from _dense_prefill()
    window = laws.window_slots(1, SHAPE, Z3)
    dense = laws.window_slots(ROWS, SHAPE, Z3) == ROWS * window
    yield Law("DENSE", "DRAFT, the verify window", dense)
    yield Law("RESERVE", "DRAFT, the verify window", window <= _need())
    yield Law("RESERVE", "two launches", laws.reserve(SHAPE, Z3) >= 2 * _need())
    for phase in (Phase.VERIFY, Phase.DRAFT_EXTEND):
        for law in (laws.tokens, laws.slots):
            plain, left = law(Phase.PLAIN_DECODE, ROWS, SHAPE), law(phase, ROWS, SHAPE)
            yield Law("CRASH", f"{law.__name__} of {phase.name}", left > plain)


def _need() -> Term:
    return laws.alloc_len(SHAPE, Z3)


def _dense(phase: Phase) -> Iterator[Law]:
    for law in (laws.tokens, laws.slots):
        equal = law(phase, ROWS, SHAPE) == ROWS * law(phase, 1, SHAPE)
        yield Law("DENSE", f"{law.__name__} of {phase.name}", equal)


def _dense_prefill() -> Iterator[Law]:
    width = z3.Int("width")
    for law in (laws.tokens, laws.slots):
        equal = law(Phase.PREFILL, ROWS, SHAPE, width) == width * law(Phase.PREFILL, 1, SHAPE, 1)
        yield Law("DENSE", f"{law.__name__} of PREFILL", equal)


def _reserve(phase: Phase) -> Law:
    return Law("RESERVE", phase.name, laws.slots(phase, 1, SHAPE) <= _need())


def _graph(phase: Phase) -> Iterator[Law]:
    width, rows = z3.Ints("width rows")
    fits = laws.graph_fits(phase, ROWS, SHAPE, (phase, width, rows), Z3)
    held = laws.tokens(phase, ROWS, SHAPE) <= width * rows
    yield Law("GRAPH", f"{phase.name} fits its buffers", Z3.imp(fits, held))
    if phase is Phase.PLAIN_DECODE:
        yield Law("GRAPH", "a plain launch is one token wide", Z3.imp(fits, width == 1))


def carried(allowed: Mapping[Mode, frozenset[Phase]]) -> Iterator[Law]:
    """CARRIES, for a mode x phase matrix."""
    for mode in Mode:
        for phase in sorted(allowed[mode] & {*SPECULATIVE, Phase.PLAIN_DECODE}):
            bare = laws.spec_info(phase) is SpecInfo.NONE
            right = bare is (mode is not Mode.SPEC)
            yield Law("CARRIES", f"{phase.name} in {mode.name}", z3.BoolVal(right))
    full = laws.hidden(Phase.PLAIN_DECODE) is Hidden.FULL
    yield Law("CARRIES", "the stash", z3.BoolVal(full))


__all__ = ["GIVEN", "ROWS", "SHAPE", "AnyShape", "Law", "carried", "shape_laws"]
