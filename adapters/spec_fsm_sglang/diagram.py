"""The state diagram, drawn from the table that runs."""

from __future__ import annotations

from spec_fsm._table import EDGES
from spec_fsm.modes import Mode


def mermaid() -> str:
    """The edges between modes as a Mermaid state diagram; edges with the same ends share a line."""
    labels: dict[tuple[Mode, Mode], list[str]] = {}
    for edge in EDGES:
        if edge.source is not edge.target:
            labels.setdefault((edge.source, edge.target), []).append(edge.event.name)
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {Mode.SPEC.name}"]
    for (source, target), events in labels.items():
        lines.append(f"    {source.name} --> {target.name}: {', '.join(events)}")
    return "\n".join(lines) + "\n"


__all__ = ["mermaid"]
