"""Draws the mutants, plays the histories with each, and writes what became of them.

    PYTHONPATH=tests python -m mutants.run [--first N] [--only MODULE] [--again]

Two at a time. First every history alone: it has to be clean, and tells which lines it reaches.
From these a few are chosen by the branches they add. A mutant is played over those that reach its
line, the quickest first, until one catches it. `tests/mutants/explained.toml` says of every
survivor why it is none or why it survives; `tests/test_adapter_mutants.py` holds the record against
the bar, and the page against both.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from engine_environ import engine_environ
from mutants import page, pool
from mutants.histories import CONFIGURATIONS, HISTORIES
from mutants.tree import Mutant

MOST_HISTORIES = 6
START_SECONDS = 900
CLEAN_SECONDS = 400


class Players:
    """One process a configuration; `ask` may be called from several threads."""

    def __init__(self, names: list[str]) -> None:
        self._folder = Path(tempfile.mkdtemp())
        environ = engine_environ()
        environ["PYTHONPATH"] = os.pathsep.join(
            [str(pool.TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self._processes = []
        for name in names:
            log = (self._folder / f"{name}.log").open("w")
            command = [sys.executable, "-m", "mutants.player", name, self._address(name)]
            self._processes.append(
                subprocess.Popen(command, env=environ, stdout=log, stderr=log, cwd=pool.TESTS)
            )

    def _address(self, name: str) -> str:
        return str(self._folder / name)

    def ready(self, name: str) -> None:
        """Waits for a process to listen."""
        until = time.monotonic() + START_SECONDS
        while not Path(self._address(name)).exists():
            if time.monotonic() > until or any(p.poll() is not None for p in self._processes):
                log = Path(self._folder / f"{name}.log").read_text(encoding="utf-8")
                raise SystemExit(f"mutants: {name} did not start:\n{log[-3000:]}")
            time.sleep(0.2)

    def ask(
        self, history: str, mutant: Mutant | None, seconds: float, *, measure: bool = False
    ) -> dict[str, Any]:
        """What becomes of a history with a mutant, after `seconds` at most."""
        name = HISTORIES[history].configuration
        self.ready(name)
        job = {
            "history": history, "mutant": None if mutant is None else asdict(mutant),
            "measure": measure, "seconds": int(seconds),
        }
        began = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._address(name))
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.write(json.dumps(job) + "\n")
                stream.flush()
                try:
                    answer = stream.readline()
                except ConnectionError:
                    answer = ""
        if answer:
            found: dict[str, Any] = json.loads(answer)
            return found
        took = round(time.monotonic() - began, 1)
        how = "it hangs" if took >= int(seconds) - 1 else "the process died"
        return {"caught_by": how, "text": "", "seconds": took}

    def close(self) -> None:
        """Ends them."""
        for process in self._processes:
            process.kill()
            process.wait()


def measure(players: Players) -> dict[str, dict[str, Any]]:
    """Every history alone, with lines and arcs. Raises SystemExit if one is not clean."""
    names = list(HISTORIES)
    with ThreadPoolExecutor(2) as threads:
        found = list(
            threads.map(lambda n: players.ask(n, None, CLEAN_SECONDS, measure=True), names)
        )
    for name, one in zip(names, found, strict=True):
        print(f"mutants: {name}: {one['seconds']} s {one['caught_by']} {one['text']}", flush=True)
        if one["caught_by"]:
            raise SystemExit(f"mutants: {name} is not clean without a mutant")
    return dict(zip(names, found, strict=True))


def chosen(measured: dict[str, dict[str, Any]]) -> list[str]:
    """The histories that together take the most branches, those that add most first."""
    taken: set[tuple[str, int, int]] = set()
    left = {
        name: {(m, *arc) for m, arcs in one["arcs"].items() for arc in arcs}
        for name, one in measured.items()
    }
    names: list[str] = [name for name in left if HISTORIES[name].only]
    while len(names) < MOST_HISTORIES + len([n for n in left if HISTORIES[n].only]):
        more = {n: len(arcs - taken) for n, arcs in left.items() if n not in names}
        best = max(more, key=lambda n: more[n], default="")
        if not best or not more[best]:
            break
        print(f"mutants: {best} adds {more[best]} branches", flush=True)
        names.append(best)
        taken |= left[best]
    return names


def reach(mutant: Mutant, measured: dict[str, dict[str, Any]], names: list[str]) -> list[str]:
    """Of `names`, the histories that run the mutant's statement, quickest first."""
    first, last = mutant.lines
    reaching = [
        name
        for name in names
        if (not HISTORIES[name].only or mutant.module in HISTORIES[name].only)
        and any(first <= line <= last for line in measured[name]["lines"].get(mutant.module, ()))
    ]
    return sorted(reaching, key=lambda name: measured[name]["seconds"])


def main() -> int:
    """Everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=int, help="only so many of the draw")
    parser.add_argument("--only", help="only mutants of this module")
    parser.add_argument("--again", action="store_true", help="those nothing caught last time")
    asked = parser.parse_args()
    began = time.monotonic()
    players = Players(list(CONFIGURATIONS))
    try:
        record = play(players, wanted(asked))
    finally:
        players.close()
    record["minutes"] = round((time.monotonic() - began) / 60, 1)
    if asked.again:
        record["mutants"] = last()["mutants"] | record["mutants"]
        record["mutants"] = {m.name: record["mutants"][m.name] for m in pool.drawn()}
    whole = not asked.first and not asked.only
    if whole:
        page.RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page.tell(record, write=whole)
    return 0


def last() -> dict[str, Any]:
    """What the last whole run found."""
    found: dict[str, Any] = json.loads(page.RECORD.read_text(encoding="utf-8"))
    return found


def wanted(asked: argparse.Namespace) -> list[Mutant]:
    """The draw, or the part of it that was asked for."""
    found = pool.drawn()
    if asked.again:
        known = last()["mutants"]
        found = [m for m in found if not known.get(m.name, {}).get("caught_by")]
    return [m for m in found if asked.only in (None, m.module)][: asked.first]


def play(players: Players, mutants: list[Mutant]) -> dict[str, Any]:
    """Each mutant over the histories that reach it."""
    measured = measure(players)
    names = chosen(measured)
    lock, done = Lock(), [0, 0]

    def one(mutant: Mutant) -> dict[str, Any]:
        reaching = reach(mutant, measured, names)
        found: dict[str, Any] = {"caught_by": "", "text": ""}
        by = ""
        spent = 0.0
        for name in reaching:
            seconds = 20 + 4 * measured[name]["seconds"]
            found = players.ask(name, mutant, seconds)
            spent += found["seconds"]
            if found["caught_by"]:
                by = name
                break
        with lock:
            done[0] += 1
            done[1] += bool(by)
            state = "survives" if reaching else "unreached"
            state = f"{found['caught_by']} in {by}" if by else state
            print(f"mutants: {done[0]}/{len(mutants)} {state}: {mutant.name[:150]}", flush=True)
        return {
            "lines": list(mutant.lines), "reached": reaching, "caught_by": found["caught_by"],
            "text": found["text"], "history": by, "seconds": round(spent, 1),
        }

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(one, mutants))
    return {
        "seed": pool.table()["seed"],
        "may_be_drawn": len(pool.everything()),
        "histories": {n: measured[n]["seconds"] for n in names},
        "mutants": {m.name: found for m, found in zip(mutants, results, strict=True)},
    }


if __name__ == "__main__":
    sys.exit(main())
