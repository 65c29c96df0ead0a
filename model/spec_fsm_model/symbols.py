"""Letters that stand for integers in the shape laws, so that a page can print the laws themselves.

`laws.tokens(Phase.VERIFY, b, shape)` over letters is the text `b·d`: the function that runs is
asked, nothing is written down again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from spec_fsm import laws
from spec_fsm.modes import Phase


@dataclass(frozen=True)
class Letter:
    """A term in words.  binds: 1 for a sum, which needs brackets in a product, else 2."""

    text: str
    binds: int = 2

    def __mul__(self, other: Letter) -> Letter:
        return Letter(f"{self._inner(2)}·{other._inner(2)}")

    def __add__(self, other: Letter | int) -> Letter:
        return Letter(f"{self.text} + {_text(other)}", 1)

    def __sub__(self, other: Letter | int) -> Letter:
        return Letter(f"{self.text} - {_text(other)}", 1)

    def _inner(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


def _text(term: Letter | int) -> str:
    return str(term) if isinstance(term, int) else term.text


@dataclass(frozen=True)
class Letters:
    """What a law reads of a `Shape`, as letters."""

    topk: Letter = Letter("k")
    num_steps: Letter = Letter("s")
    num_draft_tokens: Letter = Letter("d")
    plans_window: bool = False


_B, _W, _COMMITTED = Letter("b"), Letter("w"), Letter("committed")


def tokens(phase: Phase) -> str:
    """`laws.tokens` in letters; w is the width it is given."""
    return _ask(laws.tokens, phase, _B)


def slots(phase: Phase) -> str:
    """`laws.slots` in letters."""
    return _ask(laws.slots, phase, _B)


def attention(phase: Phase) -> str:
    """`laws.attention_len` in letters."""
    return _ask(laws.attention_len, phase, _COMMITTED)


def window() -> str:
    """`laws.window_slots` in letters, for a chain on CUDA."""
    return _text(laws.window_slots(cast(int, _B), cast(laws.Shape, Letters(plans_window=True))))


def _ask(law: Any, phase: Phase, first: Letter) -> str:
    return _text(law(phase, first, Letters(), _W))


__all__ = ["Letter", "Letters", "attention", "slots", "tokens", "window"]
