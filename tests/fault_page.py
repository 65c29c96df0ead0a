"""Writes `docs/faults.md` from a run of the seeded faults: `python tests/fault_page.py`."""

from __future__ import annotations

from typing import Any

from fault_kit import known

HEAD = """# Seeded faults

Each is one wrong line in the adapter, put into a running worker by one of `tests/faults*.py`. The
same histories (`tests/fault_run.py`) are played with each, on the real scheduler and EAGLE worker,
and without any; the table says which check stopped it, and during which of the history's events. It
is written by `python tests/fault_page.py`, and a test fails when it is stale.

I1 to I19 are the invariants ([generated/invariants.md](generated/invariants.md)); `matrix` is the
mode and phase matrix. `UnownedWrite` is strict ownership. The others are the fuzzer's own:
`draft KV` recomputes the draft model's KV from the whole text, `rounds` compares acceptance after
a gap with that of a request prefilled up to the same point, `seeds` compares each tensor that a
reseed relays, row by row, with those of twins that were prefilled, `answers` holds every token
against the model's own greedy path, `new weights` counts the rows that have to be lost, `operator`
sets pins and reads the state as a request does, `metrics` counts verify rounds. `SGLang` is its own
check of an idle server.

| fault | what is wrong | overlap | caught by | event |
|---|---|---|---|---|
"""


def page(record: dict[str, dict[str, Any]]) -> str:
    """The page, from what `fault_run.py` found in both configurations."""
    rows = []
    for name, fault in known().items():
        found = record["overlap" if fault.overlap else "serial"][name]
        overlap = "on" if fault.overlap else "off"
        caught = found["caught_by"] or "**nothing**"
        rows.append(f"| `{name}` | {fault.says} | {overlap} | {caught} | {found['at']} |")
    caught = sum(row.count("**nothing**") == 0 for row in rows)
    return HEAD + "\n".join(rows) + f"\n\n{caught} of {len(rows)} faults are caught.\n"


def main() -> None:
    """Plays all faults and writes the page."""
    import test_faults

    test_faults.PAGE.write_text(page(test_faults.record()), encoding="utf-8")


if __name__ == "__main__":
    main()
