"""Long trials: which results still speak of the sources as they are, and those that do not again.

    .venv/bin/python -m scripts.trials              # make trials: run the stale ones
    .venv/bin/python -m scripts.trials fuzz         # make trials ARGS=fuzz: this one, stale or not
    .venv/bin/python -m scripts.trials --list       # every trial, fresh or stale, and GPU records
    .venv/bin/python -m scripts.trials --count      # one line: `trials: N fresh, N stale: ...`

`scripts/trials.toml` names the trials. What a trial said is stamped in `docs/trials/NAME.json`: a
hash of the sources it speaks of, one of every file it wrote, and the end of its report. A trial is
stale when a hash is another one now; a trial that fails leaves no stamp. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import tomllib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parent.parent
TABLE = Path("scripts") / "trials.toml"
STAMPS = Path("docs") / "trials"
REPORT_LINES = 20


@dataclass(frozen=True)
class Trial:
    """One entry of `trials.toml`, whose keys these are.

    command: its first word `python` is this interpreter.  path: folders added to PYTHONPATH.
    without: globs taken out of `sources`.
    """

    name: str
    says: str
    command: tuple[str, ...]
    sources: tuple[str, ...]
    minutes: float
    path: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def files(self, root: Path) -> list[str]:
        """The tracked files this trial's result speaks of, and what defines the trial."""
        found = set(tracked(root, self.sources)) - set(tracked(root, self.without))
        return sorted(found)

    def digest(self, root: Path) -> str:
        """SHA-256 over command and sources, as they are in the working tree."""
        digest = hashlib.sha256(json.dumps(self.command).encode())
        for name in self.files(root):
            path = root / name
            digest.update(f"\0{name}\0".encode())
            digest.update(path.read_bytes() if path.exists() else b"")
        return digest.hexdigest()

    def stamp(self, root: Path) -> Path:
        """Where its result is stamped."""
        return root / STAMPS / f"{self.name}.json"

    def stale(self, root: Path) -> str:
        """Why its result does not speak of the sources as they are; empty where it does."""
        path = self.stamp(root)
        if not path.exists():
            return "never run"
        stamped = json.loads(path.read_text(encoding="utf-8"))
        if stamped["sources"] != self.digest(root):
            return "sources changed"
        changed = [name for name in self.results if stamped["results"].get(name) != of(root, name)]
        return f"{', '.join(changed)} changed by hand" if changed else ""


def tracked(root: Path, globs: tuple[str, ...]) -> list[str]:
    """Names of the files git knows that match one of `globs`; without git, of those there are."""
    if not globs:
        return []
    patterns = [f":(glob){glob}" for glob in globs]
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=root, capture_output=True, check=False
    )
    if done.returncode == 0:
        return [name for name in done.stdout.decode().split("\0") if name]
    return [str(path.relative_to(root)) for glob in globs for path in root.glob(glob)]


def of(root: Path, name: str) -> str:
    """SHA-256 of one file, empty if there is none."""
    path = root / name
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def table(root: Path) -> dict[str, Any]:
    """`trials.toml`."""
    return tomllib.loads((root / TABLE).read_text(encoding="utf-8"))


def trials(root: Path) -> list[Trial]:
    """Every trial, in the order of the table."""
    found = []
    for name, entry in table(root)["trial"].items():
        lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
        found.append(Trial(name, **{**entry, **lists}))
    return found


def gpu_records(root: Path) -> dict[str, str | None]:
    """The commit each GPU record names, None where it names none."""
    commits = {}
    for name in tracked(root, tuple(table(root)["gpu"]["records"])):
        record = json.loads((root / name).read_text(encoding="utf-8"))
        commits[name] = record.get("commit") if isinstance(record, dict) else None
    return commits


def run(trial: Trial, root: Path) -> bool:
    """Runs one trial, shows what it says, and stamps its result; whether it went well."""
    print(f"trials: {trial.name}: {trial.says} (about {trial.minutes:g} min)", flush=True)
    digest, began = trial.digest(root), time.monotonic()
    words = [sys.executable if word == "python" else word for word in trial.command]
    folders = [str(root / folder) for folder in trial.path]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [environ.get("PYTHONPATH")])])
    report: deque[str] = deque(maxlen=REPORT_LINES)
    with subprocess.Popen(
        words, cwd=root, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout or ():
            print(f"  {line}", end="", flush=True)
            report.append(line.rstrip())
    minutes = (time.monotonic() - began) / 60
    problem = f"exit code {process.returncode}" if process.returncode else ""
    if not problem and trial.digest(root) != digest:
        problem = "its sources changed while it ran"
    if problem:
        print(f"trials: {trial.name} failed after {minutes:.1f} min: {problem}", flush=True)
        return False
    stamped = {
        "trial": trial.says,
        "command": " ".join(trial.command),
        "sources": digest,
        "files": len(trial.files(root)),
        "results": {name: of(root, name) for name in trial.results},
        "minutes": round(minutes, 1),
        "report": list(report),
    }
    path = trial.stamp(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(stamped, indent=1) + "\n", encoding="utf-8")
    print(f"trials: {trial.name} took {minutes:.1f} min", flush=True)
    return True


def count(root: Path) -> str:
    """`trials: N fresh, N stale: ...`."""
    known = trials(root)
    stale = [trial.name for trial in known if trial.stale(root)]
    names = f": {', '.join(stale)}" if stale else ""
    return f"trials: {len(known) - len(stale)} fresh, {len(stale)} stale{names}"


def listing(root: Path) -> list[str]:
    """A line for each trial and each GPU record."""
    lines = []
    for trial in trials(root):
        state = trial.stale(root) or "fresh"
        lines.append(f"{trial.name}: {state}; {trial.says}; about {trial.minutes:g} min")
    for name, commit in sorted(gpu_records(root).items()):
        lines.append(f"{name}: {f'commit {commit}' if commit else 'names no commit'}")
    return lines


def chosen_trials(names: list[str], root: Path) -> list[Trial]:
    """Those named, or the stale ones. Raises SystemExit for a name that is none."""
    known = {trial.name: trial for trial in trials(root)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"trials: {', '.join(unknown)}: no trial; there are {', '.join(known)}")
    if names:
        return [known[name] for name in names]
    return [trial for trial in known.values() if trial.stale(root)]


def main(root: Path = CLONE) -> int:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="run these, stale or not; default: the stale ones")
    parser.add_argument("--list", action="store_true", help="every trial and its state")
    parser.add_argument("--count", action="store_true", help="one line, for `make test`")
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(listing(root)))
        return 0
    if asked.count:
        print(count(root))
        return 0
    failed = [trial.name for trial in chosen_trials(asked.names, root) if not run(trial, root)]
    print(count(root))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
