"""Makes each check vacuous in turn, and shows a seeded fault that is then no longer caught by it.

    PYTHONPATH=tests python -m mutants.vacuous [--left]   # both configurations; writes the record
    python -m mutants.vacuous overlap|serial RESULT_FILE

With `--left` only sites that the record does not have.

A site (`sites.py`) is needed if a fault that is caught with it ends otherwise without it: uncaught
at that event, or caught by something else, which says something else. Each is tried in a fork of
one warm process. `vacuous.toml` says of every site that no fault needs why that is so. The record
is `docs/trials/vacuous-checks-record.json`; exit code 1 if a site has neither.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine_environ import engine_environ
from fault_kit import Fault, known
from mutants import sites
from mutants.pool import TESTS
from mutants.put import exchange
from mutants.tree import functions_in

RECORD = TESTS.parent / "docs" / "trials" / "vacuous-checks-record.json"
EXPLAINED = TESTS / "mutants" / "vacuous.toml"
BY_FILE = {
    "guard": ("I1a", "I2", "I3", "I16"),
    "ownership": ("UnownedWrite",),
    "seeds": ("seeds",),
    "requests": ("answers",),
    "operator": ("operator",),
}
"""Checks whose faults may need a site that names no invariant."""
BY_FUNCTION = {
    "_check_relay": ("I1b", "I7"), "_pool": ("I4", "I5", "I6"), "_lengths": ("I9",),
    "before_decode": ("I10", "I17", "I18"), "on_new_weights": ("new weights",),
    "on_rounds": ("rounds",), "on_check_kv": ("draft KV",), "_judge": ("answers",),
    "on_seeds": ("seeds",), "on_operator": ("operator",), "_pool_is_whole": ("pool",),
    "_metrics_are_of_rounds": ("metrics",),
}


def explained() -> dict[str, str]:
    """Why no fault needs a site, by its name."""
    found: dict[str, str] = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["not_needed"]
    return found


def candidates(site: sites.Site) -> list[Fault]:
    """Faults that the site may be needed for."""
    invariant = re.match(r"(I\d+[ab]?): ", site.what)
    if invariant is not None:
        checks: tuple[str, ...] = (invariant[1],)
    else:
        checks = BY_FUNCTION.get(site.function) or BY_FILE.get(site.file, ())
    return [fault for fault in known().values() if fault.caught_by in checks]


def make(site: sites.Site) -> None:
    """Puts the vacuous check into this process."""
    path = str(sites.FILES[site.file])
    old = functions_in(compile(sites.FILES[site.file].read_text(encoding="utf-8"), path, "exec"))
    new = functions_in(sites.code_of(site))
    if not exchange(old, new):
        raise LookupError(f"{site.name}: no function of it runs here")


def outcome(found: dict[str, Any]) -> tuple[str, str]:
    """Who caught it and in which words, without numbers."""
    return found["caught_by"], re.sub(r"[-\d.e]+", "N", found["text"])


def play(kind: str, target: str, *known_ones: str) -> None:
    """The sites that the faults of one configuration need, but for `known_ones`."""
    import fault_run

    world = fault_run.warm(kind)
    faults = [fault for fault in known().values() if fault.overlap is (kind == "overlap")]
    with_checks: dict[str, dict[str, Any]] = {}
    needed: dict[str, str] = {}
    for site in sites.everything():
        if site.name in explained() or site.name in known_ones:
            continue
        for fault in (f for f in candidates(site) if f in faults):
            if fault.name not in with_checks:
                with_checks[fault.name] = fault_run.in_fork(world, fault.name)
            caught = with_checks[fault.name]
            found = fault_run.in_fork(world, fault.name, without(site, caught["at"]))
            if outcome(found) != outcome(caught):
                needed[site.name] = fault.name
                break
        print(f"vacuous: {kind}: {site.name}: {needed.get(site.name, '-')}", flush=True)
        Path(target).write_text(json.dumps(needed), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)


def without(site: sites.Site, events: int) -> Any:
    """Plays so many of a fault's events with the site made vacuous; for `fault_run.in_fork`."""
    import fault_run

    def play(world: Any, name: str) -> dict[str, Any]:
        make(site)
        return fault_run.played(world, name, events)

    return play


def judge(needed: dict[str, str]) -> list[str]:
    """The sites that have neither a fault that needs them nor an explanation."""
    names = [site.name for site in sites.everything()]
    return [name for name in names if name not in needed and name not in explained()]


def one(kind: str, known_ones: dict[str, str]) -> dict[str, str]:
    """A configuration in a process of its own."""
    with tempfile.NamedTemporaryFile(suffix=".json") as target:
        command = [sys.executable, "-m", "mutants.vacuous", kind, target.name, *known_ones]
        done = subprocess.run(
            command, env=engine_environ(), stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"vacuous: {kind} ended badly:\n{done.stderr[-3000:]}")
        found: dict[str, str] = json.loads(Path(target.name).read_text(encoding="utf-8"))
        return found


def main() -> int:
    """Both configurations at a time."""
    left_only = sys.argv[1:] == ["--left"]
    if len(sys.argv) > 1 and not left_only:
        play(*sys.argv[1:])
    before: dict[str, str] = json.loads(RECORD.read_text()) if left_only else {}
    with ThreadPoolExecutor(2) as pool:
        overlap, serial = pool.map(lambda kind: one(kind, before), ("overlap", "serial"))
    needed = dict(sorted((before | overlap | serial).items()))
    RECORD.write_text(json.dumps(needed, indent=1) + "\n", encoding="utf-8")
    left = judge(needed)
    for name in left:
        print(f"vacuous: nothing needs {name}")
    total = len(sites.everything())
    print(f"vacuous: {total} sites, {len(needed)} needed by a fault, "
          f"{total - len(needed) - len(left)} explained, {len(left)} neither")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
