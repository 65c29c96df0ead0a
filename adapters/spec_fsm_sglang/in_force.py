"""Hooks of SGLang's functions: put in force one by one, and looked for afterwards.

SGLang's `HookRegistry.apply_hooks` logs a target that it cannot patch and goes on, and passes over
one that was patched before; a server could run with half of its hooks. Here a target that cannot
be patched raises, and `missing` looks at what is called, not at what was registered.
"""

from __future__ import annotations

import pkgutil
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sglang.srt.plugins.hook_registry import HookType

Hook = tuple[str, "Callable[..., Any]", "HookType"]
"""Dotted target, hook, kind."""


def put(hooks: Iterable[Hook]) -> None:
    """Put each hook that is not in force around its target, around other plugins' too.

    Raises what SGLang's registry raises for a target it cannot patch.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    for target, hook, kind in hooks:
        if not holds(target, hook):
            HookRegistry._apply_target(target, [(kind, hook, None)])


def missing(hooks: Iterable[Hook]) -> str | None:
    """The first hook that a call would not pass through, in one line; None if all hold."""
    for target, hook, _kind in hooks:
        if not holds(target, hook):
            return f"the hook of {target} is not in force"
        stale = _stale_importer(target)
        if stale is not None:
            return f"{stale} holds {target} as it was before the hook"
    return None


def holds(target: str, hook: Callable[..., Any]) -> bool:
    """Whether a call of `target` passes through `hook`."""
    try:
        found = pkgutil.resolve_name(target)
    except (AttributeError, ImportError):
        return False
    return any(_closes_over(layer, hook) for layer in _layers(found))


def _layers(function: Any) -> Iterator[Any]:
    """A function and those it wraps, from the outside in."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _closes_over(function: Any, hook: Callable[..., Any]) -> bool:
    """Whether this is the wrapper that SGLang's registry made for `hook`, which closes over it."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return any(
        name == "hook" and cell.cell_contents is hook
        for name, cell in zip(names, cells, strict=False)
    )


def _stale_importer(target: str) -> str | None:
    """A module of SGLang's that imported a function by its name before it was hooked."""
    owner, _, name = target.rpartition(".")
    if owner not in sys.modules:
        return None  # a method: found through its class by whoever calls it
    original = list(_layers(getattr(sys.modules[owner], name)))[-1]
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("sglang.") and any(
            value is original for value in list(vars(module).values())
        ):
            return module_name
    return None


__all__ = ["Hook", "holds", "missing", "put"]
