"""The trace: every event, plan, observation and refusal, in order, whole lines, off by default."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from core_support import HIGH, LOW, TREE, in_mode, join, launch, make, settle
from spec_fsm import (
    Action,
    Event,
    FileSink,
    Hidden,
    ListSink,
    Mode,
    Phase,
    ShapeViolation,
    SpecInfo,
    StashConfig,
    TraceError,
    read_trace,
    trace,
)

if TYPE_CHECKING:
    from pathlib import Path

LONG = trace.LONGEST_LINE + 1
PACKED = gzip.compress(b"{}", mtime=0)


def bare(line: dict[str, Any]) -> dict[str, Any]:
    """A line without its number and time."""
    return {k: v for k, v in line.items() if k not in ("seq", "t_ns")}


def scripted(sink: Any) -> None:
    """A short history with every kind of line."""
    lifecycle = make(trace=sink, stash=StashConfig(width=4, flush_every=0, slice_width=2))
    lifecycle.noted(Event.ADMITTED, 0)
    lifecycle.chunked("r0", 3)
    join(lifecycle, 1)
    lifecycle.boundary(LOW)
    plan = lifecycle.plan_decode(1, ["r0"])
    lifecycle.check_launch(Phase.DRAFT, 1, 4, 8, SpecInfo.DRAFT, Hidden.LAST)
    lifecycle.launched(plan.action, 1, plan)
    lifecycle.boundary(HIGH)
    lifecycle.settled(Action.SPECULATE, 1, [3], rids=["r0"])
    for _ in range(3):
        launch(lifecycle)
        settle(lifecycle)
    lifecycle.observe("acceptance", tokens=3, rows=1)
    with pytest.raises(ShapeViolation):
        lifecycle.check_launch(Phase.PLAIN_DECODE, 1, 16, 1, SpecInfo.NONE, Hidden.FULL)
    lifecycle.boundary(LOW)
    launch(lifecycle)
    lifecycle.pin = "SPEC"
    lifecycle.reseed_failed("by hand")
    for _ in range(4):
        launch(lifecycle)
    lifecycle.weights_changed()
    lifecycle.left("r0", Event.FINISHED, 14)
    lifecycle.pin = lifecycle.pin
    lifecycle.close()
    lifecycle.close()


def test_without_a_trace_there_is_nothing_to_close() -> None:
    """A server closes what it has, traced or not, and may go on."""
    lifecycle = make()
    lifecycle.close()
    join(lifecycle, 1)
    assert launch(lifecycle) is Action.SPECULATE


def test_closing_ends_the_trace_and_closes_a_sink_that_can_be() -> None:
    """The last line is written before the sink is closed; a sink without `close` has no need."""

    class Closing(ListSink):
        """A sink that says after which line it was closed."""

        closed_after = ""

        def close(self) -> None:
            """Note the last line's kind."""
            self.closed_after = self.lines[-1]["kind"]

    sink = Closing()
    make(trace=sink).close()
    assert sink.closed_after == "end"


def test_a_prompt_without_chunks_says_so() -> None:
    """`chunks` counts the chunks before the last one, of that row alone."""
    sink = ListSink()
    lifecycle = make(trace=sink)
    lifecycle.chunked("r0", 3)
    lifecycle.chunked("r0", 5)
    join(lifecycle, 2)
    told = [line["chunks"] for line in sink.lines if line.get("event") == "PREFILLED"]
    assert told == [2, 0]


def test_a_failed_reseed_tells_the_forwards_of_its_own_plan() -> None:
    """Those that passed their check between the RESEED plan and the failure."""
    sink = ListSink()
    lifecycle = in_mode(Mode.RESEEDING, trace=sink)
    while lifecycle.plan_decode(2).action is Action.PLAIN:
        launch(lifecycle)
        settle(lifecycle)
    lifecycle.check_launch(Phase.SEED_EXTEND, 2, 8, 8, SpecInfo.DRAFT_EXTEND, Hidden.FULL, 4)
    lifecycle.reseed_failed("by hand")
    assert sink.lines[-1]["event"] == "RESEED_FAILED"
    assert sink.lines[-1]["forwards"] == 1


