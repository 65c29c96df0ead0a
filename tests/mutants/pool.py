"""From what is drawn, and the draw: the same 300 for the same sources and seed."""

from __future__ import annotations

import hashlib
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from mutants.tree import Mutant, mutants

TESTS = Path(__file__).resolve().parent.parent
ADAPTER = TESTS.parent / "adapters" / "spec_fsm_sglang"
TABLE = Path(__file__).with_suffix(".toml")


@cache
def table() -> dict[str, Any]:
    """`pool.toml`: seed, number, and what is left out of the draw with the reason."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def left_out() -> dict[str, str]:
    """Why a module, or a function written `module:function`, is not drawn from."""
    return {name: why for why, names in table()["left_out"].items() for name in names}


def modules() -> list[str]:
    """The modules that are drawn from."""
    known = left_out()
    stems = (path.stem for path in sorted(ADAPTER.glob("*.py")) if path.stem != "__init__")
    return [stem for stem in stems if stem not in known]


def source(module: str) -> str:
    """The text of a module."""
    return path_of(module).read_text(encoding="utf-8")


def path_of(module: str) -> Path:
    """Its file."""
    return ADAPTER / f"{module}.py"


def everything() -> list[Mutant]:
    """Every mutant that may be drawn, in the order of the draw.

    The order is that of a hash of seed and name: a change to one function leaves the places of all
    other mutants alone.
    """
    known, seed = left_out(), table()["seed"]
    found = [
        mutant
        for module in modules()
        for mutant in mutants(module, source(module))
        if f"{module}:{mutant.function}" not in known
    ]
    return sorted(found, key=lambda m: hashlib.sha256(f"{seed}|{m.name}".encode()).digest())


def drawn() -> list[Mutant]:
    """The first `number` of them."""
    return everything()[: table()["number"]]
