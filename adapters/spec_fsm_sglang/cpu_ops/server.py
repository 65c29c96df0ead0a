"""What a server on CPU needs before SGLang is imported, and the flags it is started with."""

from __future__ import annotations

import os

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.cpu_ops.hooks import OVERLAP_ENV

_BACKEND = "intel_amx"  # the attention backend that reads the draft tree's mask on CPU


def prepare() -> bool:
    """Readies this process and those it starts; True if the stand-in `sgl_kernel` is in use.

    Also keeps torch from compiling SGLang's small functions, which takes seconds here and gains
    nothing (`TORCHDYNAMO_DISABLE`, unless it is set already). Raises what `cpu_ops.enable` does.
    """
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    return cpu_ops.enable()


def force_overlap() -> None:
    """Keeps overlap scheduling with speculation, which SGLang turns off on CPU.

    Acts on processes that load SGLang's plugins after this call.
    """
    os.environ[OVERLAP_ENV] = "1"


def as_flags(argv: list[str]) -> list[str]:
    """The flags to add to `argv` so that target and draft run on the CPU operators.

    The backend is named for both phases: the joint `--attention-backend` SGLang turns into
    torch_native on a host without AMX. A backend that `argv` names is left alone.
    """
    flags = [] if _has(argv, "--device") else ["--device", "cpu"]
    backends = ("--prefill-attention-backend", "--decode-attention-backend")
    if not any(_has(argv, flag) for flag in ("--attention-backend", *backends)):
        flags += [part for flag in backends for part in (flag, _BACKEND)]
    return flags


def as_fields() -> dict[str, str]:
    """The same as fields of `ServerArgs`."""
    names = as_flags([])
    return {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(names[::2], names[1::2], strict=True)
    }


def _has(argv: list[str], flag: str) -> bool:
    return any(part == flag or part.startswith(f"{flag}=") for part in argv)
