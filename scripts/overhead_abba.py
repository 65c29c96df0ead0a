"""Host cost of a decode step before and after a change: `bench overhead` of two revisions, ABBA.

    python -m scripts.overhead_abba BEFORE [--blocks 1] [--out FILE]

Each arm is a process of its own: the revision BEFORE from a git worktree, and this tree. The clock
is this tree's in both (its `bench/overhead.py` and `bench/meter.py` are laid over the older
revision). Prints for each size and mode the ratio of the mean times, after : before.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parent.parent
CLOCK = ("overhead.py", "meter.py")
BENCH = Path("adapters/spec_fsm_sglang/bench")
MEASURE = """
import json
from pathlib import Path
import spec_fsm
from spec_fsm_sglang.bench.overhead import measure
assert Path(spec_fsm.__file__).is_relative_to(Path.cwd()), spec_fsm.__file__
print(json.dumps(measure(lambda text: None)))
"""


def main() -> None:
    """Print the ratios, and write everything measured to a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", help="the older revision, as git names it")
    parser.add_argument("--blocks", type=int, default=1, help="ABBA blocks of 10 minutes (1 to 16)")
    parser.add_argument("--out", type=Path, help="file for all figures, as JSON")
    asked = parser.parse_args()
    if not 1 <= asked.blocks <= 16:
        parser.error(f"--blocks is {asked.blocks}: accepted are 1 to 16")
    before = _git("rev-parse", "--verify", f"{asked.before}^{{commit}}")
    after = _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain") else "")
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder, "before")
        _git("worktree", "add", "--detach", str(older), before)
        try:
            for name in CLOCK:
                shutil.copy(TREE / BENCH / name, older / BENCH / name)
            arms = _measured({"A": older, "B": TREE}, "ABBA" * asked.blocks)
        finally:
            _git("worktree", "remove", "--force", str(older))
    rows = compared(arms["A"], arms["B"])
    print("requests, mode: mean before, after (us), ratio; p99 before, after (us)")
    for row in rows:
        print(
            f"{row['b']:4} {row['mode']:5}: {row['mean_before_us']}, {row['mean_after_us']}, "
            f"{row['ratio']}; {row['p99_before_us']}, {row['p99_after_us']}"
        )
    if asked.out:
        command = f"python -m scripts.overhead_abba {asked.before} --blocks {asked.blocks}"
        record = {"command": command, "before": before, "after": after, "rows": rows}
        asked.out.write_text(json.dumps(record | {"profile": arms["B"][-1]}, indent=1) + "\n")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=TREE, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _measured(trees: dict[str, Path], order: str) -> dict[str, list[dict[str, Any]]]:
    """What each arm measured, in turn."""
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in trees}
    for number, arm in enumerate(order, 1):
        print(f"run {number} of {len(order)}: {arm}", file=sys.stderr, flush=True)
        packages = (str(trees[arm] / part) for part in (".", "model", "adapters"))
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(packages), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", MEASURE],
            cwd=trees[arm], env=environ, check=True, stdout=subprocess.PIPE, text=True,
        )
        found[arm].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def compared(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and their ratio for each size and mode; `before`, `after`: what the runs measured."""
    rows = []
    for older, newer in zip(_by_row(before), _by_row(after), strict=True):
        means = [statistics.fmean(row["mean_us"] for row in rows) for rows in (older, newer)]
        tails = [statistics.fmean(row["p99_us"] for row in rows) for rows in (older, newer)]
        rows.append(
            {
                "b": older[0]["b"],
                "mode": older[0]["mode"],
                "mean_before_us": round(means[0], 2),
                "mean_after_us": round(means[1], 2),
                "ratio": round(means[1] / means[0], 3),
                "p99_before_us": round(tails[0], 1),
                "p99_after_us": round(tails[1], 1),
            }
        )
    return rows


def _by_row(runs: list[dict[str, Any]]) -> list[tuple[dict[str, Any], ...]]:
    """The same size and mode of every run, together."""
    return list(zip(*(run["results"] for run in runs), strict=True))


if __name__ == "__main__":
    main()
