"""Sampling parameters that act differently in verify and in decode, and what is done about it.

`docs/sampling.md` has every parameter.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from sglang.srt.managers.schedule_batch import Req

logger = logging.getLogger(__name__)

DIFFERING: dict[str, Callable[[Any], bool]] = {
    "frequency_penalty": bool,
    "presence_penalty": bool,
    "repetition_penalty": lambda value: value != 1.0,
    "min_new_tokens": lambda value: value > 0,
    "min_p": lambda value: value > 0,
}
"""Field of `SamplingParams` -> whether a value acts differently in SGLang's two code paths."""


class _MaskAndProcessors:
    """What `eagle_sample` applies to the logits of a verify: the grammar mask, then processors."""

    def __init__(self, mask: Any, sampling_info: Any, width: int) -> None:
        self._mask, self._info, self._width = mask, sampling_info, width

    def apply(self, logits: torch.Tensor) -> None:
        """Change `logits` `[b * width, vocab]` in place, in the order of a decode step."""
        from sglang.srt.layers.sampler import apply_custom_logit_processor

        if self._mask is not None:
            self._mask.apply(logits)
        apply_custom_logit_processor(logits, self._info, self._width)


def eagle_sample(
    original: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    **kwargs: Any,
) -> Any:
    """Verify with the custom logit processors that decode applies, each row at all its positions.

    SGLang 0.5.23 `eagle_sample` applies none. They come where `Sampler._preprocess_logits` has
    them in a decode step: after penalties, bias and grammar, before temperature and sampling.
    """
    info = batch.sampling_info
    if getattr(batch, "spec_fsm", False) and info.has_custom_logit_processor:
        grammar_mask = _MaskAndProcessors(grammar_mask, info, verify_input.draft_token_num)
    return original(verify_input, batch, logits_output, grammar_mask, **kwargs)


def differing(req: Req) -> list[str]:
    """Return the parameters of `req` that act differently in verify and in decode."""
    params = req.sampling_params
    return [name for name, differs in DIFFERING.items() if differs(getattr(params, name))]


class DifferingRequests:
    """Counts requests whose output depends on the mode; refuses them where configured."""

    def __init__(self, *, refuse: bool) -> None:
        self._refuse = refuse
        self.seen = self.refused = 0

    def admit(self, req: Req) -> None:
        """Count `req` if it has such a parameter; the first one is logged.

        A refused request is aborted as SGLang aborts an invalid one: by its prefill, with 400.
        """
        names = differing(req)
        if not names or req.to_finish is not None:
            return
        self.seen += 1
        if self._refuse:
            self.refused += 1
            req.set_finish_with_abort(
                f"{', '.join(names)}: not accepted, the output would depend on whether the server "
                "speculates (refuse_differing)"
            )
        elif self.seen == 1:
            logger.info(
                "spec-fsm: a request has %s: SGLang applies it differently while it speculates, "
                "see docs/sampling.md; status counts such requests, refuse_differing refuses them",
                ", ".join(names),
            )


__all__ = ["DIFFERING", "DifferingRequests", "differing", "eagle_sample"]
