"""`model prove`: the claims hold in every state, for any numbers of rows, sizes and flights.

The invariant is the conjunction of `prove_claims.CLAUSES`.  Obligations, each decided by z3:

INIT       A server that was just started satisfies each clause.
INDUCTION  One for each step of each edge and each conjunct of each clause: if the whole invariant
           holds, the guards hold and the event brings what `prove_edges` says it may, then the
           conjunct holds afterwards.  With INIT this makes every clause true in every state that
           can be reached, whatever the numbers: rows, launches in flight, width of the stash and of
           a slice, dwell, prompt and accept lengths, topk, steps, draft tokens and page size.
PROMISE    What must hold of a step itself: a flush leaves no hole below what it writes, the rest
           of a reseed fits one slice, the cache is emptied while no row lives, no row keeps a stash
           of old weights, and a drain that is over changes nothing but the mode.
ACCEPTED   What has happened is not refused: its guards follow from the invariant; and where the
           table has no edge, or the mode no such launch, it cannot have happened.
FIRES      Every edge can be followed from some state of the invariant, so that none of the above
           is true for want of a case.
NEEDED     No clause is idle: without it some other obligation fails, or it is a claim by itself.
LAWS       The shape laws, for any b, k, s, d and page size: see `prove_laws`.

What is not proved: that `max_gap` is some row's (only that no row's is larger; `model check` has
the rest), that anything ever happens (`model progress`), that the engine keeps the contracts
listed in `prove_edges`, and that a row's order in a batch (I7), its slots' owners (I4, I6) and the
engine's own tensors are right (the engine's checks).  DWELL_OVER supports no clause: no number
depends on when a change is asked for; `Proof.idle_guards` says so, and `model progress` holds the
dwell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import z3

from spec_fsm.modes import Event, Mode
from spec_fsm_model.explore import Verdict
from spec_fsm_model.prove_claims import CLAUSES
from spec_fsm_model.prove_edges import PROMISES
from spec_fsm_model.prove_laws import GIVEN, ROWS, SHAPE, carried, shape_laws
from spec_fsm_model.prove_question import (
    RESERVED,
    TIMEOUT_MS,
    Question,
    goals,
    negated,
    obligations,
)
from spec_fsm_model.prove_steps import Steps, can_happen, initial
from spec_fsm_model.prove_story import numbers, story, value
from spec_fsm_model.prove_support import conjuncts
from spec_fsm_model.rules import RULES, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spec_fsm.ops import Term
    from spec_fsm_model.prove_edges import Step
    from spec_fsm_model.prove_laws import Law

SAYS = {**{c.name: c.says for c in CLAUSES}, **PROMISES}
"""What each clause and promise says, by name."""


@dataclass(frozen=True)
class Failure:
    """An obligation that does not hold, or that z3 did not decide.

    kind: INIT, INDUCTION, PROMISE, ACCEPTED, FIRES, NEEDED or LAWS.  at: the step, edge or law.
    claim: the clause, promise or guard.  lines: the counterexample as a story, told once a step.
    """

    kind: str
    at: str
    claim: str
    verdict: Verdict
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind} {self.at}: {self.claim} is {self.verdict.name.lower()}"


@dataclass
class Proof:
    """What was proved, and what was not.

    obligations: how many there are, by kind.  needed: for each clause the step whose obligation
    fails without it, or that it is a claim by itself.  idle_guards: guards no obligation leans on.
    """

    obligations: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    needed: dict[str, str] = field(default_factory=dict)
    idle_guards: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """Refuted by any counterexample, undetermined by any question left open."""
        verdicts = {f.verdict for f in self.failures}
        for verdict in (Verdict.REFUTED, Verdict.UNDETERMINED):
            if verdict in verdicts:
                return verdict
        return Verdict.PROVED

    def add(self, found: _Part) -> None:
        """Count the obligations of a part, and keep those that failed."""
        for kind, count in found.obligations.items():
            self.obligations[kind] = self.obligations.get(kind, 0) + count
        self.failures += found.failures

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON objects."""
        return {
            "verdict": self.verdict.name.lower(),
            "obligations": self.obligations,
            "failures": [str(f) for f in self.failures],
            "needed": self.needed,
            "idle_guards": self.idle_guards,
            "seconds": round(self.seconds, 1),
        }


class _Lean(NamedTuple):
    """A proof.  wanted: by the name of the clause or promise.  core: what it leans on.

    guards, reserved: see `Question.ask`.
    """

    step: Step
    question: Question
    core: set[str]
    wanted: list[tuple[str, Term]]
    guards: bool
    reserved: bool


