"""The reading of `spec_fsm.ops` over z3 terms, and what the prover moves: a scene of symbols.

A scene is a server at one moment, seen from one row.  The row is arbitrary: what is proved of it
is proved of each.  That is sound because a row effect reads nothing rows share but the width of
the stash (`rules.Table` enforces it), and because the other rows act on the shared counters only
by numbers a scene has: how many decode, how many of them are lost, and the tick of the oldest that
is not, of which the row knows that it is no later than its own.  A step about another row takes it
from these numbers; that it is there, and lost or not, is all that is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import z3

from spec_fsm._rules import Arg, RowState, State

if TYPE_CHECKING:
    from spec_fsm.modes import Mode
    from spec_fsm.ops import Ops, Term


class _Z3Ops:
    """The vocabulary over z3 terms; plain integers and truth values may be mixed in."""

    __slots__ = ()

    def all(self, *terms: Term) -> Term:
        return z3.And(*terms)

    def any(self, *terms: Term) -> Term:
        return z3.Or(*terms)

    def not_(self, term: Term) -> Term:
        return z3.Not(term)

    def imp(self, left: Term, right: Term) -> Term:
        return z3.Implies(left, right)

    def ite(self, condition: Term, then: Term, other: Term) -> Term:
        return z3.If(condition, then, other)

    def max(self, left: Term, right: Term) -> Term:
        return z3.If(left >= right, left, right)

    def min(self, left: Term, right: Term) -> Term:
        return z3.If(left <= right, left, right)

    def eq(self, left: Term, right: Term) -> Term:
        return left == right

    def div(self, left: Term, right: Term) -> Term:
        return left / right  # of integers; rounds down, as the divisor is positive


Z3: Ops = _Z3Ops()


class Stage(IntEnum):
    """Where in an act of the server a scene stands.

    A plain launch is several edges: LAUNCHED, STASH_DROPPED for each row whose gap the launch made
    too wide, and FLUSHED or SLICE_DONE.  A reseed is two: RESEEDED, then LAUNCHED.  Between them
    less holds than before and after.
    """

    BOUNDARY = 0
    """Between two acts."""
    IN_PLAIN = 1
    """A plain launch was issued; rows may have to be dropped, and it may carry a flush."""
    IN_RESEED = 2
    """RESEEDED; the speculative launch that carries it comes next."""


class Sat(IntEnum):
    """Whether the row sat out a plain launch or a reseed, which is then the newest launch.

    It leaves next.  A speculative launch changes nothing of a row that sits it out.
    """

    NO = 0
    PLAIN = 1
    RESEED = 2


class SymbolicRow(NamedTuple):
    """The row.

    running: it decodes.  base: tick at which it joined.  counted: it is on the books as lost.
    sat: see Sat.  flying: speculative launches in flight that hold it, some of those there are.
    rebuilt: one of them is the one that reseeded.  point, lost_at: once it is counted, the tick it
    is covered to and the tick of the newest launch then.  forgot: it was lost to new weights, not
    to the width of the stash.  launched, settled: its two views.
    """

    running: Term
    base: Term
    counted: Term
    sat: Term
    flying: Term
    rebuilt: Term
    point: Term
    lost_at: Term
    forgot: Term
    launched: RowState
    settled: RowState


class Flights(NamedTuple):
    """Launches in flight, any number of them; the arrays are read at the tick of a plain launch.

    plain, speculative: how many of each there are.  point: flush point after it.  flush: 0, or
    which edge's flush it carries (1 FLUSHED, 2 SLICE_DONE).  lower: the ages below this one that
    flush leaves missing.  forget: 0, or one more than the mode in which new weights came while it
    was the newest.  reseeds: 1 if the oldest speculative launch in flight reseeded.  spec_point:
    flush point of the speculative ones in flight.
    """

    plain: Term
    speculative: Term
    point: Term
    flush: Term
    lower: Term
    forget: Term
    reseeds: Term
    spec_point: Term


@dataclass(frozen=True)
class Sizes:
    """A `Shape` of symbols.  need, reserve: `alloc_len` and `reserve`, as symbols of their own.

    ahead: results, at most, that are not processed yet when a decode launch is issued; the reserve
    is what they and that launch need.  It is 1 for `laws.reserve` (`prove_laws`, RESERVE).
    """

    topk: Term
    num_steps: Term
    num_draft_tokens: Term
    page_size: Term
    need: Term
    reserve: Term
    ahead: Term


@dataclass(frozen=True)
class Scene:
    """A server at one moment: mode and stage are given, the rest are terms.

    others, others_lost: rows that decode besides the row, and how many of them are lost.
    """

    mode: Mode
    stage: Stage
    state: State
    row: SymbolicRow
    flights: Flights
    others: Term
    others_lost: Term
    sizes: Sizes

    def at(self, mode: Mode, stage: Stage) -> Scene:
        """The same terms in another mode and stage."""
        return replace(self, mode=mode, stage=stage)

    def point_at(self, tick: Term) -> Term:
        """The flush point after the plain launch of `tick`, which settled last or is in flight."""
        settled = tick == self.state.t_settled
        return z3.If(settled, self.state.f_settled, z3.Select(self.flights.point, tick))

    @property
    def newest(self) -> Term:
        """Tick of the newest plain launch that is complete, with the flush it carries."""
        return self.state.t_launched - (1 if self.stage is Stage.IN_PLAIN else 0)


def _ints(kind: Any, prefix: str = "") -> Any:
    return kind(*(z3.Int(f"{prefix}{name}") for name in kind._fields))


def scene(mode: Mode, stage: Stage) -> Scene:
    """A scene in which everything is free."""
    row = SymbolicRow(
        running=z3.Bool("running"),
        base=z3.Int("base"),
        counted=z3.Bool("counted"),
        sat=z3.Int("sat"),
        flying=z3.Int("flying"),
        rebuilt=z3.Bool("rebuilt"),
        point=z3.Int("point"),
        lost_at=z3.Int("lost_at"),
        forgot=z3.Bool("forgot"),
        launched=_ints(RowState, "launched."),
        settled=_ints(RowState, "settled."),
    )
    ticks = z3.IntSort()
    flights = Flights(
        plain=z3.Int("plain_in_flight"),
        speculative=z3.Int("speculative_in_flight"),
        point=z3.Array("point of", ticks, ticks),
        flush=z3.Array("flush of", ticks, ticks),
        lower=z3.Array("lower of", ticks, ticks),
        forget=z3.Array("forget of", ticks, ticks),
        reseeds=z3.Int("reseeds"),
        spec_point=z3.Int("spec_point"),
    )
    names = ("topk", "num_steps", "num_draft_tokens", "page_size", "need", "reserve", "ahead")
    sizes = Sizes(*(z3.Int(name) for name in names))
    others, others_lost = z3.Ints("others others_lost")
    return Scene(mode, stage, _ints(State), row, flights, others, others_lost, sizes)


def arg() -> Arg:
    """What an event brings, all of it free."""
    free: Arg = _ints(Arg, "arg.")
    return free


def select(condition: Term, then: Any, other: Any) -> Any:
    """`then` where the condition holds, else `other`, for records of terms."""
    if isinstance(then, tuple):
        return type(then)(*(select(condition, a, b) for a, b in zip(then, other, strict=True)))
    return then if then is other else z3.If(condition, then, other)


__all__ = [
    "Z3",
    "Flights",
    "Sat",
    "Scene",
    "Sizes",
    "Stage",
    "SymbolicRow",
    "arg",
    "scene",
    "select",
]
