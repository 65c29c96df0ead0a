"""Guards, effects and predicates read the same over integers and as z3 terms."""

from __future__ import annotations

import ast
import inspect
import random
from typing import Any, NamedTuple

import pytest
import z3

from spec_fsm import _rules, invariants, laws
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS, Arg, RowState, State
from spec_fsm.invariants import ROW_PREDICATES, STATE_PREDICATES
from spec_fsm.modes import Phase
from spec_fsm.ops import INT
from spec_fsm_model.symbolic import Z3

POINTS = 100


def symbols(kind: Any, prefix: str) -> Any:
    """One record of `kind` whose fields are free integers."""
    return kind(*(z3.Int(f"{prefix}_{name}") for name in kind._fields))


SYMBOLS = (symbols(State, "s"), symbols(RowState, "r"), symbols(Arg, "a"))


def point(rng: random.Random) -> tuple[State, RowState, Arg]:
    """Small integers for every field, few enough that every rule goes both ways."""
    top = rng.choice((1, 1, 3))
    return tuple(  # type: ignore[return-value]
        kind(*(rng.randint(0, top) for _ in kind._fields)) for kind in (State, RowState, Arg)
    )


def concrete(term: Any, at: tuple[Any, ...]) -> Any:
    """The value of a symbolic term at a point."""
    values = {
        id(symbol): (symbol, value)
        for record, numbers in zip(SYMBOLS, at, strict=True)
        for symbol, value in zip(record, numbers, strict=True)
    }
    if id(term) in values:  # a field the rule left alone
        return values[id(term)][1]
    if isinstance(term, int):
        return term
    pairs = [(symbol, z3.IntVal(value)) for symbol, value in values.values()]
    result = z3.simplify(z3.substitute(term, *pairs))
    return result.as_long() if z3.is_int_value(result) else z3.is_true(result)


class Sizes(NamedTuple):
    """What the laws read of a `Shape`, over either reading."""

    topk: Any
    num_steps: Any
    num_draft_tokens: Any
    page_size: Any
    plans_window: Any


def sizes(ops: Any, s: State) -> Sizes:
    """Sizes made of a record's fields: none is below 1, and not all are possible."""
    shape = Sizes(1 + s[0], 1 + s[1], 1 + s[2], 1 + s[3], None)
    return shape._replace(plans_window=laws.window_planned(shape, ops))


CASES: dict[str, Any] = {
    **{f"guard {n}": lambda o, s, r, a, f=f: f(o, s, a) for n, f in GUARDS.items()},
    **{f"effect {n}": lambda o, s, r, a, f=f: f(o, s, a) for n, f in EFFECTS.items()},
    **{f"row effect {n}": lambda o, s, r, a, f=f: f(o, s, r, a) for n, f in ROW_EFFECTS.items()},
    **{f"row law {n}": lambda o, s, r, a, f=f: f(o, r) for n, f in ROW_PREDICATES.items()},
    **{f"state law {n}": lambda o, s, r, a, f=f: f(o, s) for n, f in STATE_PREDICATES.items()},
    "law I4": lambda o, s, r, a: invariants.slots_conserved(o, r[0], r[1], r[2], s[0]),
    "law I6": lambda o, s, r, a: invariants.slot_owned(o, r[0], r[1], r[2]),
    "law I9": lambda o, s, r, a: invariants.lengths_agree(o, r[0], r[1]),
    "law I13": lambda o, s, r, a: invariants.buffers_hold(o, r[0], r[1]),
    "law I15": lambda o, s, r, a: invariants.insertion_covered(o, r[0], r[1]),
    "law I17": lambda o, s, r, a: invariants.token_is_last(o, r[0] - 1, r[1] - 1),
    "law possible": lambda o, s, r, a: laws.possible(sizes(o, s), o),
    "law window planned": lambda o, s, r, a: laws.window_planned(sizes(o, s), o),
    "law window slots": lambda o, s, r, a: laws.window_slots(r[0], sizes(o, s), o),
    "law alloc_len": lambda o, s, r, a: laws.alloc_len(sizes(o, s), o),
    "law reserve": lambda o, s, r, a: laws.reserve(sizes(o, s), o),
    "law graph fits": lambda o, s, r, a: laws.graph_fits(
        Phase.VERIFY, r[0], sizes(o, s), (Phase.VERIFY, r[1], r[2]), o
    ),
    "imp and not": lambda o, s, r, a: o.imp(s[0] <= s[1], o.not_(o.eq(s[0], s[2]))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_symbolic_reading_agrees(name: str) -> None:
    """At random points the z3 reading of each rule gives what the integer reading gives."""
    rule = CASES[name]
    rng = random.Random(name)
    term = rule(Z3, *SYMBOLS)
    seen = set()
    for _ in range(POINTS):
        at = point(rng)
        plain = rule(INT, *at)
        if isinstance(plain, tuple):
            assert tuple(concrete(t, at) for t in term) == plain
        else:
            assert concrete(term, at) == plain
            seen |= {plain} if isinstance(plain, bool) else set()
    if seen:
        assert seen == {True, False}, "a law that is always the same at random says nothing"


@pytest.mark.parametrize("module", [_rules, invariants, laws])
def test_rules_never_force_a_truth_value(module: Any) -> None:
    """No rule uses Python's and, or, not, if, min or max, which a symbolic term cannot answer."""
    tree = ast.parse(inspect.getsource(module))
    rules = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and takes_ops(n)]
    assert len(rules) > 4
    for rule in rules:
        for node in ast.walk(rule):
            assert not isinstance(node, (ast.BoolOp, ast.Not, ast.If, ast.IfExp, ast.While))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"min", "max", "all", "any", "bool", "int"}
            if isinstance(node, ast.Compare):
                assert len(node.ops) == 1, "a chained comparison is an `and`"


