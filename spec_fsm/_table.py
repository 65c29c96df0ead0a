"""The lifecycle's table.

Rules of this file
------------------
1. Every edge, guard and effect of the lifecycle is named here and nowhere else.  Dispatch, the
   `transitions` machine, the formal model, the diagrams and the tests read this data.  A change
   of behaviour that does not show up here is a bug.
2. This file knows no engine, no tensor and no number of a configuration.  Names are resolved in
   `_rules.py`, whose functions hold for any batch size and any draft shape.

Theory of operation
-------------------
Speculation pays while few rows decode.  Turning it off is easy, turning it on again is not: the
draft model has a KV cache of its own that is filled from the target's hidden states, and plain
steps leave holes in it.  A draft that attends to holes raises no error; its drafts are just no
longer accepted.  So the modes exist to say, at any time, how much of the draft KV is true:

    SPEC       all of it, and every row has the seed (top-k and hidden state of its last
               position) that the first draft step starts from.
    DRAINING   all of it.  With overlap scheduling one speculative result is in flight when the
               decision falls, and its accept lengths are not known yet.  No decode launch is
               issued until it has settled; then every row's length is known and DRAINED fires.
               It has no effect: all is covered until the first plain launch.
    PLAIN      a row lacks the positions it decoded since: its gap.  The hidden states of plain
               steps are stashed in a ring, so that the gap can be written later, in bulk.
    RESEEDING  gaps are being written, a slice with each plain launch, so that no step becomes
               much longer than its neighbours.  When the rest fits one slice, the rest, the
               seeds and the first draft go out as one launch: RESEEDED.  Where a launch is
               issued before the result before it is processed, the rest and the seeds may go out
               one plain launch earlier (`StashConfig.seed_ahead`).

Two kinds of events.  *Mode events* (LOAD_ROSE to RESEED_FAILED) may change the mode; they come a
few times a minute.  *Ledger events* happen in every step and move the counters and the rows.
Both are past-tense facts: an event is never a request, and one that the table refuses changes
nothing at all.

Two views of one history.  The engine launches before it has settled the previous result, so
each counter and each row exists twice: as of what was launched, and as of what was settled.  An
effect with `_launched` fields takes place at the launch; its `_settled` twin follows, first in
first out, when the result of that launch is processed.  The row effects below are the definition
of a row *in either view*: a plain launch applies ROW_DECODE (and ROW_FLUSH, if it carries a
flush) to the launched view at once and to the settled view when it settles.  `ledger.py` computes
both without touching a row, and a test holds it against these effects.

Who runs the table.  `_runner.py` follows the edges that change the mode, and the rare others, by
evaluating what is named here.  The edges of an ordinary step (LAUNCHED, SETTLED, DECODED, FLUSHED,
SLICE_DONE, the coming and going of rows) are counted by `ledger.py` in a few integer operations
instead; tests hold its counters and refusals against the guards and effects named here, on random
histories.

Guards say what must be true, not what should be done.  When a change is *wanted* is the policy's
business; DWELL_OVER is the one guard that speaks of it, so that the promise "no mode lasts
less than its dwell, unless a pin says so" is the table's too.

What is not state here
----------------------
- The load.  It is an input of the policy; the table must be right for any load.
- Which rows are in which batch, and their order.  Rows join and leave; I7 speaks of their order.
- Slots, pages, the prefix cache.  They are the engine's; the invariants say what must hold.
- Whether a graph is replayed or run eagerly: a launch is judged by its shape alone.
- Prefill results in flight.  Prefill runs target and draft alike in every mode, so it neither
  opens a gap nor has to be drained.
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_fsm.modes import Event, Mode, Phase

_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_E = Event


@dataclass(frozen=True, slots=True)
class Edge:
    """One legal (source, event) pair and what it does.

    guards: all must hold, else the event is refused.  effects: on the shared counters, applied
    in order.  row_effect: on the rows the event is about; all of them for a mode event.
    """

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

# A launch moves the launched view; what it does to a row is in the event its result settles with.
EDGES: tuple[Edge, ...] = (
    # -- the mode ------------------------------------------------------------------------
    Edge(_SPEC, _E.LOAD_ROSE, _DRAINING, ("DWELL_OVER",)),
    Edge(_DRAINING, _E.DRAINED, _PLAIN, ("NOTHING_UNSETTLED",)),
    Edge(_DRAINING, _E.LOAD_FELL, _SPEC),
    Edge(_PLAIN, _E.LOAD_FELL, _RESEEDING, ("DWELL_OVER", "REBUILDABLE")),
    Edge(_RESEEDING, _E.SLICE_DONE, _RESEEDING, ("REACHES_OLDEST",), ("COVER_SLICE",), "ROW_FLUSH"),
    Edge(_RESEEDING, _E.RESEEDED, _SPEC, ("REST_FITS",), ("SEED_ALL",), "ROW_COVER"),
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
    *_everywhere(_E.ADMITTED, (), (), None),
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

# Every other pair, and why.  Together with EDGES this is the whole grid (a test counts).
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

# The mode x phase matrix.  Mixed chunks would move running rows through the prefill path, past the
# stash, so no mode has them.  DRAINING decodes nothing.  In RESEEDING nothing is drafted: the
# drafts of the last slice's launch come after RESEEDED, in SPEC.  PLAIN has the seed extend too,
# because a draft of several layers cannot be flushed in bulk: its flush is a draft extend over
# the gap, in order, with the shape of a seed extend.
_EVERY_MODE = frozenset({Phase.PREFILL, Phase.IDLE})
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
