"""PLAIN: one real decode step of the target inside SGLang's speculative V2 schema.

The scheduler of a speculating server reserves KV, relays tokens and settles results in the V2
way whatever the worker does, so PLAIN speaks V2 at both ends and plain decode in between: the
launch is `ForwardMode.DECODE` with `spec_info` None (I1a), one token and one slot a request
(I2, I3), and the result says that one token was accepted. Between steps the batch keeps its
relay `EagleDraftInput` (I1b), of which only `bonus_tokens` is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_fsm_sglang.kernels import decode_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.managers.utils import GenerationBatchResult

    from spec_fsm_sglang.graph_state import GraphSet


def prepare(batch: ScheduleBatch, req_to_token: torch.Tensor) -> EagleDraftInput:
    """Turn the batch of a V2 decode round into a plain one; returns the relay it carried.

    Afterwards `input_ids` `[b]` are each row's last output token (I17), `out_cache_loc` `[b]`
    the reserved slot at the old `seq_lens`, and `seq_lens` count the token being decoded.
    SGLang's `_forward_isolation` undoes all of it after the launch.
    """
    relay: EagleDraftInput = batch.spec_info
    batch.forward_mode = ForwardMode.DECODE
    batch.input_ids, batch.out_cache_loc, batch.seq_lens = decode_inputs(
        relay.bonus_tokens, batch.req_pool_indices, batch.seq_lens, req_to_token
    )
    if batch.seq_lens_cpu is not None:
        # Added on the host: asking the device for lengths would cost a sync each step.
        batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
    batch.spec_info = None
    return relay


def launch(
    target_worker: TpModelWorker,
    graphs: GraphSet,
    batch: ScheduleBatch,
    grammar_barrier: Callable[[], None] | None,
) -> GenerationBatchResult:
    """Run and sample the prepared batch; `logits_output.hidden_states` is `[b, hidden_size]`.

    `graphs`: the width-1 set, in force from the batch's making on, which fills LoRA's batch
    information. What a launch would find otherwise was captured in verify mode at width
    `num_draft_tokens`, and SGLang's width guard is skipped where `spec_info` is None (0.5.23
    `decode_cuda_graph_runner.py:863`): the graph half of I2, which `guard.py` holds every launch
    against. The forward is enqueued before the grammar barrier, so that advancing the grammars
    over the previous result overlaps it (I19), and sampling after, as `run_eagle_verify` does.
    """
    runner = target_worker.model_runner
    with graphs:
        forward_batch = ForwardBatch.init_new(
            batch,
            runner,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            return_hidden_states_before_norm=False,
        )
        result = target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True
        )
    if batch.has_grammar and grammar_barrier is not None:
        grammar_barrier()
    result.next_token_ids = runner.sample(result.logits_output, forward_batch)
    result.extra_keep_alive_refs = [forward_batch]
    return result


def complete(
    result: GenerationBatchResult,
    relay: EagleDraftInput,
    new_seq_lens: torch.Tensor,
    *,
    with_seed: bool,
) -> None:
    """Give a plain result the fields by which SGLang settles a speculative one.

    `new_seq_lens`: `[b]`. One token a request, accepted; no draft proposals. `with_seed`: whether
    the seed in `relay` goes on. Under overlap that is only so where it was just made: what is
    relayed stays then (`FutureMap.stash` keeps a row whose field is None), so that a row prefilled
    a moment ago keeps its seed for free.
    """
    tokens = result.next_token_ids
    # On the host from the start: nothing on the device asks, and a copy would cost a transfer.
    result.accept_lens = torch.ones((tokens.shape[0],), dtype=torch.int32)
    result.speculative_num_draft_tokens = 1
    result.new_seq_lens = new_seq_lens
    result.next_draft_input = EagleDraftInput(
        topk_p=relay.topk_p if with_seed else None,
        topk_index=relay.topk_index if with_seed else None,
        hidden_states=relay.hidden_states if with_seed else None,
        bonus_tokens=tokens,
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )
    _shape_logprobs(result.logits_output)


def _shape_logprobs(logits_output: Any) -> None:
    """Per-token logprobs `[b]` become the `[b, 1]` that V2 result processing reads."""
    logprobs = logits_output.next_token_logprobs
    if logprobs is not None:
        logits_output.next_token_logprobs = logprobs.unsqueeze(1)
