"""The invariants by id, and the counter of how often each was checked."""

from __future__ import annotations

from collections import Counter

LAUNCH_IDS = ("matrix", "I1a", "I16", "I2", "I3")
IDS = (
    "matrix", "I1a", "I1b", *(f"I{n}" for n in range(2, 20)),
)


class Checks:
    """Counts evaluations and violations by invariant id."""

    __slots__ = ("_counts", "details", "launches", "violations")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.details: list[str] = []
        self.launches = 0

    def count(self, invariant: str, times: int = 1) -> None:
        """`invariant` was evaluated `times` times."""
        self._counts[invariant] += times

    def violated(self, invariant: str, detail: str) -> None:
        """`invariant` did not hold; `detail` says where, and the first hundred are kept."""
        self.violations[invariant] += 1
        if len(self.details) < 100:
            self.details.append(f"{invariant}: {detail}")

    def evaluated(self, invariant: str) -> int:
        """How often `invariant` was evaluated."""
        bulk = self.launches if invariant in LAUNCH_IDS else 0
        return self._counts[invariant] + bulk

    def as_dict(self) -> dict[str, int]:
        """Evaluations by id, zeros included."""
        return {i: self.evaluated(i) for i in IDS}


__all__ = ["IDS", "LAUNCH_IDS", "Checks"]
