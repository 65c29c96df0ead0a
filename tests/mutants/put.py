"""Puts a mutant into a running process, or into one that has not imported the adapter yet."""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mutants import pool
from mutants.tree import Mutant, code_of, functions_in

PACKAGE = "spec_fsm_sglang"


def into_running(mutant: Mutant) -> int:
    """Gives every function there is of the changed code the new one; how many there were.

    Functions that other functions make later get it too: their code is a constant of those.
    """
    path, source = str(pool.path_of(mutant.module)), pool.source(mutant.module)
    old = functions_in(compile(source, path, "exec"))
    new = functions_in(code_of(mutant, source, path))
    if old.keys() != new.keys():
        raise ValueError(f"{mutant.name} changes which functions there are")
    return exchange(old, new)


def exchange(old: dict[Any, CodeType], new: dict[Any, CodeType]) -> int:
    """Every function there is of a code in `old` gets the one of its key in `new`; how many."""
    changed = {code: new[key] for key, code in old.items() if new[key] != code}
    gc.unfreeze()
    functions = [
        found
        for found in gc.get_objects()
        if isinstance(found, FunctionType) and found.__code__ in changed
    ]
    for function in functions:
        function.__code__ = changed[function.__code__]
    return len(functions)


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutant's module its changed code when it is imported."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = f"{PACKAGE}.{mutant.module}"
        self._path = str(pool.path_of(mutant.module))
        self._code: CodeType = code_of(mutant, pool.source(mutant.module), self._path)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """This loader, for that module only."""
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the changed code."""
        exec(self._code, module.__dict__)


def before_import(mutant: Mutant) -> None:
    """The module is still to be imported, and will be the mutant."""
    if f"{PACKAGE}.{mutant.module}" in sys.modules:
        raise ValueError(f"{mutant.module} was imported already")
    sys.meta_path.insert(0, Importer(mutant))
