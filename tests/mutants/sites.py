"""Where a check could be made vacuous by the smallest change, and the code with that change.

A site is one comparison of a check (it becomes true), one refusal (its `raise` is dropped), or one
set a check ranges over (it becomes empty).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from mutants.pool import ADAPTER, TESTS

FILES: dict[str, Path] = {
    "checks": ADAPTER / "checks.py",
    "controller": ADAPTER / "controller.py",
    "guard": ADAPTER / "guard.py",
    "ownership": ADAPTER / "ownership.py",
    "world": TESTS / "fuzz" / "world.py",
    "played": TESTS / "fuzz" / "played.py",
    "seeds": TESTS / "fuzz" / "seeds.py",
    "operator": TESTS / "fuzz" / "operator.py",
    "requests": TESTS / "fuzz" / "requests.py",
}
RAISES = ("ShapeViolation", "UnownedWrite", "Wrong", "Difference")
SAY = ("operator", "requests")
"""Files whose checks return a text where something is wrong."""


@dataclass(frozen=True)
class Site:
    """One check. node: number of the node in `ast.walk`.  how: "true", "silent", "dropped" or
    "empty"."""

    file: str
    function: str
    what: str
    how: str
    node: int

    @property
    def name(self) -> str:
        """Its identity, which does not say where in the file it is."""
        return f"{self.file}:{self.function}: {self.what}"


def sites(file: str) -> list[Site]:
    """Every site of a file, in the order of the text."""
    tree = ast.parse(FILES[file].read_text(encoding="utf-8"))
    number = {id(node): i for i, node in enumerate(ast.walk(tree))}
    found = [
        Site(file, function.name, what, how, number[id(node)])
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for what, how, node in _of_function(file, function)
    ]
    return list({site.name: site for site in found}.values())


def everything() -> list[Site]:
    """The sites of every file."""
    return [site for file in FILES for site in sites(file)]


def code_of(site: Site) -> CodeType:
    """The file compiled with the site's check made vacuous."""
    path = FILES[site.file]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    target = list(ast.walk(tree))[site.node]

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is not target:
                return self.generic_visit(node)
            if site.how == "true":
                return ast.copy_location(ast.Constant(True), node)
            if site.how == "silent":
                return ast.copy_location(ast.Return(ast.Constant("")), node)
            if site.how == "dropped":
                return ast.copy_location(ast.Pass(), node)
            assert isinstance(node, ast.For)
            node.iter = ast.Tuple([], ast.Load())
            return node

    return compile(ast.fix_missing_locations(Put().visit(tree)), str(path), "exec")


def _of_function(file: str, function: ast.FunctionDef) -> Iterator[tuple[str, str, ast.AST]]:
    for node in ast.walk(function):
        called = _expectation(node)
        if called is not None:
            invariant = ast.literal_eval(called.args[0])
            for part in _parts(called.args[1]):
                yield f"{invariant}: {ast.unparse(part)}", "true", part
        elif isinstance(node, ast.Raise) and _raised(node) in RAISES:
            yield f"raise {_said(node)}", "dropped", node
        elif isinstance(node, ast.If) and file == "guard" and function.name == "_check":
            for part in _parts(node.test):
                yield f"law: {ast.unparse(part)}", "true", part
        elif isinstance(node, ast.Return) and file in SAY and isinstance(
            node.value, ast.JoinedStr
        ):
            yield f"return {ast.unparse(node.value)[:70]}", "silent", node
        elif isinstance(node, ast.For) and _judges(node):
            yield f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}", "empty", node


def _expectation(node: ast.AST) -> ast.Call | None:
    """`self._expect(invariant, holds, detail)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node if node.func.attr == "_expect" else None
    return None


def _parts(test: ast.expr) -> list[ast.expr]:
    """The operands of a condition: of an `and`, and below it."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _parts(value)]
    return [test]


def _raised(node: ast.Raise) -> str:
    called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return called.id if isinstance(called, ast.Name) else ""


def _said(node: ast.Raise) -> str:
    text = next((n for n in ast.walk(node) if isinstance(n, ast.Constant | ast.JoinedStr)
                 and not isinstance(getattr(n, "value", ""), bool | int)), None)
    return ast.unparse(text)[:70] if text is not None else "again"


def _judges(node: ast.For) -> bool:
    """Whether a check is made in the loop."""
    return any(
        _expectation(inner) is not None
        or (isinstance(inner, ast.Raise) and _raised(inner) in RAISES)
        for inner in ast.walk(node)
    )
