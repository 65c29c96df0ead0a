"""Outputs held token by token against those of a server without speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

NEAR_TIE: Final = 1e-3
"""Log-probabilities closer than this are a tie: another batch shape may round them either way."""


class Verdict(StrEnum):
    """What the comparison of one output found."""

    EQUAL = "equal"
    NEAR_TIE = "near tie"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Reference:
    """What the server without speculation generated, greedily.

    `margins[i]`: log-probability of its best token at position i less that of its second best.
    """

    output_ids: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """The verdict on one output, and where it first differs (None when equal)."""

    verdict: Verdict
    position: int | None = None
    margin: float | None = None


def compare(reference: Reference, output_ids: Sequence[int]) -> Comparison:
    """Holds `output_ids` against `reference`.

    A difference is a near tie only if the reference's two best tokens at the first differing
    position are less than `NEAR_TIE` apart. What comes after it depends on it and is not looked
    at. An output that goes on after the reference ended, or ends before, differs there.
    """
    expected = reference.output_ids
    if tuple(output_ids) == expected:
        return Comparison(Verdict.EQUAL)
    pairs = zip(expected, output_ids, strict=False)
    shorter = min(len(expected), len(output_ids))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    if position >= len(reference.margins):
        return Comparison(Verdict.DIFFERENT, position)
    margin = reference.margins[position]
    verdict = Verdict.NEAR_TIE if margin < NEAR_TIE else Verdict.DIFFERENT
    return Comparison(verdict, position, margin)


def margins(top_logprobs: Sequence[Sequence[Sequence[object]]]) -> tuple[float, ...]:
    """The margins in SGLang's `output_top_logprobs`: a position's entries are (logprob, id, text).

    A token that a grammar forbids has no log-probability (None, minus infinity): where only one
    is allowed the margin is infinite. Raises ValueError where a position has fewer than two.
    """
    found = []
    for i, entries in enumerate(top_logprobs):
        values = sorted(
            (-inf if entry[0] is None else float(str(entry[0])) for entry in entries), reverse=True
        )
        if len(values) < 2:
            raise ValueError(f"position {i} has {len(values)} log-probabilities, 2 are needed")
        found.append(values[0] - values[1])
    return tuple(found)


__all__ = ["NEAR_TIE", "Comparison", "Reference", "Verdict", "compare", "margins"]