def test_a_scripted_history_line_by_line() -> None:
    """The lines of a fixed history, fields and all, are exactly these."""
    sink = ListSink()
    scripted(sink)
    lines = [bare(line) for line in sink.lines]
    settings = {
        "shape": {"topk": 4, "num_steps": 2, "num_draft_tokens": 16, "page_size": 1},
        "policy": {"disable_above": 5, "enable_at": 3, "dwell": 0, "pin": "AUTO"},
        "stash": {"width": 4, "flush_every": 0, "slice_width": 2, "seed_ahead": 0},
    }
    assert lines[0] == {"kind": "start", "v": 2, **settings}

    def line(kind: str, mode: str, counts: tuple[int, int, int, int], **rest: Any) -> Any:
        at, rows, unsettled, flying = counts
        stands = {"at": at, "rows": rows, "unsettled": unsettled, "in_flight": flying}
        return {"kind": kind, "mode": mode, **stands, **rest}

    def event(name: str, mode: str, to: str, counts: Any, **rest: Any) -> Any:
        return line("event", mode, counts, event=name, to=to, **rest)

    spec = {"action": "SPECULATE", "flush": [0, 0]}
    plain = {"action": "PLAIN", "flush": [0, 0]}
    row = {"rid": "r0", "cached": 0}
    draft = {"phase": "DRAFT", "b": 1, "tokens": 4, "slots": 8}
    result = {"action": "SPECULATE", "batch": 1, "accepted": [3], "rids": ["r0"], "forwards": 1}
    assert lines[1:15] == [
        line("obs", "SPEC", (0, 0, 0, 0), what="ADMITTED", facts={"batch": 0}),
        event("PREFILLED_CHUNK", "SPEC", "SPEC", (0, 0, 0, 0), committed=3, **row),
        event("PREFILLED", "SPEC", "SPEC", (0, 1, 0, 0), committed=7, chunks=1, **row),
        line("boundary", "SPEC", (1, 1, 0, 0), load=1, loads=1),
        line("plan", "SPEC", (1, 1, 0, 0), seeds=0, rids=["r0"], **spec),
        line("obs", "SPEC", (1, 1, 0, 0), spec_info="DRAFT", hidden="LAST", **draft),
        event("LAUNCHED", "SPEC", "SPEC", (1, 1, 1, 1), batch=1, **spec),
        line("boundary", "SPEC", (2, 1, 1, 1), load=100, loads=101),
        event("LOAD_ROSE", "SPEC", "DRAINING", (2, 1, 1, 1), load=100),
        event("SETTLED", "DRAINING", "DRAINING", (2, 1, 0, 0), **result),
        event("DRAINED", "DRAINING", "PLAIN", (2, 1, 0, 0)),
        line("plan", "PLAIN", (2, 1, 0, 0), seeds=0, rids=[], **plain),
        event("LAUNCHED", "PLAIN", "PLAIN", (2, 1, 0, 1), batch=1, **plain),
        event("DECODED", "PLAIN", "PLAIN", (2, 1, 0, 0), action="PLAIN", batch=1, forwards=0),
    ]
    kept = {"pin": "SPEC", "epoch": 2, "tokens": 3}
    left = {"ABORTED": 0, "FINISHED": 1, "RETRACTED": 0}
    counts = lines[-1]["at"], 0, 0, lines[-1]["in_flight"]
    assert lines[-1] == line("end", lines[-1]["mode"], counts, left=left, **kept, **settings)
    pins = [(told["pin"], told["was"]) for told in lines if told["kind"] == "pin"]
    assert pins == [("SPEC", "AUTO")]
    rest = lines[15:]
    told = [line["facts"] for line in rest if line.get("what") == "acceptance"]
    assert told == [{"tokens": 3, "rows": 1}]
    violations = [line for line in rest if line["kind"] == "violation"]
    assert [(v["invariant"], v["mode"]) for v in violations] == [("I2", "PLAIN")]
    assert "observed 16, expected 1" in violations[0]["error"]
    names = [line["event"] for line in rest if line["kind"] == "event"]
    assert names[-11:] == [
        "LOAD_FELL",
        "LAUNCHED",
        "SLICE_DONE",
        "RESEED_FAILED",
        "LAUNCHED",
        "LAUNCHED",
        "LAUNCHED",
        "STASH_DROPPED",
        "LAUNCHED",
        "WEIGHTS_CHANGED",
        "FINISHED",
    ]
    by_name = {line["event"]: line for line in rest if line["kind"] == "event"}
    assert by_name["SLICE_DONE"]["upper"] == 4
    assert by_name["SLICE_DONE"]["lower"] == 2
    assert by_name["RESEED_FAILED"]["why"] == "by hand"
    assert by_name["STASH_DROPPED"]["rid"] == "r0"
    assert (by_name["FINISHED"]["rid"], by_name["FINISHED"]["rows"]) == ("r0", 0)


