"""Every mutant of a module's functions, and the module's code with one of them in it.

A mutant is named by what it changes (module, function, operator, text before and after), so that
a change elsewhere in the file leaves its name alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

Change = Callable[[ast.AST], ast.AST]

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}
_BESIDE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}
_OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}


@dataclass(frozen=True)
class Mutant:
    """One change. lines: first and last of the statement it is in.  node: index in `ast.walk`."""

    module: str
    function: str
    operator: str
    before: str
    after: str
    copy: int
    lines: tuple[int, int]
    node: int

    @property
    def name(self) -> str:
        """Its identity, which does not say where in the file it is."""
        again = f" #{self.copy}" if self.copy else ""
        place = f"{self.module}:{self.function}"
        return f"{place}: {self.operator}: {self.before} -> {self.after}{again}"


def mutants(module: str, source: str) -> list[Mutant]:
    """Every mutant of the functions in `source`, in the order of the text."""
    tree = ast.parse(source)
    number = {id(node): i for i, node in enumerate(ast.walk(tree))}
    found: list[Mutant] = []
    copies: Counter[tuple[str, ...]] = Counter()
    for function, statement, node in _places(tree):
        for operator, change in _changes(node):
            before, after = _text(node), _text(change(node))
            key = (function, operator, before, after)
            lines = (statement.lineno, _last_line(statement))
            found.append(
                Mutant(module, *key, copies[key], lines, number[id(node)])
            )
            copies[key] += 1
    return found


def code_of(mutant: Mutant, source: str, path: str) -> CodeType:
    """The module compiled with the mutant in it; every line keeps its number."""
    tree = ast.parse(source)
    target = list(ast.walk(tree))[mutant.node]
    (change,) = [c for operator, c in _changes(target) if operator == mutant.operator]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is target:
                return ast.copy_location(change(node), node)
            return self.generic_visit(node)

    changed = ast.fix_missing_locations(Put().visit(tree))
    return compile(changed, path, "exec")


def functions_in(code: CodeType) -> dict[tuple[str, int, int], CodeType]:
    """Code of every function below `code`: by qualified name, first line and number among these."""
    found: dict[tuple[str, int, int], CodeType] = {}
    numbers: Counter[tuple[str, int]] = Counter()

    def walk(outer: CodeType) -> None:
        for constant in outer.co_consts:
            if isinstance(constant, CodeType):
                key = (constant.co_qualname, constant.co_firstlineno)
                found[(*key, numbers[key])] = constant
                numbers[key] += 1
                walk(constant)

    walk(code)
    return found


# -- where ----------------------------------------------------------------------------------


def _places(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    """(function, statement, node) of every node that may be changed."""
    yield from _in_body(tree.body, "")


def _in_body(body: list[ast.stmt], inside: str) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _in_body(statement.body, f"{inside}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef) and not _decides_nothing(statement):
            yield from _in_function(statement.body, f"{inside}{statement.name}")


def _decides_nothing(function: ast.FunctionDef) -> bool:
    """Kernels are compiled for a GPU; a protocol's methods have no body."""
    kernel = any("triton" in ast.unparse(d) for d in function.decorator_list)
    return kernel or all(isinstance(s, ast.Expr) for s in function.body)


def _in_function(body: list[ast.stmt], name: str) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    for statement in body:
        if _says_only(statement):
            continue
        if isinstance(statement, ast.FunctionDef):
            yield from _in_function(statement.body, f"{name}.{statement.name}")
            continue
        yield name, statement, statement
        for part in _own_parts(statement):
            yield from ((name, statement, node) for node in _expressions(part))
        for inner in _bodies(statement):
            yield from _in_function(inner, name)


def _says_only(statement: ast.stmt) -> bool:
    """Documentation, imports and lines of a log: what no server decides by."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal | ast.Pass):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return True
    called = value.func if isinstance(value, ast.Call) else None
    while isinstance(called, ast.Attribute):
        called = called.value
    return isinstance(called, ast.Name) and called.id in ("logger", "warnings", "print")


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        inner = getattr(statement, field, None)
        if isinstance(inner, list):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """The statement's own expressions, without annotations and the words of an error."""
    if isinstance(statement, ast.Raise):
        return
    for field, value in ast.iter_fields(statement):
        if field in ("body", "orelse", "finalbody", "handlers", "annotation", "targets", "target"):
            if field in ("targets", "target") and isinstance(statement, ast.Assign | ast.AugAssign):
                for target in value if isinstance(value, list) else [value]:
                    if isinstance(target, ast.Subscript):
                        yield target.slice
            continue
        if isinstance(value, ast.AST):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, ast.AST))


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and what is below it, but for texts."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expressions(child)


# -- what -----------------------------------------------------------------------------------


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """(operator, change) of a node; a change leaves the node alone and returns another."""
    for kind, changes in _CHANGES:
        if isinstance(node, kind):
            yield from changes(node)


