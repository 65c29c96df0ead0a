"""The mode machine: the table's edges, run and drawn by `transitions`.

It runs only when the mode changes, a few times a minute, so that its 8 microseconds do not
matter; the per-step calls never come here (a test replaces it by one that raises).  Every edge is
in it, those that stay in their mode as internal transitions, so that it refuses exactly the pairs
the table refuses.
"""

from __future__ import annotations

from typing import Any

from transitions import Machine
from transitions.extensions import GraphMachine

from spec_fsm._table import EDGES, Edge
from spec_fsm.modes import MODE_EVENTS, Event, Mode


def to_transitions() -> list[dict[str, Any]]:
    """Every edge as `transitions` wants it; `dest` None is an internal transition."""
    return [
        {
            "trigger": edge.event.name,
            "source": edge.source.name,
            "dest": None if edge.source is edge.target else edge.target.name,
        }
        for edge in EDGES
    ]


class ModeMachine:
    """One server's mode, moved along the table's edges."""

    state: str
    trigger: Any

    def __init__(self, mode: Mode = Mode.SPEC) -> None:
        Machine(
            model=self,
            states=[m.name for m in Mode],
            transitions=to_transitions(),
            initial=mode.name,
            auto_transitions=False,
        )

    @property
    def mode(self) -> Mode:
        """The mode the machine stands in."""
        return Mode[self.state]

    def fire(self, event: Event) -> Mode:
        """Follow the edge of `event`; raises `transitions.MachineError` where there is none."""
        self.trigger(event.name)
        return self.mode


def diagram() -> str:
    """The mode events as a Mermaid state diagram, generated from the table; needs no graphviz."""
    machine = GraphMachine(
        states=[m.name for m in Mode],
        transitions=[
            {"trigger": _label(edge), "source": edge.source.name, "dest": edge.target.name}
            for edge in EDGES
            if edge.event in MODE_EVENTS
        ],
        initial=Mode.SPEC.name,
        auto_transitions=False,
        graph_engine="mermaid",
        title="spec-fsm",
    )
    return str(machine.get_combined_graph().draw(None))


def _label(edge: Edge) -> str:
    guards = f" [{' and '.join(edge.guards)}]" if edge.guards else ""
    return edge.event.name + guards


__all__ = ["ModeMachine", "diagram", "to_transitions"]
