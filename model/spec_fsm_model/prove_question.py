"""Asks z3 whether the invariant, without one clause or guard if need be, allows something."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import z3

from spec_fsm_model.prove_claims import CLAUSES
from spec_fsm_model.prove_support import TICK, conjuncts
from spec_fsm_model.symbolic import Stage, scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spec_fsm.modes import Mode
    from spec_fsm.ops import Term
    from spec_fsm_model.symbolic import Scene

TIMEOUT_MS = 30_000
"""Most time z3 may take for one question, in milliseconds; then it is undetermined."""


RESERVE = "RESERVE"
RESERVED = frozenset({RESERVE, *(clause.name for clause in CLAUSES if clause.reserved)})
"""The contract about slots, and the clauses that count on it."""


class Question:
    """A solver that holds the invariant of one scene, clause by clause, and what one step adds.

    Each clause and guard hangs on a literal, so that it can be left out of a question.
    """

    def __init__(
        self,
        before: Scene,
        contract: Sequence[Term] = (),
        guards: dict[str, Term] | None = None,
        reserve: Term = True,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.solver = z3.Solver()
        self.solver.set("timeout", timeout_ms)
        self._literals: dict[str, Any] = {}
        self._guards: list[str] = []
        self.model: Any = None
        self.core: set[str] = set()
        for name, term in _invariant(before.mode, before.stage):
            self._hang(name, term)
        for name, guard in (guards or {}).items():
            self._guards.append(name)
            self._hang(name, guard)
        self._hang(RESERVE, reserve)
        self.solver.add(*contract)

    def _hang(self, name: str, term: Term) -> None:
        literal = self._literals[name] = z3.Bool(f"<{name}>")
        self.solver.add(z3.Implies(literal, term))

    def ask(
        self, *terms: Term, without: str = "", guards: bool = True, reserved: bool = True
    ) -> Any:
        """z3's answer to whether the terms can all be true; then `model` or `core` is set.

        without: name of a clause or guard that is left out.  guards: whether they hold.  reserved:
        whether the contract RESERVE holds, and the clauses that count on it.
        """
        left_out = {without} if guards else {without, *self._guards}
        left_out |= set() if reserved else RESERVED
        held = [lit for name, lit in self._literals.items() if name not in left_out]
        self.solver.push()
        self.solver.add(*terms)
        answer = self.solver.check(*held)
        self.model = self.solver.model() if answer == z3.sat else None
        self.core = set()
        if answer == z3.unsat:
            self.core = {str(c)[1:-1] for c in self.solver.unsat_core()}
        self.solver.pop()
        return answer

    def small(self, numbers: Iterable[Term], *terms: Term, **how: Any) -> Any:
        """A model in which the terms are true, with small numbers if there is one."""
        numbers = list(numbers)
        for most in (4, 8, 16):
            few = [z3.And(n >= -1, n <= most) for n in numbers]
            if self.ask(*terms, *few, **how) == z3.sat:
                return self.model
        self.ask(*terms, **how)
        return self.model


@cache
def _invariant(mode: Mode, stage: Stage) -> list[tuple[str, Term]]:
    """Each clause of a mode and stage, at every tick a step can be about."""
    free = scene(mode, stage)
    t = free.state.t_settled
    said: dict[str, dict[int, Term]] = {}
    for tick in (TICK, t, t + 1, free.newest):
        for clause in CLAUSES:
            term = clause.term(free, tick)
            if term is not True:
                term = z3.BoolVal(False) if term is False else term
                said.setdefault(clause.name, {})[term.get_id()] = term
    return [(name, z3.And(*terms.values())) for name, terms in said.items()]


def goals(after: Scene) -> list[tuple[str, Term]]:
    """What every clause says of a scene, with the clause's name; clauses silent there left out."""
    said = ((clause.name, clause.term(after, TICK)) for clause in CLAUSES)
    return [(name, term) for name, term in said if term is not True]


@cache
def obligations(mode: Mode, stage: Stage) -> int:
    """Conjuncts of all clauses in a mode and stage: each is an obligation of every step there."""
    return sum(len(conjuncts(term)) for _, term in goals(scene(mode, stage)))


def negated(terms: Iterable[Term]) -> Term:
    """At least one of the terms is false."""
    return z3.Or(*(z3.Not(t) for t in terms))


__all__ = ["RESERVED", "TIMEOUT_MS", "Question", "goals", "negated", "obligations"]
