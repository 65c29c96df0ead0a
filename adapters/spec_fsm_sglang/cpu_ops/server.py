"""What a SGLang server needs on CPU besides the operators: environment, options, overlap."""

from __future__ import annotations

import os
from typing import Final

from spec_fsm_sglang.cpu_ops import enable

OPTIONS: Final[dict[str, str]] = {
    "device": "cpu",
    # Named one by one: SGLang turns the joint default into torch_native where AMX is missing.
    "prefill_attention_backend": "intel_amx",
    "decode_attention_backend": "intel_amx",
}
"""Fields of `ServerArgs` without which SGLang does not reach the operators."""

_ENVIRONMENT: Final = {
    # Read when SGLang is imported: the small sampling and tree functions are not compiled (that
    # takes longer than a demo runs), and Triton kernels, of which overlap has some, interpreted.
    "TORCHDYNAMO_DISABLE": "1",
    "TRITON_INTERPRET": "1",
}


def prepare() -> None:
    """Makes SGLang run on CPU, here and in the processes it starts; before it is imported."""
    enable()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def force_overlap() -> None:
    """Lets `ServerArgs` keep overlap scheduling on CPU, which SGLang turns off for speculation.

    Before `ServerArgs` are resolved, in the process that resolves them.
    """
    from sglang.srt.arg_groups import speculative_hook

    speculative_hook._disable_overlap_schedule_for_cpu = lambda server_args: None


def as_flags(argv: list[str]) -> list[str]:
    """`OPTIONS` as command-line flags, those left out that `argv` gives itself."""
    given = {argument.partition("=")[0] for argument in argv}
    flags = []
    for name, value in OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        if flag not in given:
            flags += [flag, value]
    return flags


__all__ = ["OPTIONS", "as_flags", "force_overlap", "prepare"]
