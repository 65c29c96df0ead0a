"""Launches and results as steps of a scene; see `prove_edges` for what an event may bring."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import z3

from spec_fsm._rules import Arg
from spec_fsm.invariants import STATE_PREDICATES
from spec_fsm.modes import Event, Mode, Phase
from spec_fsm_model.prove_edges import TRUE, Reading, Step, gap_of_all, oldest_after
from spec_fsm_model.symbolic import Z3, Sat, Scene, Stage, SymbolicRow, arg, scene, select

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm._rules import State
    from spec_fsm._table import Edge
    from spec_fsm.ops import Term

SPECULATIVE = (Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND)
FLUSHES = {1: (Mode.PLAIN, Event.FLUSHED), 2: (Mode.RESEEDING, Event.SLICE_DONE)}
"""Edges whose flush a plain launch may carry, by the number `Flights.flush` has for them."""


class Launches(Reading):
    """The steps of LAUNCHED, STASH_DROPPED, the flushes, SETTLED and DECODED."""

    def ends(self, mode: Mode) -> Iterator[Step]:
        """A plain launch of `mode` that carries no flush ends; RESEEDING has none (SLICE)."""
        if mode is Mode.PLAIN:
            before = scene(mode, Stage.IN_PLAIN)
            after = self._close(before, before.state, 0, 0)
            contract = [STATE_PREDICATES["WITHIN_STASH"](Z3, before.state)]
            yield Step(None, "", before, after, arg(), contract, {})

    # -- launches -------------------------------------------------------------------------

    def _launches(self, edge: Edge) -> Iterator[Step]:
        yield self._launch(edge, "prefill", (Phase.PREFILL,), Stage.BOUNDARY)
        yield self._launch(edge, "plain", (Phase.PLAIN_DECODE,), Stage.BOUNDARY)
        yield self._launch(edge, "plain, sat out", (Phase.PLAIN_DECODE,), Stage.BOUNDARY)
        yield self._launch(edge, "speculative", SPECULATIVE, Stage.BOUNDARY)
        yield self._launch(edge, "speculative, sat out", SPECULATIVE, Stage.BOUNDARY)
        yield self._launch(edge, "reseed", SPECULATIVE, Stage.IN_RESEED)

    def _launch(self, edge: Edge, kind: str, phases: tuple[Phase, ...], stage: Stage) -> Step:
        before, a, after = self._begin(edge, stage)
        plain, speculative = int(kind.startswith("plain")), int(phases is SPECULATIVE)
        reserve = TRUE
        allowed = z3.If(self._allows(edge.source, *phases), 1, 0)
        contract = [a.allowed == allowed, a.plain == plain, a.speculative == speculative]
        if plain or speculative:
            reseed = stage is Stage.IN_RESEED
            reserve = before.flights.plain + before.flights.speculative <= before.sizes.ahead
            if not reseed:  # who sits that out does so already
                contract.append(before.row.sat == Sat.NO)
            row, flights = before.row, before.flights
            topped = self._topped(before)
            if "sat out" in kind:
                topped = self._sits_out(row) if plain else row
                contract.append(row.running)
            elif plain:
                decode = self._edge(edge.source, Event.DECODED)
                launched = self._on_row(decode, after.state, topped.launched, Arg())
                topped = topped._replace(launched=launched)
            else:
                held = topped._replace(flying=row.flying + 1, rebuilt=z3.Or(row.rebuilt, reseed))
                topped = select(row.sat == Sat.NO, held, row)
            flights = flights._replace(
                plain=flights.plain + plain, speculative=flights.speculative + speculative
            )
            if speculative:
                reseeds = 1 if reseed else flights.reseeds
                flights = flights._replace(spec_point=after.state.f_launched, reseeds=reseeds)
            row = select(before.row.running, topped, before.row)
            then = Stage.IN_PLAIN if plain else Stage.BOUNDARY
            after = replace(after.at(edge.target, then), row=row, flights=flights)
        guards = self._guards(edge, before.state, a)
        happened = TRUE if self._planned(edge.source, kind) else None
        promises = {}
        if stage is Stage.IN_RESEED:
            promises["RESEED FIRST"] = before.flights.speculative == 0
        made = Step(edge.event, kind, before, after, a, contract, guards, edge, happened, promises)
        return replace(made, reserve=reserve)

    @staticmethod
    def _planned(mode: Mode, kind: str) -> bool:
        """Whether the server launches this in a mode: a decode launch is its mode's."""
        if kind == "prefill":
            return True
        if kind.startswith("plain"):
            return mode in (Mode.PLAIN, Mode.RESEEDING)
        return mode is Mode.SPEC

    @staticmethod
    def _sits_out(r: SymbolicRow) -> SymbolicRow:
        """The row sits a plain launch out; the counters count it as one more that has no seed."""
        return r._replace(sat=z3.IntVal(Sat.PLAIN), launched=r.launched._replace(seeded=0))

    @staticmethod
    def _topped(s: Scene) -> Any:
        """The row with the slots a decode launch may need (RESERVE)."""
        r = s.row
        reserved = Z3.max(r.settled.reserved, r.settled.committed + s.sizes.reserve)
        return r._replace(
            launched=r.launched._replace(reserved=reserved),
            settled=r.settled._replace(reserved=reserved),
        )

    def _dropped(self, edge: Edge, other: bool) -> Step:
        before, a, after = self._begin(edge, Stage.IN_PLAIN)
        after = after.at(edge.target, Stage.IN_PLAIN)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        if other:
            contract = [before.others - before.others_lost >= 1]
            after = replace(after, others_lost=before.others_lost + 1)
        else:
            contract = [r.running, z3.Not(r.counted), r.base == s.oldest]
            row = r._replace(
                launched=self._on_row(edge, s, r.launched, a),
                counted=True,
                point=Z3.max(r.base, s.f_launched),
                lost_at=s.t_launched,
                forgot=False,
            )
            after = replace(after, row=row)
        contract += [a.lost == 1, *oldest_after(before, after, a)]
        happened = z3.Not(STATE_PREDICATES["WITHIN_STASH"](Z3, s))
        variant = "another row" if other else ""
        return Step(edge.event, variant, before, after, a, contract, guards, edge, happened)

    def _flushed(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge, Stage.IN_PLAIN)
        s, r = before.state, before.row
        guards = self._guards(edge, s, a)
        contract = [STATE_PREDICATES["WITHIN_STASH"](Z3, s)]
        if edge.source is Mode.RESEEDING:
            contract.append(a.lower <= Z3.max(0, gap_of_all(before) - 2))
        held = z3.And(r.running, r.sat != Sat.PLAIN)
        row = r._replace(launched=self._on_row(edge, s, r.launched, a))
        after = replace(after, row=select(held, row, r))
        kind = 1 if edge.event is Event.FLUSHED else 2
        closed = self._close(after, after.state, kind, a.lower)
        kept = z3.And(held, r.launched.lost == 0)
        hole = r.launched.committed - a.upper <= r.launched.covered
        matrix = self._allows(edge.source, Phase.FLUSH, Phase.SEED_EXTEND)
        planned = z3.And(a.upper == gap_of_all(before), *self._ages(edge.source, s, a))
        return Step(
            edge.event,
            "",
            before,
            closed,
            a,
            contract,
            guards,
            edge,
            planned,
            {"NO HOLE": Z3.imp(kept, hole), "MATRIX": matrix},
        )

    @staticmethod
    def _ages(mode: Mode, s: State, a: Arg) -> list[Term]:
        """What a plan leaves missing: nothing in PLAIN, all but one slice in RESEEDING.

        There it may leave nothing, too, and make the seeds, or the one age that is left for the
        launch that does (`StashConfig.seed_ahead`).
        """
        if mode is Mode.PLAIN:
            return [a.lower == 0]
        rest = Z3.max(0, a.upper - s.slice_width)
        return [z3.Or(a.lower == rest, z3.And(a.upper > 2, a.lower == Z3.max(1, rest)))]

    @staticmethod
    def _close(s: Scene, state: State, kind: int, lower: Term) -> Scene:
        """The plain launch is complete: it is in flight, with its flush and its point."""
        f, tick = s.flights, state.t_launched
        flights = f._replace(
            point=z3.Store(f.point, tick, state.f_launched),
            flush=z3.Store(f.flush, tick, kind),
            lower=z3.Store(f.lower, tick, lower),
            forget=z3.Store(f.forget, tick, 0),
        )
        return replace(s.at(s.mode, Stage.BOUNDARY), state=state, flights=flights)

    # -- results --------------------------------------------------------------------------

    def _settled(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r, f = before.state, before.row, before.flights
        cover = self._edge(Mode.RESEEDING, Event.RESEEDED)
        carried = self._on_row(cover, s, r.settled, Arg())
        settled = select(f.reseeds == 1, carried, r.settled)
        row = r._replace(
            launched=self._on_row(edge, s, r.launched, a),
            settled=self._on_row(edge, s, settled, a),
            flying=r.flying - 1,
            rebuilt=False,
        )
        held = z3.Bool("the result is the row's too")
        flights = f._replace(reseeds=z3.IntVal(0), speculative=f.speculative - 1)
        after = replace(after, row=select(held, row, r), flights=flights)
        contract = [
            f.plain == 0,
            r.sat == Sat.NO,
            Z3.imp(held, z3.And(r.running, r.flying > 0)),
            Z3.imp(z3.And(r.running, z3.Not(held)), r.flying <= Z3.max(0, f.speculative - 1)),
            Z3.imp(f.reseeds == 1, held == r.rebuilt),
            a.point == f.spec_point,
            a.reseed == f.reseeds,
            a.length >= 1,
            a.length <= before.sizes.num_draft_tokens,
        ]
        guards, happened = self._guards(edge, s, a), f.speculative > 0
        return Step(edge.event, "", before, after, a, contract, guards, edge, happened)

    def _decoded(self, edge: Edge) -> Step:
        before, a, after = self._begin(edge)
        s, r, f = before.state, before.row, before.flights
        tick = s.t_settled + 1
        settled = self._on_row(edge, s, r.settled, a)
        flush = z3.Select(f.flush, tick)
        brings = Arg(lower=z3.Select(f.lower, tick))
        for kind, key in FLUSHES.items():
            written = self._on_row(self._edge(*key), s, settled, brings)
            settled = select(flush == kind, written, settled)
        settled = select(r.base < tick, settled, r.settled)
        forgot = z3.Select(f.forget, tick)
        for mode in Mode:
            stale = self._on_row(self._edge(mode, Event.WEIGHTS_CHANGED), s, settled, Arg())
            settled = select(forgot == 1 + mode, stale, settled)
        row = select(r.running, r._replace(settled=settled), r)
        after = replace(after, row=row, flights=f._replace(plain=f.plain - 1))
        contract = [
            Z3.imp(r.sat == Sat.PLAIN, tick < s.t_launched),
            a.point == z3.Select(f.point, tick),
        ]
        guards, happened = self._guards(edge, s, a), f.plain > 0
        return Step(edge.event, "", before, after, a, contract, guards, edge, happened)


__all__ = ["FLUSHES", "SPECULATIVE", "Launches"]
