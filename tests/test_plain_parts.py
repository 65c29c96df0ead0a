"""What a plain step takes from the relay, how it is launched, and what its result says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_fsm_sglang import kernels, plain
from spec_fsm_sglang.plain import complete, launch, prepare

ROWS = torch.tensor([2, 0, 3])
BONUS = torch.tensor([11, 12, 13], dtype=torch.int32)


def slot_table() -> torch.Tensor:
    """Row r owns slot 100 r + p at position p."""
    return (torch.arange(5).unsqueeze(1) * 100 + torch.arange(9)).to(torch.int32)


def decode_batch(**fields: Any) -> Any:
    """A batch of a V2 decode round, of three rows."""
    known = {
        "forward_mode": ForwardMode.IDLE, "input_ids": None, "out_cache_loc": None,
        "req_pool_indices": ROWS, "seq_lens": torch.tensor([3, 5, 8]),
        "seq_lens_cpu": torch.tensor([3, 5, 8]), "seq_lens_sum": 16,
        "spec_info": EagleDraftInput(bonus_tokens=BONUS),
    }  # fmt: skip
    return SimpleNamespace(**{**known, **fields})


def stash_of_width(width: int) -> Any:
    """An empty ring of five rows, all of them seeded."""
    return SimpleNamespace(
        width=width,
        hidden=torch.zeros(5, width, 2),
        tokens=torch.zeros(5, width, dtype=torch.int64),
        seeded=torch.ones(5, dtype=torch.bool),
    )


# -- what a launch takes ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_inputs_of_a_plain_launch(dtype: torch.dtype) -> None:
    """The relay's tokens, the slot each row owns at its length, and lengths of one more."""
    lengths = torch.tensor([3, 5, 8], dtype=dtype)
    ids, slots, longer = kernels.decode_inputs(BONUS, ROWS, lengths, slot_table())
    assert (ids.tolist(), ids.dtype) == ([11, 12, 13], torch.int64)
    assert (slots.tolist(), slots.dtype) == ([203, 5, 308], torch.int64)
    assert (longer.tolist(), longer.dtype) == ([4, 6, 9], dtype)
    assert lengths.tolist() == [3, 5, 8]


def test_on_a_gpu_the_inputs_are_made_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given what the operators would be."""
    monkeypatch.setattr(kernels, "decode_inputs_fused", lambda *given: given)
    given: Any = ("bonus", "rows", SimpleNamespace(is_cuda=True), "table")
    assert kernels.decode_inputs(*given) == given


def test_a_step_is_written_at_its_place_in_the_ring() -> None:
    """State and next token of each row at its position modulo the width; the row is not seeded
    any more, and no other row or place is touched."""
    stash = stash_of_width(4)
    positions = torch.tensor([3, 5, 8], dtype=torch.int32)
    hidden = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    kernels.record(stash, ROWS.to(torch.int32), positions, hidden, BONUS)
    wanted = stash_of_width(4)
    for row, column, values, token in ((2, 3, hidden[0], 11), (0, 1, hidden[1], 12),
                                       (3, 0, hidden[2], 13)):  # fmt: skip
        wanted.hidden[row, column] = values
        wanted.tokens[row, column] = token
    assert torch.equal(stash.hidden, wanted.hidden)
    assert torch.equal(stash.tokens, wanted.tokens)
    assert stash.seeded.tolist() == [False, True, False, False, True]


def test_on_a_gpu_a_step_is_written_by_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given what the operators would be, and they write nothing."""
    calls: list[Any] = []
    monkeypatch.setattr(kernels, "record_fused", lambda *given: calls.append(given))
    given: Any = ("stash", "rows", "positions", SimpleNamespace(is_cuda=True), "tokens")
    kernels.record(*given)
    assert calls == [given]


def test_a_prepared_batch_decodes_one_token_a_row() -> None:
    """Last tokens, their slots and lengths that count them; no speculation in it (I1a), and the
    relay is handed back as it was."""
    batch = decode_batch()
    relay, lengths = batch.spec_info, batch.seq_lens_cpu
    assert prepare(batch, slot_table()) is relay
    assert batch.forward_mode is ForwardMode.DECODE
    assert batch.input_ids.tolist() == [11, 12, 13]
    assert batch.out_cache_loc.tolist() == [203, 5, 308]
    assert batch.seq_lens.tolist() == [4, 6, 9]
    assert batch.spec_info is None
    assert (batch.seq_lens_cpu.tolist(), batch.seq_lens_sum) == ([4, 6, 9], 19)
    assert type(batch.seq_lens_sum) is int
    assert lengths.tolist() == [3, 5, 8]
    assert relay.bonus_tokens is BONUS


def test_a_batch_without_lengths_on_the_host_gets_none() -> None:
    """Nothing is asked of the device for them."""
    batch = decode_batch(seq_lens_cpu=None, seq_lens_sum=None)
    prepare(batch, slot_table())
    assert (batch.seq_lens_cpu, batch.seq_lens_sum) == (None, None)
    assert batch.seq_lens.tolist() == [4, 6, 9]


# -- the launch ---------------------------------------------------------------------------------


