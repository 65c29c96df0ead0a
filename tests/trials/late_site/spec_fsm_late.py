"""A SGLang plugin of the trials: a loaded model turns out to be one that is not supported.

This folder on `PYTHONPATH` is a distribution, so SGLang loads it in each of its processes.
"""

from __future__ import annotations

import os


def activate() -> None:
    """Entry point: what is asked of loaded models has another answer."""
    if "SPEC_FSM_LATE" not in os.environ:
        return
    from spec_fsm_sglang import compat

    compat.model_problem = lambda _worker: "the trial does not support this model"
