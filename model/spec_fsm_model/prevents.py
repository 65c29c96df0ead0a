"""What would go wrong without each event, mode, phase and guard of the table.

For a phase no mode allows it is what would go wrong with it.  The table says what is; this says
what for.  A test holds the names here equal to those the table
has, and every report to one that `bugs` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spec_fsm.modes import Event, Mode, Phase


class Without(NamedTuple):
    """harm: what happens without it.  invariants: those it keeps, by id (their reports are its)."""

    harm: str
    invariants: tuple[str, ...]


def _w(harm: str, invariants: str) -> Without:
    return Without(harm, tuple(invariants.split()))


_LEFT = "the row would stay counted, keep its slots, and be part of launches after its end"

EVENTS: Mapping[Event, Without] = {
    Event.LOAD_ROSE: _w(
        "speculation would go on under load, or be cut off with its results still in flight: the "
        "next plain launch then carries the spec_info of a speculative one",
        "I1a I1b I2 I3",
    ),
    Event.LOAD_FELL: _w(
        "speculation would never come back, or come back over draft KV that was not written",
        "I8 I14",
    ),
    Event.DRAINED: _w(
        "rows would decode plainly before their accept lengths are known",
        "I9 I7 I10",
    ),
    Event.SLICE_DONE: _w(
        "gaps would have to be written in one long step, or a slice would count for more than it "
        "wrote",
        "I8 I14",
    ),
    Event.RESEEDED: _w(
        "the first draft would start from the seed of a position that is long past",
        "I8 matrix",
    ),
    Event.RESEED_FAILED: _w(
        "a draft KV that could not be rebuilt would count as rebuilt, or be tried at every step",
        "I8",
    ),
    Event.ADMITTED: _w("a row would hold slots that nobody counts", "I4 I6"),
    Event.PREFILLED_CHUNK: _w(
        "a chunk would count as a prompt that is complete, and its row as one that can decode",
        "I5 I15",
    ),
    Event.PREFILLED: _w(
        "a row would decode whose draft KV, seed or place among the rows nobody has set",
        "I7 I8",
    ),
    Event.LAUNCHED: _w(
        "a launch of one mode would go out in another: its graph, slots and spec_info are of the "
        "wrong width",
        "matrix I1a I2 I3 I16",
    ),
    Event.SETTLED: _w(
        "accepted tokens would be committed to the wrong rows, or without the launch they belong "
        "to",
        "I5 I9 I10",
    ),
    Event.DECODED: _w(
        "the position a plain step adds would not count as missing in the draft KV",
        "I8 I9 I14",
    ),
    Event.FLUSHED: _w(
        "gaps would grow until the stash has lost what they need",
        "I14 I15",
    ),
    Event.STASH_DROPPED: _w(
        "a gap would be rebuilt from hidden states that were overwritten",
        "I8 I14",
    ),
    Event.FILTERED: _w("rows of a batch and rows of its spec_info would be out of step", "I7"),
    Event.MERGED: _w("rows of a batch and rows of its spec_info would be out of step", "I7 I1b"),
    Event.FINISHED: _w(_LEFT, "I4 I6 I7 I10 I15"),
    Event.RETRACTED: _w(_LEFT, "I4 I6 I7 I10 I15"),
    Event.ABORTED: _w(_LEFT, "I4 I6 I7 I10 I15"),
    Event.CACHE_FLUSHED: _w(
        "the prefix cache would give away slots that living rows read",
        "I4 I6",
    ),
    Event.WEIGHTS_CHANGED: _w(
        "draft KV of the new weights would be made from hidden states of the old ones",
        "I8 I14",
    ),
}

MODES: Mapping[Mode, Without] = {
    Mode.SPEC: _w("nothing would say that every row's draft KV is complete and seeded", "I8"),
    Mode.DRAINING: _w(
        "with overlap one speculative result is in flight when the decision falls; a plain launch "
        "on top of it would not know the lengths of its rows",
        "I9 I7 I10",
    ),
    Mode.PLAIN: _w(
        "'off' would still pay for a draft forward, or leave spec_info of the round before on the "
        "batch",
        "I1a I2 I3 I14",
    ),
    Mode.RESEEDING: _w(
        "speculation would come back over holes in the draft KV, with no error and few accepted "
        "drafts",
        "I8 I14",
    ),
}

PHASES: Mapping[Phase, Without] = {
    Phase.PREFILL: _w("a prompt would enter without draft KV", "I8 I16"),
    Phase.MIXED: _w(
        "running rows would pass the stash, and keep the slots of a wider step",
        "I3 I14",
    ),
    Phase.DRAFT: _w("a draft outside SPEC would start from a stale seed", "matrix I8"),
    Phase.VERIFY: _w("a verify outside SPEC would replay a graph of another width", "matrix I2"),
    Phase.DRAFT_EXTEND: _w("accepted tokens would have no draft KV", "matrix I8"),
    Phase.PLAIN_DECODE: _w("a plain decode in SPEC would open a gap nobody counts", "I1a I8"),
    Phase.FLUSH: _w("a flush in SPEC or DRAINING would write what is there already", "I15"),
    Phase.SEED_EXTEND: _w("a seed would be made from a position that is not the last", "I8 I14"),
    Phase.IDLE: _w("a rank without rows would skip a launch the others wait in", "I11"),
}

GUARDS: Mapping[str, Without] = {
    "DWELL_OVER": _w("a load that swings around the threshold would switch at every step", "I8"),
    "NOTHING_UNSETTLED": _w("the drain would end with accept lengths still unknown", "I9 I10"),
    "REBUILDABLE": _w(
        "a rebuild would start that cannot end: the stash no longer holds what it needs",
        "I14",
    ),
    "REST_FITS": _w(
        "rows would count as covered whose gap was too wide for the launch, or lost", "I8"
    ),
    "REACHES_OLDEST": _w("a flush would leave a hole below the positions it writes", "I8"),
    "OUTGROWN": _w("a row would be given up although its gap can be rebuilt", "I14"),
    "ALLOWED": _w("a launch of one mode would go out in another", "matrix I1a I2"),
    "SPECULATIVE_IN_FLIGHT": _w("a result would settle that nothing was launched for", "I10"),
    "PLAIN_IN_FLIGHT": _w("a result would settle that nothing was launched for", "I10"),
    "NEW_ROW": _w("one request would be counted as two rows", "I7"),
    "NO_ROWS": _w("the prefix cache would give away slots that living rows read", "I6"),
}

__all__ = ["EVENTS", "GUARDS", "MODES", "PHASES", "Without"]