@dataclass
class _Part:
    """The obligations of one pair of mode and event, and what their proofs read of the rules.

    leans: what was proved of its steps, and on which clauses and guards each proof leans.
    """

    obligations: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    reads: list[tuple[str, Any, Any]] = field(default_factory=list)
    leans: list[_Lean] = field(default_factory=list)

    def count(self, kind: str, number: int = 1) -> None:
        self.obligations[kind] = self.obligations.get(kind, 0) + number


class Prover:
    """Proves rules; what one proof has shown of an edge, the next takes over where nothing differs.

    A mutant differs from the table in one edge, guard or effect: only the steps that read it are
    proved anew.
    """

    def __init__(self, timeout_ms: int = TIMEOUT_MS) -> None:
        self._timeout_ms = timeout_ms
        self._parts: dict[tuple[Mode, Event], list[_Part]] = {}

    def prove(self, rules: Rules = RULES, *, first: bool = False, whole: bool = True) -> Proof:
        """Decide every obligation.

        first: stop at the first that is refuted.  whole: also whether clauses are needed, guards
        idle and shape laws true, none of which a mutant of the table changes for the worse.
        """
        proof, began = Proof(), time.perf_counter()
        proof.add(self._laws(carried(rules.allowed)))
        if whole:
            proof.add(self._init())
            proof.add(self._laws(shape_laws()))
        parts = []
        for key in ((mode, event) for mode in Mode for event in Event):
            parts.append(self._known(key, rules) or self._part(key, rules))
            proof.add(parts[-1])
            if first and proof.verdict is Verdict.REFUTED:
                break
        else:
            if whole and proof.verdict is Verdict.PROVED:
                self._needed(proof, parts)
        proof.seconds = time.perf_counter() - began
        return proof

    # -- one pair of mode and event -------------------------------------------------------

    def _known(self, key: tuple[Mode, Event], rules: Rules) -> _Part | None:
        for part in self._parts.get(key, ()):
            if all(_same(value, _read(rules, what, name)) for what, name, value in part.reads):
                return part
        return None

    def _part(self, key: tuple[Mode, Event], rules: Rules) -> _Part:
        mode, event = key
        steps, part = Steps(rules), _Part()
        made = list(steps.of(mode, event))
        if event is Event.LAUNCHED:
            made += steps.ends(mode)
        fires = [self._step(step, part) for step in made]
        if made:
            part.count("FIRES")
            if z3.sat not in fires:
                open_ = any(f == z3.unknown for f in fires)
                verdict = Verdict.UNDETERMINED if open_ else Verdict.REFUTED
                part.failures.append(Failure("FIRES", _name(key), "can be followed", verdict))
        else:
            self._refusal(steps, key, part)
        part.reads = steps.reads
        self._parts.setdefault(key, []).append(part)
        return part

    def _step(self, step: Step, part: _Part) -> Any:
        """All obligations of a step; returns whether it can be followed at all."""
        question = Question(
            step.before, step.contract, step.guards, step.reserve, self._timeout_ms
        )
        self._accepted(step, question, part)
        fires = question.ask()
        wanted = goals(step.after)
        part.count("INDUCTION", obligations(step.after.mode, step.after.stage))
        part.count("PROMISE", len(step.promises))
        wanted += step.promises.items()
        for reserved in (False, True):
            some = [(name, term) for name, term in wanted if (name in RESERVED) is reserved]
            if question.ask(negated(term for _, term in some), reserved=reserved) == z3.unsat:
                core = question.core
                part.leans.append(_Lean(step, question, core, some, guards=True, reserved=reserved))
            else:
                part.failures += self._broken(step, question, some, reserved=reserved)
        return fires

    def _broken(
        self, step: Step, question: Question, wanted: list[tuple[str, Term]], *, reserved: bool
    ) -> Iterator[Failure]:
        """The obligations of a step one by one; the first that fails comes with a story."""
        told = False
        for name, term in ((n, c) for n, clause in wanted for c in conjuncts(clause)):
            kind = "PROMISE" if name in step.promises else "INDUCTION"
            answer = question.ask(z3.Not(term), reserved=reserved)
            if answer == z3.unsat:
                continue
            failure = Failure(kind, step.name, name, Verdict.UNDETERMINED)
            if answer == z3.sat:
                lines = [] if told else self._story(step, question, (name, term), reserved=reserved)
                told, failure = True, replace(failure, verdict=Verdict.REFUTED, lines=lines)
            yield failure

    @staticmethod
    def _story(
        step: Step, question: Question, wanted: tuple[str, Term], *, reserved: bool
    ) -> list[str]:
        name, term = wanted
        model = question.small(numbers(step), z3.Not(term), reserved=reserved)
        return story(step, model, name, SAYS[name], term)

    def _accepted(self, step: Step, question: Question, part: _Part) -> None:
        """The guards of a fact follow from the invariant."""
        if step.happened is None:
            return
        for name, guard in step.guards.items():
            self._fact(step, question, part, (name, z3.Implies(step.happened, guard)))

    def _refusal(self, steps: Steps, key: tuple[Mode, Event], part: _Part) -> None:
        """A fact the table has no edge for cannot have happened."""
        for step in can_happen(steps, *key):
            question = Question(step.before, step.contract, {}, step.reserve, self._timeout_ms)
            self._fact(step, question, part, ("an edge", z3.Not(step.happened)))

    @staticmethod
    def _fact(step: Step, question: Question, part: _Part, wanted: tuple[str, Term]) -> None:
        part.count("ACCEPTED")
        name, term = wanted
        answer = question.ask(z3.Not(term), guards=False, reserved=False)
        if answer == z3.unsat:
            core = question.core
            part.leans.append(_Lean(step, question, core, [wanted], guards=False, reserved=False))
            return
        failure = Failure("ACCEPTED", step.name, name, Verdict.UNDETERMINED)
        if answer == z3.sat:
            model = question.small(numbers(step), z3.Not(term), guards=False, reserved=False)
            lines = story(step, model, name, "what has happened is refused")
            failure = replace(failure, verdict=Verdict.REFUTED, lines=lines)
        part.failures.append(failure)

    # -- of the invariant as a whole ------------------------------------------------------

    def _init(self) -> _Part:
        part = _Part()
        solver = z3.Solver()
        solver.set("timeout", self._timeout_ms)
        start, facts = initial()
        solver.add(*facts)
        for name, term in goals(start):
            part.count("INIT", len(conjuncts(term)))
            answer = solver.check(z3.Not(term))
            if answer != z3.unsat:
                verdict = Verdict.REFUTED if answer == z3.sat else Verdict.UNDETERMINED
                part.failures.append(Failure("INIT", "a server that was started", name, verdict))
        return part

    def _laws(self, laws: Iterable[Law]) -> _Part:
        part = _Part()
        for law in laws:
            part.count("LAWS")
            solver = z3.Solver()
            solver.set("timeout", self._timeout_ms)
            answer = solver.check(*GIVEN, z3.Not(law.holds))
            if answer == z3.sat:
                model = solver.model()
                sizes = ", ".join(f"{n} = {value(model, n)}" for n in (ROWS, *SHAPE))
                lines = [f"counterexample: {sizes}", f"  {' '.join(str(law.holds).split())}"]
                failure = Failure("LAWS", law.at, law.name, Verdict.REFUTED, lines)
                part.failures.append(failure)
            elif answer != z3.unsat:
                part.failures.append(Failure("LAWS", law.at, law.name, Verdict.UNDETERMINED))
        return part

    def _needed(self, proof: Proof, parts: list[_Part]) -> None:
        """Which clauses and guards the proofs lean on, asked again without each."""
        leans = [lean for part in parts for lean in part.leans]
        proof.obligations["NEEDED"] = len(CLAUSES)
        for clause in CLAUSES:
            if clause.claim:
                proof.needed[clause.name] = "a claim by itself"
                continue
            verdict, at = _leaning(clause.name, leans)
            if verdict is Verdict.PROVED:
                proof.needed[clause.name] = f"{at} needs it"
            else:
                failure = Failure("NEEDED", "the invariant", clause.name, verdict)
                proof.failures.append(failure)
        guards = {name for lean in leans for name in lean.step.guards}
        proof.idle_guards = sorted(g for g in guards if _leaning(g, leans)[0] is Verdict.REFUTED)


