"""Every small change of one rule: a comparison turned, a term dropped, a field confused.

A rule is a Python function over the `ops` vocabulary, so its source is changed as a syntax tree,
one node at a time, and compiled again beside the names the original sees.  A changed rule reads
over integers and over z3 terms like the one it came from.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from spec_fsm import _rules

TWINS: Mapping[str, tuple[str, ...]] = {
    "t_launched": ("t_settled", "f_launched"),
    "t_settled": ("t_launched",),
    "f_launched": ("f_settled", "seed_launched"),
    "f_settled": ("f_launched",),
    "seed_launched": ("seed_settled",),
    "seed_settled": ("seed_launched",),
    "oldest": ("t_launched",),
    "rows": ("lost",),
    "lost": ("rows", "seeded", "known"),
    "width": ("slice_width",),
    "slice_width": ("width",),
    "committed": ("covered", "stashed"),
    "covered": ("committed", "stashed"),
    "stashed": ("covered",),
    "seeded": ("lost",),
    "upper": ("lower",),
    "lower": ("upper",),
    "plain": ("speculative",),
    "speculative": ("plain",),
    "known": ("lost",),
}
"""Fields that are easily confused; only those the same record has are tried."""
_TURNED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.LtE: ast.Lt,
    ast.Lt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.Gt: ast.GtE,
}
_OTHER = {"max": "min", "min": "max", "all": "any", "any": "all"}
_HELPERS = ("max_gap",)
_RECORDS = {"s": _rules.State, "r": _rules.RowState, "a": _rules.Arg}


class Rewrite(NamedTuple):
    """what: the change in words.  rule: the changed function.  text: its source."""

    what: str
    rule: Callable[..., Any]
    text: str


def rewrites(rule: Callable[..., Any], *, guard: bool = False) -> Iterator[Rewrite]:
    """All changes of `rule`; a guard can also be turned round, held for ever, or never."""
    tree = _tree(rule)
    for what, changed in _changes(tree):
        yield _compiled(what, changed, rule, {})
    if guard:
        for what, text in (
            ("turned round", "ops.not_({})"),
            ("always holds", "ops.all()"),
            ("never holds", "ops.any()"),
        ):
            yield _compiled(what, _returns(tree, text), rule, {})
    for name in _HELPERS:
        if name in {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}:
            helper = getattr(_rules, name)
            for what, changed in _changes(_tree(helper)):
                other = _compiled(what, changed, helper, {})
                yield _compiled(f"in its {name}, {what}", tree, rule, {name: other.rule})


def _tree(rule: Callable[..., Any]) -> ast.FunctionDef:
    function = ast.parse(inspect.getsource(rule)).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    # Every rule has its vocabulary by name, whether it uses it or not.
    function.args.args[0].arg = "ops"
    return function


def _compiled(
    what: str, tree: ast.FunctionDef, rule: Callable[..., Any], also: dict[str, Any]
) -> Rewrite:
    module = ast.fix_missing_locations(ast.Module([copy.deepcopy(tree)], []))
    names = {**rule.__globals__, **also}
    exec(compile(module, f"<{rule.__name__}, {what}>", "exec"), names)
    return Rewrite(what, names[tree.name], ast.unparse(module))


def _returns(tree: ast.FunctionDef, text: str) -> ast.FunctionDef:
    changed = copy.deepcopy(tree)
    for node in ast.walk(changed):
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = ast.parse(text.format(ast.unparse(node.value)), mode="eval").body
    return changed


def _changes(tree: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Copies of `tree` with one node changed each."""
    for number, node in enumerate(ast.walk(tree)):
        for after in _of_node(node):
            changed = _put(tree, number, after)
            yield f"{ast.unparse(node)} becomes {ast.unparse(after)}", changed


def _put(tree: ast.FunctionDef, number: int, after: ast.AST) -> ast.FunctionDef:
    """A copy of `tree` whose node `number`, in the order of a walk, is `after`."""
    changed = copy.deepcopy(tree)
    before = list(ast.walk(changed))[number]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return after if node is before else self.generic_visit(node)

    found = Replace().visit(changed)
    assert isinstance(found, ast.FunctionDef)
    return found


def _of_node(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        yield _with(node, ops=[_TURNED[type(node.ops[0])]()])
    elif isinstance(node, ast.BinOp):
        yield _with(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _of_call(node, node.func)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        fields = getattr(_RECORDS.get(node.value.id), "_fields", ())
        for twin in TWINS.get(node.attr, ()):
            if node.attr in fields and twin in fields:
                yield _with(node, attr=twin)


def _of_call(call: ast.Call, function: ast.Attribute) -> Iterator[ast.AST]:
    name, arguments = function.attr, call.args
    if name in _OTHER:
        yield _with(call, func=_with(function, attr=_OTHER[name]))
    if name in ("max", "min"):
        yield from arguments
    elif name in ("all", "any"):
        for i in range(len(arguments)):
            yield _with(call, args=arguments[:i] + arguments[i + 1 :])
    elif name == "eq":
        yield ast.parse(f"ops.not_({ast.unparse(call)})", mode="eval").body
        yield ast.Compare(arguments[0], [ast.LtE()], [arguments[1]])
        yield ast.Compare(arguments[0], [ast.GtE()], [arguments[1]])
    elif name == "ite":
        condition, then, other = arguments
        yield _with(call, args=[condition, other, then])
        yield then
        yield other
    elif name == "_replace":
        for i in range(len(call.keywords)):
            yield _with(call, keywords=call.keywords[:i] + call.keywords[i + 1 :])


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


__all__ = ["TWINS", "Rewrite", "rewrites"]
