"""Mutation testing of `spec_fsm/`: runs mutmut, and writes `docs/mutants.md`.

    .venv/bin/python -m scripts.mutants [--jobs 2] [--keep FOLDER] [--ending 7]

mutmut changes one thing in a function at a time and runs the tests `tests/test_core_*.py`, which
take seconds. It runs in a copy of what they need, in an environment of its own beside the shared
one (mutmut is needed by nothing else, and would make every clone install anew). Exit code 1 if
fewer than 95 % of the mutants are killed, or if one survives that `scripts/mutants.toml` does not
explain. With `--ending 7` only those whose number ends so are tried, a tenth: no page is written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scripts.env import cache_root

CLONE = Path(__file__).resolve().parent.parent
PAGE = CLONE / "docs" / "mutants.md"
EXPLAINED = CLONE / "scripts" / "mutants.toml"
VERSION = "3.8.1"
BAR = 95.0

# Left out: a count of executed lines, which mutmut's own lines disturb.
CONFIG = """
[tool.mutmut]
source_paths = ["spec_fsm"]
also_copy = ["model", "docs"]
pytest_add_cli_args_test_selection = ["tests"]
pytest_add_cli_args = [
    "--deselect=tests/test_core_lifecycle.py::test_the_work_of_a_step_does_not_grow_with_the_batch",
]
timeout_constant = 60.0
use_git_change_detection = false
track_dependencies = false

[tool.pytest.ini_options]
pythonpath = [".", "model", "tests"]
addopts = "-p no:cacheprovider --strict-markers"
xfail_strict = true
timeout = 60
"""
KILLED = (1, 3)
"""How pytest ends where a test failed; a run that took too long proves nothing."""
QUICK = ("tests/test_core_table.py", "tests/test_core_errors.py")
"""What notices most mutants of functions that run at import, within a second."""
# A mutant that is found needs no smaller example.
NO_SHRINKING = """

from hypothesis import Phase

settings.register_profile(
    "mutants", derandomize=True, deadline=None, database=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("mutants")
"""
# Which functions run while the core is imported: forked tests come too late for their mutants.
AT_IMPORT = """
import sys, importlib, pathlib
called = set()
sys.setprofile(lambda frame, event, arg: called.add(
    (frame.f_globals.get("__name__", ""), frame.f_code.co_name)))
for path in sorted(pathlib.Path("spec_fsm").glob("*.py")):
    importlib.import_module("spec_fsm." + path.stem)
sys.setprofile(None)
for module, name in sorted(called):
    if name.endswith("__mutmut_orig"):
        print(module + "." + name.removesuffix("__mutmut_orig"))
"""


@dataclass(frozen=True)
class Mutant:
    """One mutant. name: mutmut's.  diff: the lines that differ, each with its sign."""

    name: str
    diff: tuple[str, ...]

    @property
    def place(self) -> str:
        """Module and function, as a reader writes them."""
        module, _, function = self.name.rpartition(".")
        function = function.rsplit("__mutmut_", 1)[0]
        _, *parts = function.split("ǁ") if "ǁ" in function else function.split("_", 1)
        return ".".join([module, *parts])

    @property
    def changed(self) -> str:
        """What stands there instead, without indentation: its identity in `mutants.toml`."""
        added = [line[1:].strip() for line in self.diff if line.startswith("+")]
        gone = [line[1:].strip() for line in self.diff if line.startswith("-")]
        return " ".join(added) if any(added) else "without: " + " ".join(gone)


def python() -> Path:
    """An environment with mutmut that sees the packages of the one this runs in."""
    folder = cache_root() / f"mutmut-{VERSION}"
    found = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        shared = next(p for p in sys.path if (Path(p) / "pip").is_dir())
        (site,) = folder.glob("lib/python3.*/site-packages")
        site.joinpath("shared.pth").write_text(f"{shared}\n")
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(found), "install"]
        subprocess.run([*pip, f"mutmut=={VERSION}"], check=True)
        (folder / ".complete").touch()
    return found


