"""Rebuilding what PLAIN left out: the draft model's KV (a flush) and its next proposal (a seed).

Draft KV at position p takes the target's hidden state of p and the embedding of token p + 1.
Both are in the stash. Two ways to write it:

`bulk`    for a draft of one attention layer. There K and V of a position depend on nothing but
          the two inputs above and the position: no attention, no MLP, no head is needed, and
          positions may be written in any order, all rows and all positions in one pass.
`extend`  for any draft: SGLang's own draft extend, repeated over the gap in ascending slices of
          `num_draft_tokens` positions, because a deeper layer attends to the earlier ones.

A gap is addressed by age. Age 1 is the newest committed position; a flush of ages
`[lower, upper)` writes the positions `committed - upper .. committed - lower - 1` of every row,
where they are at or above the row's `covered`; whatever is masked out goes to slot 0, which
SGLang keeps as a sink for padded rows. So one rectangular pass serves rows with unequal gaps.
"""

from __future__ import annotations

import copy
import logging
from bisect import bisect_left
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.eagle_info import EagleDraftInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    from spec_fsm_sglang.host_lengths import HostLengths
    from spec_fsm_sglang.stash import Stash

logger = logging.getLogger(__name__)

SINK_SLOT = 0


class Rebuild(Protocol):
    """A strategy that writes missing draft KV."""

    name: str
    by_seed: bool
    """Whether the extend that makes a seed may write what it passes in place of a flush."""
    read_done: Any
    """Event after the last read of what the scheduler writes, of the flush enqueued last; None
    where nothing finer is known than its end."""

    def flush(self, batch: ScheduleBatch, committed: torch.Tensor, upper: int, lower: int) -> None:
        """Write ages `[lower, upper)` of every row; `committed` is `[b]`, positions with target KV.

        Advances the stash's `covered` to `committed - lower` where that is further.
        """


