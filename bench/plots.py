"""Draws docs/img/ from bench/results/: `python bench/plots.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
RESULTS, IMAGES = ROOT / "bench" / "results", ROOT / "docs" / "img"


def result(name: str) -> dict[str, Any]:
    """A committed result file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def plain(axes: Axes) -> None:
    """Tokens a second of each arm, as a share of the plain server's, by requests."""
    sizes: list[int] = []
    for backend, name in (("FlashAttention 3", "plain-gpu-fa3"), ("triton", "plain-gpu")):
        rows = result(name)["results"]
        sizes = [row["requests"] for row in rows]
        for arm in rows[0]["arms"]:
            if arm == "plain server":
                continue
            share = [
                row["arms"][arm]["steady_tokens_per_s"]
                / row["arms"]["plain server"]["steady_tokens_per_s"]
                for row in rows
            ]
            label = arm.replace("adaptive", "SGLang adaptive,")
            axes.plot(sizes, share, marker="o", label=f"{label} ({backend})")
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="requests", ylabel="steady decode, plain server = 1", ylim=0)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    axes.set_title("speculation off: Llama-3.1-8B shape, one H200")


def recovery(axes: Axes) -> None:
    """Accept length by round after a gap: ours, with an always-on draft, and never rebuilt."""
    rows = result("recovery-gpu-fa3")["pooled"]
    pooled = {(row["spec"], row["strategy"]): row["curve"] for row in rows}
    for spec in dict.fromkeys(row["spec"] for row in rows):
        ours, other = zip(*pooled[spec, "flush"], strict=True)
        rounds = range(1, len(ours) + 1)
        (line,) = axes.plot(rounds, ours, label=f"{spec}, after a gap")
        colour = line.get_color()
        axes.plot(rounds, other, "--", color=colour, label=f"{spec}, always on")
        cold = [ours for ours, _ in pooled[spec, "cold"]]
        axes.plot(rounds, cold, ":", color=colour, label=f"{spec}, gap never rebuilt")
    axes.set(xlabel="round after the switch", ylabel="accept length", ylim=1)
    axes.legend(fontsize=8)
    axes.set_title("speculation on again: SmolLM2-135M, gaps of 16 to 1024 tokens")


def main() -> None:
    """Write every picture."""
    for draw in (plain, recovery):
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        draw(axes)
        figure.savefig(IMAGES / f"{draw.__name__}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