def takes_ops(function: ast.FunctionDef) -> bool:
    """Whether an argument of a function is an Ops."""
    notes = [argument.annotation for argument in function.args.args]
    return any(isinstance(note, ast.Name) and note.id == "Ops" for note in notes)


AT = State(
    rows=2,
    lost=0,
    oldest=3,
    unsettled=0,
    t_launched=10,
    t_settled=10,
    f_launched=2,
    f_settled=2,
    seed_launched=0,
    seed_settled=0,
    width=8,
    slice_width=7,
    dwell=0,
)
"""Two rows, the older joined at tick 3 of 10: the largest gap is 7."""


@pytest.mark.parametrize(
    ("guard", "holds", "fails"),
    [
        ("DWELL_OVER", AT, AT._replace(dwell=1)),
        ("NOTHING_UNSETTLED", AT, AT._replace(unsettled=1)),
        ("NOTHING_UNSETTLED", AT, AT._replace(t_settled=9)),
        ("REBUILDABLE", AT, AT._replace(width=7)),
        ("REBUILDABLE", AT, AT._replace(lost=1)),
        ("REST_FITS", AT, AT._replace(slice_width=6)),
        ("REST_FITS", AT, AT._replace(lost=1)),
        ("OUTGROWN", AT._replace(width=6), AT._replace(width=7)),
        ("SPECULATIVE_IN_FLIGHT", AT._replace(unsettled=1), AT),
        ("PLAIN_IN_FLIGHT", AT._replace(t_settled=9), AT),
        ("NO_ROWS", AT._replace(rows=0), AT._replace(rows=1)),
    ],
)
def test_guards_turn_exactly_at_their_boundary(guard: str, holds: State, fails: State) -> None:
    """Each guard holds up to its bound and fails one beyond it."""
    assert GUARDS[guard](INT, holds, Arg())
    assert not GUARDS[guard](INT, fails, Arg())


@pytest.mark.parametrize(
    ("guard", "holds", "fails"),
    [
        ("REACHES_OLDEST", Arg(upper=7), Arg(upper=6)),
        ("REACHES_OLDEST", Arg(upper=7, lower=7), Arg(upper=7, lower=8)),
        ("REACHES_OLDEST", Arg(upper=7, lower=0), Arg(upper=7, lower=-1)),
        ("ALLOWED", Arg(allowed=1), Arg(allowed=0)),
        ("NEW_ROW", Arg(known=0), Arg(known=1)),
    ],
)
def test_guards_of_what_an_event_brings(guard: str, holds: Arg, fails: Arg) -> None:
    """Each guard over the event's own figures holds up to its bound and fails one beyond it."""
    assert GUARDS[guard](INT, AT, holds)
    assert not GUARDS[guard](INT, AT, fails)
