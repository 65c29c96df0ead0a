"""`trace check`: a true trace is accepted, and a false line is found where it stands."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from core_support import TREE
from spec_fsm import (
    FileSink,
    Mode,
)
from spec_fsm._table import EDGES
from spec_fsm_model import trace_cli
from spec_fsm_model.cli import trace_app
from spec_fsm_model.explore import Verdict
from spec_fsm_model.trace_check import TraceChecked, check_file, check_lines, in_order
from spec_fsm_model.trace_fields import EVENT_FIELDS
from trace_histories import Lines, Server, history

if TYPE_CHECKING:
    from collections.abc import Callable


GOOD = history(3, 400)


def check(lines: Lines) -> TraceChecked:
    """Replay lines kept in memory."""
    return check_lines(in_order(lines))


@pytest.mark.parametrize("flush_every", [0, 1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_every_true_trace_is_accepted(seed: int, flush_every: int) -> None:
    """Whatever the lifecycle does, its trace is a path of the model, to the last line."""
    lines = history(seed, 300, flush_every)
    found = check(lines)
    assert (found.verdict, found.lines) == (Verdict.PROVED, len(lines)), (found.line, found)
    assert found.launches == sum("phase" in line for line in lines)


def test_the_histories_follow_every_edge() -> None:
    """No edge is missing from what the accepted traces went through.

    But for LAUNCHED in DRAINING, where only prefills are launched, and for what moves nothing and
    is told as an observation.
    """
    seen: set[str] = set()
    for seed in range(8):
        for flush_every in (0, 3):
            seen |= check(history(seed, 1500, flush_every)).edges.keys()
    every = {f"{e.event.name} in {e.source.name}" for e in EDGES if e.event in EVENT_FIELDS}
    assert every - seen == {"LAUNCHED in DRAINING"}


def at(lines: Lines, **fields: Any) -> int:
    """Index of a line with these fields, in the middle of the trace rather than at its start."""
    hits = [i for i, line in enumerate(lines) if all(line.get(k) == v for k, v in fields.items())]
    return hits[len(hits) // 2]


def put(**new: Any) -> Callable[[Lines, int], int]:
    """Overwrite fields of the line."""

    def corrupt(lines: Lines, i: int) -> int:
        assert any(lines[i].get(k) != v for k, v in new.items())
        lines[i] |= new
        return i

    return corrupt


def add(**new: int) -> Callable[[Lines, int], int]:
    """Add to numbers of the line."""

    def corrupt(lines: Lines, i: int) -> int:
        for name, by in new.items():
            lines[i][name] += by
        return i

    return corrupt


def drop(name: str) -> Callable[[Lines, int], int]:
    """Leave a field out."""

    def corrupt(lines: Lines, i: int) -> int:
        del lines[i][name]
        return i

    return corrupt


def renumber(lines: Lines) -> None:
    """Numbers and times in order again, so that they do not give the corruption away."""
    for seq, line in enumerate(lines):
        line["seq"] = seq
        line["t_ns"] = seq


def remove(lines: Lines, i: int) -> int:
    """Leave the line out; the next one that depends on it is the bad one."""
    del lines[i]
    renumber(lines)
    return i


def repeat(lines: Lines, i: int) -> int:
    """The line twice; its second time is the bad one."""
    lines.insert(i + 1, copy.deepcopy(lines[i]))
    renumber(lines)
    return i + 1


def gap_in_seq(lines: Lines, i: int) -> int:
    """A line is missing and its number with it."""
    del lines[i]
    return i


def violate(lines: Lines, i: int) -> int:
    """A check failed here."""
    kept = {k: lines[i][k] for k in ("seq", "t_ns", "mode")}
    lines[i] = {**kept, "kind": "violation", "invariant": "I2", "error": "wrong tokens"}
    return i


def refuse(lines: Lines, i: int) -> int:
    """The engine reported an event that this mode has not."""
    kept = {k: lines[i][k] for k in ("at", "mode", "rows", "unsettled", "in_flight")}
    lines.insert(i + 1, {"kind": "refused", **kept, "event": "DRAINED", "reason": "no drain"})
    renumber(lines)
    return i + 1


def rise(lines: Lines, i: int) -> int:
    """A load that asks for nothing, and a change of mode all the same."""
    fell = {"event": "LOAD_FELL", "to": "RESEEDING", "load": lines[i]["load"]}
    kept = {k: lines[i][k] for k in ("at", "mode", "rows", "unsettled", "in_flight")}
    while "event" in lines[i + 1] and lines[i + 1]["event"] in ("LOAD_FELL", "LOAD_ROSE"):
        i = at(lines[i + 1 :], kind="boundary", mode="PLAIN") + i + 1
    lines.insert(i + 1, {"kind": "event", **kept, **fell})
    renumber(lines)
    return i + 1


Corruption = tuple[dict[str, Any], "Callable[[Lines, int], int]"]
E = "event"
CORRUPTIONS: dict[str, Corruption] = {
    "a gap in seq": ({"kind": "plan"}, gap_in_seq),
    "time goes back": ({"kind": "plan"}, put(t_ns=1)),
    "an unknown kind": ({"kind": "plan"}, put(kind="note")),
    "an unknown event": ({E: "DECODED"}, put(event="DECIDED")),
    "another mode": ({E: "DECODED", "mode": "PLAIN"}, put(mode="RESEEDING")),
    "another target": ({E: "DRAINED"}, put(to="SPEC")),
    "one row more": ({E: "PREFILLED"}, add(rows=1)),
    "one result more in flight": ({E: "SETTLED"}, add(unsettled=1)),
    "an event of another mode": ({E: "DECODED", "mode": "PLAIN"}, put(event="SETTLED")),
    "a load that is no number": ({E: "LOAD_ROSE"}, put(load="high")),
    "a missing field": ({E: "LOAD_FELL"}, drop("load")),
    "a field too many": ({E: "DRAINED"}, put(load=3)),
    "a row that joins twice": ({E: "PREFILLED"}, repeat),
    "a row that leaves under another name": ({E: "FINISHED"}, put(rid="nobody")),
    "a gap one too small": ({E: "FINISHED", "mode": "PLAIN"}, add(gap=1)),
    "no positions": ({E: "PREFILLED"}, put(committed=0)),
    "a plan of another action": ({"kind": "plan", "action": "PLAIN"}, put(action="SPECULATE")),
    "a plan with no row": ({"kind": "plan"}, put(rids=[])),
    "a plan with a stranger": ({"kind": "plan", "mode": "PLAIN"}, put(rids=["nobody"])),
    "a plan with a stranger in SPEC": ({"kind": "plan", "mode": "SPEC"}, put(rids=["nobody"])),
    "a boundary under another load": ({"kind": "boundary"}, add(load=1)),
    "a boundary untold": ({"kind": "boundary"}, remove),
    "a change of mode that was not due": ({"kind": "boundary", "mode": "PLAIN"}, rise),
    "a flush that was not planned": ({E: "LAUNCHED", "mode": "PLAIN"}, put(flush=[1, 0])),
    "a launch of another batch": ({E: "LAUNCHED"}, add(batch=1)),
    "a launch of another action": ({E: "LAUNCHED", "mode": "SPEC"}, put(action="PLAIN")),
    "a launch twice": ({E: "LAUNCHED"}, repeat),
    "a result of another batch": ({E: "DECODED"}, add(batch=1)),
    "a result of another action": ({E: "SETTLED"}, put(action="PLAIN")),
    "more accepted than drafted": ({E: "SETTLED", "batch": 1}, put(accepted=[9])),
    "an accept length too few": ({E: "SETTLED"}, put(accepted=[])),
    "a slice of other ages": ({E: "SLICE_DONE"}, add(lower=1)),
    "another row dropped": ({E: "STASH_DROPPED"}, put(rid="nobody")),
    "a dropped row untold": ({E: "STASH_DROPPED"}, remove),
    "a slice untold": ({E: "SLICE_DONE"}, remove),
    "rows lost by new weights": ({E: "WEIGHTS_CHANGED"}, add(lost=1)),
    "the crash: a verify's tokens in PLAIN": (
        {"kind": "obs", "phase": "PLAIN_DECODE"},
        lambda lines, i: put(tokens=lines[i]["b"] * TREE.num_draft_tokens)(lines, i),
    ),
    "stale spec_info": ({"kind": "obs", "phase": "PLAIN_DECODE"}, put(spec_info="DRAFT")),
    "another hidden capture": ({"kind": "obs", "phase": "VERIFY"}, put(hidden="LAST")),
    "slots of another width": ({"kind": "obs", "phase": "DRAFT"}, add(slots=1)),
    "a draft in PLAIN": ({"kind": "obs", "phase": "PLAIN_DECODE"}, put(phase="DRAFT")),
    "a refusal by a guard that holds": (
        {"kind": "refused", "reason": "REBUILDABLE"},
        put(reason="NO_ROWS"),
    ),
    "an event that was refused": ({E: "DECODED", "mode": "PLAIN"}, refuse),
    "a failed check": (
        {"kind": "obs", "phase": "VERIFY"},
        violate,
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_corruption_is_caught_at_its_line(name: str) -> None:
    """A good trace with one lie is refuted at the very line of the lie."""
    fields, corrupt = CORRUPTIONS[name]
    lines = copy.deepcopy(GOOD)
    bad = corrupt(lines, at(lines, **fields))
    found = check(lines)
    assert (found.verdict, found.bad_line) == (Verdict.REFUTED, bad), found
    assert found.text


def test_the_corrupted_trace_was_good() -> None:
    """Without a lie the same lines are accepted."""
    assert check(GOOD).verdict is Verdict.PROVED


def test_a_trace_cut_within_a_launch_is_undetermined() -> None:
    """A trace that ends between a launch and its slice is neither right nor wrong."""
    cut = at(GOOD, event="SLICE_DONE")
    found = check(GOOD[:cut])
    assert found.verdict is Verdict.UNDETERMINED
    assert "SLICE_DONE" in found.expected


def test_the_command_shows_the_first_bad_line(tmp_path: Path) -> None:
    """Exit code 0 for a good file, 1 for a bad one with its line and what was expected."""
    path = tmp_path / "trace.ndjson"
    sink = FileSink(path)
    server = Server(1, sink)
    for _ in range(50):
        server.step()
    server.lifecycle.close()
    runner = CliRunner()
    good = runner.invoke(trace_app, ["check", str(path)])
    assert (good.exit_code, "proved" in good.output) == (0, True), good.output
    raw = path.read_text()
    number = next(i for i, line in enumerate(raw.splitlines()) if '"LAUNCHED"' in line)
    path.write_text(raw.replace('"event":"LAUNCHED"', '"event":"DECODED"', 1))
    bad = runner.invoke(trace_app, ["check", str(path)])
    assert bad.exit_code == 1
    assert f"line {number} " in bad.output
    assert "expected:" in bad.output


def test_a_long_trace_is_replayed_whole(tmp_path: Path) -> None:
    """Every line of a file of 8 000 steps is replayed; `trace check` prints its rate itself."""
    path = tmp_path / "trace.ndjson"
    sink = FileSink(path)
    server = Server(2, sink)
    for _ in range(8_000):
        server.step()
    server.lifecycle.close()
    found = check_file(path)
    assert found.verdict is Verdict.PROVED
    assert found.lines == len(path.read_bytes().splitlines())
    assert server.lifecycle.mode in Mode


# -- files --------------------------------------------------------------------------------

WORKER = Path(__file__).parent / "traces" / "tree-overlap.ndjson.gz"


def test_a_bad_line_of_a_packed_trace_is_shown(tmp_path: Path) -> None:
    """A trace in gzip is unpacked and replayed like any other."""
    lines = gzip.decompress(WORKER.read_bytes()).splitlines(keepends=True)
    bad = tmp_path / "bad.ndjson.gz"
    bad.write_bytes(gzip.compress(b"".join([*lines[:500], *lines[501:]])))
    assert (check_file(bad).verdict, check_file(bad).bad_line) == (Verdict.REFUTED, 500)


def test_the_bench_prints_lines_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit code says whether there were 100,000; a bad trace is shown, and not measured."""
    runner = CliRunner()
    monkeypatch.setattr(trace_cli, "LEAST", 1)
    fast = runner.invoke(trace_app, ["bench", str(WORKER), "--seconds", "0.1", "--json"])
    assert fast.exit_code == 0, fast.output
    said = json.loads(fast.stdout.strip().splitlines()[-1])
    assert said["lines_per_second"] > 1_000
    assert said["lines"] == check_file(WORKER).lines
    monkeypatch.setattr(trace_cli, "LEAST", 10**9)
    slow = runner.invoke(trace_app, ["bench", str(WORKER), "--seconds", "0.01"])
    assert (slow.exit_code, "not at least 1,000,000,000" in slow.output) == (1, True)
    bad = tmp_path / "bad.ndjson"
    bad.write_bytes(b"".join(gzip.decompress(WORKER.read_bytes()).splitlines(keepends=True)[1:]))
    refuted = runner.invoke(trace_app, ["bench", str(bad)])
    assert (refuted.exit_code, "line 0 (counted from 0)" in refuted.output) == (1, True)
