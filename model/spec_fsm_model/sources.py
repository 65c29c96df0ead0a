"""Reads what the source says: docstrings of enum members, the text of a rule, who mentions a name.

Nothing here is a second copy: texts are taken from the modules they stand in, each time.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import spec_fsm
import spec_fsm_model

FOLDERS: Mapping[str, Path] = {
    "spec_fsm": Path(spec_fsm.__file__).parent,
    "spec_fsm_model": Path(spec_fsm_model.__file__).parent,
    "spec_fsm_sglang": Path(spec_fsm.__file__).parents[1] / "adapters" / "spec_fsm_sglang",
    "tests": Path(spec_fsm.__file__).parents[1] / "tests",
}
"""Where code is looked for.  Adapter and tests are found in a checkout only."""


MODULE = "(the module itself)"


class Place(NamedTuple):
    """A function or module that mentions a name: file (folder and name), function, line."""

    file: str
    function: str
    line: int


@cache
def member_docs(kind: type) -> dict[str, str]:
    """The text under each member of an enum, or under each field of a record, in one line."""
    tree = ast.parse(inspect.getsource(kind))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for statement, after in pairwise(body):
        name = _target(statement)
        if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[name] = " ".join(str(after.value.value).split())
    return docs


def _target(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return statement.target.id
    return ""


@cache
def reading(rule: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """Comments and statements of a guard or an effect, without its signature."""
    lines = inspect.getsource(rule).splitlines()
    node = ast.parse("\n".join(lines)).body[0]
    assert isinstance(node, ast.FunctionDef)
    signature = node.body[0].lineno - 1
    comments = [text.strip(" #") for text in lines if text.strip().startswith("#")]
    first = next(i for i, text in enumerate(lines[:signature][::-1]) if text.endswith(":"))
    body = [text[4:] for text in lines[signature - first :] if not text.strip().startswith("#")]
    return comments, body


def mentions(name: str, folder: str) -> list[Place]:
    """Functions, methods and statements of modules in `folder` that have `name` as a word."""
    places = []
    root = FOLDERS[folder]
    for path in sorted(root.glob("**/*.py")):
        file = f"{folder}/{path.relative_to(root).as_posix()}"
        for function, line, words in _functions(path):
            if name in words:
                places.append(Place(file, function, line))
    return places


@cache
def _functions(path: Path) -> list[tuple[str, int, frozenset[str]]]:
    tree = ast.parse(path.read_text())
    return [(name, node.lineno, frozenset(_words(node))) for name, node in _walk(tree, "")]


def _walk(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, f"{child.name}.")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, (ast.Assign, ast.AnnAssign)) and not _exports(child):
            yield f"{prefix.removesuffix('.')} {MODULE}".strip(), child


def _exports(statement: ast.stmt) -> bool:
    return _target(statement) == "__all__"


def _words(node: ast.AST) -> Iterator[str]:
    """Names, attributes, strings and their words: what a mention of an id looks like."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            words = "".join(c if c.isalnum() or c == "_" else " " for c in part.value)
            yield from (part.value, *words.split())


__all__ = ["FOLDERS", "Place", "member_docs", "mentions", "reading"]
