"""The mode machine, built from the table and run by `transitions`.

It runs only when the mode changes, a few times a minute; its 8 microseconds do not matter there.
The per-step calls never come here.
"""

from __future__ import annotations

from typing import Any

from transitions import Machine

from spec_fsm._table import EDGES, Edge
from spec_fsm.modes import Event, Mode


def changing_edges() -> tuple[Edge, ...]:
    """The edges that change the mode."""
    return tuple(e for e in EDGES if e.source is not e.target)


def to_transitions() -> list[dict[str, Any]]:
    """Those edges as `transitions` wants them."""
    return [
        {"trigger": e.event.name, "source": e.source.name, "dest": e.target.name}
        for e in changing_edges()
    ]


class ModeMachine:
    """One server's mode, moved along the table's edges."""

    def __init__(self, mode: Mode = Mode.SPEC) -> None:
        self.machine = Machine(
            model=self,
            states=[m.name for m in Mode],
            transitions=to_transitions(),
            initial=mode.name,
            auto_transitions=False,
            send_event=False,
        )

    state: str
    trigger: Any

    @property
    def mode(self) -> Mode:
        """The mode the machine stands in."""
        return Mode[self.state]

    def fire(self, event: Event) -> Mode:
        """Follow the edge of `event`; raises `transitions.MachineError` where there is none."""
        self.trigger(event.name)
        return self.mode


__all__ = ["ModeMachine", "changing_edges", "to_transitions"]
