"""The invariants: what each says, which reported bugs it excludes, and who is able to check it.

Laws are stated at a boundary (a result was processed, the next batch is not chosen yet) or for
one launch, and for b > 0.  The ids are used in code, model, tests and docs.

Three kinds of predicates stand below the list.  All are pure and written over `(ops, ...)` like
the table's rules, so that the run time, a search and a solver read the same text:

- over one row's figures (I5, I8, I14);
- over the shared counters (ORDER, WITHIN_STASH, COVERED): what makes the lazy ledger right;
- over a few integers an engine has at hand (I4, I6, I9, I13, I15, I17).

`Checks` counts how often each was evaluated, because a check that never ran proves nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from spec_fsm._rules import RowState, State, max_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spec_fsm.ops import Ops, Term

LAUNCH = "every launch, before it is issued (Lifecycle.check_launch)"
PLAN = "every decode plan outside SPEC (Lifecycle.plan_decode)"
AUDIT = "rows the engine hands to Lifecycle.audit"
ENGINE = "the engine, on its own figures or tensors"
GPU = "the engine, where graphs are replayed"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant.

    bugs: public reports it excludes (SG SGLang, VL vLLM, TR TensorRT-LLM, LC llama.cpp).
    checked: who is able to check it while serving; the formal model and the tests come on top.
    """

    id: str
    says: str
    bugs: tuple[str, ...]
    checked: tuple[str, ...]


def _i(invariant: str, says: str, bugs: str, *checked: str) -> tuple[str, Invariant]:
    return invariant, Invariant(invariant, says, tuple(bugs.split()), checked)


INVARIANTS: Mapping[str, Invariant] = dict(
    (
        _i("matrix", "The mode allows the launch's phase.", "SG#13804 TR#16888 VL#53420", LAUNCH),
        _i(
            "I1a",
            "A plain launch has spec_info None, a speculative one never has.",
            "SG#13804 VL#28558 VL#30916 TR#8076",
            LAUNCH,
        ),
        _i(
            "I1b",
            "Between steps the batch carries the relay EagleDraftInput in every mode; in PLAIN "
            "only its bonus_tokens mean anything.",
            "SG#13804 SG#2730",
            ENGINE,
        ),
        _i(
            "I2",
            "Tokens launched are tokens(phase), and a graph that replays them was captured for "
            "that phase and width and for at least b rows.",
            "SG#13804 SG#22832 SG#21709 VL#51510 VL#46399 VL#48494 TR#15022",
            LAUNCH,
            GPU,
        ),
        _i("I3", "len(out_cache_loc) is slots(phase).", "SG#26201 SG#6874 SG#17349", LAUNCH),
        _i(
            "I4",
            "Slots are conserved: available + evictable + protected + owned is the pool.",
            "SG#2711 SG#27789 SG#7111 SG#7130 SG#24055 TR#16448 sglang-jax#1147",
            ENGINE,
        ),
        _i(
            "I5",
            "committed <= reserved <= row width.",
            "SG#13741 SG#26354 SG#18780 SG#29516 TR#16280 sglang-jax#1147",
            AUDIT,
            ENGINE,
        ),
        _i(
            "I6",
            "A slot has one owner, and a row owns the positions [cache-protected, reserved).",
            "SG#35049 SG#25805 TR#15251",
            ENGINE,
        ),
        _i(
            "I7",
            "Every row-aligned field has b rows, in request order, and they are the rows that "
            "joined.",
            "SG#18984 SG#2939 SG#2711 SG#2730 SG#24215 VL#52071",
            PLAN,
            ENGINE,
        ),
        _i(
            "I8",
            "In SPEC at a boundary covered == committed, and every row is seeded.",
            "SG#11215 SG#21125 SG#28771 VL#49548 VL#53420 VL#52873 VL#41838 TR#16888",
            AUDIT,
        ),
        _i("I9", "seq_lens == committed.", "LC#26478 LC#21815", ENGINE),
        _i(
            "I10",
            "No launch issued after a request left touches its slots; the one in flight may, is "
            "never committed, and is stream-ordered before the next owner.",
            "SG#29449 SG#23456 SG#35049",
            ENGINE,
        ),
        _i(
            "I11",
            "All ranks agree on mode and width.",
            "SG#29144 SG#32527 SG#35898 SG#28616",
            ENGINE,
        ),
        _i(
            "I12",
            "Padding rows are reset before a replay.",
            "SG#18984 SG#15399 SG#10892 SG#28569 SG#29858",
            GPU,
        ),
        _i(
            "I13",
            "Graph buffers hold the batch.",
            "SG#26354 SG#30549 SG#28569 SG#22832 SG#37531 VL#32591",
            GPU,
        ),
        _i(
            "I14",
            "In PLAIN and RESEEDING, for every row that is not lost and took a plain step, "
            "stashed <= min(covered, committed - 1).",
            "VL#53420 TR#16888",
            AUDIT,
        ),
        _i(
            "I15",
            "No position beyond covered is inserted into the prefix cache, and a flush never "
            "writes a slot the tree owns or a request has given back.",
            "SG#21125 SG#28771 VL#41838",
            ENGINE,
        ),
        _i("I16", "The hidden-state capture is the phase's.", "SG#26163", LAUNCH),
        _i(
            "I17",
            "The token launched for a row is its last output token, never -1.",
            "SG#13804",
            ENGINE,
        ),
        _i("I18", "seq_lens, seq_lens_cpu and seq_lens_sum agree, or are None.", "", ENGINE),
        _i(
            "I19",
            "A grammar's cursor stands at committed.",
            "SG#24283 SG#15050 VL#30916",
            ENGINE,
        ),
    )
)

