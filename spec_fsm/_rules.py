"""Guards and effects named by the table, as pure functions of `(ops, state, arg)`.

`State` holds the counters all rows share, `Row` one row's figures (see `ledger`), `Arg` what the
event brings.  All are integers; flags are 0 or 1, because a symbolic reading needs one sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spec_fsm.ops import Ops, Term


class State(NamedTuple):
    """The shared counters of a server; the mode is not among them (the table moves it)."""

    rows: Term
    lost: Term
    oldest: Term
    """Tick at which the oldest row that is not lost joined; `t_launched` without such a row."""
    unsettled: Term
    t_launched: Term
    t_settled: Term
    f_launched: Term
    f_settled: Term
    seed_launched: Term
    seed_settled: Term
    width: Term
    slice_width: Term
    dwell: Term
    """Boundaries of dwell or back-off left; 0 where a pin skips them."""


class Arg(NamedTuple):
    """What an event brings along; each event uses the fields its guards and effects read."""

    allowed: Term = 1
    """LAUNCHED: 1 if the mode x phase matrix allows the launch."""
    plain: Term = 0
    """LAUNCHED: 1 for a plain decode launch."""
    speculative: Term = 0
    """LAUNCHED: 1 for the decode launch of a speculative round."""
    upper: Term = 0
    """FLUSHED, SLICE_DONE: oldest age written, counting the launch that carries it."""
    lower: Term = 0
    """FLUSHED, SLICE_DONE: ages below this one stay missing."""
    point: Term = 0
    """SETTLED, DECODED: the flush point the launch was issued with."""
    reseed: Term = 0
    """SETTLED: 1 if the launch was the one that reseeded."""
    known: Term = 0
    """Membership events: 1 if the ledger has the row."""
    lost: Term = 0
    """Leaving: 1 if the row was lost.  WEIGHTS_CHANGED: rows that become lost."""
    length: Term = 0
    """PREFILLED, PREFILLED_CHUNK: positions computed.  SETTLED: accept length, bonus included."""
    oldest: Term = 0
    """Membership events: `State.oldest` after the event."""


class RowState(NamedTuple):
    """One row's figures as the rules see them; flags are 0 or 1."""

    committed: Term
    covered: Term
    stashed: Term
    seeded: Term
    lost: Term
    reserved: Term = 0


Guard: TypeAlias = "Callable[[Ops, State, Arg], Term]"
Effect: TypeAlias = "Callable[[Ops, State, Arg], State]"
RowEffect: TypeAlias = "Callable[[Ops, State, RowState, Arg], RowState]"


def max_gap(ops: Ops, s: State) -> Term:
    """Largest gap of a row that is not lost, launches in flight included."""
    return s.t_launched - ops.max(s.oldest, s.f_launched)


def unseeded(ops: Ops, s: State) -> Term:
    """Whether a row that is not lost was decoded plainly since its seed was made."""
    return ops.max(s.oldest, s.seed_launched) < s.t_launched


# -- guards -------------------------------------------------------------------------------


def _dwell_over(ops: Ops, s: State, _: Arg) -> Term:
    return ops.eq(s.dwell, 0)


def _nothing_unsettled(ops: Ops, s: State, _: Arg) -> Term:
    # The second half follows from the order of results; stating it keeps the proof local.
    return ops.all(ops.eq(s.unsettled, 0), ops.eq(s.t_settled, s.t_launched))


def _rebuildable(ops: Ops, s: State, _: Arg) -> Term:
    # One below the width: the next plain launch, which carries the first slice, adds one.
    return ops.all(ops.eq(s.lost, 0), max_gap(ops, s) < s.width)


def _rest_fits(ops: Ops, s: State, _: Arg) -> Term:
    return ops.all(ops.eq(s.lost, 0), max_gap(ops, s) <= s.slice_width)


def _reaches_oldest(ops: Ops, s: State, a: Arg) -> Term:
    # A slice that starts above the oldest gap would leave a hole below the positions it writes.
    return ops.all(a.upper >= max_gap(ops, s), a.lower >= 0, a.lower <= a.upper)


def _outgrown(ops: Ops, s: State, _: Arg) -> Term:
    return s.width < max_gap(ops, s)


def _allowed(ops: Ops, _: State, a: Arg) -> Term:
    return ops.eq(a.allowed, 1)


def _speculative_in_flight(_: Ops, s: State, __: Arg) -> Term:
    return s.unsettled > 0


def _plain_in_flight(_: Ops, s: State, __: Arg) -> Term:
    return s.t_settled < s.t_launched


def _new_row(ops: Ops, _: State, a: Arg) -> Term:
    return ops.eq(a.known, 0)


def _no_rows(ops: Ops, s: State, _: Arg) -> Term:
    return ops.eq(s.rows, 0)


