"""The public bug reports the invariants exclude, each in one line.

The keys are those of `spec_fsm.invariants.Invariant.bugs`; a test holds both lists equal.  States
are as read in November 2026; only the symptom and its cause are told, in our own words.
"""

from __future__ import annotations

from collections.abc import Mapping

TRACKERS: Mapping[str, tuple[str, str]] = {
    "SG": ("SGLang", "sgl-project/sglang"),
    "VL": ("vLLM", "vllm-project/vllm"),
    "TR": ("TensorRT-LLM", "NVIDIA/TensorRT-LLM"),
    "LC": ("llama.cpp", "ggml-org/llama.cpp"),
    "sglang-jax": ("sglang-jax", "sgl-project/sglang-jax"),
}
"""What stands before the `#` of an id: the project, and its repository on GitHub."""

BUGS: Mapping[str, str] = {
    "SG#2711": "a retracted request crashes the server: it leaves the batch, not its spec_info",
    "SG#2730": "hidden states are None after a finish, and merging two batches crashes",
    "SG#2939": "a request that ends with its first token is not filtered out of spec_info",
    "SG#6874": "mixed chunks crash: decode rows keep the slots of a multi-token step",
    "SG#7111": "slots of rejected drafts are never given back",
    "SG#7130": "slots leak with pages above one",
    "SG#10892": "illegal access when a batch is smaller than its graph: positions not reset",
    "SG#11215": "accept length falls: what a cache brings back is the target's KV alone",
    "SG#13741": "decode runs out of memory: allocated lengths are not updated on paged paths",
    "SG#13804": "stale spec_info of 10 rows x 16 tokens meets a plain batch: '160 must match 2'",
    "SG#15050": "a grammar is asked to go on after its end, because of rejected drafts",
    "SG#15399": "padding rows of a graph hold garbage token numbers",
    "SG#17349": "log-probabilities of speculating requests go wrong (the thread names no cause)",
    "SG#18780": "a row of the page table is wider than the context allows",
    "SG#18984": "illegal access after a retraction: spec_info rows are out of step with the batch",
    "SG#21125": "the cache restores target KV without the draft's; acceptance drops in silence",
    "SG#21709": "one draft step: no draft backend was made, and it is used",
    "SG#22832": "a batch above the largest graph runs with tensors of another shape",
    "SG#23456": "accepted tokens are committed for requests that finished or were retracted",
    "SG#24055": "the KV accounting drifts when the number of draft steps changes with overlap",
    "SG#24215": "merging batches whose hidden states have different widths: '4096 vs 2048'",
    "SG#24283": "a grammar advanced over rejected tokens and cannot be rolled back",
    "SG#25805": "a slot is given back twice",
    "SG#26163": "hidden states a client asked for are cut: the capture mode is shared by phases",
    "SG#26201": "plain rows of a mixed chunk use the several slots of the step before",
    "SG#26354": "reservations are computed from the first width, not from the largest",
    "SG#27789": "a page at a boundary is counted twice: 323072 slots in use of 322816",
    "SG#28569": "illegal access when the batch shrinks from 32 to 12: stale graph metadata",
    "SG#28616": "ranks choose their forward mode each for itself, and verify over a prefill",
    "SG#28771": "accept length falls from 3.4 to 1.9 within two hours",
    "SG#29144": "an idle rank skips a phase that the others wait in",
    "SG#29449": "a request is freed while a verify that holds it is in flight",
    "SG#29516": "near the longest context the tail passes the end of the row: '96 must match 90'",
    "SG#29858": "a draft-extend graph of a sliding-window model goes wrong on a padded batch",
    "SG#30549": "a buffer for 128 rows of logits is asked for 256",
    "SG#32527": "ranks disagree on whether a graph can be replayed, and wait for ever",
    "SG#35049": "pages are freed by an abort while a transfer still writes them",
    "SG#35898": "ranks choose different numbers of draft steps, and the collective hangs",
    "SG#37531": "nine rows meet a graph that was captured for at most eight",
    "VL#28558": "a preempted request keeps its draft tokens",
    "VL#30916": "draft tokens outlive the step they were made for, beside a grammar",
    "VL#32591": "a draft passes the range its graph was captured for",
    "VL#41838": "blocks enter the prefix cache before their KV was written",
    "VL#46399": "a proposer of fixed width asserts when the width changes",
    "VL#48494": "graph capture asserts on the width of a step without drafts",
    "VL#49548": "throughput collapses when the width falls to 0 and comes back at every step",
    "VL#51510": "a runner ignores the width it was told, and keeps the old one",
    "VL#52071": "drafts of a step before are verified",
    "VL#52873": "acceptance is gone beyond one position of the context, with no error",
    "VL#53420": "acceptance of EAGLE-3 is gone for good once draft KV was not written for a while",
    "TR#8076": "draft tokens are not dropped when speculation is skipped",
    "TR#15022": "a bitmask has another number of rows than the logits when the draft length is 0",
    "TR#15251": "the draft uses the metadata of the target's KV pool",
    "TR#16280": "the device writes past what the host reserved",
    "TR#16448": "a rewind across a block leaves the accounting wrong, and a transfer hangs",
    "TR#16888": "after a stretch at draft length 0 the draft attends rows that were never written",
    "LC#21815": "an index of drafts points beside the tokens after the context was shifted",
    "LC#26478": "positions of a row are inconsistent after drafts were rolled back",
    "sglang-jax#1147": "128 slots leak: the allocated length of a row is never updated",
}


def told(bug: str) -> str:
    """One report in a line: project, address and symptom."""
    tracker, _, number = bug.partition("#")
    project, repository = TRACKERS[tracker]
    return f"{project} #{number} (github.com/{repository}/issues/{number}): {BUGS[bug]}"


__all__ = ["BUGS", "TRACKERS", "told"]
