"""The lifecycle's table: every edge, guard and effect is named here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from spec_fsm.modes import Event, Mode, Phase

_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_E = Event


@dataclass(frozen=True, slots=True)
class Edge:
    """One legal (source, event) pair and what it does."""

    source: Mode
    event: Event
    target: Mode
    guards: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    row_effect: str | None = None


def _everywhere(
    event: Event, guards: tuple[str, ...], effects: tuple[str, ...], row_effect: str | None
) -> tuple[Edge, ...]:
    """The same edge in each mode, staying there."""
    return tuple(Edge(m, event, m, guards, effects, row_effect) for m in Mode)


_IN_FLIGHT_SPEC = ("SPECULATIVE_IN_FLIGHT",)
_IN_FLIGHT_PLAIN = ("PLAIN_IN_FLIGHT",)

EDGES: tuple[Edge, ...] = (
    # -- the mode ------------------------------------------------------------------------
    Edge(_SPEC, _E.LOAD_ROSE, _DRAINING, ("DWELL_OVER",)),
    Edge(_DRAINING, _E.DRAINED, _PLAIN, ("NOTHING_UNSETTLED",), ("COVER_ALL",), "ROW_COVER"),
    Edge(_DRAINING, _E.LOAD_FELL, _SPEC),
    Edge(_PLAIN, _E.LOAD_FELL, _RESEEDING, ("DWELL_OVER", "REBUILDABLE")),
    Edge(_RESEEDING, _E.SLICE_DONE, _RESEEDING, ("REACHES_OLDEST",), ("COVER_SLICE",), "ROW_FLUSH"),
    Edge(_RESEEDING, _E.RESEEDED, _SPEC, ("REST_FITS",), ("SEED_ALL",), "ROW_SEED"),
    Edge(_RESEEDING, _E.LOAD_ROSE, _PLAIN),
    Edge(_RESEEDING, _E.RESEED_FAILED, _PLAIN),
    # -- launches and results ------------------------------------------------------------
    *_everywhere(_E.LAUNCHED, ("ALLOWED",), ("LAUNCH",), None),
    Edge(_SPEC, _E.SETTLED, _SPEC, _IN_FLIGHT_SPEC, ("SETTLE",), "ROW_ACCEPT"),
    Edge(_DRAINING, _E.SETTLED, _DRAINING, _IN_FLIGHT_SPEC, ("SETTLE",), "ROW_ACCEPT"),
    *_everywhere(_E.DECODED, _IN_FLIGHT_PLAIN, ("SETTLE_PLAIN",), "ROW_DECODE"),
    Edge(_PLAIN, _E.FLUSHED, _PLAIN, ("REACHES_OLDEST",), ("COVER_SLICE",), "ROW_FLUSH"),
    Edge(_PLAIN, _E.STASH_DROPPED, _PLAIN, ("OUTGROWN",), ("ROW_LOST",), "ROW_LOSE"),
    # -- membership ----------------------------------------------------------------------
    *_everywhere(_E.ADMITTED, ("NEW_ROW",), (), None),
    *_everywhere(_E.PREFILLED_CHUNK, ("NEW_ROW",), (), "ROW_CHUNK"),
    *_everywhere(_E.PREFILLED, ("NEW_ROW",), ("ROW_IN",), "ROW_PREFILL"),
    *_everywhere(_E.FILTERED, (), (), None),
    *_everywhere(_E.MERGED, (), (), None),
    *_everywhere(_E.FINISHED, (), ("ROW_OUT",), None),
    *_everywhere(_E.RETRACTED, (), ("ROW_OUT",), None),
    *_everywhere(_E.ABORTED, (), ("ROW_OUT",), None),
    # -- what the drafts and the stash were made from ------------------------------------
    *_everywhere(_E.CACHE_FLUSHED, ("NO_ROWS",), (), None),
    Edge(_SPEC, _E.WEIGHTS_CHANGED, _SPEC),
    Edge(_DRAINING, _E.WEIGHTS_CHANGED, _DRAINING),
    Edge(_PLAIN, _E.WEIGHTS_CHANGED, _PLAIN, (), ("ROW_LOST",), "ROW_FORGET_STASH"),
    Edge(_RESEEDING, _E.WEIGHTS_CHANGED, _PLAIN, (), ("ROW_LOST",), "ROW_FORGET_STASH"),
)

REFUSALS: dict[tuple[Mode, Event], str] = {
    (_SPEC, _E.LOAD_FELL): "speculation is on already",
    (_SPEC, _E.DRAINED): "nothing is being drained",
    (_SPEC, _E.SLICE_DONE): "no row has a gap",
    (_SPEC, _E.RESEEDED): "no row has a gap",
    (_SPEC, _E.RESEED_FAILED): "nothing is being reseeded",
    (_SPEC, _E.FLUSHED): "no row has a gap",
    (_SPEC, _E.STASH_DROPPED): "nothing is stashed",
    (_DRAINING, _E.LOAD_ROSE): "speculation is being turned off already",
    (_DRAINING, _E.SLICE_DONE): "no row has a gap",
    (_DRAINING, _E.RESEEDED): "no row has a gap",
    (_DRAINING, _E.RESEED_FAILED): "nothing is being reseeded",
    (_DRAINING, _E.FLUSHED): "no row has a gap",
    (_DRAINING, _E.STASH_DROPPED): "nothing is stashed",
    (_PLAIN, _E.LOAD_ROSE): "speculation is off already",
    (_PLAIN, _E.DRAINED): "nothing is being drained",
    (_PLAIN, _E.SLICE_DONE): "slices belong to RESEEDING; a flush in PLAIN is FLUSHED",
    (_PLAIN, _E.RESEEDED): "seeds are made in RESEEDING",
    (_PLAIN, _E.RESEED_FAILED): "nothing is being reseeded",
    (_PLAIN, _E.SETTLED): "a speculative result after the drain would have been missed by it",
    (_RESEEDING, _E.LOAD_FELL): "speculation is being turned on already",
    (_RESEEDING, _E.DRAINED): "nothing is being drained",
    (_RESEEDING, _E.SETTLED): "a speculative result after the drain would have been missed by it",
    (_RESEEDING, _E.FLUSHED): "a flush in RESEEDING is a slice: SLICE_DONE",
    (_RESEEDING, _E.STASH_DROPPED): "a slice frees more than the step that carries it adds",
}

_EVERY_MODE = frozenset({Phase.PREFILL, Phase.IDLE})
# A flush of a draft with several layers is a draft extend with the shape of a seed extend.
_OFF = _EVERY_MODE | {Phase.PLAIN_DECODE, Phase.FLUSH, Phase.SEED_EXTEND}
_ON = _EVERY_MODE | {Phase.DRAFT, Phase.VERIFY, Phase.DRAFT_EXTEND}

ALLOWED: dict[Mode, frozenset[Phase]] = {
    _SPEC: _ON,
    _DRAINING: _EVERY_MODE,
    _PLAIN: _OFF,
    _RESEEDING: _OFF,
}

EDGE_OF: dict[tuple[Mode, Event], Edge] = {(e.source, e.event): e for e in EDGES}

__all__ = ["ALLOWED", "EDGES", "EDGE_OF", "REFUSALS", "Edge"]