def test_every_event_changes_the_mode_as_the_table_says() -> None:
    """Each event line's (mode, event) is an edge of the table and `to` is its target."""
    from spec_fsm._table import EDGE_OF

    sink = ListSink()
    scripted(sink)
    lines = [line for line in sink.lines if line["kind"] == "event"]
    assert len(lines) > 20
    for line in lines:
        edge = EDGE_OF[Mode[line["mode"]], Event[line["event"]]]
        assert line["to"] == edge.target.name


def test_file_round_trip(tmp_path: Path) -> None:
    """What a file sink writes is read back as the lines a list sink keeps, numbered from 0."""
    path = tmp_path / "trace.ndjson"
    file, kept = FileSink(path), ListSink()
    scripted(file)
    scripted(kept)
    file.close()
    file.close()
    lines = list(read_trace(path))
    assert [line["seq"] for line in lines] == list(range(len(kept.lines)))
    assert [bare(line) for line in lines] == [bare(line) for line in kept.lines]
    times = [line["t_ns"] for line in lines]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["{"], "line 0 is no JSON object"),
        (["[1]"], "line 0 is no JSON object"),
        (['{"seq":1,"kind":"start","v":2}'], "line 0 is out of sequence (observed 1, expected 0)"),
        (['{"seq":0,"kind":"plan"}'], "line 0 is of the wrong kind (observed plan"),
        (
            ['{"seq":0,"kind":"start","v":2}', '{"seq":1,"kind":"start","v":2}'],
            "line 1 is of the wrong kind",
        ),
        (['{"seq":0,"kind":"start","v":2}', '{"seq":1}'], "line 1 is of the wrong kind"),
        (['{"seq":0,"kind":"start","v":1}'], "another version (observed 1, expected 2)"),
        (
            ['{"seq":0,"kind":"start","v":2}', '{"seq":2,"kind":"plan"}'],
            "line 1 is out of sequence (observed 2, expected 1)",
        ),
    ],
)
def test_bad_traces_are_named_at_their_line(tmp_path: Path, lines: list[str], text: str) -> None:
    """Whatever is wrong with a trace, the error names the line and what was expected."""
    path = tmp_path / "trace.ndjson"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    assert text in str(caught.value)


def test_tracing_is_off_by_default_and_changes_no_decision() -> None:
    """A traced and an untraced lifecycle go through the same states; lines are JSON values."""
    sink = ListSink()
    traced, plain = in_mode(Mode.RESEEDING, trace=sink), in_mode(Mode.RESEEDING)
    assert plain._trace is None
    plain.observe("anything", rows=1)
    assert traced.state() == plain.state()
    assert json.loads(json.dumps(sink.lines)) == sink.lines
    assert traced.shape == TREE


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b" " * LONG, "line 0 is longer than"),
        (b"[" * 100_000, "line 0 is no JSON object"),
        (b'{"seq":0,"kind":["start"]}', "line 0 is of the wrong kind"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_of_any_bytes_is_refused_in_one_line(
    tmp_path: Path, content: bytes, expected: str, packed: bool
) -> None:
    """Lines without end, deep nesting and kinds that are no text, packed or not."""
    path = tmp_path / ("t.ndjson.gz" if packed else "t.ndjson")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(TraceError, match=expected) as caught:
        list(read_trace(path))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "content",
    [None, b"no gzip", PACKED[:-9], PACKED[:4]],
    ids=["missing", "no archive", "cut in its data", "cut in its head"],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None
) -> None:
    """A missing file, and an archive that is none or was cut."""
    path = tmp_path / "t.ndjson.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError):
        list(read_trace(path))


def test_a_packed_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    """`.gz` is read line by line."""
    sink = ListSink()
    scripted(sink)
    path = tmp_path / "t.ndjson.gz"
    path.write_bytes(gzip.compress(b"".join(json.dumps(x).encode() + b"\n" for x in sink.lines)))
    assert list(read_trace(path)) == json.loads(json.dumps(sink.lines))
