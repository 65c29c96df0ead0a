"""`model mutate`: every single fault of the table is found by a check, or shown to be none.

A fault is tried by the cheapest check first, and counted for the first that finds it:

claims      a search within small bounds breaks a claim (`model check`).
proof       z3 refutes an obligation (`model prove`).
progress    the server is held up, or does not wait as it should (`model progress`).
dead edge   an edge is followed by no search any more, or a new one never is (`model check`).
counts      as many states or edges as the table has are not reached (`model check`, the baseline).
grid        a pair is neither an edge nor refused, or both, or a name is missing or idle.
exact       only a comparison of the table, cell by cell, with what is pinned shows the fault.

A fault none of them finds must be no fault: z3 shows that every step of every edge it touches does
the same, in every state of the invariant and for any sizes.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import z3

from spec_fsm_model import pinned
from spec_fsm_model.explore import Verdict
from spec_fsm_model.faults import Fault, faults
from spec_fsm_model.graph import Faulty, Graph
from spec_fsm_model.progress import held_up
from spec_fsm_model.prove import Failure, Prover
from spec_fsm_model.prove_equal import Comparison
from spec_fsm_model.prove_support import conjuncts
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.seeded import BUGS, Refuted, search
from spec_fsm_model.world import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spec_fsm.ops import Term
    from spec_fsm_model.prove_edges import Step
    from spec_fsm_model.prove_question import Question

FIRST = (
    Bounds("one row, no overlap", rows=1, in_flight=0),
    Bounds("one row, overlap", rows=1),
)
"""The bounds a fault is tried in before it is put to the prover."""
THEN = (
    Bounds("one row, flushes", rows=1, in_flight=0, width=3, flush_every=2),
    Bounds("one row, slices", rows=1, in_flight=0, width=4, dwell=1, failures=1),
    Bounds("two rows, no overlap", in_flight=0),
)
KILLERS = ("claims", "proof", "progress", "dead edge", "counts", "grid", "exact")


@dataclass(frozen=True)
class Judged:
    """What became of a fault.

    by: who found it, one of KILLERS; "equivalent" if it is none; "survives" if nobody can tell.
    detail: the claim or obligation that breaks, or why it is no fault.
    """

    number: int
    kind: str
    what: str
    by: str
    detail: str


@dataclass
class Mutated:
    """All faults together, and the bugs of `seeded`."""

    judged: list[Judged] = field(default_factory=list)
    seeded: list[Refuted] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def by(self) -> Counter[str]:
        """How many each killer found, with those that are none and those that survive."""
        return Counter(j.by for j in self.judged)

    @property
    def verdict(self) -> Verdict:
        """Refuted if a fault or a bug is not found, or breaks more than it should."""
        if self.by["survives"] or any(s.verdict is Verdict.PROVED for s in self.seeded):
            return Verdict.REFUTED
        if any(s.verdict is Verdict.UNDETERMINED for s in self.seeded):
            return Verdict.UNDETERMINED
        return Verdict.PROVED if all(s.alone for s in self.seeded) else Verdict.REFUTED

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON objects."""
        return {
            "verdict": self.verdict.name.lower(),
            "faults": len(self.judged),
            "by": {name: self.by[name] for name in (*KILLERS, "equivalent", "survives")},
            "seeded": {s.bug.what: sorted(s.broken) for s in self.seeded},
            "seconds": round(self.seconds, 1),
        }


class _Quick(Prover):
    """A prover that is content with one counterexample of a fault, and keeps nothing of it."""

    def refuted(self, rules: Rules) -> str:
        """The first obligation that is refuted, or empty."""
        proof = self.prove(rules, first=True, whole=False)
        for parts in self._parts.values():
            del parts[1:]
        return next((str(f) for f in proof.failures if f.verdict is Verdict.REFUTED), "")

    def _broken(
        self, step: Step, question: Question, wanted: list[tuple[str, Term]], *, reserved: bool
    ) -> Iterator[Failure]:
        for name, term in ((n, c) for n, clause in wanted for c in conjuncts(clause)):
            if question.ask(z3.Not(term), reserved=reserved) == z3.sat:
                kind = "PROMISE" if name in step.promises else "INDUCTION"
                yield Failure(kind, step.name, name, Verdict.REFUTED)
                return


