"""Everything in a trace is needed: no line and no field of the real worker's traces can change."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from spec_fsm_model.cli import trace_app
from spec_fsm_model.explore import Verdict
from spec_fsm_model.replay_mode import Replayed
from spec_fsm_model.tamper import EXPLAINED, Tampered, tamper
from spec_fsm_model.trace_check import check_lines, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = sorted(Path(__file__).parent.joinpath("traces").glob("*.ndjson.gz"))


@functools.cache
def tampered() -> Tampered:
    """The committed traces, tampered with."""
    return tamper(lines_of(path) for path in TRACES)


def test_no_change_of_a_committed_trace_is_accepted() -> None:
    """Dropped, doubled, exchanged, renamed, another number: never proved, but for what is free."""
    found = tampered()
    accepted = {key: found.examples[key] for key in found.outcomes if _accepted(found, key)}
    assert not accepted
    assert found.counts()["refused"] > 2_000


def _accepted(found: Tampered, key: tuple[str, str]) -> bool:
    return found.verdict(*key) == "accepted"


def test_only_times_texts_and_free_observations_are_explained() -> None:
    """What may differ is a time, the text of a failure, or an observation of the engine's own."""
    found = tampered()
    explained = {
        key for key in found.outcomes if found.verdict(*key) in EXPLAINED.values()
    }
    assert explained
    for kind, change in explained:
        assert kind == "observation" or change.split()[0] in EXPLAINED


def test_the_committed_traces_hold_every_kind_of_line() -> None:
    """Together they have every line that a proved trace can hold, in every mode."""
    assert tampered().missing() == []


@pytest.mark.parametrize("change", ["dropped put before", "violation put before"])
def test_lost_lines_and_violations_are_never_proved(change: str) -> None:
    """Wherever the sink lost a line, or a check failed, the trace is not proved."""
    tried = [key for key in tampered().outcomes if key[1] == change]
    assert len(tried) > 50
    assert all(tampered().verdict(*key) == "refused" for key in tried)


def renumbered(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Numbers and times in order again."""
    for seq, line in enumerate(lines):
        yield {**line, "seq": seq, "t_ns": seq}


@functools.cache
def shortest() -> list[dict[str, Any]]:
    """The lines of the shortest committed trace."""
    return min((lines_of(path) for path in TRACES), key=len)


def test_lines_cut_from_the_middle_are_missed() -> None:
    """Any piece of a trace, of one iteration or of many, is missed, its numbers put right."""
    lines = shortest()
    for start in range(1, len(lines) - 200, len(lines) // 12):
        for length in (2, 7, 40, 150):
            cut = [*lines[:start], *lines[start + length :]]
            assert check_lines(renumbered(cut)).verdict is not Verdict.PROVED, (start, length)


def test_a_trace_without_its_observations_is_refused() -> None:
    """A launch without its forwards is none, whichever forwards are left out."""
    lines = shortest()
    for phase in ("DRAFT", "VERIFY", "DRAFT_EXTEND", "PLAIN_DECODE", "PREFILL"):
        cut = [line for line in lines if line.get("phase") != phase]
        assert len(cut) < len(lines)
        assert check_lines(renumbered(cut)).verdict is Verdict.REFUTED, phase


def test_a_cut_off_tail_is_undetermined() -> None:
    """A trace without its last line may have gone on in any way."""
    for end in (-1, -2, -30):
        found = check_lines(renumbered(shortest()[:end]))
        assert found.verdict is not Verdict.PROVED


def test_lost_lines_make_it_undetermined_and_a_violation_after_them_refuted() -> None:
    """`dropped` ends the replay; a violation further on is seen all the same."""
    lines = shortest()
    lost = [*lines[:50], {"kind": "dropped", "lines": 3}, *lines[50:]]
    assert check_lines(renumbered(lost)).verdict is Verdict.UNDETERMINED
    broken = {"kind": "violation", "mode": "SPEC", "invariant": "I2", "error": "wrong"}
    found = check_lines(renumbered([*lost, broken]))
    assert (found.verdict, found.bad_line) == (Verdict.REFUTED, len(lost))


def test_the_tamperer_finds_a_check_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a replay no longer compares a line's counts, changes of them are accepted and told."""
    monkeypatch.setattr(Replayed, "_stands", lambda *_: None)
    found = tamper([shortest()], samples=1)
    accepted = [key for key in found.outcomes if _accepted(found, key)]
    assert ("boundary in SPEC", "rows +1") in accepted


def test_the_command_tells_each_kind_and_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line has the counts; exit code 0 only if nothing is accepted."""
    import spec_fsm_model.trace_cli as cli

    monkeypatch.setattr(cli, "tamper", lambda _: tampered())
    done = CliRunner().invoke(trace_app, ["tamper", *map(str, TRACES), "--every-kind", "--json"])
    assert done.exit_code == 0, done.output
    counts = tampered().counts()
    total = counts["refused"] + counts["explained"]
    said = f"tamper: {total} kinds, {counts['refused']} refused, {counts['explained']} explained"
    assert f"{said}, 0 accepted" in done.output
    assert json.loads(done.stdout.strip().splitlines()[-1])["kinds"] == total