# -- over one row's figures ---------------------------------------------------------------


def _within_reserve(ops: Ops, r: RowState) -> Term:
    return ops.all(r.covered >= 0, r.covered <= r.committed, r.committed <= r.reserved)


def _complete(ops: Ops, r: RowState) -> Term:
    return ops.all(ops.eq(r.covered, r.committed), ops.eq(r.seeded, 1), ops.eq(r.lost, 0))


def _rebuildable(ops: Ops, r: RowState) -> Term:
    # A seeded row took no plain step since: it needs no state to be seeded again.
    enough = r.stashed <= ops.min(r.covered, r.committed - 1)
    return ops.any(ops.eq(r.lost, 1), ops.eq(r.seeded, 1), enough)


RowPredicate: TypeAlias = "Callable[[Ops, RowState], Term]"
ROW_PREDICATES: Mapping[str, RowPredicate] = {
    "I5": _within_reserve,
    "I8": _complete,
    "I14": _rebuildable,
}

# -- over the shared counters -------------------------------------------------------------


def _ordered(ops: Ops, s: State) -> Term:
    # A result settles after its launch, and a seed is a flush point too.
    return ops.all(
        s.t_settled <= s.t_launched,
        s.f_launched <= s.t_launched,
        s.f_settled <= s.f_launched,
        s.seed_launched <= s.f_launched,
        s.seed_settled <= s.f_settled,
        s.oldest <= s.t_launched,
        s.lost >= 0,
        s.lost <= s.rows,
        s.unsettled >= 0,
    )


def _within_stash(ops: Ops, s: State) -> Term:
    # A row whose gap outgrew the stash is lost, and no longer the oldest.
    return max_gap(ops, s) <= s.width


def _covered(ops: Ops, s: State) -> Term:
    # I8 for all rows at once; holds in SPEC and DRAINING.
    return ops.all(
        ops.eq(s.lost, 0),
        ops.eq(s.f_launched, s.t_launched),
        ops.eq(s.seed_launched, s.t_launched),
    )


StatePredicate: TypeAlias = "Callable[[Ops, State], Term]"
STATE_PREDICATES: Mapping[str, StatePredicate] = {
    "ORDER": _ordered,
    "WITHIN_STASH": _within_stash,
    "COVERED": _covered,
}

# -- over a few integers an engine has at hand --------------------------------------------


def slots_conserved(ops: Ops, cached: Term, owned: Term, available: Term, pool: Term) -> Term:
    """I4: cached (evictable and protected), owned by rows, and available slots are the pool."""
    return ops.eq(cached + owned + available, pool)


def slot_owned(ops: Ops, position: Term, protected: Term, reserved: Term) -> Term:
    """I6: a row may write the slot of `position`: not the cache's, and reserved."""
    return ops.all(protected <= position, position < reserved)


def lengths_agree(ops: Ops, seq_len: Term, committed: Term) -> Term:
    """I9: a row's length is what it committed."""
    return ops.eq(seq_len, committed)


def buffers_hold(_: Ops, rows: Term, captured: Term) -> Term:
    """I13: the graph was captured for at least as many rows."""
    return rows <= captured


def insertion_covered(_: Ops, inserted: Term, covered: Term) -> Term:
    """I15: the prefix cache receives no position the draft KV does not cover."""
    return inserted <= covered


def token_is_last(ops: Ops, token: Term, last: Term) -> Term:
    """I17: the token launched is the row's last output token, and not the placeholder -1."""
    return ops.all(token >= 0, ops.eq(token, last))


# -- counting -----------------------------------------------------------------------------

LAUNCH_IDS = ("matrix", "I1a", "I16", "I2", "I3")
KEPT_DETAILS = 100


class Checks:
    """Counts evaluations and violations by invariant id."""

    __slots__ = ("_counts", "details", "launches", "plans", "violations")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.details: list[str] = []
        self.launches = 0
        """Launches checked; each evaluates all of LAUNCH_IDS, counted once here for speed."""
        self.plans = 0
        """Decode plans; each evaluates I7."""

    def count(self, invariant: str, times: int = 1) -> None:
        """`invariant` was evaluated `times` times."""
        self._counts[invariant] += times

    def violated(self, invariant: str, detail: str) -> None:
        """`invariant` did not hold; the first hundred details are kept."""
        self.violations[invariant] += 1
        if len(self.details) < KEPT_DETAILS:
            self.details.append(f"{invariant}: {detail}")

    def evaluated(self, invariant: str) -> int:
        """How often `invariant` was evaluated."""
        bulk = self.launches if invariant in LAUNCH_IDS else 0
        return self._counts[invariant] + bulk + (self.plans if invariant == "I7" else 0)

    def as_dict(self) -> dict[str, int]:
        """Evaluations by id, zeros included."""
        return {invariant: self.evaluated(invariant) for invariant in INVARIANTS}


__all__ = [
    "INVARIANTS",
    "KEPT_DETAILS",
    "LAUNCH_IDS",
    "ROW_PREDICATES",
    "STATE_PREDICATES",
    "Checks",
    "Invariant",
    "buffers_hold",
    "insertion_covered",
    "lengths_agree",
    "slot_owned",
    "slots_conserved",
    "token_is_last",
]
