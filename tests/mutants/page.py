"""Writes `docs/adapter-mutants.md` from a record and the explanations: `python -m mutants.page`."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from typing import Any

from mutants import pool

PAGE = pool.TESTS.parent / "docs" / "adapter-mutants.md"
RECORD = pool.TESTS.parent / "docs" / "trials" / "adapter-mutants-record.json"
EXPLAINED = pool.TESTS / "mutants" / "explained.toml"
BAR = 90.0


def explained() -> tuple[dict[str, str], dict[str, str]]:
    """(equal ones, missed ones), each with its reason."""
    found = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    return found["equal"], found["missed"]


def survivors(record: dict[str, Any]) -> dict[str, Any]:
    """The mutants nothing caught."""
    return {name: m for name, m in record["mutants"].items() if not m["caught_by"]}


def unexplained(record: dict[str, Any]) -> list[str]:
    """Survivors without a reason."""
    equal, missed = explained()
    return [name for name in survivors(record) if name not in equal | missed]


def rate(record: dict[str, Any]) -> tuple[int, int]:
    """(killed, mutants that are not equal)."""
    equal, _ = explained()
    alive = survivors(record)
    total = len(record["mutants"]) - len([name for name in alive if name in equal])
    return len(record["mutants"]) - len(alive), total


def page(record: dict[str, Any]) -> str:
    """The page of a record."""
    killed, total = rate(record)
    equal, missed = explained()
    alive, known = survivors(record), record["mutants"].values()
    reached = sum(bool(m["reached"]) for m in known)
    lines = [
        "# Mutants of the adapter",
        "",
        "Written by `make trials ARGS=adapter-mutants`: one small change at a time in a function",
        "that runs in a server and that a CPU run can reach, drawn by a committed seed, played",
        "over histories of the real scheduler and worker. The histories are those of",
        "`tests/mutants/histories.py` that add most branches; a mutant is played over those that",
        "run its statement, until one catches it by its own checks: the invariants, strict",
        "ownership, and the fuzzer's ([faults.md](faults.md)).",
        "",
        f"Drawn: {len(record['mutants'])} of {record['may_be_drawn']}, seed {record['seed']}; "
        f"{reached} are reached by a history. Equal: {len(record['mutants']) - total}.",
        "",
        f"**{killed} of {total} are killed: {100 * killed / total:.1f} %.**",
        "",
        *_histories(record),
        *_modules(record, equal),
        "## Not drawn",
        "",
        *(f"- {why}: {', '.join(f'`{n}`' for n in names)}."
          for why, names in pool.table()["left_out"].items()),
        "- what only says something: lines of a log, texts, annotations, documentation; statements",
        "  outside of functions.",
        "",
        "## Survivors",
        "",
        *_reasons("Equal: no use of a server can tell them apart.", equal, alive),
        *_reasons("Missed: faults that the histories do not see.", missed, alive),
    ]
    left = unexplained(record)
    if left:
        lines += ["Not explained:", "", *(f"- `{name}`" for name in left), ""]
    return "\n".join(lines).rstrip() + "\n"


def _histories(record: dict[str, Any]) -> list[str]:
    by = Counter(m["history"] for m in record["mutants"].values() if m["history"])
    reached = Counter(n for m in record["mutants"].values() for n in m["reached"])
    return [
        "| history | seconds alone | reaches | kills |",
        "|---|---|---|---|",
        *(
            f"| {name} | {seconds} | {reached[name]} | {by[name]} |"
            for name, seconds in record["histories"].items()
        ),
        "",
    ]


def _modules(record: dict[str, Any], equal: dict[str, str]) -> list[str]:
    table: dict[str, Counter[str]] = {}
    for name, mutant in record["mutants"].items():
        counts = table.setdefault(name.split(":")[0], Counter())
        counts["drawn"] += 1
        counts["killed"] += bool(mutant["caught_by"])
        counts["unreached"] += not mutant["reached"]
        counts["equal"] += not mutant["caught_by"] and name in equal
    columns = ("drawn", "killed", "equal", "unreached")
    caught = Counter(m["caught_by"] for m in record["mutants"].values() if m["caught_by"])
    by = ", ".join(f"{name} {count}" for name, count in caught.most_common())
    return [
        "| module | drawn | killed | equal | unreached |",
        "|---|---|---|---|---|",
        *(
            f"| `{module}.py` | {' | '.join(str(counts[c]) for c in columns)} |"
            for module, counts in sorted(table.items())
        ),
        "",
        f"Caught by: {by}. `SGLang` is an exception that ends the scheduler or a test.",
        "",
    ]


def _reasons(head: str, reasons: dict[str, str], alive: dict[str, Any]) -> list[str]:
    here: dict[str, list[str]] = {}
    for name in alive:
        if name in reasons:
            here.setdefault(reasons[name], []).append(name)
    lines = [head, ""] if here else []
    for why, names in here.items():
        lines += [f"{why}", "", *(f"- `{name}`" for name in names), ""]
    return lines


def tell(record: dict[str, Any], *, write: bool) -> None:
    """Says the rate and who is not explained; `test_adapter_mutants.py` judges both."""
    killed, total = rate(record)
    left = unexplained(record)
    if write:
        PAGE.write_text(page(record), encoding="utf-8")
    for name in left:
        print(f"mutants: not explained: {name}")
    part = 100 * killed / total if total else 0.0
    print(f"mutants: {killed} of {total} killed: {part:.1f} %, {len(left)} survivors not explained")


if __name__ == "__main__":
    tell(json.loads(RECORD.read_text(encoding="utf-8")), write=True)
