"""The configurations that are fuzzed: each is one process, because SGLang allows one scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TREE = {"steps": 2, "topk": 4, "num_draft_tokens": 16}
CHAIN = {"steps": 3, "topk": 1, "num_draft_tokens": 4}

# A pool that ten ordinary requests overrun, and prompts that come in chunks.
SMALL = {"max_total_tokens": 480, "chunked_prefill_size": 24, "max_running_requests": 16}


@dataclass(frozen=True)
class Configuration:
    """One process: keywords of `inprocess.Engine`, and the plugin's own configuration.

    draft: "eagle3" or "eagle".  traced: whether it writes a trace; with one the core looks at
    every step, so the steps that go its quick way are fuzzed by the configuration without.
    """

    engine: dict[str, Any]
    fsm: dict[str, Any]
    draft: str = "eagle3"
    traced: bool = True

    @property
    def steps(self) -> int:
        """Draft steps: a round commits 1 to `steps` + 1 tokens."""
        return int(self.engine["steps"])


@dataclass(frozen=True)
class Fsm:
    """The plugin's settings that the configurations share: modes change every few steps."""

    base: dict[str, Any] = field(
        default_factory=lambda: {
            "disable_above": 4, "enable_at": 3, "dwell": 2, "stash_width": 64, "checks": True
        }
    )

    def __call__(self, **more: Any) -> dict[str, Any]:
        """The shared settings with `more` of them."""
        return {**self.base, **more}


fsm = Fsm()

CONFIGURATIONS: dict[str, Configuration] = {
    "tree-overlap": Configuration(
        {**TREE, **SMALL, "overlap": True}, fsm(flush_every=4, slice_tokens=6)
    ),
    "chain-page4-overlap": Configuration(
        {**CHAIN, **SMALL, "overlap": True, "page_size": 4},
        fsm(flush_every=16, slice_tokens=12),
    ),
    # Gaps are never flushed on the way, and outgrow the stash: lost rows.
    "tree-lost-rows": Configuration(
        {**TREE, **SMALL, "overlap": False}, fsm(flush_every=0, stash_width=24, slice_tokens=15)
    ),
    "chain-eagle-extend": Configuration(
        {**CHAIN, **SMALL, "overlap": False},
        fsm(flush_every=4, strategy="extend", slice_tokens=6),
        draft="eagle",
    ),
    "tree-overlap-quick": Configuration(
        {**TREE, **SMALL, "overlap": True}, fsm(flush_every=16, slice_tokens=12), traced=False
    ),
}

# The bounds of the model's histories: one row, a stash of two, no overlap, no dwell.
BESIDE = Configuration(
    {**SMALL, "steps": 1, "topk": 1, "num_draft_tokens": 2, "max_total_tokens": 1000,
     "overlap": False},
    {"disable_above": 4, "enable_at": 3, "dwell": 0, "flush_every": 0, "stash_width": 2,
     "slice_tokens": 6, "checks": True},
    traced=False,  # its thresholds move
)
MODEL = "model-beside"
