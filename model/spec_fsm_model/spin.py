"""`model spin`: an independent explorer, on what is exported, counts the same states and edges.

SPIN parses, compiles and searches the Promela text by itself.  If both counts agree, neither the
evaluation of a rule nor the search that counts has a fault the other lacks.  Exported are two of
the searches of `model check` with all their environment (`export`), and the table alone under an
environment that may do anything (`promela`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from spec_fsm_model.explore import Verdict
from spec_fsm_model.export import SEARCHES, export
from spec_fsm_model.pinned import baseline
from spec_fsm_model.promela import SYSTEMS, Free
from spec_fsm_model.world import Bounds

# Without reductions: a figure that no rule reads is part of a state all the same.
_GENERATE = ("spin", "-o1", "-o2", "-o3", "-a")
_COMPILE = ("cc", "-O0", "-w", "-DSAFETY", "-DNOREDUCE", "-DNOBOUNDCHECK", "-o", "pan", "pan.c")
_SEARCH = ("./pan", "-E", "-m2000000", "-w22")
_STORED = re.compile(r"(\d+) states, stored")
_FOLLOWED = re.compile(r"(\d+) transitions \(= stored\+matched\)")
_CUT = ("max search depth too small", "out of memory")
SECONDS = 300
"""Longest time one step may take."""


class NotInstalled(RuntimeError):
    """SPIN or a C compiler is not here."""


@dataclass(frozen=True)
class Agreed:
    """Both counts of one system.

    spin: states and edges SPIN counts.  pinned: those in `baseline.json`.
    """

    name: str
    states: int
    edges: int
    spin: tuple[int, int]
    pinned: tuple[int, int]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """Proved if both counted the same, and what is pinned."""
        same = self.spin == self.pinned == (self.states, self.edges)
        return Verdict.PROVED if same else Verdict.REFUTED


def spin() -> list[Agreed]:
    """Both counts of every system; raises NotInstalled."""
    for tool in ("spin", "cc"):
        if shutil.which(tool) is None:
            raise NotInstalled(f"{tool} is not installed")
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("spawn")) as pool:
        searches = pool.map(agree_on_search, SEARCHES)
        return [*(agree(system) for system in SYSTEMS), *searches]


def agree(system: Free) -> Agreed:
    """Both counts of the table alone."""
    began = time.perf_counter()
    states, edges = system.explore()
    found = count(system.export())
    pinned = baseline()["alone"].get(system.name, (0, 0))
    return Agreed(system.name, states, edges, found, tuple(pinned), time.perf_counter() - began)


def agree_on_search(bounds: Bounds) -> Agreed:
    """Both counts of a search of `model check`; for a process of its own."""
    began = time.perf_counter()
    exported = export(bounds)
    found = count(exported.promela)
    known = baseline()["check"].get(bounds.name, {"states": 0, "edges": 0})
    pinned = known["states"], known["edges"]
    sizes = exported.states, exported.edges
    return Agreed(bounds.name, *sizes, found, pinned, time.perf_counter() - began)


def count(text: str) -> tuple[int, int]:
    """The states SPIN stores of a Promela model, and the edges it follows.

    Raises RuntimeError if it does not get there.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "table.pml").write_text(text)
        _run(folder, *_GENERATE, "table.pml")
        _run(folder, *_COMPILE)
        said = _run(folder, *_SEARCH)
    stored = _STORED.search(said)
    followed = _FOLLOWED.search(said)
    if stored is None or followed is None or any(words in said for words in _CUT):
        raise RuntimeError(f"SPIN did not come to an end: {said[-400:]}")
    # The first state is stored too, and no edge leads there.
    return int(stored[1]), int(followed[1]) - 1


def _run(folder: str, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-400:]}")
    return done.stdout


__all__ = ["SECONDS", "Agreed", "NotInstalled", "agree", "agree_on_search", "count", "spin"]