class Target:
    """A target worker, its model runner and a set of graphs; remembers in which order they act."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Any] = []
        self.result = SimpleNamespace(logits_output="logits", next_token_ids=None)
        self.model_runner = self
        monkeypatch.setattr(plain, "ForwardBatch", SimpleNamespace(init_new=self.init_new))

    def __enter__(self) -> None:
        self.events.append("graphs in force")

    def __exit__(self, *_: object) -> None:
        self.events.append("graphs back")

    def init_new(self, *given: Any, **named: Any) -> str:
        """The forward batch."""
        self.events.append(("made", given, named))
        return "forward batch"

    def forward_batch_generation(self, **named: Any) -> Any:
        """Enqueues the forward."""
        self.events.append(("forward", named))
        return self.result

    def sample(self, *given: Any) -> str:
        """Tokens."""
        self.events.append(("sampled", given))
        return "tokens"

    def barrier(self) -> None:
        """Grammars advance."""
        self.events.append("barrier")


def launched(
    monkeypatch: pytest.MonkeyPatch, *, grammar: bool, with_barrier: bool
) -> tuple[Target, Any, Any]:
    """The target, the batch and the result of a launch."""
    target = Target(monkeypatch)
    batch: Any = SimpleNamespace(has_grammar=grammar)
    barrier: Callable[[], None] | None = target.barrier if with_barrier else None
    worker: Any = target
    return target, batch, launch(worker, worker, batch, barrier)


def test_a_launch_runs_under_its_graphs_and_samples_after_the_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch is made and enqueued under the width-1 set, and not sampled by the forward: the
    grammars advance beside it (I19)."""
    target, batch, result = launched(monkeypatch, grammar=True, with_barrier=True)
    asked = {
        "capture_hidden_mode": CaptureHiddenMode.FULL,
        "return_hidden_states_before_norm": False,
    }
    forward = {"batch": None, "forward_batch": "forward batch", "is_verify": True}
    assert target.events == [
        "graphs in force", ("made", (batch, target), asked), ("forward", forward), "graphs back",
        "barrier", ("sampled", ("logits", "forward batch")),
    ]  # fmt: skip
    assert result is target.result
    assert result.next_token_ids == "tokens"
    assert result.extra_keep_alive_refs == ["forward batch"]


@pytest.mark.parametrize(("grammar", "with_barrier"), [(False, True), (True, False)])
def test_there_is_nothing_to_wait_for_without_a_grammar_or_a_barrier(
    monkeypatch: pytest.MonkeyPatch, grammar: bool, with_barrier: bool
) -> None:
    """The result is sampled right after the forward."""
    target, _, _ = launched(monkeypatch, grammar=grammar, with_barrier=with_barrier)
    assert target.events[3:] == ["graphs back", ("sampled", ("logits", "forward batch"))]


# -- the result ---------------------------------------------------------------------------------


def completed(*, with_seed: bool) -> tuple[GenerationBatchResult, EagleDraftInput, torch.Tensor]:
    """A plain result of three rows, the relay it was completed from, and the lengths after it."""
    logits = SimpleNamespace(next_token_logprobs=torch.tensor([-0.5, -1.5, -2.5]))
    result = GenerationBatchResult(logits_output=logits, next_token_ids=torch.tensor([7, 8, 9]))
    relay = EagleDraftInput(
        topk_p=torch.ones(3, 2), topk_index=torch.zeros(3, 2), hidden_states=torch.ones(3, 4),
        bonus_tokens=BONUS,
    )  # fmt: skip
    lengths = torch.tensor([4, 6, 9])
    complete(result, relay, lengths, with_seed=with_seed)
    return result, relay, lengths


@pytest.mark.parametrize("with_seed", [True, False])
def test_a_plain_result_is_settled_as_one_accepted_token(with_seed: bool) -> None:
    """One token a row of one drafted, counted on the host, which the next step begins from."""
    result, relay, lengths = completed(with_seed=with_seed)
    accepted, after = result.accept_lens, result.next_draft_input
    assert accepted is not None
    assert (accepted.tolist(), accepted.dtype) == ([1, 1, 1], torch.int32)
    assert result.speculative_num_draft_tokens == 1
    assert result.new_seq_lens is lengths
    assert isinstance(after, EagleDraftInput)
    assert after is not relay
    assert after.bonus_tokens is result.next_token_ids
    assert (after.num_tokens_per_req, after.num_tokens_for_logprob_per_req) == (1, 1)
    assert result.logits_output.next_token_logprobs.tolist() == [[-0.5], [-1.5], [-2.5]]


def test_a_seed_goes_on_where_it_was_just_made() -> None:
    """Else what is relayed already stays: the fields are empty."""
    result, relay, _ = completed(with_seed=True)
    after = result.next_draft_input
    assert after.topk_p is relay.topk_p
    assert after.topk_index is relay.topk_index
    assert after.hidden_states is relay.hidden_states
    empty = completed(with_seed=False)[0].next_draft_input
    assert (empty.topk_p, empty.topk_index, empty.hidden_states) == (None, None, None)


def test_a_result_without_logprobs_keeps_none() -> None:
    """Only those that were asked for get the shape of V2."""
    logits = SimpleNamespace(next_token_logprobs=None)
    result = GenerationBatchResult(logits_output=logits, next_token_ids=torch.tensor([7]))
    complete(result, EagleDraftInput(), torch.tensor([2]), with_seed=False)
    assert logits.next_token_logprobs is None
