"""What the seeded faults are made with: their names, and ways into a running worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fuzz.world import World

Put = Callable[[World], None]


@dataclass(frozen=True)
class Fault:
    """A slip. `says`: what was done wrong.  caught_by: the check that has to catch it.

    overlap: which of the two configurations it is put into.  history: what is played with it, a
    key of `fault_run.HISTORIES`.
    """

    name: str
    says: str
    caught_by: str
    put: Put
    overlap: bool
    history: str = "main"


FAULTS: dict[str, Fault] = {}


def fault(
    says: str, caught_by: str, *, overlap: bool = True, history: str = "main"
) -> Callable[[Put], Put]:
    """Names the decorated function as a fault."""

    def named(put: Put) -> Put:
        FAULTS[put.__name__] = Fault(put.__name__, says, caught_by, put, overlap, history)
        return put

    return named


def known() -> dict[str, Fault]:
    """Every fault of every file `faults*.py` beside this one, by name."""
    for path in sorted(Path(__file__).parent.glob("faults*.py")):
        import_module(path.stem)
    return FAULTS


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """`owner.name` becomes `around(original, *arguments)`."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kw: around(original, *args, **kw))


def write(batch: Any, field: str, value: Any) -> None:
    """Past ownership, as our own code would be past it: what stops it shall be a law."""
    batch.__dict__[field] = value
