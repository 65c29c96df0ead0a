"""Whether two tables do the same in every state that can be reached.

For a change of the table that no claim notices: if each step of the one is a step of the other from
every state of the invariant, then both reach the same states by the same events, for any numbers,
and the change is none.  The invariant must have been proved of the first table (`prove`).  Events
bring what `prove_edges` says they may.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import z3

from spec_fsm.modes import Event, Mode
from spec_fsm_model.explore import Verdict
from spec_fsm_model.prove_question import TIMEOUT_MS, Question
from spec_fsm_model.prove_steps import Steps
from spec_fsm_model.prove_story import numbers, story

if TYPE_CHECKING:
    from spec_fsm.ops import Term
    from spec_fsm_model.prove_edges import Step
    from spec_fsm_model.rules import Rules


class Equality(NamedTuple):
    """verdict: PROVED if they do the same.  lines: a step that differs, as a story."""

    verdict: Verdict
    lines: list[str]


def equal(rules: Rules, other: Rules, timeout_ms: int = TIMEOUT_MS) -> Equality:
    """Compare every step of `other` with that of `rules`, from every state of the invariant."""
    return Comparison(rules, timeout_ms).with_(other)


class Comparison:
    """Compares tables with `rules`; a step that reads nothing that differs is not asked about."""

    def __init__(self, rules: Rules, timeout_ms: int = TIMEOUT_MS) -> None:
        self._rules, self._timeout_ms = rules, timeout_ms
        self._reads: dict[tuple[Mode, Event], list[tuple[str, Any, Any]]] = {}
        for key in product(Mode, Event):
            steps = Steps(rules)
            for _ in steps.of(*key):
                pass
            self._reads[key] = steps.reads

    def with_(self, other: Rules) -> Equality:
        """Compare every step of `other`, from every state of the invariant."""
        verdict = Equality(Verdict.PROVED, [])
        for key, reads in self._reads.items():
            if all(getattr(other, what).get(name) == value for what, name, value in reads):
                continue
            found = _equal_at(self._rules, other, key, self._timeout_ms)
            if found.verdict is Verdict.REFUTED:
                return found
            if found.verdict is Verdict.UNDETERMINED:
                verdict = found
        return verdict


def _equal_at(rules: Rules, other: Rules, key: tuple[Mode, Event], timeout_ms: int) -> Equality:
    ours, theirs = Steps(rules), Steps(other)
    one, two = list(ours.of(*key)), list(theirs.of(*key))
    if ours.reads == theirs.reads:
        return Equality(Verdict.PROVED, [])
    if not one or not two:
        # An edge that one of them lacks: the same if it can never be followed.
        steps = [(step, _fires(step)) for step in one or two]
    else:
        steps = [(a, _differ(a, b)) for a, b in zip(one, two, strict=True)]
    for step, differs in steps:
        question = Question(step.before, (), {}, timeout_ms=timeout_ms)
        answer = question.ask(differs)
        if answer == z3.sat:
            model = question.small(numbers(step), differs)
            lines = story(step, model, "EQUAL", "the other table does not do the same")
            return Equality(Verdict.REFUTED, lines)
        if answer != z3.unsat:
            return Equality(Verdict.UNDETERMINED, [])
    return Equality(Verdict.PROVED, [])


def _differ(a: Step, b: Step) -> Term:
    """One can be followed where the other cannot, or they lead to different scenes."""
    fires, other = _fires(a), _fires(b)
    if (a.after.mode, a.after.stage) != (b.after.mode, b.after.stage):
        return z3.Or(fires, other)
    same = [x == y for x, y in zip(_moved(a), _moved(b), strict=True) if x is not y]
    return z3.Or(fires != other, z3.And(fires, z3.Not(z3.And(*same))))


def _fires(step: Step) -> Term:
    """The event may bring this, and no guard is against it."""
    return z3.And(*step.contract, *step.guards.values())


def _moved(step: Step) -> list[Term]:
    """All that a step may move."""
    s = step.after
    row = [t for t in s.row if not isinstance(t, tuple)]
    return [*s.state, *row, *s.row.launched, *s.row.settled, *s.flights, s.others, s.others_lost]


__all__ = ["Comparison", "Equality", "equal"]