def copy_to(folder: Path) -> None:
    """What the core's tests need, and mutmut's settings."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("spec_fsm", "model"):
        shutil.copytree(CLONE / name, folder / name, ignore=ignore, dirs_exist_ok=True)
    (folder / "tests").mkdir(exist_ok=True)
    tests = CLONE / "tests"
    for path in (tests / "conftest.py", *tests.glob("core_*.py"), *tests.glob("test_core_*.py")):
        shutil.copy(path, folder / "tests")
    conftest = folder / "tests" / "conftest.py"
    conftest.write_text(conftest.read_text() + NO_SHRINKING)
    (folder / "docs").mkdir(exist_ok=True)
    shutil.copy(CLONE / "docs" / "embedding.md", folder / "docs")
    (folder / "pyproject.toml").write_text(CONFIG)


def forget_survivors(folder: Path) -> None:
    """What survived an earlier run is tried again: there may be better tests now."""
    for path in folder.glob("mutants/spec_fsm/*.meta"):
        kept = json.loads(path.read_text())
        codes = kept["exit_code_by_key"]
        kept["exit_code_by_key"] = {m: c if c in KILLED else None for m, c in codes.items()}
        path.write_text(json.dumps(kept))


def exit_codes(folder: Path, ending: str) -> dict[str, int]:
    """What the tests ended with, by mutant whose name ends so."""
    codes: dict[str, int] = {}
    for path in sorted(folder.glob("mutants/spec_fsm/*.meta")):
        found = json.loads(path.read_text())["exit_code_by_key"]
        codes |= {name: code for name, code in found.items() if name.endswith(ending)}
    missing = [name for name, code in codes.items() if code is None]
    if missing or not codes:
        raise SystemExit(f"mutants: {len(missing)} of {len(codes)} were not tried")
    return codes


def killed_afresh(run: list[str], folder: Path, names: Iterable[str]) -> set[str]:
    """Of `names`, those whose function runs at import and that fail in a process of their own."""
    at = folder / "mutants"
    environ = {**os.environ, "MUTANT_UNDER_TEST": "", "PYTHONPATH": "."}
    found = subprocess.run(
        [*run, "-c", AT_IMPORT], cwd=at, env=environ, check=True, text=True, capture_output=True
    )
    at_import = set(found.stdout.split())
    killed = set()
    for name in names:
        if name.rsplit("__mutmut_", 1)[0] not in at_import:
            continue
        for tests in (QUICK, ("tests",)):
            done = subprocess.run(
                [*run, "-m", "pytest", "-x", "-q", *tests], cwd=at, check=False,
                capture_output=True, env={**environ, "MUTANT_UNDER_TEST": name},
            )
            if done.returncode != 0:
                killed.add(name)
                break
    return killed


def shown(run: list[str], folder: Path, name: str) -> Mutant:
    """The mutant with its difference."""
    done = subprocess.run(
        [*run, "-m", "mutmut", "show", name], cwd=folder, check=True, text=True,
        capture_output=True,
    )
    diff = [line for line in done.stdout.splitlines() if line[:1] in "+-" and line]
    return Mutant(name, tuple(line for line in diff if not line.startswith(("+++", "---"))))


def explanations() -> list[tuple[str, dict[str, list[str]]]]:
    """(why, {place: what stands there instead}) for each kind of survivor."""
    kinds = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["kind"]
    return [(kind["why"], kind["mutants"]) for kind in kinds]


def page(codes: dict[str, int], survivors: list[Mutant]) -> tuple[str, list[Mutant]]:
    """The page, and the survivors that nobody explained."""
    total, alive = len(codes), Counter(m.name.split(".")[1] for m in survivors)
    modules = Counter(name.split(".")[1] for name in codes)
    rate = 100 * (total - len(survivors)) / total
    lines = [
        "# Mutants of `spec_fsm/`",
        "",
        "Written by `.venv/bin/python -m scripts.mutants`, which takes about half an hour on two",
        f"cores: mutmut {VERSION} changes one thing in a function at a time, and the tests",
        "`tests/test_core_*.py` have to notice. Why a survivor is none is kept by hand in",
        "`scripts/mutants.toml`; the command fails below 95 % and when one is not explained.",
        "",
        f"**{total - len(survivors)} of {total} are killed: {rate:.1f} %.**",
        "",
        "| module | mutants | killed |",
        "|---|---|---|",
        *(f"| `{m}.py` | {n} | {n - alive[m]} |" for m, n in sorted(modules.items())),
        "",
        "mutmut changes functions only. What is written outside of them, the table above all, is",
        "mutated by `spec-fsm model mutate` ([claims.md](claims.md)).",
        "",
        "## Survivors",
    ]
    left = list(survivors)
    for why, places in explanations():
        here = [m for m in left if m.changed in places.get(m.place, ())]
        left = [m for m in left if m not in here]
        if here:
            lines += ["", f"{why}", "", "```diff"]
            for mutant in here:
                lines += [f"@@ {mutant.place}", *mutant.diff]
            lines.append("```")
    if left:
        lines += ["", "Not explained:", "", "```diff"]
        for mutant in left:
            lines += [f"@@ {mutant.place}", *mutant.diff]
        lines.append("```")
    return "\n".join(lines) + "\n", left


def main() -> int:
    """Runs, writes, judges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="work here, and try only what is new or survived")
    parser.add_argument("--ending", default="", help="try those whose number ends so, no page")
    chosen = parser.parse_args()
    folder = chosen.keep or Path(tempfile.mkdtemp(prefix="mutants-"))
    folder.mkdir(parents=True, exist_ok=True)
    copy_to(folder)
    forget_survivors(folder)
    run = [str(python())]
    os.environ["OMP_NUM_THREADS"] = "1"
    command = [*run, "-m", "mutmut", "run", "--max-children", str(chosen.jobs)]
    command += [f"*__mutmut_*{chosen.ending}"] if chosen.ending else []
    subprocess.run(command, cwd=folder, check=True)
    codes = exit_codes(folder, chosen.ending)
    survived = [name for name, code in codes.items() if code not in KILLED]
    killed = killed_afresh(run, folder, survived)
    survivors = [shown(run, folder, name) for name in survived if name not in killed]
    text, unexplained = page(codes, survivors)
    if not chosen.ending:
        PAGE.write_text(text, encoding="utf-8")
    rate = 100 * (len(codes) - len(survivors)) / len(codes)
    print(f"mutants: {len(codes)}, {rate:.1f} % killed, {len(unexplained)} not explained")
    if chosen.keep is None:
        shutil.rmtree(folder)
    return int(rate < BAR or bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
