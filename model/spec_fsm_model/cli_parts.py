"""What the commands of `spec-fsm model` and `spec-fsm trace` have in common."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints every value as it is: no markup, no emoji codes."""
    return Console(stderr=stderr, markup=False, emoji=False)


def need_z3() -> None:
    """Refuse in one line where z3, which serving does not need, is not installed."""
    if find_spec("z3") is None:
        raise typer.BadParameter("z3 is not installed here: pip install 'spec-fsm[verify]'")


__all__ = ["AsJson", "console", "need_z3"]
