"""Fuzzes all configurations, two processes at a time, and adds up what they saw.

    python -m fuzz.run --minutes 30          # make fuzz MINUTES=30

The last line is `fuzz: N steps, N examples, N edges, 0 violations`. Exit code 1 if anything was
wrong, no step was run, or something that has to be evaluated never was; in a run of half an hour or
more also if it reached less than such a run has to: steps, how often each edge is taken, and every
history of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine_environ import engine_environ
from fuzz.configurations import CONFIGURATIONS, MODEL

TESTS = Path(__file__).resolve().parent.parent
ELSEWHERE = {"I11", "I12", "I13"}
"""Need two ranks or graphs."""
MODE_EDGES = (
    "SPEC LOAD_ROSE DRAINING",
    "DRAINING DRAINED PLAIN",
    "DRAINING LOAD_FELL SPEC",
    "PLAIN LOAD_FELL RESEEDING",
    "RESEEDING SLICE_DONE RESEEDING",
    "RESEEDING RESEEDED SPEC",
    "RESEEDING LOAD_ROSE PLAIN",
    "RESEEDING RESEED_FAILED PLAIN",
)
LONG_RUN = 30.0
"""Minutes from which on a run has to reach the following."""
LEAST_STEPS, LEAST_EDGE = 20_000, 50
START_SECONDS = 900
"""Longest a process may take beyond its own time."""


def run_one(name: str, folder: Path, arguments: list[str], seconds: float) -> dict[str, Any]:
    """One configuration in a process of its own; `failure` says so if that ended badly."""
    command = [sys.executable, "-m", "fuzz.process", name, str(folder), *arguments]
    try:
        done = subprocess.run(
            command, env=engine_environ(), capture_output=True, text=True, check=False,
            timeout=seconds + START_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "failure": f"not done after {seconds + START_SECONDS} s"}
    if done.returncode != 0:
        return {"name": name, "failure": f"the process ended badly:\n{done.stderr[-4000:]}"}
    found: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return found


def problems(found: dict[str, Any]) -> list[str]:
    """What is wrong with one configuration's result."""
    name = found["name"]
    if found["failure"]:
        history = json.dumps(found.get("history", []))
        return [f"{name}: {found['failure']}\n{name}: its history: {history}"]
    wrong = []
    if found["violations"]:
        wrong.append(f"{name}: {found['violations']} violations")
    if found["trace"] is not None and found["trace"]["verdict"] != "proved":
        wrong.append(f"{name}: its trace is not accepted: {found['trace']}")
    if not found["steps"]:
        wrong.append(f"{name}: no step")
    return wrong


def added(results: list[dict[str, Any]], what: str) -> Counter[str]:
    """The counts under `what` of all configurations."""
    total: Counter[str] = Counter()
    for found in results:
        total.update(found.get(what) or {})
    return total


def unseen(results: list[dict[str, Any]]) -> list[str]:
    """What has to happen in a run of all configurations, and did not."""
    wrong = []
    checks, edges = added(results, "checks"), added(results, "edges")
    for invariant, count in checks.items():
        if not count and invariant not in ELSEWHERE:
            wrong.append(f"{invariant} was never evaluated")
    wrong += [f"the edge {edge} was never taken" for edge in MODE_EDGES if not edges[edge]]
    for found in results:
        if found["failure"] or found["name"] == MODEL:
            continue
        most = found["most_accepted"]
        missing = [n for n in range(1, most + 1) if not found["accepted"].get(str(n))]
        if missing:
            wrong.append(f"{found['name']}: nothing accepted {missing} tokens")
        if not found["kv_positions"] or not found["tokens"]:
            wrong.append(f"{found['name']}: no draft KV or no token was held against the model")
    return wrong


def short(results: list[dict[str, Any]]) -> list[str]:
    """What a long run of all configurations has to reach, and did not."""
    steps, edges = sum(found.get("steps", 0) for found in results), added(results, "edges")
    wrong = [f"{steps} steps are fewer than {LEAST_STEPS}"] if steps < LEAST_STEPS else []
    wrong += [
        f"the edge {edge} was taken {edges[edge]} times, not {LEAST_EDGE}"
        for edge in MODE_EDGES
        if edges[edge] < LEAST_EDGE
    ]
    played, known = (
        sum(found.get(what, 0) for found in results) for what in ("histories", "histories_known")
    )
    if played != known or not known:
        wrong.append(f"{played} of the model's {known} histories were played")
    return wrong


def report(results: list[dict[str, Any]]) -> list[str]:
    """Lines that say what was covered; the last is the summary."""
    lines = []
    for found in results:
        if found["failure"]:
            lines.append(f"{found['name']}: failed")
            continue
        if found["name"] == MODEL:
            lines.append(
                f"{MODEL}: {found['histories']} of the model's {found['histories_known']} "
                f"histories, {found['acts']} acts, modes compared {found['compared']} times"
            )
        lines.append(
            f"{found['name']}: {found['steps']} steps in {found['seconds']:.0f} s "
            f"({found['steps'] / found['cpu_seconds']:.0f} a CPU second), "
            f"{found['examples']} examples, {found['answers']} answers, {found['tokens']} tokens "
            f"({found['ties']} ties), {found['kv_positions']} draft KV positions (worst "
            f"{found['worst_kv']:.1g}), accepted {found['accepted']}, {found['departures']}"
        )
    for what in ("modes", "edges", "checks"):
        counts = ", ".join(f"{name} {n}" for name, n in sorted(added(results, what).items()))
        lines.append(f"{what}: {counts}")
    edges = added(results, "edges")
    violations = sum(f.get("violations", 0) or bool(f["failure"]) for f in results)
    steps, examples = (sum(f.get(w, 0) for f in results) for w in ("steps", "examples"))
    taken = sum(edges[edge] > 0 for edge in MODE_EDGES)
    lines.append(
        f"fuzz: {steps} steps, {examples} examples, {taken} edges, {violations} violations"
    )
    return lines


def run_all(arguments: dict[str, list[str]], seconds: float = 0.0) -> list[dict[str, Any]]:
    """Every configuration of `arguments`, with these arguments, two at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        return list(
            pool.map(
                lambda item: run_one(item[0], Path(folder) / item[0], item[1], seconds),
                arguments.items(),
            )
        )


def main() -> None:
    """All configurations for a while."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--record", type=Path, help="write the results here, as JSON")
    chosen = parser.parse_args()
    names = [*CONFIGURATIONS, MODEL]
    # Two at a time, so each has a third of the time, less its start.
    minutes = max(0.2, chosen.minutes / -(-len(names) // 2) - 0.4)
    seed = chosen.seed if chosen.seed is not None else int.from_bytes(os.urandom(4))
    print(f"seed {seed}, {minutes:.1f} minutes for each of {', '.join(names)}", flush=True)
    # Seeds that differ, so that the configurations do not all play the same examples.
    each = {
        name: ["--minutes", str(minutes), "--seed", str(seed + (i << 20))]
        for i, name in enumerate(CONFIGURATIONS)
    }
    # A long run plays all of the model's histories, which takes less than one's share of it.
    long = chosen.minutes >= LONG_RUN
    beside = [] if long else ["--examples", str(max(1, round(5 * chosen.minutes)))]
    results = run_all({MODEL: beside, **each}, 60 * minutes)
    wrong = [line for found in results for line in problems(found)] + unseen(results)
    wrong += short(results) if long else []
    for line in wrong:
        print(f"wrong: {line}")
    for line in report(results):
        print(line)
    if chosen.record is not None:
        chosen.record.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
