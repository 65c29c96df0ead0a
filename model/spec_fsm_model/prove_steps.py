"""Every edge of a table as a step of a scene; see `prove_edges` for what an event may bring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import z3

from spec_fsm._rules import RowState
from spec_fsm.modes import LEAVING, Event, Mode, Phase
from spec_fsm_model.prove_edges import (
    TRUE,
    Step,
    gap_of_all,
    nothing_flies,
    oldest_after,
    unchanged,
)
from spec_fsm_model.prove_launches import Launches
from spec_fsm_model.prove_support import gap
from spec_fsm_model.symbolic import Z3, Sat, Scene, Stage, scene, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm._table import Edge
    from spec_fsm.ops import Term

NOTHING = RowState(0, 0, 0, 0, 0, 0)
_NOTED = (Event.ADMITTED, Event.FILTERED, Event.MERGED)
_SET = ("width", "slice_width", "dwell")
# The server does these in its own modes; no other mode needs an edge for them.
_ONLY_IN = {
    Event.DRAINED: (Mode.DRAINING,),
    Event.RESEEDED: (Mode.RESEEDING,),
    Event.RESEED_FAILED: (Mode.RESEEDING,),
    Event.SLICE_DONE: (Mode.RESEEDING,),
    Event.FLUSHED: (Mode.PLAIN,),
    Event.STASH_DROPPED: (Mode.PLAIN, Mode.RESEEDING),
}


class Steps(Launches):
    """Makes the steps of `rules`."""

    def of(self, mode: Mode, event: Event) -> Iterator[Step]:
        """All ways the edge of `event` in `mode` is followed; none if there is no such edge."""
        edge = self._edge(mode, event)
        if edge is not None:
            yield from self.along(edge)

    def along(self, edge: Edge) -> Iterator[Step]:
        """All ways an edge is followed."""
        event = edge.event
        if event is Event.LAUNCHED:
            yield from self._launches(edge)
        elif event in (Event.SETTLED, Event.DECODED):
            yield self._settled(edge) if event is Event.SETTLED else self._decoded(edge)
        elif event in (Event.FLUSHED, Event.SLICE_DONE):
            yield self._flushed(edge)
        elif event is Event.STASH_DROPPED:
            yield from (self._dropped(edge, other) for other in (False, True))
        elif event in (Event.PREFILLED, Event.PREFILLED_CHUNK):
            yield from (self._prefilled(edge, other) for other in (False, True))
        elif event in LEAVING:
            yield from (self._left(edge, other) for other in (False, True))
        elif event is Event.RESEEDED:
            yield from (self._reseeded(edge, sat_out) for sat_out in (False, True))
        else:
            yield _OTHERS.get(event, Steps._mode_event)(self, edge)

    # -- the mode, the operator, the batch ------------------------------------------------

    def _mode_event(self, edge: Edge) -> Step:
        """LOAD_ROSE, LOAD_FELL and RESEED_FAILED, and what is only noted: they bring nothing."""
        before, a, after = self._begin(edge)
        row = before.row
        launched = self._on_row(edge, before.state, row.launched, a)
        after = replace(after, row=select(row.running, row._replace(launched=launched), row))
        fact = edge.event in (*_NOTED, Event.RESEED_FAILED)
        guards = self._guards(edge, before.state, a)
        return Step(
            edge.event, "", before, after, a, [], guards, edge, happened=TRUE if fact else None
        )

    def _drained(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r = before.state, before.row
        launched = self._on_row(edge, s, r.launched, a)
        row = r._replace(launched=launched, settled=self._on_row(edge, s, r.settled, a))
        after = replace(after, row=select(r.running, row, r))
        happened = nothing_flies(before)
        promises = {"DRAINED IS IDLE": unchanged(before, after)}
        guards = self._guards(edge, s, a)
        return Step(edge.event, "", before, after, a, [], guards, edge, happened, promises)

    def _reseeded(self, edge: Edge, sat_out: bool) -> Step:
        before, a, after = self._begin(edge)
        s, r = before.state, before.row
        row = r._replace(launched=self._on_row(edge, s, r.launched, a))
        if sat_out:
            row = r._replace(sat=z3.IntVal(Sat.RESEED))
        after = replace(after.at(edge.target, Stage.IN_RESEED), row=select(r.running, row, r))
        kept = z3.And(r.running, z3.Not(r.counted))
        promises = {
            "SLICE FITS": Z3.imp(kept, gap(before) <= s.slice_width),
            "MATRIX": self._allows(edge.source, Phase.FLUSH, Phase.SEED_EXTEND),
        }
        happened, contract = gap_of_all(before) <= s.slice_width, [r.sat == Sat.NO]
        guards, variant = self._guards(edge, s, a), "sat out" if sat_out else ""
        return Step(
            edge.event, variant, before, after, a, contract, guards, edge, happened, promises
        )

    def _cache_flushed(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        happened = z3.And(z3.Not(before.row.running), before.others == 0)
        promises, guards = {"CACHE": happened}, self._guards(edge, before.state, a)
        return Step(edge.event, "", before, after, a, [], guards, edge, happened, promises)

    def _weights(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        launched = self._on_row(edge, s, r.launched, a)
        needs = z3.And(r.running, r.launched.seeded == 0, r.sat != Sat.RESEED)
        promises = {"OLD WEIGHTS": Z3.imp(needs, launched.lost == 1)}
        if edge.row_effect is None:
            # Nothing is stashed where rows are not to forget: no row becomes lost.
            contract = [a.lost == 0, a.oldest == s.oldest]
            return Step(edge.event, "", before, after, a, contract, guards, edge, TRUE, promises)
        newly = z3.And(r.running, r.launched.lost == 0, launched.lost == 1)
        more = z3.Int("others that are lost now")
        idle = nothing_flies(before)
        row = r._replace(
            launched=launched,
            settled=select(idle, self._on_row(edge, s, r.settled, a), r.settled),
            counted=z3.Or(r.counted, newly),
            point=z3.If(newly, Z3.max(r.base, s.f_launched), r.point),
            lost_at=z3.If(newly, s.t_launched, r.lost_at),
            forgot=z3.If(newly, True, r.forgot),
        )
        forget = z3.Store(before.flights.forget, s.t_launched, 1 + edge.source)
        after = replace(
            after,
            row=select(r.running, row, r),
            flights=before.flights._replace(forget=select(idle, before.flights.forget, forget)),
            others_lost=before.others_lost + more,
        )
        contract = [
            more >= 0,
            more <= before.others - before.others_lost,
            a.lost == more + z3.If(newly, 1, 0),
            *oldest_after(before, after, a),
        ]
        return Step(edge.event, "", before, after, a, contract, guards, edge, TRUE, promises)

    # -- requests -------------------------------------------------------------------------

    def _prefilled(self, edge: Edge, other: bool) -> Step:
        before, a, after = self._begin(edge)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        contract = [a.length >= 1]
        joins = edge.event is Event.PREFILLED
        if other:
            known = z3.Bool("the other row decodes")
            contract += [a.known == z3.If(known, 1, 0), Z3.imp(known, before.others >= 1)]
            others = before.others + z3.If(known, 0, 1) if joins else before.others
            after, happened = replace(after, others=others), z3.Not(known)
        else:
            reserved = z3.Int("reserved now")
            contract += [a.known == z3.If(r.running, 1, 0), reserved >= a.length]
            row = self._on_row(edge, s, r.launched._replace(reserved=reserved), a)
            new = r._replace(launched=row, settled=row)
            if joins:
                new = new._replace(
                    running=True,
                    base=s.t_launched,
                    counted=False,
                    sat=0,
                    flying=0,
                    rebuilt=False,
                    forgot=False,
                )
            # A row that decodes already is left as it is: the guard has to refuse it.
            after, happened = replace(after, row=select(r.running, r, new)), z3.Not(r.running)
        variant = "another row" if other else ""
        return Step(edge.event, variant, before, after, a, contract, guards, edge, happened)

    def _left(self, edge: Edge, other: bool) -> Step:
        before, a, after = self._begin(edge)
        r = before.row
        if other:
            known, lost = z3.Bools("the_other_decodes the_other_is_lost")
            kept = before.others - before.others_lost
            contract = [
                Z3.imp(lost, z3.And(known, before.others_lost >= 1)),
                Z3.imp(z3.And(known, z3.Not(lost)), kept >= 1),
            ]
            after = replace(
                after,
                others=before.others - z3.If(known, 1, 0),
                others_lost=before.others_lost - z3.If(lost, 1, 0),
            )
        else:
            known, lost, contract = r.running, z3.And(r.running, r.counted), []
            gone = r._replace(
                running=False,
                counted=False,
                sat=0,
                flying=0,
                rebuilt=False,
                launched=NOTHING,
                settled=NOTHING,
            )
            after = replace(after, row=gone)
        contract += [a.known == z3.If(known, 1, 0), a.lost == z3.If(lost, 1, 0)]
        contract += oldest_after(before, after, a)
        guards = self._guards(edge, before.state, a)
        variant, happened = "another row" if other else "", TRUE
        return Step(edge.event, variant, before, after, a, contract, guards, edge, happened)


_OTHERS = {
    Event.DRAINED: Steps._drained,
    Event.CACHE_FLUSHED: Steps._cache_flushed,
    Event.WEIGHTS_CHANGED: Steps._weights,
}


def can_happen(steps: Steps, mode: Mode, event: Event) -> list[Step]:
    """The ways an event without an edge could happen: as if it had one, without guard or effect."""
    if event in _ONLY_IN and mode not in _ONLY_IN[event]:
        return []
    some = next(iter(steps.rules.edges.values()))
    bare = replace(
        some, source=mode, event=event, target=mode, guards=(), effects=(), row_effect=None
    )
    return [step for step in steps.along(bare) if step.happened is not None]


def initial() -> tuple[Scene, list[Term]]:
    """A server that was just started, and what is known of it."""
    start = scene(Mode.SPEC, Stage.BOUNDARY)
    s, r = start.state, start.row
    zeros = [t for name, t in zip(s._fields, s, strict=True) if name not in _SET]
    zeros += [*r.launched, *r.settled, r.base, r.sat, r.flying, r.point, r.lost_at]
    f = start.flights
    zeros += [start.others, start.others_lost, f.reseeds, f.plain, f.speculative]
    facts = [*(z == 0 for z in zeros), z3.Not(r.running), z3.Not(r.counted), z3.Not(r.rebuilt)]
    sizes = start.sizes
    chosen = [s.width >= 2, s.slice_width >= 2, s.dwell >= 0, sizes.num_draft_tokens >= 2]
    laws = [sizes.need >= sizes.num_draft_tokens, sizes.ahead >= 0]
    laws.append(sizes.reserve >= (sizes.ahead + 1) * sizes.need)
    return start, [*facts, *chosen, *laws]


__all__ = ["NOTHING", "Steps", "can_happen", "initial"]
