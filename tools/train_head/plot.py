"""The curves of a training run as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

mpl.use("Agg")


def draw(report: dict[str, Any], out: Path) -> None:
    """Draw loss, top-1 agreement by unrolled step and accept length over steps to ``out``."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for entry in report["curves"]:
        kinds.setdefault(entry["kind"], []).append(entry)
    figure, (loss, agreement, accept) = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    for kind in ("train", "held_out"):
        entries = kinds.get(kind, [])
        loss.plot([e["step"] for e in entries], [e["loss"] for e in entries], label=kind)
    held = kinds.get("held_out", [])
    for j in range(report["settings"]["unroll"]):
        line = [e["top1_by_step"][j] for e in held]
        agreement.plot([e["step"] for e in held], line, label=f"draft step {j}")
    measured = kinds.get("accept_length", [])
    for spec in ("3/1/4", "2/4/16"):
        accept.plot([e["step"] for e in measured], [e[spec] for e in measured], label=spec)
    titles = ("loss", "top-1 agreement, held-out rows", "accept length, MT-bench, simulated")
    for axis, title in zip((loss, agreement, accept), titles, strict=True):
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(out, dpi=110)
    plt.close(figure)