def _leaning(name: str, leans: list[_Lean]) -> tuple[Verdict, str]:
    """Whether some proof needs the clause or guard `name`, and the step it is about."""
    verdict = Verdict.REFUTED
    for step, question, core, wanted, guards, reserved in leans:
        rest = [term for claim, term in wanted if claim != name]
        if name in core and rest:
            how = {"guards": guards, "reserved": reserved}
            answer = question.ask(negated(rest), without=name, **how)
            if answer == z3.sat:
                return Verdict.PROVED, step.name
            if answer != z3.unsat:
                verdict = Verdict.UNDETERMINED
    return verdict, ""


def prove(rules: Rules = RULES, *, first: bool = False, whole: bool = True) -> Proof:
    """Decide every obligation of `rules`; see `Prover.prove`."""
    return Prover().prove(rules, first=first, whole=whole)


def _name(key: tuple[Mode, Event]) -> str:
    return f"{key[1].name} in {key[0].name}"


def _read(rules: Rules, what: str, name: Any) -> Any:
    return getattr(rules, what).get(name)


def _same(one: Any, other: Any) -> bool:
    # Functions by identity: two that differ in what they say are two objects.
    return one is other or (not callable(one) and one == other)


__all__ = ["SAYS", "Failure", "Proof", "Prover", "prove"]
