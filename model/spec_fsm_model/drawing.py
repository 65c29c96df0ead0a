"""The modes as an SVG, for readers whose viewer does not draw Mermaid.

The same table gives the same bytes: ids are salted with a fixed word and no date is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spec_fsm._table import EDGES, Edge
from spec_fsm.modes import MODE_EVENTS, Mode

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS: Any = {
    "svg.hashsalt": "spec-fsm",
    "svg.fonttype": "none",  # text stays text: small, and independent of the fonts installed here
    "font.family": "sans-serif",
    "font.size": 9,
}
HALF = (0.62, 0.22)
"""Half the width and height of a box."""
FAR = (2.1, 1.35)
"""From the middle of the drawing to the middle of a box."""


def arrows(edges: Iterable[Edge] = EDGES) -> dict[tuple[Mode, Mode], list[str]]:
    """What stands at each arrow: mode events, and other edges that change the mode, with guards."""
    found: dict[tuple[Mode, Mode], list[str]] = {}
    for edge in edges:
        if edge.event in MODE_EVENTS or edge.source is not edge.target:
            guards = f" [{' and '.join(edge.guards)}]" if edge.guards else ""
            found.setdefault((edge.source, edge.target), []).append(edge.event.name + guards)
    return found


def draw(file: Path) -> None:
    """Write the drawing to `file`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(SETTINGS):
        figure, axes = pyplot.subplots(figsize=(9.2, 5.2))
        _set_up(axes)
        for mode in Mode:
            _box(axes, mode)
        for (source, target), labels in arrows().items():
            if source is target:
                _loop(axes, source, labels)
            else:
                _arrow(axes, source, target, labels)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": "spec-fsm"})
        pyplot.close(figure)


def _set_up(axes: Axes) -> None:
    axes.set_xlim(-4.3, 4.9)
    axes.set_ylim(-2.6, 2.2)
    axes.set_axis_off()
    axes.figure.subplots_adjust(0, 0, 1, 1)


def _at(mode: Mode) -> tuple[float, float]:
    """The corners of a rectangle, clockwise from the upper left, in the order of the modes."""
    x = (-1, 1, 1, -1)[mode % 4]
    y = (1, 1, -1, -1)[mode % 4]
    return x * FAR[0], y * FAR[1]


def _box(axes: Axes, mode: Mode) -> None:
    from matplotlib.patches import FancyBboxPatch

    (x, y), (w, h) = _at(mode), HALF
    style = "round,pad=0.06"
    box = FancyBboxPatch((x - w, y - h), 2 * w, 2 * h, style, fc="#eef3fa", ec="#2b4a77", lw=1.4)
    axes.add_patch(box)
    axes.text(x, y, mode.name, ha="center", va="center", fontsize=12, fontweight="bold")
    if mode == 0:
        start = (x - w - 1.0, y)
        axes.plot(*start, "o", color="#2b4a77", ms=8)
        _line(axes, start, (x - w - 0.08, y), 0.0)


def _arrow(axes: Axes, source: Mode, target: Mode, labels: list[str]) -> None:
    """An arrow bent to its left, so that an arrow and its opposite do not meet."""
    (x0, y0), (x1, y1) = _at(source), _at(target)
    flat = abs(y1 - y0) < abs(x1 - x0)
    length = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / length, (y1 - y0) / length
    side = (dy * 0.12, -dx * 0.12)  # to the right of the way, looking along it
    gap = HALF[0] + 0.08 if flat else HALF[1] + 0.08
    begin = (x0 + dx * gap - side[0], y0 + dy * gap - side[1])
    end = (x1 - dx * gap - side[0], y1 - dy * gap - side[1])
    _line(axes, begin, end, -0.12)
    middle = ((begin[0] + end[0]) / 2 - side[0] * 2.2, (begin[1] + end[1]) / 2 - side[1] * 2.2)
    if flat:
        va = "bottom" if middle[1] > (y0 + y1) / 2 else "top"
        axes.text(*middle, "\n".join(labels), ha="center", va=va)
    else:
        ha = "left" if middle[0] > (x0 + x1) / 2 else "right"
        axes.text(*middle, "\n".join(labels), ha=ha, va="center")


def _loop(axes: Axes, mode: Mode, labels: list[str]) -> None:
    x, y = _at(mode)
    below = -1 if y < 0 else 1
    edge = y + below * (HALF[1] + 0.08)
    _line(axes, (x + 0.25, edge), (x - 0.25, edge), below * 1.4)
    axes.text(x, edge + below * 0.5, "\n".join(labels), ha="center", va="center")


def _line(axes: Axes, begin: tuple[float, float], end: tuple[float, float], bend: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    curve = f"arc3,rad={bend}"
    arrow = FancyArrowPatch(
        begin, end, connectionstyle=curve, arrowstyle="-|>", mutation_scale=13, color="#2b4a77"
    )
    axes.add_patch(arrow)


__all__ = ["arrows", "draw"]
