"""Whether a call passes through a hook: looked at in the function itself, not in a registry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from spec_fsm_sglang import in_force

OWNER = "sglang.of_a_test"
TARGET = f"{OWNER}.answer"


def ours(original: Callable[[int], int], number: int) -> int:
    """Our hook."""
    return original(number) + 10


def theirs(original: Callable[[int], int], number: int) -> int:
    """Another plugin's."""
    return original(number) + 100


@pytest.fixture
def owner() -> Iterator[Any]:
    """A module of SGLang's with a function, a class with a method and no hook."""
    module: Any = ModuleType(OWNER)
    exec("def answer(number):\n    return number\n", vars(module))
    exec("class Kind:\n    def answer(self, number):\n        return number\n", vars(module))
    sys.modules[OWNER] = module
    patched = HookRegistry._patched.copy()
    yield module
    HookRegistry._patched = patched
    del sys.modules[OWNER]


def test_a_hook_is_put_once_and_beside_those_of_others(owner: Any) -> None:
    """It acts after `put`, is found among the layers of others, and is never put twice."""
    hooks = [(TARGET, ours, HookType.AROUND)]
    assert in_force.holds(TARGET, ours) is False
    assert in_force.missing(hooks) == f"the hook of {TARGET} is not in force"
    in_force.put([(TARGET, theirs, HookType.AROUND)])
    assert in_force.holds(TARGET, ours) is False, "another plugin's is not ours"
    in_force.put(hooks)
    in_force.put(hooks)
    assert owner.answer(1) == 111
    in_force.put([(TARGET, theirs, HookType.AROUND)])
    assert owner.answer(1) == 111
    assert in_force.holds(TARGET, ours) is True
    assert in_force.missing(hooks) is None


def of_method(original: Callable[[Any, int], int], this: Any, number: int) -> int:
    """Our hook of a method."""
    return original(this, number) + 10


def test_a_method_is_hooked_on_its_class(owner: Any) -> None:
    """Whoever holds an instance finds it there; no importer can hold an old one."""
    hooks = [(f"{OWNER}.Kind.answer", of_method, HookType.AROUND)]
    kind = owner.Kind()
    assert in_force.missing(hooks) is not None
    in_force.put(hooks)
    assert in_force.missing(hooks) is None
    assert kind.answer(1) == 11


def test_a_module_that_imported_it_before_is_named(owner: Any) -> None:
    """It would go on calling the function without the hook; only SGLang's modules matter."""
    hooks = [(TARGET, ours, HookType.AROUND)]
    before = owner.answer
    in_force.put(hooks)
    for name, problem in (("elsewhere", None), ("sglang.early", f"sglang.early holds {TARGET}")):
        early: Any = ModuleType(name)
        sys.modules[name] = early
        try:
            early.answer = before
            found = in_force.missing(hooks)
        finally:
            del sys.modules[name]
        assert found == (None if problem is None else f"{problem} as it was before the hook")


def test_what_is_not_there_has_no_hook(owner: Any) -> None:
    """Neither a missing attribute nor a missing module raises."""
    assert in_force.holds(f"{OWNER}.nothing", ours) is False
    assert in_force.holds("sglang.no_such_module.answer", ours) is False
    with pytest.raises((AttributeError, ImportError)):
        in_force.put([(f"{OWNER}.nothing", ours, HookType.AROUND)])
