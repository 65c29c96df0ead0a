"""Every forward of the two models passes here before it is launched, and is measured by the law.

One observation point for all phases: SGLang's `ModelRunner.forward` receives the finished
`ForwardBatch`, whoever built it, so a stale `spec_info`, tokens of another width or slots that do
not match are refused before anything runs (I1a, I2, I3, I16) and not after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.spec_info import SpecInputType

from spec_fsm import Hidden, Phase, ShapeViolation, SpecInfo
from spec_fsm_sglang.recoverable import passes_on

if TYPE_CHECKING:
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

    from spec_fsm import Lifecycle

_SPEC_INFO = {
    SpecInputType.EAGLE_DRAFT: SpecInfo.DRAFT,
    SpecInputType.EAGLE_VERIFY: SpecInfo.VERIFY,
    SpecInputType.EAGLE_DRAFT_EXTEND: SpecInfo.DRAFT_EXTEND,
}
_HIDDEN = {mode: Hidden(mode.value) for mode in CaptureHiddenMode}
_TARGET = {
    ForwardMode.DECODE: Phase.PLAIN_DECODE,
    ForwardMode.TARGET_VERIFY: Phase.VERIFY,
    ForwardMode.EXTEND: Phase.PREFILL,
}
_DRAFT = {
    ForwardMode.DECODE: Phase.DRAFT,
    ForwardMode.DRAFT_EXTEND_V2: Phase.DRAFT_EXTEND,
}


class LaunchGuard:
    """Wraps `forward` of a target and a draft runner with the shape laws."""

    def __init__(self, lifecycle: Lifecycle, num_steps: int, num_draft_tokens: int) -> None:
        self.lifecycle = lifecycle
        self._num_steps = num_steps
        self._num_draft_tokens = num_draft_tokens
        self.reseeding = False
        """Set while the worker rebuilds: a draft extend is then a slice or a seed."""

    def install(self, target: ModelRunner, draft: ModelRunner) -> None:
        """Put the check in front of both runners' `forward`."""
        self._target = target
        _wrap(target, self._check_target)
        _wrap(draft, self._check_draft)

    def _check_target(self, forward_batch: ForwardBatch) -> None:
        phase = _TARGET.get(forward_batch.forward_mode)
        if phase is not None:
            self._check(phase, forward_batch, _numel(forward_batch.out_cache_loc))
            if phase is not Phase.PREFILL:
                self._check_graphs(phase, forward_batch)

    def _check_graphs(self, phase: Phase, forward_batch: ForwardBatch) -> None:
        """I2, its graph half: the graphs the target would replay are of this mode and width."""
        graphs = self._target.decode_cuda_graph_runner
        width = getattr(graphs, "captured_req_width", None)
        if width is None:
            return
        tokens = _numel(forward_batch.input_ids)
        mode = graphs.capture_forward_mode
        if mode is forward_batch.forward_mode and width * forward_batch.batch_size == tokens:
            return
        raise ShapeViolation(
            "the launch does not fit the graphs that would replay it",
            mode=self.lifecycle.mode,
            phase=phase,
            observed=f"{tokens} tokens in {forward_batch.forward_mode.name}",
            expected=f"{width * forward_batch.batch_size} in {mode.name}",
            invariant="I2",
        )

    def _check_draft(self, forward_batch: ForwardBatch) -> None:
        phase = _DRAFT.get(forward_batch.forward_mode)
        if phase is None:
            return
        slots = _numel(forward_batch.out_cache_loc)
        if phase is Phase.DRAFT:
            # One of s - 1 forwards sees its own b * k slots of the b * k * s the draft owns.
            slots *= self._num_steps
        elif self.reseeding:
            phase = Phase.SEED_EXTEND
        self._check(phase, forward_batch, slots)

    def _check(self, phase: Phase, forward_batch: ForwardBatch, slots: int) -> None:
        lifecycle, b = self.lifecycle, forward_batch.batch_size
        tokens = _numel(forward_batch.input_ids)
        spec_info = spec_info_of(forward_batch.spec_info)
        hidden = _HIDDEN[forward_batch.capture_hidden_mode]
        law = lifecycle.laws[phase]
        # A prefill is ragged: its law is a token's, and its width the sum of its rows.
        units = tokens if phase is Phase.PREFILL else b
        if (
            law is not None
            and spec_info is law[0]
            and hidden is law[1]
            and tokens == law[2] * units
            and (slots == law[3] * units or slots == law[4] * units)
        ):
            lifecycle.checks.launches += 1
            return
        width = {Phase.SEED_EXTEND: self._num_draft_tokens, Phase.PREFILL: tokens}.get(phase)
        lifecycle.check_launch(phase, b, tokens, slots, spec_info, hidden, width)


def spec_info_of(spec_info: Any) -> SpecInfo:
    """The class of a launch's `spec_info`, by SGLang's own type tag."""
    if spec_info is None:
        return SpecInfo.NONE
    return _SPEC_INFO[spec_info.spec_input_type]


def _numel(tensor: torch.Tensor | None) -> int:
    """Elements of a field that a wrong launch may have left empty."""
    return 0 if tensor is None else tensor.numel()


def _wrap(runner: ModelRunner, check: Any) -> None:
    forward = runner.forward

    @passes_on
    def guarded(forward_batch: ForwardBatch, *args: Any, **kwargs: Any) -> Any:
        check(forward_batch)
        return forward(forward_batch, *args, **kwargs)

    runner.forward = guarded


__all__ = ["LaunchGuard", "spec_info_of"]
