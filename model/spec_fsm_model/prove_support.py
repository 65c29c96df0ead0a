"""The clauses the induction of the claims leans on, and what a scene says of its row.

None is a promise of its own.  They say how the row, the counters and the launches in flight belong
together; `model prove` shows that none is idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import z3

from spec_fsm._rules import max_gap
from spec_fsm.modes import Mode
from spec_fsm_model.symbolic import Z3, Sat, Scene, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm.ops import Term

TICK = z3.Int("tick")
SPECULATES = (Mode.SPEC, Mode.DRAINING)


@dataclass(frozen=True)
class Clause:
    """One conjunct of the invariant.

    claim: whether it is a promise by itself; else it is there because the induction of another
    clause leans on it.  term: what it says of a scene, and for flights of a tick.  reserved:
    whether it counts on RESERVE, so that no proof of another clause may lean on it.
    """

    name: str
    says: str
    claim: bool
    term: Callable[[Scene, Term], Term]
    reserved: bool = False


def conjuncts(term: Any) -> list[Any]:
    """The conjuncts of a term; those of an implication's right side, each under its left."""
    if term is True:
        return []
    if isinstance(term, bool):
        return [z3.BoolVal(term)]
    if z3.is_and(term):
        return [c for child in term.children() for c in conjuncts(child)]
    if z3.is_implies(term):
        left, right = term.children()
        return [z3.Implies(left, part) for part in conjuncts(right)]
    return [] if z3.is_true(term) else [term]


def gap(s: Scene) -> Term:
    """The row's gap as the shared counters have it: `max_gap`, were the row the oldest."""
    return max_gap(Z3, s.state._replace(oldest=s.row.base))


def settled_gap(s: Scene) -> Term:
    """The row's gap in the settled view, as `Ledger.settled_gap` has it (a test compares them)."""
    r, f = s.row, s.state.f_settled
    reached = z3.If(r.counted, Z3.min(f, r.point), f)
    return Z3.max(0, s.state.t_settled - Z3.max(r.base, reached))


def plain_flying(s: Scene) -> Term:
    """Plain launches in flight that hold the row."""
    last = s.state.t_launched - z3.If(s.row.sat == Sat.PLAIN, 1, 0)
    return last - Z3.max(s.row.base, s.state.t_settled)


def takes(s: Scene, tick: Term) -> Term:
    """The plain launch of `tick` holds the row; for launches that are in flight."""
    sat = z3.And(s.row.sat == Sat.PLAIN, tick == s.state.t_launched)
    return z3.And(s.row.running, s.row.base < tick, z3.Not(sat))


def alive(s: Scene, tick: Term) -> Term:
    """The row was not lost when the plain launch of `tick` was issued."""
    r = s.row
    weights = z3.And(r.forgot, tick == r.lost_at)
    return z3.Or(z3.Not(r.counted), tick < r.lost_at, weights)


# -- the clauses ---------------------------------------------------------------------------


def _flags(s: Scene, _: Term) -> Term:
    r = s.row
    flags = (r.launched.seeded, r.launched.lost, r.settled.seeded, r.settled.lost)
    ranges = [z3.Or(f == 0, f == 1) for f in (*flags, s.flights.reseeds)]
    return z3.And(*ranges, r.sat >= 0, r.sat <= 2)


def _settings(s: Scene, _: Term) -> Term:
    # StashConfig's, and that the reserve is what `prove_laws` shows it to be.
    n = s.sizes
    return z3.And(
        s.state.width >= 2,
        s.state.slice_width >= 2,
        s.state.dwell >= 0,
        n.num_draft_tokens >= 2,
        n.need >= n.num_draft_tokens,
        n.ahead >= 0,
        n.reserve >= (n.ahead + 1) * n.need,
    )


def _one_reserve(s: Scene, _: Term) -> Term:
    return s.row.launched.reserved == s.row.settled.reserved


def _others(s: Scene, _: Term) -> Term:
    return z3.And(s.others_lost >= 0, s.others_lost <= s.others)


def _no_row(s: Scene, _: Term) -> Term:
    r = s.row
    nothing = z3.And(r.sat == Sat.NO, r.flying == 0, z3.Not(r.rebuilt), z3.Not(r.counted))
    return Z3.imp(z3.Not(r.running), nothing)


