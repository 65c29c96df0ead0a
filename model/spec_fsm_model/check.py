"""`model check`: every search, their counts against the pinned ones, and one verdict.

A search is an exact computation: the same table gives the same counts.  `baseline.json` pins them,
and the table itself, so that a change is seen even where no claim breaks.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from spec_fsm_model.explore import BOUNDS, MOST_STATES, Found, Search, Verdict
from spec_fsm_model.pinned import BASELINE, baseline, differences
from spec_fsm_model.rules import RULES
from spec_fsm_model.world import Bounds


@dataclass
class Checked:
    """All searches together.

    unfired: edges of the table that no search followed.  drift: counts that are not the pinned
    ones, in words.
    """

    found: list[Found]
    verdict: Verdict
    unfired: list[str]
    drift: list[str]

    @property
    def states(self) -> int:
        """Worlds seen by all searches."""
        return sum(f.states for f in self.found)

    @property
    def edges(self) -> int:
        """Acts followed by all searches."""
        return sum(f.edges for f in self.found)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON objects."""
        return {
            "verdict": self.verdict.name.lower(),
            "states": self.states,
            "edges": self.edges,
            "searches": {f.bounds.name: {**counts(f), "seconds": f.seconds} for f in self.found},
            "unfired": self.unfired,
            "drift": self.drift,
        }


def counts(found: Found) -> dict[str, Any]:
    """What is pinned of one search."""
    return {
        "states": found.states,
        "edges": found.edges,
        "depth": found.depth,
        "modes": found.modes,
    }


def pinned() -> dict[str, Any]:
    """The counts in `baseline.json`, by name of the bounds."""
    read: dict[str, Any] = baseline()["check"]
    return read


def check(most: int = MOST_STATES, processes: int = 2) -> Checked:
    """Search all of BOUNDS; most: worlds a search may visit before it is given up."""
    # Spawned, not forked: a fork of a process with threads may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(search, BOUNDS, [most] * len(BOUNDS)))
    checked = judge(found, pinned())
    if checked.verdict is Verdict.PROVED:
        moved = differences(RULES, baseline()["table"])
        checked.drift += [f"{cell} is not what is pinned" for cell in moved]
        checked.verdict = Verdict.REFUTED if moved else Verdict.PROVED
    return checked


def search(bounds: Bounds, most: int) -> Found:
    """One search of the table that runs; for a process of its own."""
    return Search(bounds, RULES, most).run()


def judge(found: list[Found], baseline: dict[str, Any]) -> Checked:
    """One verdict: refuted by a broken claim, an edge nothing follows, or counts that drifted."""
    verdicts = [f.verdict for f in found]
    unfired: set[str] = set.intersection(*(set(f.unfired) for f in found))
    drift = []
    if Verdict.UNDETERMINED in verdicts:
        unfired = set()
    elif Verdict.REFUTED not in verdicts:
        drift = [
            f"{f.bounds.name}: {counts(f)}, pinned {baseline.get(f.bounds.name)}"
            for f in found
            if counts(f) != baseline.get(f.bounds.name)
        ]
    bad = Verdict.REFUTED in verdicts or unfired or drift
    if bad:
        verdict = Verdict.REFUTED
    else:
        verdict = Verdict.UNDETERMINED if Verdict.UNDETERMINED in verdicts else Verdict.PROVED
    return Checked(found, verdict, sorted(unfired), drift)


__all__ = ["BASELINE", "Checked", "check", "counts", "judge", "pinned", "search"]
