"""Stands in for FlashMLA, which SGLang imports and no Llama calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: object, **_kwargs: object) -> NoReturn:
        raise RuntimeError(f"flash_mla.{name}: only a stand-in is here")

    return missing
