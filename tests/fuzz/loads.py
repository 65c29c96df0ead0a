"""Load patterns: who arrives when. Each is a list of (steps to run after them, arrivals)."""

from __future__ import annotations

import csv
import random
from datetime import datetime
from functools import cache
from pathlib import Path

Arrival = tuple[int, int]
"""Prompt tokens and answer tokens."""
Played = list[tuple[int, list[Arrival]]]

AZURE = Path(__file__).parent / "data" / "azure_conv_2023_excerpt.csv"
PATTERNS = ("burst", "ramp", "square", "flap", "azure")


def arrivals(pattern: str, size: int, period: int, draw: random.Random) -> Played:
    """One pattern. `size`: how many requests at its height; `period`: steps between changes."""
    if pattern == "burst":
        return [(period, [_ask(draw) for _ in range(size)])]
    if pattern == "ramp":
        return [(max(1, period // 2), [(6, 12 + 4 * (size - i))]) for i in range(size)]
    if pattern == "square":
        return [(2 * period, [(5, period)] * size if up else [(5, 3 * period)]) for up in (1, 0, 1)]
    if pattern == "flap":
        # Four that stay and one that comes and goes: across the threshold and back.
        return [(3, [(6, 12 * period)] * 3)] + [(period, [(4, 3), (5, 3)]) for _ in range(size)]
    return azure(size, period, draw)


def _ask(draw: random.Random) -> Arrival:
    return draw.randrange(2, 40), draw.choice((1, 3, 12, 40))


def azure(size: int, period: int, draw: random.Random) -> Played:
    """`4 * size` arrivals in a row of a real service, at `period` steps a second.

    Lengths are theirs in proportion, cut to what the small pool and the tiny model take.
    """
    rows = _azure()
    start = draw.randrange(len(rows) - 4 * size)
    part = rows[start : start + 4 * size]
    played: Played = []
    ends = [row[0] for row in part[1:]] + [part[-1][0]]
    for (at, prompt, tokens), end in zip(part, ends, strict=True):
        steps = round((end - at) * period)
        played.append((min(steps, 12), [(1 + min(prompt // 20, 60), 1 + min(tokens // 6, 60))]))
    return played


@cache
def _azure() -> list[tuple[float, int, int]]:
    """Seconds, prompt tokens, answer tokens of each arrival."""
    with AZURE.open(newline="", encoding="utf-8") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), row) for row in csv.DictReader(lines)
        ]
    first = rows[0][0]
    return [
        ((at - first).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for at, row in rows
    ]
