"""The words of the lifecycle: modes, events, phases, pins and what a launch carries.

Names follow SGLang's (`spec_info`, hidden capture NULL / LAST / FULL).  Every member has one
sentence.  The members are small ints wherever the hot path indexes a table with them.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum, unique


@unique
class Mode(IntEnum):
    """Which kind of decode launch the server issues."""

    SPEC = 0
    """Decode batches draft, verify and draft-extend; every row's draft KV is complete."""
    DRAINING = 1
    """No decode launch is issued until every speculative result in flight has settled."""
    PLAIN = 2
    """Decode batches run the target alone, one token a row; gaps in the draft KV grow."""
    RESEEDING = 3
    """Plain decoding goes on while slices of the missing draft KV are written."""


@unique
class Event(IntEnum):
    """Something that happened.  The first six may change the mode, the rest move the ledger."""

    LOAD_ROSE = 0
    """The load is above what speculation pays for, or the operator pinned PLAIN."""
    LOAD_FELL = 1
    """The load is low enough to speculate, or the operator pinned SPEC."""
    DRAINED = 2
    """The last speculative result in flight has settled and a decode batch waits."""
    SLICE_DONE = 3
    """A plain launch of RESEEDING carried one slice of the missing draft KV."""
    RESEEDED = 4
    """The rest of the gaps and the seed of every row were enqueued, ahead of the first draft."""
    RESEED_FAILED = 5
    """The engine could not rebuild the draft KV or the seed."""
    ADMITTED = 6
    """A request received its row; nothing of it is computed yet."""
    PREFILLED_CHUNK = 7
    """A chunk of a prompt, not its last, went through target and draft."""
    PREFILLED = 8
    """The last chunk of a prompt went through target and draft: the row can decode."""
    LAUNCHED = 9
    """One forward launch was issued."""
    SETTLED = 10
    """The result of a speculative launch was processed: accepted drafts plus one bonus token."""
    DECODED = 11
    """The result of a plain launch was processed: one token a row."""
    FLUSHED = 12
    """Missing draft KV was written from the stash, from the oldest gap up to an age."""
    STASH_DROPPED = 13
    """A row's gap outgrew the stash: its draft KV can no longer be rebuilt from it."""
    FILTERED = 14
    """Rows left the batch tensors; the rows that stay keep their order."""
    MERGED = 15
    """Rows of another batch were appended to the batch tensors."""
    FINISHED = 16
    """A request ended by itself (stop token, stop string, length)."""
    RETRACTED = 17
    """A request was pushed back to the queue and gave its slots back."""
    ABORTED = 18
    """A request was ended from outside."""
    CACHE_FLUSHED = 19
    """The prefix cache was emptied; only legal while no row lives."""
    WEIGHTS_CHANGED = 20
    """New weights were loaded: stashed hidden states belong to the old ones."""


@unique
class Phase(IntEnum):
    """One kind of launch."""

    PREFILL = 0
    """Target prefill of whole prompts or chunks (the draft's own prefill rides on it)."""
    MIXED = 1
    """A prefill launch with running rows appended (SGLang's mixed chunk)."""
    DRAFT = 2
    """The draft model proposes a chain or a tree."""
    VERIFY = 3
    """The target scores every drafted token of every row."""
    DRAFT_EXTEND = 4
    """The draft model ingests what was accepted and yields the next seed."""
    PLAIN_DECODE = 5
    """The target decodes one token a row."""
    FLUSH = 6
    """Missing draft KV is written from stashed hidden states."""
    SEED_EXTEND = 7
    """A draft extend from the stash: over the last position, to make the seed of the first draft
    again, or over a slice of a gap where the draft has several layers."""
    IDLE = 8
    """A launch without rows."""


@unique
class Pin(StrEnum):
    """What the operator asks for."""

    AUTO = "AUTO"
    """The load decides."""
    SPEC = "SPEC"
    """Speculate at any load."""
    PLAIN = "PLAIN"
    """Decode plainly at any load."""


@unique
class SpecInfo(IntEnum):
    """The class of a launch's `spec_info`."""

    NONE = 0
    """No `spec_info`: the launch is an ordinary one."""
    DRAFT = 1
    """`EagleDraftInput`, also the relay a batch carries between steps."""
    VERIFY = 2
    """`EagleVerifyInput`."""
    DRAFT_EXTEND = 3
    """`EagleDraftExtendInput`."""


@unique
class Hidden(IntEnum):
    """Which hidden states a launch captures; the values of SGLang's `CaptureHiddenMode`."""

    NULL = 0
    """None."""
    LAST = 1
    """That of each row's last token."""
    FULL = 2
    """Those of all tokens."""


@unique
class Action(IntEnum):
    """What a decode batch is to do."""

    SPECULATE = 0
    """Draft, verify, draft extend."""
    PLAIN = 1
    """One plain token a row, perhaps with a flush."""
    RESEED = 2
    """Flush the rest of the gaps, make every seed, then draft, verify, draft extend."""


MODE_EVENTS = tuple(e for e in Event if e <= Event.RESEED_FAILED)
LEDGER_EVENTS = tuple(e for e in Event if e > Event.RESEED_FAILED)
LEAVING = frozenset({Event.FINISHED, Event.RETRACTED, Event.ABORTED})

__all__ = [
    "LEAVING",
    "LEDGER_EVENTS",
    "MODE_EVENTS",
    "Action",
    "Event",
    "Hidden",
    "Mode",
    "Phase",
    "Pin",
    "SpecInfo",
]
