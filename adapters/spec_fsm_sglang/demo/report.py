"""Writes `demo-report/`: the timeline as a picture, and the page that shows it with the figures."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from spec_fsm_sglang.demo.load import Course
from spec_fsm_sglang.demo.timeline import NS, Timeline, binned

COLOURS: Final = {
    "SPEC": "#cfe8cf", "DRAINING": "#f4b6a6", "PLAIN": "#dfe3ea", "RESEEDING": "#ffd97a",
}
BIN_NS: Final = 1_000_000_000
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em .8em;text-align:left;border-bottom:1px solid #ddd}img{max-width:100%}"
)


def draw(path: Path, timeline: Timeline, course: Course, limits: tuple[int, int]) -> None:
    """Draws load, mode, tokens per second and accept length over time into the PNG at `path`.

    `limits`: the requests above which speculation stops, and at which it starts again.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    start, end = course.phases[0][1], course.ended_ns
    figure, axes = plt.subplots(
        3, 1, figsize=(11, 6.6), sharex=True, height_ratios=(3, 2, 2), layout="constrained"
    )
    for axis in axes:
        _shade(axis, timeline, start, end)
        axis.spines[["top", "right"]].set_visible(False)
    _draw_load(axes[0], course, limits)
    bins = binned(timeline.steps, start, end, BIN_NS)
    axes[1].step([b[0] for b in bins], [b[1] for b in bins], where="mid", color="#1f3b73")
    axes[1].set_ylabel("tokens / s")
    axes[2].plot(
        [b[0] for b in bins if b[2] is not None], [b[2] for b in bins if b[2] is not None],
        "o", markersize=3, color="#7a1f5c",
    )
    axes[2].set_ylabel("accept length")
    axes[2].set_xlabel("seconds since the first request")
    axes[2].set_xlim(0, (end - start) / NS)
    for axis in axes[1:]:
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _shade(axis: Any, timeline: Timeline, start: int, end: int) -> None:
    for mode, since, until in timeline.mode_spans(start, end):
        axis.axvspan((since - start) / NS, (until - start) / NS, color=COLOURS[mode], lw=0)
        if mode in ("DRAINING", "RESEEDING"):
            # Often shorter than a pixel.
            axis.axvline((since - start) / NS, color=COLOURS[mode], lw=1.5)


def _draw_load(axis: Any, course: Course, limits: tuple[int, int]) -> None:
    from matplotlib.patches import Patch

    start = course.phases[0][1]
    load = _without_dips(course.load)
    times = [(t - start) / NS for t, _ in load]
    axis.step(times, [n for _, n in load], where="post", color="#1f3b73")
    off, on = limits
    for value, text, colour in ((off, f"off\nabove {off}", "#a33"), (on, f"on\nat {on}", "#282")):
        axis.axhline(value, color=colour, lw=1, ls="--")
        place = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8}
        axis.annotate(text, (1.005, value), color=colour, **place)
    for name, t_ns in course.phases:
        axis.text((t_ns - start) / NS, 14.2, name, fontsize=8, va="top")
    axis.set_ylim(0, 14.5)
    axis.set_ylabel("requests in flight")
    shades = [Patch(color=colour, label=mode) for mode, colour in COLOURS.items()]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axis.legend(handles=shades, ncol=4, frameon=False, **place)


def _without_dips(load: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The load without the instant between an answer and the request that takes its place."""
    instant = NS / 20
    after = [*load[1:], (load[-1][0] + 2 * instant, 0)]
    return [now for now, then in zip(load, after, strict=True) if then[0] - now[0] > instant]


def write(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes `summary.json` and `report.html`, which holds the picture and needs no other file."""
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    picture = base64.b64encode((folder / "timeline.png").read_bytes()).decode()
    (folder / "report.html").write_text(_page(summary, picture), encoding="utf-8")


def _page(summary: Mapping[str, Any], picture: str) -> str:
    verdict = "Every condition holds." if summary["passed"] else "Not every condition holds."
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>spec-fsm demo</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>spec-fsm demo</h1><p>{verdict} {html.escape(summary['setting'])}</p>",
        "<p>This ran on a CPU: it shows safety and equal outputs, not speed.</p>",
        f"<img alt='load, mode, tokens per second and accept length over time' "
        f"src='data:image/png;base64,{picture}'>",
        "<h2>Conditions</h2>",
        _table(
            ("condition", "holds", "found"),
            ((c["name"], "yes" if c["holds"] else "NO", c["found"]) for c in summary["conditions"]),
        ),
        "<h2>Phases</h2>", _records(summary["phases"]),
        "<h2>Switches</h2>", _records(summary["switches"]),
        "<h2>Outputs that are not equal</h2>", _records(summary["unequal"]),
        "<h2>Edges taken</h2>", _table(("edge", "count"), summary["transitions"].items()),
        "<h2>Invariants checked</h2>", _table(("invariant", "checks"), summary["checks"].items()),
    ]
    return "\n".join(parts) + "\n"


def _records(records: Sequence[Mapping[str, Any]]) -> str:
    if not records:
        return "<p>none</p>"
    return _table(tuple(records[0]), (tuple(record.values()) for record in records))


def _table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = ["<table><tr>", *(f"<th>{html.escape(shown(cell))}</th>" for cell in head), "</tr>"]
    for row in rows:
        cells = (html.escape(shown(cell)) for cell in row)
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "".join(lines) + "</table>"


def shown(value: object) -> str:
    """A cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return str(value)


__all__ = ["COLOURS", "draw", "shown", "write"]
