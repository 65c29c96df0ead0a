"""The example of docs/embedding.md runs, and the reference order of calls handles failures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from core_support import HIGH, LOW, in_mode, settle
from spec_fsm import Action, Lifecycle, ListSink, Mode, decode_step
from spec_fsm.protocol import SeedError

PAGE = Path(__file__).parents[1] / "docs" / "embedding.md"


def example() -> dict[str, Any]:
    """The names the page's program defines, after it ran."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_example_of_the_page_runs_through_all_modes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page's program speculates, stops, reseeds and speculates again, every draft on true KV,
    and what each finished request may put into the cache is covered."""
    names = example()
    engine, lifecycle = names["engine"], names["engine"].lifecycle
    assert {Mode.SPEC, Mode.PLAIN} <= set(names["modes"])
    for edge in (
        ("SPEC", "LOAD_ROSE", "DRAINING"),
        ("DRAINING", "DRAINED", "PLAIN"),
        ("PLAIN", "LOAD_FELL", "RESEEDING"),
        ("RESEEDING", "RESEEDED", "SPEC"),
    ):
        assert lifecycle.transitions[edge] >= 2
    assert not lifecycle.checks.violations
    assert len(engine.finished) > 20
    for request, covered in engine.finished:
        assert request.draft_kv[:covered] == list(range(covered))
    assert any(covered < request.committed for request, covered in engine.finished)
    assert "requests;" in capsys.readouterr().out


def test_the_example_would_notice_a_skipped_flush() -> None:
    """Without the flush of the rebuild the page's engine fails its own assertion: it is no show."""
    names = example()
    toy = names["ToyEngine"]
    toy._flush = lambda self, upper, lower: None
    with pytest.raises(AssertionError):
        names["serve"]([2] * 5 + [6] * 20 + [1] * 60)


class Recorder:
    """An engine that records its acts; `rebuild` fails while `broken`."""

    def __init__(self, lifecycle: Lifecycle, load: int, *, broken: bool = False) -> None:
        self.lifecycle, self._load, self.broken = lifecycle, load, broken
        self.acts: list[str] = []

    def load(self) -> int:
        """The load it was made with."""
        return self._load

    def rows(self) -> int:
        """All rows that joined."""
        return self.lifecycle.rows

    def settle(self) -> None:
        """Process one result."""
        self.acts.append("settle")
        settle(self.lifecycle)

    def plain(self, flush_upper: int, flush_lower: int) -> None:
        """Record a plain launch."""
        self.acts.append(f"plain {flush_upper} {flush_lower}")

    def speculate(self) -> None:
        """Record a speculative launch."""
        self.acts.append("speculate")

    def rebuild(self, flush_upper: int) -> None:
        """Record a rebuild, or fail."""
        self.acts.append(f"rebuild {flush_upper}")
        if self.broken:
            raise SeedError("no seed")


def test_a_drain_settles_before_it_launches() -> None:
    """In DRAINING the step settles what is in flight, then launches plainly."""
    lifecycle = in_mode(Mode.DRAINING)
    engine = Recorder(lifecycle, HIGH)
    assert decode_step(engine, lifecycle) is Action.PLAIN
    assert engine.acts == ["settle", "plain 0 0"]


def test_a_failed_rebuild_is_followed_by_a_plain_step() -> None:
    """SeedError takes the same batch back to a plain launch; the next reseed succeeds."""
    lifecycle = in_mode(Mode.RESEEDING)
    engine = Recorder(lifecycle, LOW, broken=True)
    assert decode_step(engine, lifecycle) is Action.PLAIN
    assert decode_step(engine, lifecycle) is Action.PLAIN
    assert engine.acts == ["plain 6 3", "rebuild 3", "plain 0 0"]
    assert lifecycle.mode is Mode.PLAIN
    engine.broken = False
    engine.acts.clear()
    while lifecycle.mode is not Mode.SPEC:
        decode_step(engine, lifecycle)
    # Two boundaries of back-off, then two slices down from the gap of 6 and the rest.
    waiting, slices = ["plain 0 0"] * 2, ["plain 7 4", "plain 5 2"]
    assert engine.acts == [*waiting, *slices, "rebuild 2", "speculate"]


def test_a_traced_engine_tells_which_rows_each_plan_is_for() -> None:
    """`rids`, where an engine has it, goes into the plan's line, and into the one after a failed
    rebuild."""
    sink = ListSink()
    lifecycle = in_mode(Mode.RESEEDING, trace=sink)
    engine = Recorder(lifecycle, LOW, broken=True)
    engine.rids = lambda: ["r0", "r1"]  # type: ignore[attr-defined]
    decode_step(engine, lifecycle)
    decode_step(engine, lifecycle)
    told = [line["rids"] for line in sink.lines if line["kind"] == "plan"]
    assert told[-3:] == [["r0", "r1"]] * 3


def test_without_rows_nothing_is_launched() -> None:
    """A step with no decode batch runs the boundary alone."""
    lifecycle = in_mode(Mode.SPEC, rows=1)
    engine = Recorder(lifecycle, 0)
    engine.rows = lambda: 0  # type: ignore[method-assign]
    assert decode_step(engine, lifecycle) is None
    assert engine.acts == []
