"""The vocabulary guards and effects are written in, and its reading over plain integers.

A rule written as `ops.all(a <= b, ops.not_(c))` can be evaluated for integers (`INT`, the run
time), or for z3 terms (the formal model brings that reading).  Python's `and`, `or`, `not`, `if`,
`min` and `max` force a truth value, which a symbolic term does not have; that is why rules must
not use them.  `+`, `-`, `<=` and `<` work for both as they are.
"""

from __future__ import annotations

import builtins
from typing import Any, Protocol, TypeAlias

Term: TypeAlias = Any
"""An integer or a truth value: int and bool at run time, ArithRef and BoolRef in z3."""


class Ops(Protocol):
    """What a reading of the rules offers."""

    def all(self, *terms: Term) -> Term:
        """True where every term is."""

    def any(self, *terms: Term) -> Term:
        """True where at least one term is."""

    def not_(self, term: Term) -> Term:
        """True where the term is not."""

    def imp(self, left: Term, right: Term) -> Term:
        """True where `left` is false or `right` is true."""

    def ite(self, condition: Term, then: Term, other: Term) -> Term:
        """`then` where the condition holds, else `other`."""

    def max(self, left: Term, right: Term) -> Term:
        """The larger integer."""

    def min(self, left: Term, right: Term) -> Term:
        """The smaller integer."""

    def eq(self, left: Term, right: Term) -> Term:
        """True where both are the same."""

    def div(self, left: Term, right: Term) -> Term:
        """How often a positive integer goes into another, rounded down."""


class _IntOps:
    """The reading over Python's integers and truth values."""

    __slots__ = ()

    def all(self, *terms: Term) -> Term:
        return builtins.all(terms)

    def any(self, *terms: Term) -> Term:
        return builtins.any(terms)

    def not_(self, term: Term) -> Term:
        return not term

    def imp(self, left: Term, right: Term) -> Term:
        return not left or bool(right)

    def ite(self, condition: Term, then: Term, other: Term) -> Term:
        return then if condition else other

    def max(self, left: Term, right: Term) -> Term:
        return builtins.max(left, right)

    def min(self, left: Term, right: Term) -> Term:
        return builtins.min(left, right)

    def eq(self, left: Term, right: Term) -> Term:
        return left == right

    def div(self, left: Term, right: Term) -> Term:
        return left // right


INT: Ops = _IntOps()

__all__ = ["INT", "Ops", "Term"]