def _of_compare(node: ast.Compare) -> Iterator[tuple[str, Change]]:
    if len(node.ops) == 1:
        op = type(node.ops[0])
        for name, table in (("opposite", _OPPOSITE), ("bound", _BESIDE)):
            if op in table:
                yield name, _with(ops=[table[op]()])


def _of_bool(node: ast.BoolOp) -> Iterator[tuple[str, Change]]:
    yield "and/or", _with(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for i in range(len(node.values)):
        yield f"without operand {i}", _without_operand(i)


def _of_binary(node: ast.BinOp) -> Iterator[tuple[str, Change]]:
    if type(node.op) in _OTHER:
        yield "operator", _with(op=_OTHER[type(node.op)]())
    yield "left side only", lambda found: found.left  # type: ignore[attr-defined]


def _of_unary(node: ast.UnaryOp) -> Iterator[tuple[str, Change]]:
    yield "without sign", lambda _: node.operand


def _of_choice(node: ast.IfExp) -> Iterator[tuple[str, Change]]:
    yield "other branch", lambda _: ast.IfExp(node.test, node.orelse, node.body)


def _of_branch(node: ast.If | ast.While) -> Iterator[tuple[str, Change]]:
    if not isinstance(node.test, ast.Compare):  # whose opposite is a mutant of its own
        yield "negated", _negated


def _of_return(node: ast.Return) -> Iterator[tuple[str, Change]]:
    if node.value is not None and _text(node.value) != "None":
        yield "nothing returned", _with(value=ast.Constant(None))


def _of_assignment(node: ast.Assign | ast.AugAssign) -> Iterator[tuple[str, Change]]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if not any(isinstance(target, ast.Name) for target in targets):
        yield "dropped", lambda _: ast.Pass()
    if isinstance(node, ast.AugAssign) and type(node.op) in _OTHER:
        yield "operator", _with(op=_OTHER[type(node.op)]())


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, Change]]:
    if not isinstance(getattr(node, "value", None), ast.Yield):
        yield "dropped", lambda _: ast.Pass()


def _of_loop(_node: ast.For) -> Iterator[tuple[str, Change]]:
    yield "never entered", _with(iter=ast.Tuple([], ast.Load()))


def _of_constant(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    value = node.value
    if isinstance(value, bool):
        yield "other truth", _with(value=not value)
    elif isinstance(value, int):
        yield "one more", _with(value=value + 1)
        yield "one less", _with(value=value - 1)


def _of_call(node: ast.Call) -> Iterator[tuple[str, Change]]:
    arguments = node.args
    if len(arguments) >= 2 and not any(isinstance(a, ast.Starred) for a in arguments[:2]):
        swapped = [arguments[1], arguments[0], *arguments[2:]]
        if _text(arguments[0]) != _text(arguments[1]):
            yield "arguments swapped", _with(args=swapped)
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is not None and keyword.arg not in ("strict", "dtype", "device"):
            kept = [k for j, k in enumerate(node.keywords) if j != i]
            yield f"without {keyword.arg}", _with(keywords=kept)


def _with(**fields: object) -> Change:
    """A copy of the node with these fields."""

    def change(node: ast.AST) -> ast.AST:
        kept = dict(ast.iter_fields(node))
        return type(node)(**{**kept, **fields})

    return change


def _without_operand(i: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.BoolOp)
        left = [value for j, value in enumerate(node.values) if j != i]
        return left[0] if len(left) == 1 else ast.BoolOp(node.op, left)

    return change


def _negated(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.If | ast.While)
    test = node.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        other: ast.expr = test.operand
    else:
        other = ast.UnaryOp(ast.Not(), test)
    return _with(test=other)(node)


def _text(node: ast.AST) -> str:
    """Source of a node in one line; of a compound statement its head."""
    if isinstance(node, ast.Pass):
        return "(nothing)"
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    if isinstance(node, ast.For):
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())


def _last_line(statement: ast.stmt) -> int:
    """The last line of a statement's own expressions: of a compound one, of its head."""
    for inner in _bodies(statement):
        if inner:
            return max(statement.lineno, inner[0].lineno - 1)
    return statement.end_lineno or statement.lineno


_CHANGES: tuple[tuple[Any, Callable[[Any], Iterator[tuple[str, Change]]]], ...] = (
    (ast.Compare, _of_compare),
    (ast.BoolOp, _of_bool),
    (ast.UnaryOp, _of_unary),
    (ast.BinOp, _of_binary),
    (ast.IfExp, _of_choice),
    (ast.Constant, _of_constant),
    (ast.Call, _of_call),
    (ast.If | ast.While, _of_branch),
    (ast.Return, _of_return),
    (ast.Assign | ast.AugAssign, _of_assignment),
    (ast.Expr | ast.Raise | ast.Continue | ast.Break | ast.Delete, _of_statement),
    (ast.For, _of_loop),
)
