"""Integers that remember how they came about: the searches' own Python code, read as a program.

`Seen` is an integer with the expression it is the value of.  Arithmetic makes longer expressions;
a comparison is one too, until Python asks whether it holds (`if`, `and`, `min`): then the answer is
noted as a decision of the run.  So a run of the environment's code on a world of such integers
leaves behind the path it took and what it computed, as expressions over the world's figures.
`export` puts many paths together to a program that does the same in every world.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Text(NamedTuple):
    """An expression in Promela and in Python."""

    promela: str
    python: str


class Decision(NamedTuple):
    """What a run turned on: an expression and its value there."""

    text: Text
    value: int


class Run:
    """The decisions of one run, each taken once."""

    def __init__(self) -> None:
        self.path: list[Decision] = []
        self.known: dict[str, int] = {}

    def decide(self, seen: Seen) -> int:
        """Note the value of an expression as a decision; returns it."""
        value = int.__int__(seen)
        if seen.text.promela not in self.known:
            self.known[seen.text.promela] = value
            self.path.append(Decision(seen.text, value))
        return value


_run = Run()


def begin() -> Run:
    """A new run; every decision from now on is one of its."""
    global _run
    _run = Run()
    return _run


class Seen(int):
    """An integer, or a truth value, and the expression it is the value of."""

    text: Text

    def __new__(cls, value: int, text: Text) -> Seen:
        """The value, with the expression it is the value of."""
        seen = super().__new__(cls, value)
        seen.text = text
        return seen

    def __bool__(self) -> bool:
        return bool(_run.decide(_made("!=", int(self) != 0, self, 0)))

    __hash__ = int.__hash__

    def __add__(self, other: Any) -> Any:
        return self if _is_zero(other) else _made("+", int(self) + int(other), self, other)

    def __radd__(self, other: Any) -> Any:
        return self if _is_zero(other) else _made("+", int(self) + int(other), other, self)

    def __sub__(self, other: Any) -> Any:
        return self if _is_zero(other) else _made("-", int(self) - int(other), self, other)

    def __rsub__(self, other: Any) -> Any:
        return _made("-", int(other) - int(self), other, self)

    def __neg__(self) -> Any:
        return _made("-", -int(self), 0, self)

    def __and__(self, other: Any) -> Any:
        return _made("&", int(self) & int(other), self, other)

    def __or__(self, other: Any) -> Any:
        return self if _is_zero(other) else _made("|", int(self) | int(other), self, other)

    def __rshift__(self, other: Any) -> Any:
        return _made(">>", int(self) >> int(other), self, other)

    def __eq__(self, other: object) -> Any:
        return _compared("==", int(self) == _plain(other), self, other)

    def __ne__(self, other: object) -> Any:
        return _compared("!=", int(self) != _plain(other), self, other)

    def __lt__(self, other: Any) -> Any:
        return _compared("<", int(self) < int(other), self, other)

    def __le__(self, other: Any) -> Any:
        return _compared("<=", int(self) <= int(other), self, other)

    def __gt__(self, other: Any) -> Any:
        return _compared(">", int(self) > int(other), self, other)

    def __ge__(self, other: Any) -> Any:
        return _compared(">=", int(self) >= int(other), self, other)


class Flag(Seen):
    """A truth value of the same kind."""

    __hash__ = int.__hash__

    def __bool__(self) -> bool:
        return bool(_run.decide(self))


def text_of(value: Any) -> Text:
    """The expression of a value; of a plain one its digits."""
    if isinstance(value, Seen):
        return value.text
    digits = str(int(value))
    return Text(f"({digits})", f"({digits})") if digits[0] == "-" else Text(digits, digits)


def concrete(value: Any) -> int:
    """The value itself, as a decision."""
    return _run.decide(value) if isinstance(value, Seen) else int(value)


def _plain(other: object) -> object:
    return int(other) if isinstance(other, int) else other


def _is_zero(other: Any) -> bool:
    return not isinstance(other, Seen) and int(other) == 0


def _made(sign: str, value: int, left: Any, right: Any) -> Seen:
    a, b = text_of(left), text_of(right)
    return Seen(value, Text(f"({a.promela} {sign} {b.promela})", f"({a.python} {sign} {b.python})"))


def _compared(sign: str, value: bool, left: Seen, right: Any) -> Any:
    """A comparison; decided where both sides are the same, or known from an earlier decision."""
    if not isinstance(right, int):
        return value
    if isinstance(right, Seen):
        if left.text == right.text:
            return value
    elif left.text.promela in _run.known:
        return value
    return Flag(value, _made(sign, value, left, right).text)


class _SeenOps:
    """The reading of rules over such integers; nothing in them is a decision."""

    def all(self, *terms: Any) -> Any:
        return _joined("&&", "and", all(int(t) for t in terms), terms)

    def any(self, *terms: Any) -> Any:
        return _joined("||", "or", any(int(t) for t in terms), terms)

    def not_(self, term: Any) -> Any:
        if not isinstance(term, Seen):
            return not term
        text = text_of(term)
        return Flag(not int(term), Text(f"!({text.promela})", f"(not {text.python})"))

    def imp(self, left: Any, right: Any) -> Any:
        return self.any(self.not_(left), right)

    def ite(self, condition: Any, then: Any, other: Any) -> Any:
        if not isinstance(condition, Seen):
            return then if condition else other
        c, a, b = text_of(condition), text_of(then), text_of(other)
        return Seen(
            int(then) if int(condition) else int(other),
            Text(
                f"({c.promela} -> {a.promela} : {b.promela})",
                f"({a.python} if {c.python} else {b.python})",
            ),
        )

    def max(self, left: Any, right: Any) -> Any:
        return self.ite(left >= right, left, right)

    def min(self, left: Any, right: Any) -> Any:
        return self.ite(left <= right, left, right)

    def eq(self, left: Any, right: Any) -> Any:
        return left == right

    def div(self, left: Any, right: Any) -> Any:
        return _made("/", int(left) // int(right), left, right)


def _joined(promela: str, python: str, value: bool, terms: tuple[Any, ...]) -> Any:
    """Terms that are seen, joined; a plain one settles the matter or says nothing."""
    seen = [t for t in terms if isinstance(t, Seen)]
    decisive = promela == "||"
    if not seen or any(bool(t) is decisive for t in terms if not isinstance(t, Seen)):
        return value
    if len(seen) == 1:
        return seen[0]
    texts = [text_of(t) for t in seen]
    joined = (
        f" {sign} ".join(parts)
        for sign, parts in (
            (promela, [t.promela for t in texts]),
            (python, [t.python for t in texts]),
        )
    )
    return Flag(value, Text(*(f"({text})" for text in joined)))


SEEN: Any = _SeenOps()

__all__ = ["SEEN", "Decision", "Run", "Seen", "Text", "begin", "concrete", "text_of"]