class Bench:
    """Tries faults; the graphs and proofs of the true table are made once."""

    def __init__(self, rules: Rules = RULES) -> None:
        self._rules = rules
        self._graphs = {bounds: Graph(bounds) for bounds in (*FIRST, *THEN)}
        self._prover = _Quick()
        if self._prover.prove(rules, whole=False).verdict is not Verdict.PROVED:
            raise ValueError("the table itself is not proved: run `spec-fsm model prove` first")
        self._compare = Comparison(rules).with_
        self._pinned = pinned.table(rules)

    def judge(self, fault: Fault) -> tuple[str, str]:
        """Who finds a fault, and how."""
        found: list[Faulty] = []
        for bounds in FIRST:
            found.append(self._graphs[bounds].with_fault(fault).run())
            if found[-1].broken is not None:
                return "claims", str(found[-1].broken)
        if text := self._prover.refuted(fault.rules):
            return "proof", text
        for bounds in THEN:
            found.append(self._graphs[bounds].with_fault(fault).run())
            if found[-1].broken is not None:
                return "claims", str(found[-1].broken)
        return self._of_graphs(fault, found) or self._in_the_end(fault)

    def _of_graphs(self, fault: Fault, found: Sequence[Faulty]) -> tuple[str, str] | None:
        """What whole graphs show that no single state does."""
        whole = [f for f in found if f.whole]
        for faulty in whole:
            if not faulty.same and (text := held_up(faulty.graph())):
                return "progress", text
        if len(whole) < len(found):
            return None
        for pair in fault.pairs & fault.rules.edges.keys():
            if not any(pair in faulty.fired for faulty in whole):
                return "dead edge", f"{pair[1].name} in {pair[0].name} is never followed"
        for faulty in whole:
            if faulty.same:
                continue
            mine, true = faulty.graph(), faulty.true
            sizes = (len(mine.worlds), mine.edges), (len(true.worlds), true.edges)
            if sizes[0] != sizes[1]:
                return "counts", f"{faulty.bounds.name}: {sizes[0]} for {sizes[1]}"
        return None

    def _in_the_end(self, fault: Fault) -> tuple[str, str]:
        if text := pinned.holes(fault.rules):
            return "grid", text
        if not fault.cells and self._compare(fault.rules).verdict is Verdict.PROVED:
            return "equivalent", "z3: every step is the same, for any sizes"
        if cells := pinned.differences(fault.rules, self._pinned):
            return "exact", ", ".join(cells)
        return "survives", "no check tells it from the table"


@cache
def _bench() -> Bench:
    """One bench a process; what it holds is no garbage, and is not looked through for any."""
    made = Bench()
    gc.collect()
    gc.freeze()
    return made


def judge(number: int) -> Judged:
    """Try the fault of that number; for a process of its own."""
    fault = _faults()[number]
    by, detail = _bench().judge(fault)
    return Judged(number, fault.kind, fault.what, by, detail)


@cache
def _faults() -> list[Fault]:
    return faults()


def mutate(processes: int = 2, numbers: Iterable[int] | None = None) -> Mutated:
    """Try every fault, or those of the numbers given."""
    began = time.perf_counter()
    chosen = range(len(_faults())) if numbers is None else list(numbers)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        bugs = pool.submit(find_bugs)
        judged = list(pool.map(judge, chosen, chunksize=16))
        seeded = bugs.result()
    return Mutated(judged, seeded, time.perf_counter() - began)


def find_bugs() -> list[Refuted]:
    """Search for every seeded bug; for a process of its own."""
    return [search(bug) for bug in BUGS]


__all__ = ["FIRST", "KILLERS", "THEN", "Bench", "Judged", "Mutated", "find_bugs", "judge", "mutate"]
