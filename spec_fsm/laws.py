"""Shape laws: how many tokens and slots a launch of each phase has, and what it carries.

b requests, k `topk`, s `num_steps`, d `num_draft_tokens`.  `tokens` and `slots` are two functions
because they differ: one draft step launches b*k tokens, while the draft as a whole owns b*k*s.

Like the table's rules the laws are read over plain integers and, by the formal model, over terms
that stand for any integer; where that takes more than arithmetic they have an `ops`.

Read in SGLang 0.5.23, worker V2: `speculative/eagle_worker_common.py` (prepare_for_draft,
prepare_for_draft_extend), `speculative/eagle_utils.py` (eagle_prepare_for_decode,
eagle_prepare_for_verify, the assertion b*k*s of the draft), `mem_cache/allocation_sizing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from spec_fsm.errors import ConfigError
from spec_fsm.invariants import buffers_hold
from spec_fsm.modes import Hidden, Phase, SpecInfo
from spec_fsm.ops import INT
from spec_fsm.policy import whole

if TYPE_CHECKING:
    from spec_fsm.ops import Ops, Term


class Sizes(Protocol):
    """What the laws read: a `Shape`, or terms in its place."""

    @property
    def topk(self) -> Term:
        """Branches a draft step keeps."""

    @property
    def num_steps(self) -> Term:
        """Draft steps."""

    @property
    def num_draft_tokens(self) -> Term:
        """Tokens verified a row, the root included."""

    @property
    def page_size(self) -> Term:
        """Slots a page of the KV pool."""

    @property
    def plans_window(self) -> Term:
        """See `window_planned`."""


def most_draft_tokens(topk: Term, num_steps: Term) -> Term:
    """Nodes of the largest tree: the root, k after the first step, k of each of these after it."""
    return 1 + topk + (num_steps - 1) * topk * topk


def possible(sizes: Sizes, ops: Ops = INT) -> Term:
    """Whether a draft can have these sizes: a chain verifies its steps and the root, at most."""
    d, most = sizes.num_draft_tokens, most_draft_tokens(sizes.topk, sizes.num_steps)
    counts = (sizes.topk >= 1, sizes.num_steps >= 1, sizes.page_size >= 1)
    return ops.all(*counts, d >= 2, d <= most)  # the root and one draft, at least


def window_planned(sizes: Sizes, ops: Ops = INT) -> Term:
    """Whether a draft may own the whole verify window instead of b*k*s slots.

    On CUDA SGLang gathers the slots of a chain's draft and of its verify in one launch:
    `prepare_for_draft`, `plans_window`, columns = num_draft_tokens.
    """
    return ops.all(ops.eq(sizes.topk, 1), sizes.num_draft_tokens > sizes.num_steps)


@dataclass(frozen=True, slots=True)
class Shape:
    """The speculative configuration of a server; all four are counts.

    topk: branches a draft step keeps; 1 is a chain.
    num_steps: draft steps.
    num_draft_tokens: tokens verified a row, the root included.
    page_size: slots a page of the KV pool.

    Raises ConfigError for values no draft can have, see `possible`.
    """

    topk: int
    num_steps: int
    num_draft_tokens: int
    page_size: int = 1

    def __post_init__(self) -> None:
        for name in ("topk", "num_steps", "num_draft_tokens", "page_size"):
            whole(name, getattr(self, name), 1)
        if not possible(self):
            most = most_draft_tokens(self.topk, self.num_steps)
            msg = (
                f"num_draft_tokens is {self.num_draft_tokens}: accepted are 2 to {most} "
                f"for topk {self.topk} and num_steps {self.num_steps}"
            )
            raise ConfigError(msg)

    @property
    def plans_window(self) -> bool:
        """See `window_planned`."""
        planned: bool = window_planned(self)
        return planned


_SPEC_INFO = {
    Phase.PREFILL: SpecInfo.NONE,
    Phase.MIXED: SpecInfo.NONE,
    Phase.DRAFT: SpecInfo.DRAFT,
    Phase.VERIFY: SpecInfo.VERIFY,
    Phase.DRAFT_EXTEND: SpecInfo.DRAFT_EXTEND,
    Phase.PLAIN_DECODE: SpecInfo.NONE,
    Phase.FLUSH: SpecInfo.NONE,
    Phase.SEED_EXTEND: SpecInfo.DRAFT_EXTEND,
    Phase.IDLE: SpecInfo.DRAFT,
}
_HIDDEN = {
    Phase.PREFILL: Hidden.FULL,
    Phase.MIXED: Hidden.FULL,
    Phase.DRAFT: Hidden.LAST,
    Phase.VERIFY: Hidden.FULL,
    Phase.DRAFT_EXTEND: Hidden.FULL,
    Phase.PLAIN_DECODE: Hidden.FULL,
    Phase.FLUSH: Hidden.NULL,
    Phase.SEED_EXTEND: Hidden.FULL,
    Phase.IDLE: Hidden.NULL,
}
_RAGGED = frozenset({Phase.PREFILL, Phase.MIXED, Phase.FLUSH})


def _width(phase: Phase, width: Term | None) -> Term:
    if width is None:
        msg = f"{phase.name} needs a width"
        raise ConfigError(msg, phase=phase)
    return width


def tokens(phase: Phase, b: Term, shape: Sizes, width: Term | None = None) -> Term:
    """Tokens one launch of `phase` computes for b rows (a draft: one of its s-1 steps).

    width: for PREFILL, MIXED and FLUSH, whose rows are ragged, the sum of their lengths; for
    SEED_EXTEND the width of its graph.  Raises ConfigError where it is needed and missing.
    """
    if phase is Phase.DRAFT:
        return b * shape.topk
    if phase in (Phase.VERIFY, Phase.DRAFT_EXTEND):
        return b * shape.num_draft_tokens
    if phase is Phase.PLAIN_DECODE:
        return b
    if phase is Phase.SEED_EXTEND:
        return b * _width(phase, width)
    return 0 if phase is Phase.IDLE else _width(phase, width)


def slots(phase: Phase, b: Term, shape: Sizes, width: Term | None = None) -> Term:
    """Length of `out_cache_loc` for a launch of `phase` with b rows.

    A draft owns b*k*s slots at every page size: with pages above 1 and k > 1 SGLang reserves a
    page-aligned region for each branch and then gathers it to b*k*s.  A flush writes the slots
    the rows already own again.
    """
    if phase is Phase.DRAFT:
        return b * shape.topk * shape.num_steps
    return tokens(phase, b, shape, width)


def window_slots(b: Term, shape: Sizes, ops: Ops = INT) -> Term:
    """The other accepted `out_cache_loc` length of a draft: b*d for a chain on CUDA, else b*k*s."""
    return ops.ite(shape.plans_window, b * shape.num_draft_tokens, slots(Phase.DRAFT, b, shape))


def spec_info(phase: Phase) -> SpecInfo:
    """The class of `spec_info` a launch of `phase` carries (I1a)."""
    return _SPEC_INFO[phase]


def hidden(phase: Phase) -> Hidden:
    """The hidden-state capture of a launch of `phase` (I16); PLAIN_DECODE is FULL for the stash."""
    return _HIDDEN[phase]


def attention_len(phase: Phase, committed: Term, shape: Sizes, width: Term | None = None) -> Term:
    """`seq_lens` of one row as attention sees it, in positions; 0 where no attention runs.

    committed: the row's target KV, for PREFILL with the chunk being computed.  Verify sees
    `committed` and adds d in its metadata.  The seed extend starts one position back.
    """
    if phase is Phase.DRAFT_EXTEND:
        return committed + shape.num_draft_tokens
    if phase is Phase.SEED_EXTEND:
        return committed - 1 + _width(phase, width)
    if phase is Phase.PLAIN_DECODE:
        return committed + 1
    return 0 if phase in (Phase.FLUSH, Phase.IDLE) else committed


def alloc_len(shape: Sizes, ops: Ops = INT) -> Term:
    """Slots one row may take in one decode step.

    Source: SGLang 0.5.23 `mem_cache/allocation_sizing.py: get_alloc_len_per_decode`.
    """
    page, k, s = shape.page_size, shape.topk, shape.num_steps
    pages_a_branch = ops.div(page - 1 + s + page - 1, page)
    flat = ops.any(ops.eq(page, 1), ops.eq(k, 1))
    return ops.max(ops.ite(flat, s, pages_a_branch * page) * k, shape.num_draft_tokens)


def reserve(shape: Sizes, ops: Ops = INT) -> Term:
    """Slots beyond `committed` a row holds before a decode launch, the same in every mode.

    Twice `alloc_len`: under overlap `committed` lags one result.  Constant across modes, so that
    the accounting cannot drift when the width changes (sgl-project/sglang PR #24055).
    Source: SGLang 0.5.23 `mem_cache/allocation_sizing.py: get_alloc_reserve_per_decode`.
    """
    return 2 * alloc_len(shape, ops)


def graph_fits(
    phase: Phase, b: Term, shape: Sizes, captured: tuple[Phase, Term, Term], ops: Ops = INT
) -> Term:
    """Whether a graph may replay a launch of `phase` with b rows (the graph half of I2, and I13).

    captured: (phase, tokens a row, rows) the graph was captured for.  Only for phases with a
    fixed width a row: draft, verify, draft extend, plain decode.
    """
    graph_phase, graph_width, graph_rows = captured
    width = tokens(phase, 1, shape)
    return ops.all(
        graph_phase is phase, ops.eq(graph_width, width), buffers_hold(ops, b, graph_rows)
    )


__all__ = [
    "Shape",
    "Sizes",
    "alloc_len",
    "attention_len",
    "graph_fits",
    "hidden",
    "most_draft_tokens",
    "possible",
    "reserve",
    "slots",
    "spec_info",
    "tokens",
    "window_planned",
    "window_slots",
]
