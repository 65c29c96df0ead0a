"""Stands in for SGLang's dual GEMM, which needs a newer CUTLASS: it is never used."""

from __future__ import annotations

from enum import IntEnum

MAX_DUAL_GEMM_DECODE_TOKENS = 16


class DualGemmQuantMode(IntEnum):
    """SGLang's names and numbers."""

    STATIC_PER_TENSOR = 0
    STATIC_PER_TOKEN = 1
    DYNAMIC_PER_TENSOR = 2
    DYNAMIC_PER_TOKEN = 3
    UNQUANT = 4


def can_use_dual_gemm(*_args: object, **_kwargs: object) -> bool:
    """No."""
    return False