def slots_of(
    draft_worker: EagleDraftWorker, req_pool_indices: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """KV slots (int64, shaped like `positions` `[b, n]`) that the requests own at `positions`."""
    table = draft_worker.req_to_token_pool.req_to_token
    slots: torch.Tensor = table[req_pool_indices.unsqueeze(1), positions].to(torch.int64)
    return slots


class BulkRebuild:
    """K and V of the missing positions in one pass; only for drafts with one attention layer."""

    name = "bulk"
    by_seed = True

    def __init__(self, draft_worker: EagleDraftWorker, stash: Stash) -> None:
        misfit = bulk_misfit(draft_worker.draft_runner.model)
        if misfit is not None:
            raise ValueError(misfit)
        self._draft_worker = draft_worker
        self._runner = draft_worker.draft_runner
        self._stash = stash
        self.read_done: Any = None
        self._is_eagle3 = hasattr(self._runner.model.model.layers[0], "hidden_norm")
        self._warmed: Sequence[int] = ()

    def flush(self, batch: ScheduleBatch, committed: torch.Tensor, upper: int, lower: int) -> None:
        """See `Rebuild.flush`. Masked positions are computed and written to the sink slot."""
        if upper <= lower:
            return
        rows = batch.req_pool_indices
        ages = torch.arange(upper, lower, -1, device=committed.device)
        positions = committed.to(torch.int64).unsqueeze(1) - ages
        missing = positions >= self._stash.covered[rows].unsqueeze(1)
        positions = positions.clamp(min=0)
        hidden_states, tokens = self._stash.read(rows, positions)
        slots = slots_of(self._draft_worker, rows, positions)
        if slots.is_cuda:
            # From here on only the stash and the slots themselves are touched.
            self.read_done = torch.cuda.current_stream().record_event()
        slots = torch.where(missing, slots, SINK_SLOT).reshape(-1)
        hidden_states = hidden_states.flatten(0, 1)
        self._write(positions.reshape(-1), tokens.reshape(-1), hidden_states, slots)
        self._stash.cover(rows, committed - lower)

    @torch.no_grad()
    def warm(self, most: int) -> None:
        """Run every size of a write up to `most` entries once, into the sink slot.

        Which kernels multiply the matrices depends on that number, in steps nobody tells, and one
        that is not loaded yet takes milliseconds. From here on a write is padded to one of these
        sizes. `no_grad`: outside the scheduler's the write would keep a graph.
        """
        stash, sizes = self._stash, write_sizes(most)
        for entries in sizes:
            positions = torch.zeros((entries,), dtype=torch.int64, device=stash.tokens.device)
            hidden = stash.hidden.new_zeros((entries, stash.hidden.shape[-1]))
            self._write(positions, positions, hidden, positions + SINK_SLOT)
        self._warmed = sizes

    def _write(
        self,
        positions: torch.Tensor,
        tokens: torch.Tensor,
        hidden_states: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """Write K and V at `[n]` positions into `[n]` slots.

        `hidden_states`: `[n, hidden_size]`, the target's. Zeros for the sink slot are added up to
        a size that is warm, if there is one.
        """
        entries = positions.shape[0]
        at = bisect_left(self._warmed, entries)
        spare = self._warmed[at] - entries if at < len(self._warmed) else 0
        if spare:
            positions, tokens = F.pad(positions, (0, spare)), F.pad(tokens, (0, spare))
            hidden_states = F.pad(hidden_states, (0, 0, 0, spare))
            slots = F.pad(slots, (0, spare), value=SINK_SLOT)
        attention = self._runner.model.model.layers[0].self_attn
        key, value = self._project(attention, self._attention_input(tokens, hidden_states))
        # The rotation wants a Q beside K; what it makes of it is thrown away.
        _, key = attention.rotary_emb(positions, torch.empty_like(key), key)
        heads = attention.attn.tp_k_head_num
        self._runner.token_to_kv_pool.set_kv_buffer(
            attention.attn,
            slots,
            key.reshape(-1, heads, attention.head_dim),
            value.reshape(-1, heads, attention.head_dim),
        )

    @staticmethod
    def _project(attention: Any, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V (`[n, kv_size]` each) of `[n, attention input]`; Q, the largest part, is not."""
        projection, sizes = attention.qkv_proj, [attention.kv_size, attention.kv_size]
        if isinstance(projection.quant_method, UnquantizedLinearMethod) and not getattr(
            projection, "use_intel_amx_backend", False
        ):
            weight, bias = projection.weight[attention.q_size :], projection.bias
            bias = None if bias is None else bias[attention.q_size :]
            key, value = torch.split(F.linear(inputs, weight, bias), sizes, dim=-1)
        else:
            qkv, _ = projection(inputs)
            _, key, value = torch.split(qkv, [attention.q_size, *sizes], dim=-1)
        return key.contiguous(), value

    def _attention_input(self, tokens: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the first layer's `qkv_proj` sees, without the layers around it.

        Source: `LlamaModel.forward` and `LlamaDecoderLayer.forward` of SGLang's
        `models/llama_eagle3.py` and `models/llama_eagle.py`.
        """
        model = self._runner.model.model
        embeds = model.embed_tokens(tokens)
        if not self._is_eagle3:
            fused: torch.Tensor = model.fc(torch.cat((embeds, hidden_states), dim=-1))
            return fused
        if hidden_states.shape[-1] != embeds.shape[-1]:
            if model.input_norm is not None:
                hidden_states = model.input_norm(hidden_states)
            if model.fc_norm is not None:
                chunks = hidden_states.chunk(model.num_aux_hidden_states, dim=-1)
                hidden_states = torch.cat(
                    [norm(chunk) for norm, chunk in zip(model.fc_norm, chunks, strict=True)], dim=-1
                )
            hidden_states = model.fc(hidden_states)
        layer = model.layers[0]
        return torch.cat(
            (layer.input_layernorm(embeds), layer.hidden_norm(hidden_states)), dim=-1
        )


def bulk_misfit(model: Any) -> str | None:
    """Why the bulk write does not fit this draft model, in one line; None where it does.

    Only the two architectures whose first layer `BulkRebuild` mirrors are accepted; everything
    else falls back to `extend`, which asks nothing of the architecture.
    """
    name = type(model).__name__
    if name not in ("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle"):
        return f"draft {name} is not one the bulk write knows (LlamaForCausalLMEagle3, -Eagle)"
    layers = getattr(model.model, "layers", ())
    if len(layers) != 1:
        return f"draft {name} has {len(layers)} layers; the bulk write fits one"
    if getattr(model.model, "is_mrope_enabled", False):
        return f"draft {name} uses mrope positions, which the bulk write does not build"
    return None


class ColdRebuild:
    """No rebuild at all: the draft goes on over holes. What the others are compared with."""

    name = "cold"
    by_seed = False
    read_done = None

    def __init__(self, stash: Stash) -> None:
        self._stash = stash

    def flush(self, batch: ScheduleBatch, committed: torch.Tensor, upper: int, lower: int) -> None:
        """Count the ages as written without writing them."""
        del upper
        self._stash.cover(batch.req_pool_indices, committed - lower)


class ExtendRebuild:
    """SGLang's draft extend over the gap, in ascending slices; fits every draft."""

    name = "extend"
    by_seed = True
    read_done = None

    def __init__(self, draft_worker: EagleDraftWorker, stash: Stash, host: HostLengths) -> None:
        self._draft_worker = draft_worker
        self._stash = stash
        self._host = host
        self._width = draft_worker.speculative_num_draft_tokens

    def flush(self, batch: ScheduleBatch, committed: torch.Tensor, upper: int, lower: int) -> None:
        """See `Rebuild.flush`. A row whose gap ends earlier repeats its last position."""
        rows = batch.req_pool_indices
        committed = committed.to(torch.int64)
        covered = self._stash.covered[rows]
        target = torch.maximum(covered, committed - lower)
        start = torch.maximum(covered, committed - upper)
        lengths = batch.seq_lens_cpu
        if lengths is not None:
            start_cpu, target_cpu = self._host.flush_span(batch, lengths, upper, lower)
        for done in range(0, upper - lower, self._width):
            # Never below `covered`: what lies there may have left the ring, or belong to the
            # prefix cache (I15). From `target` on a window holds positions that are still
            # missing, whose values are right, or reserved slots that nobody reads yet.
            first = torch.minimum(start + done, target)
            if lengths is not None:
                lengths = torch.minimum(start_cpu + done, target_cpu)
            window = Window(first, committed, lengths)
            run_draft_extend(self._draft_worker, self._stash, batch, window)
        self._stash.covered[rows] = target


class Window(NamedTuple):
    """Where a draft extend of `num_draft_tokens` positions begins in every row, all `[b]`.

    first: its first position. committed: positions with target KV; the stash knows those below.
    first_cpu: `first` on the host, None where the batch has no lengths on the host either.
    """

    first: torch.Tensor
    committed: torch.Tensor
    first_cpu: torch.Tensor | None


def run_draft_extend(
    draft_worker: EagleDraftWorker, stash: Stash, batch: ScheduleBatch, window: Window
) -> EagleDraftInput:
    """One draft extend over `[first, first + num_draft_tokens)` of every row.

    Inputs come from the stash where the position is committed, zeros beyond: what those write
    lies in the request's reserve and is rewritten by the next draft or extend before it is
    read. The returned `topk_p` `[b, topk]`, `topk_index` and `hidden_states` belong to the last
    committed position inside the window; where there is none, they mean nothing.
    """
    width = draft_worker.speculative_num_draft_tokens
    rows = batch.req_pool_indices
    first, committed, first_cpu = window
    first = first.to(torch.int64)
    positions = first.unsqueeze(1) + torch.arange(width, device=first.device)
    known = positions < committed.to(torch.int64).unsqueeze(1)
    hidden_states, tokens = stash.read(rows, positions)
    hidden_states = torch.where(known.unsqueeze(2), hidden_states, 0)
    tokens = torch.where(known, tokens, 0)
    result = GenerationBatchResult(
        logits_output=SimpleNamespace(hidden_states=hidden_states.flatten(0, 1)),
        next_token_ids=tokens.reshape(-1),
        accept_lens=known.sum(dim=1).clamp(min=1).to(torch.int32),
        next_draft_input=EagleDraftInput(),
        new_seq_lens=committed,
    )
    # A shallow copy: the extend rewrites a dozen fields of the batch it is given.
    view = copy.copy(batch)
    view.seq_lens = first
    if first_cpu is not None:
        view.seq_lens_cpu = first_cpu
        view.seq_lens_sum = int(first_cpu.sum())
    view.out_cache_loc = slots_of(draft_worker, rows, positions).reshape(-1)
    draft_worker._draft_extend_for_decode(view, result)
    return result.next_draft_input


def seed(  # noqa: PLR0913 -- what a draft extend takes, and the relay it fills
    draft_worker: EagleDraftWorker,
    stash: Stash,
    host: HostLengths,
    batch: ScheduleBatch,
    committed: torch.Tensor,
    missing: int,
    relay: EagleDraftInput,
) -> None:
    """Give every row of `relay` a valid `topk_p`, `topk_index` and `hidden_states`.

    One draft extend whose window starts at the first missing position, of which no row has more
    than `missing` (at most `num_draft_tokens`), or at the last committed one. Rows that are seeded
    already (their prefill was the last thing that happened to them) keep what the relay
    carries; their window starts one later, so that nothing committed is rewritten.
    """
    rows = batch.req_pool_indices
    seeded = stash.seeded[rows]
    committed = committed.to(torch.int64)
    # Not below `covered`: what lies there may belong to the prefix cache (I15).
    first = torch.maximum(stash.covered[rows], committed - max(1, missing))
    first = torch.where(seeded, committed, torch.minimum(first, committed - 1))
    lengths = batch.seq_lens_cpu
    first_cpu = None if lengths is None else host.seed_start(batch, lengths, missing)
    made = run_draft_extend(draft_worker, stash, batch, Window(first, committed, first_cpu))
    keep = seeded.unsqueeze(1)
    relay.topk_p = torch.where(keep, relay.topk_p, made.topk_p.to(relay.topk_p.dtype))
    relay.topk_index = torch.where(
        keep, relay.topk_index, made.topk_index.to(relay.topk_index.dtype)
    )
    relay.hidden_states = torch.where(
        keep, relay.hidden_states, made.hidden_states.to(relay.hidden_states.dtype)
    )
    stash.cover(rows, committed)
    stash.seeded.index_fill_(0, rows.to(torch.int64), True)


def choose(
    strategy: str, draft_worker: EagleDraftWorker, stash: Stash, host: HostLengths
) -> Rebuild:
    """The strategy asked for; `auto` and `warm` are `bulk` where it fits, and say where not."""
    if strategy == "cold":
        logger.warning("spec-fsm: strategy cold: draft KV is never rebuilt, acceptance will drop")
        return ColdRebuild(stash)
    if strategy == "extend":
        return ExtendRebuild(draft_worker, stash, host)
    misfit = bulk_misfit(draft_worker.draft_runner.model)
    if misfit is None:
        return BulkRebuild(draft_worker, stash)
    logger.warning("spec-fsm: %s; rebuilding draft KV by draft extend instead", misfit)
    return ExtendRebuild(draft_worker, stash, host)


def write_sizes(most: int) -> list[int]:
    """Sizes of a bulk write up to `most` entries, none more than an eighth above the one before."""
    sizes = [1]
    while sizes[-1] < most:
        step = max(1, 1 << sizes[-1].bit_length() >> 4)
        sizes.append(min(most, sizes[-1] + step))
    return sizes