def _none_lost(s: Scene, _: Term) -> Term:
    return s.state.lost == 0 if s.mode is Mode.RESEEDING else True


def _flying(s: Scene, _: Term) -> Term:
    r = s.row
    joined_since = z3.And(r.base == s.state.t_launched, r.flying < s.state.unsettled)
    reseeds = z3.And(s.flights.reseeds == 1, r.running, r.sat != Sat.RESEED)
    launched = s.stage is Stage.IN_RESEED or s.flights.reseeds == 1
    return z3.And(
        r.flying >= 0,
        r.flying <= s.state.unsettled,
        s.flights.reseeds <= s.state.unsettled,
        Z3.imp(r.sat == Sat.RESEED, launched),
        Z3.imp(r.rebuilt, z3.And(s.flights.reseeds == 1, r.flying >= 1)),
        Z3.imp(z3.And(reseeds, z3.Not(r.rebuilt)), joined_since),
    )


def _spec_point(s: Scene, _: Term) -> Term:
    return Z3.imp(s.state.unsettled > 0, s.flights.spec_point == s.state.f_launched)


def _fresh(s: Scene, _: Term) -> Term:
    x = s.state
    seeds = x.seed_settled == x.seed_launched
    if s.mode not in SPECULATES:
        return seeds
    if s.stage is Stage.IN_RESEED:
        return True
    same = z3.And(x.t_settled == x.t_launched, x.f_settled == x.f_launched, seeds)
    return Z3.imp(s.flights.reseeds == 0, same)


def _full_stash(s: Scene, _: Term) -> Term:
    views = (s.row.launched, s.row.settled)
    return Z3.imp(
        s.row.running, z3.And(*(Z3.imp(v.seeded == 1, v.stashed == v.committed) for v in views))
    )


def _stages(s: Scene, _: Term) -> Term:
    if s.stage is Stage.BOUNDARY:
        return True
    if s.stage is Stage.IN_PLAIN:
        return s.mode not in SPECULATES
    return z3.And(s.mode is Mode.SPEC, s.state.unsettled == 0, s.row.sat != Sat.PLAIN)


def _views(s: Scene, _: Term) -> Term:
    r = s.row
    apart = r.launched.committed - r.settled.committed
    sat = z3.And(r.base < s.state.t_launched, s.flights.plain > 0, r.launched.seeded == 0)
    sat = Z3.imp(r.sat == Sat.PLAIN, sat)
    return Z3.imp(r.running, z3.And(apart == plain_flying(s), apart >= 0, sat))


def _settled_seeded(s: Scene, _: Term) -> Term:
    r, x = s.row, s.state
    kept = z3.And(r.running, z3.Or(z3.Not(r.counted), x.t_settled < r.lost_at))
    seed = Z3.max(r.base, x.seed_settled) >= x.t_settled
    return Z3.imp(kept, (r.settled.seeded == 1) == seed)


def _settled_lost(s: Scene, _: Term) -> Term:
    r = s.row
    lost = z3.And(r.counted, s.state.t_settled >= r.lost_at)
    return Z3.imp(r.running, (r.settled.lost == 1) == lost)


def _lost_point(s: Scene, _: Term) -> Term:
    r = s.row
    outgrown = s.state.width < r.lost_at - r.point
    said = z3.And(
        r.launched.seeded == 0,
        r.base <= r.point,
        r.point <= Z3.max(r.base, s.state.f_launched),
        r.lost_at <= s.state.t_launched,
        r.base < r.lost_at,
        z3.Or(z3.And(r.forgot, r.lost_at <= s.newest), z3.And(z3.Not(r.forgot), outgrown)),
    )
    return Z3.imp(z3.And(r.running, r.counted), said)


def _last_point(s: Scene, _: Term) -> Term:
    if s.mode in SPECULATES:
        return True
    middle = s.flights.plain > 0 if s.stage is Stage.IN_PLAIN else True
    return z3.And(s.point_at(s.newest) == s.state.f_launched, middle)


def _points(s: Scene, tick: Term) -> Term:
    point = s.point_at(tick)
    there = z3.And(s.state.t_settled <= tick, tick <= s.newest)
    return Z3.imp(there, z3.And(point <= tick, point <= s.state.f_launched))


