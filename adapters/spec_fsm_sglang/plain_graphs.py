"""CUDA graphs for PLAIN: one token a request, in decode mode, with hidden states captured.

A speculating server owns only graphs of width `num_draft_tokens`, captured in verify mode. These
are the graphs a plain server would own, captured beside them: same batch sizes, same runner
class, full hidden-state capture for the stash, and an attention backend, LoRA batch information
and logits buffer of their own, exchanged with them (`graph_state.py`). A launch is given its
graphs by mode and width, never by `spec_info` being None; `guard.py` refuses a launch whose
tokens do not fit them (I2).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, check_cuda_graph_backend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.model_executor.graph_shared_output import GraphSharedOutput
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner
from sglang.srt.runtime_context import get_exec

from spec_fsm_sglang import graph_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.model_executor.model_runner import ModelRunner

    from spec_fsm_sglang.graph_state import GraphSet

logger = logging.getLogger("spec_fsm")

SGLANG_CAP = 48
"""Running requests SGLang allows a speculating server by default, and captures graphs for."""


class PlainGraphRunner(DecodeCudaGraphRunner):  # type: ignore[misc]
    """SGLang's decode graph runner at width 1, on a server whose algorithm speculates."""

    def capture(self) -> None:
        """Capture in decode mode; the parent's constructor chose verify mode from the server."""
        self.capture_forward_mode = ForwardMode.DECODE
        super().capture()

    def capture_prepare(self, *args: Any, **kwargs: Any) -> Any:
        """The parent's dummy batch, with every hidden state captured (I16)."""
        self.capture_hidden_mode = CaptureHiddenMode.FULL
        return super().capture_prepare(*args, **kwargs)

    def get_spec_info(self, num_tokens: int) -> None:
        """A plain launch carries no `spec_info` (I1a), in capture as in replay."""


def capture(runner: ModelRunner, batch_sizes: Sequence[int]) -> GraphSet:
    """Width-1 graphs of the target for `batch_sizes`; without graphs where a server has none.

    After the target's own graphs and attention backend exist. Raises what SGLang's capture
    raises.
    """
    disabled = runner.device != "cuda" or check_cuda_graph_backend(Phase.DECODE, Backend.DISABLED)
    if disabled or not batch_sizes:
        return graph_state.eager(runner)
    started, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
    config = get_exec().graph.cuda_graph_config.decode
    kept, config.bs = config.bs, list(batch_sizes)
    try:
        captured = graph_state.capture(runner, lambda: _build(runner), max(batch_sizes))
    finally:
        config.bs = kept
    graphs = captured.graphs
    logger.info(
        "spec-fsm: %d plain decode graphs, up to %d requests, %.1f s, %.2f GB",
        len(graphs.capture_bs),
        graphs.max_bs,
        time.perf_counter() - started,
        (free - torch.cuda.mem_get_info()[0]) / 1e9,
    )
    return captured


def _build(runner: ModelRunner) -> PlainGraphRunner:
    """Capture for the batch sizes of SGLang's configuration; what it sets on `runner` stays."""
    rows = max(get_exec().graph.cuda_graph_config.decode.bs)
    shared, workspace = runner.graph_shared_output, runner.init_new_workspace
    if shared is None or shared.max_rows < rows:
        # Sized for the verify graphs, which may cover fewer tokens than PLAIN has requests.
        runner.graph_shared_output = GraphSharedOutput(device=runner.device, max_rows=rows)
    backend = runner._get_attention_backend(init_new_workspace=True)
    runner.init_new_workspace = workspace
    return PlainGraphRunner(
        runner, attn_backend=backend, speculative_num_steps=0, speculative_num_draft_tokens=1
    )


def limit_verify_graphs(disable_above: int) -> list[int]:
    """Keep SGLang from capturing speculation's graphs for batches that never speculate.

    Returns the batch sizes a plain server would capture. Speculation's stop at the larger of
    `disable_above` and SGLang's own cap for speculating servers; a larger batch, which only an
    operator's pin can bring about, is verified without a graph. Before anything is captured.
    """
    config = get_exec().graph.cuda_graph_config
    if config is None or not config.decode.bs:
        return []
    plain = list(config.decode.bs)
    largest = max(disable_above, SGLANG_CAP)
    config.decode.bs = [size for size in plain if size <= largest] or plain[:1]
    return plain


__all__ = ["PlainGraphRunner", "capture", "limit_verify_graphs"]