GUARDS: Mapping[str, Guard] = {
    "DWELL_OVER": _dwell_over,
    "NOTHING_UNSETTLED": _nothing_unsettled,
    "REBUILDABLE": _rebuildable,
    "REST_FITS": _rest_fits,
    "REACHES_OLDEST": _reaches_oldest,
    "OUTGROWN": _outgrown,
    "ALLOWED": _allowed,
    "SPECULATIVE_IN_FLIGHT": _speculative_in_flight,
    "PLAIN_IN_FLIGHT": _plain_in_flight,
    "NEW_ROW": _new_row,
    "NO_ROWS": _no_rows,
}

# -- effects on the shared counters -------------------------------------------------------


def _seed_all(_: Ops, s: State, __: Arg) -> State:
    # The settled view follows when the launch that carries the seed settles (SETTLE).
    return s._replace(f_launched=s.t_launched, seed_launched=s.t_launched)


def _cover_slice(ops: Ops, s: State, a: Arg) -> State:
    return s._replace(f_launched=ops.max(s.f_launched, s.t_launched - a.lower))


def _launch(ops: Ops, s: State, a: Arg) -> State:
    # Without a row that is not lost `oldest` is the present tick, which moves.
    tick = s.t_launched + a.plain
    oldest = ops.ite(ops.eq(s.rows, s.lost), tick, s.oldest)
    return s._replace(t_launched=tick, unsettled=s.unsettled + a.speculative, oldest=oldest)


def _settle(ops: Ops, s: State, a: Arg) -> State:
    seed = ops.ite(ops.eq(a.reseed, 1), a.point, s.seed_settled)
    return s._replace(unsettled=s.unsettled - 1, f_settled=a.point, seed_settled=seed)


def _settle_plain(_: Ops, s: State, a: Arg) -> State:
    return s._replace(t_settled=s.t_settled + 1, f_settled=a.point)


def _row_in(_: Ops, s: State, __: Arg) -> State:
    # `oldest` stays: a join is never older than the rows here, and without one it is now already.
    return s._replace(rows=s.rows + 1)


def _row_out(_: Ops, s: State, a: Arg) -> State:
    return s._replace(rows=s.rows - a.known, lost=s.lost - a.lost, oldest=a.oldest)


def _row_lost(_: Ops, s: State, a: Arg) -> State:
    return s._replace(lost=s.lost + a.lost, oldest=a.oldest)


EFFECTS: Mapping[str, Effect] = {
    "SEED_ALL": _seed_all,
    "COVER_SLICE": _cover_slice,
    "LAUNCH": _launch,
    "SETTLE": _settle,
    "SETTLE_PLAIN": _settle_plain,
    "ROW_IN": _row_in,
    "ROW_OUT": _row_out,
    "ROW_LOST": _row_lost,
}

# -- effects on one row -------------------------------------------------------------------


def _row_chunk(_: Ops, __: State, r: RowState, a: Arg) -> RowState:
    return r._replace(committed=a.length, covered=a.length, stashed=a.length, seeded=0, lost=0)


def _row_prefill(_: Ops, __: State, r: RowState, a: Arg) -> RowState:
    return r._replace(committed=a.length, covered=a.length, stashed=a.length, seeded=1, lost=0)


def _row_accept(_: Ops, __: State, r: RowState, a: Arg) -> RowState:
    committed = r.committed + a.length
    return r._replace(committed=committed, covered=r.covered + a.length, stashed=committed)


def _row_decode(ops: Ops, s: State, r: RowState, _: Arg) -> RowState:
    committed = r.committed + 1
    outgrown = ops.any(ops.eq(r.lost, 1), s.width < committed - r.covered)
    return r._replace(
        committed=committed,
        stashed=ops.max(r.stashed, committed - s.width),
        seeded=0,
        lost=ops.ite(outgrown, 1, 0),
    )


def _row_flush(ops: Ops, _: State, r: RowState, a: Arg) -> RowState:
    grown = ops.max(r.covered, r.committed - a.lower)
    return r._replace(covered=ops.ite(ops.eq(r.lost, 1), r.covered, grown))


def _row_cover(_: Ops, __: State, r: RowState, ___: Arg) -> RowState:
    return r._replace(covered=r.committed, stashed=r.committed, seeded=1)


def _row_lose(_: Ops, __: State, r: RowState, ___: Arg) -> RowState:
    return r._replace(lost=1)


def _row_forget_stash(ops: Ops, _: State, r: RowState, __: Arg) -> RowState:
    return r._replace(lost=ops.ite(ops.all(ops.eq(r.lost, 0), ops.eq(r.seeded, 1)), 0, 1))


ROW_EFFECTS: Mapping[str, RowEffect] = {
    "ROW_CHUNK": _row_chunk,
    "ROW_PREFILL": _row_prefill,
    "ROW_ACCEPT": _row_accept,
    "ROW_DECODE": _row_decode,
    "ROW_FLUSH": _row_flush,
    "ROW_COVER": _row_cover,
    "ROW_LOSE": _row_lose,
    "ROW_FORGET_STASH": _row_forget_stash,
}

__all__ = [
    "EFFECTS",
    "GUARDS",
    "ROW_EFFECTS",
    "Arg",
    "Effect",
    "Guard",
    "RowEffect",
    "RowState",
    "State",
    "max_gap",
    "unseeded",
]