def _flushes(s: Scene, tick: Term) -> Term:
    before, lower = s.point_at(tick - 1), z3.Select(s.flights.lower, tick)
    flush = z3.Select(s.flights.flush, tick)
    carried = Z3.ite(flush != 0, Z3.max(before, tick - lower), before)
    there = z3.And(s.state.t_settled < tick, tick <= s.newest)
    said = z3.And(flush >= 0, flush <= 2, Z3.imp(flush != 0, lower >= 0))
    return Z3.imp(there, z3.And(s.point_at(tick) == carried, said))


def _fitted(s: Scene, tick: Term) -> Term:
    wide = tick - Z3.max(s.row.base, s.point_at(tick - 1))
    there = z3.And(s.state.t_settled < tick, tick <= s.newest)
    return Z3.imp(z3.And(there, takes(s, tick), alive(s, tick)), wide <= s.state.width)


def _forgets(s: Scene, tick: Term) -> Term:
    # Weights changed when `tick` was newest.  A row this did not lose took no plain step since.
    r, forget = s.row, z3.Select(s.flights.forget, tick)
    there = z3.And(s.state.t_settled < tick, tick <= s.newest)
    spared = z3.And(r.running, z3.Or(z3.Not(r.counted), tick < r.lost_at), forget != 0)
    lost = z3.And(r.running, r.counted, r.forgot, tick == r.lost_at)
    drops = [forget == 1 + mode for mode in (Mode.PLAIN, Mode.RESEEDING)]
    return z3.And(
        Z3.imp(z3.And(there, spared), r.base >= tick),
        Z3.imp(z3.And(there, lost), z3.Or(*drops)),
    )


def _lost_points(s: Scene, tick: Term) -> Term:
    r = s.row
    reached = Z3.max(r.base, s.point_at(tick))
    there = z3.And(s.state.t_settled <= tick, tick <= s.newest, r.running, r.counted)
    # The launch that loses a row to the stash writes nothing of it any more, weights lose it later.
    last = r.lost_at - z3.If(r.forgot, 0, 1)
    before = Z3.imp(tick < r.lost_at, reached <= r.point)
    after = Z3.imp(tick >= r.lost_at, reached >= r.point)
    return Z3.imp(there, z3.And(before, after, Z3.imp(tick == last, reached == r.point)))


SUPPORT = (
    Clause("flags", "Flags are 0 or 1.", False, _flags),
    Clause("settings", "Settings are in range and do not change.", False, _settings),
    Clause("one reserve", "Both views own the same slots.", False, _one_reserve),
    Clause("others", "Of the other rows no more are lost than live.", False, _others),
    Clause("no row", "A request that does not decode is in no flight.", False, _no_row),
    Clause("none lost", "In RESEEDING no row is lost.", False, _none_lost),
    Clause("flying", "Who is in a speculative flight.", False, _flying),
    Clause("spec point", "Speculation leaves the flush point.", False, _spec_point),
    Clause("fresh", "With the reseed settled, so is all it wrote.", False, _fresh),
    Clause("full stash", "Rows that speculate need no stash.", False, _full_stash),
    Clause("stages", "A launch is its mode's, a reseed's comes next.", False, _stages),
    Clause("views", "The views are as far apart as what is in flight.", False, _views),
    Clause("settled seeded", "Seeds in the settled view.", False, _settled_seeded),
    Clause("settled lost", "Losses in the settled view.", False, _settled_lost),
    Clause("lost point", "To where a lost row is covered.", False, _lost_point),
    Clause("last point", "The newest launch has the newest point.", False, _last_point),
    Clause("points", "Flush points never fall.", False, _points),
    Clause("flushes", "A flight's point is its flush's.", False, _flushes),
    Clause("fitted", "A row in flight was not outgrown.", False, _fitted),
    Clause("forgets", "Weights that changed in flight.", False, _forgets),
    Clause("lost points", "Flush points around a loss.", False, _lost_points),
)
"""The clauses that are there for the others."""

__all__ = [
    "SPECULATES",
    "SUPPORT",
    "TICK",
    "Clause",
    "conjuncts",
    "gap",
    "plain_flying",
    "settled_gap",
    "takes",
]
