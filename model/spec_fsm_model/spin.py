"""`model spin`: an independent explorer, on the exported table, counts the same states.

SPIN parses, compiles and searches the Promela text by itself.  If both counts agree, neither the
evaluation of a rule nor the search that counts has a fault the other lacks.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from spec_fsm_model.explore import Verdict
from spec_fsm_model.pinned import baseline
from spec_fsm_model.promela import SYSTEMS, Free

# Without reductions: a figure that no rule reads is part of a state all the same.
_GENERATE = ("spin", "-o1", "-o2", "-o3", "-a")
_COMPILE = ("cc", "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DNOBOUNDCHECK", "-o", "pan", "pan.c")
_SEARCH = ("./pan", "-E", "-m2000000", "-w22")
_STORED = re.compile(r"(\d+) states, stored")
_CUT = ("max search depth too small", "out of memory")
SECONDS = 300
"""Longest time one step may take."""


class NotInstalled(RuntimeError):
    """SPIN or a C compiler is not here."""


@dataclass(frozen=True)
class Agreed:
    """Both counts of one system; edges are Python's own, SPIN counts states alone.

    pinned: states and edges in `baseline.json`.
    """

    name: str
    states: int
    edges: int
    spin: int
    pinned: tuple[int, int]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """Proved if both counted the same, and what is pinned."""
        same = self.states == self.spin and self.pinned == (self.states, self.edges)
        return Verdict.PROVED if same else Verdict.REFUTED


def spin() -> list[Agreed]:
    """Both counts of every system; raises NotInstalled."""
    for tool in ("spin", "cc"):
        if shutil.which(tool) is None:
            raise NotInstalled(f"{tool} is not installed")
    return [agree(system) for system in SYSTEMS]


def agree(system: Free) -> Agreed:
    """Both counts of one system."""
    began = time.perf_counter()
    states, edges = system.explore()
    found = count(system.export())
    pinned = baseline()["alone"].get(system.name, (0, 0))
    return Agreed(system.name, states, edges, found, tuple(pinned), time.perf_counter() - began)


def count(text: str) -> int:
    """The states SPIN stores of a Promela model; raises RuntimeError if it does not get there."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "table.pml").write_text(text)
        _run(folder, *_GENERATE, "table.pml")
        _run(folder, *_COMPILE)
        said = _run(folder, *_SEARCH)
    stored = _STORED.search(said)
    if stored is None or any(words in said for words in _CUT):
        raise RuntimeError(f"SPIN did not come to an end: {said[-400:]}")
    return int(stored[1])


def _run(folder: str, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-400:]}")
    return done.stdout


__all__ = ["SECONDS", "Agreed", "NotInstalled", "agree", "count", "spin"]
