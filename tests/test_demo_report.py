"""The demo's judgement and report, on recorded data: no server, no model."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spec_fsm_sglang import assets
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.demo import judge, report, timeline
from spec_fsm_sglang.demo.compare import NEAR_TIE, Reference, Verdict, compare, margins
from spec_fsm_sglang.demo.judge import Run, summarise
from spec_fsm_sglang.demo.load import Answer, Course
from spec_fsm_sglang.demo.workload import PHASES, Job, Phase, read_prompts

SECOND = 1_000_000_000
DEMO_TOML = Path(judge.__file__).with_name("demo.toml")


# The comparison


def test_equal_outputs_are_equal() -> None:
    """The same tokens are equal, whatever the margins."""
    assert compare(Reference((1, 2), (0.0, 0.0)), [1, 2]).verdict is Verdict.EQUAL


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [
        (0.0, Verdict.NEAR_TIE),
        (NEAR_TIE * 0.99, Verdict.NEAR_TIE),
        (NEAR_TIE, Verdict.DIFFERENT),
        (2.0, Verdict.DIFFERENT),
    ],
)
def test_near_tie_is_judged_at_the_first_difference(margin: float, verdict: Verdict) -> None:
    """Only the margin at the first differing token counts, and it must be below 1e-3."""
    reference = Reference((1, 2, 3, 4), (0.0, 5.0, margin, 0.0))
    found = compare(reference, [1, 2, 9, 9])
    assert (found.verdict, found.position, found.margin) == (verdict, 2, margin)


def test_an_output_that_ends_early_differs_where_it_ends() -> None:
    """A missing token is a difference at its position: a tie there may explain it, else not."""
    assert compare(Reference((1, 2, 3), (5.0, 5.0, 5.0)), [1, 2]).verdict is Verdict.DIFFERENT
    assert compare(Reference((1, 2, 3), (5.0, 5.0, 1e-4)), [1, 2]).verdict is Verdict.NEAR_TIE


def test_an_output_that_goes_on_is_different() -> None:
    """Tokens after the reference's end have no margin to excuse them."""
    found = compare(Reference((1, 2), (0.0, 0.0)), [1, 2, 3])
    assert (found.verdict, found.position, found.margin) == (Verdict.DIFFERENT, 2, None)


def test_margins_are_best_less_second_best() -> None:
    """SGLang's top log-probabilities, in whatever order, give the distance of the best two."""
    assert margins([[[-3.0, 7, None], [-0.5, 8, None]], [[-1.0, 1, None], [-1.0, 2, None]]]) == (
        2.5,
        0.0,
    )
    assert margins([[[-0.1, 7, None], [None, 8, None]]]) == (float("inf"),)
    with pytest.raises(ValueError, match="position 0 has 1"):
        margins([[[-0.5, 8, None]]])


# A trace and a course, as a run leaves them


def lines() -> list[dict[str, Any]]:
    """A trace of two switches off and two on; two rows, one line a tenth of a second."""
    found: list[dict[str, Any]] = [{"kind": "start", "v": 1}]

    def event(name: str, mode: str, to: str, **more: Any) -> None:
        found.append(
            {"kind": "event", "event": name, "mode": mode, "to": to, "rows": 2, "unsettled": 0}
            | more
        )

    for load, gap in ((6, 20), (9, 33)):
        event("SETTLED", "SPEC", "SPEC", accepted=[2, 3])
        event("LOAD_ROSE", "SPEC", "DRAINING", load=load, unsettled=1)
        event("SETTLED", "DRAINING", "DRAINING", accepted=[1, 2])
        event("DRAINED", "DRAINING", "PLAIN")
        event("DECODED", "PLAIN", "PLAIN", accepted=[1, 1])
        event("DECODED", "PLAIN", "PLAIN", accepted=[1, 1])
        event("LOAD_FELL", "PLAIN", "RESEEDING", load=2)
        found.append({"kind": "plan", "mode": "RESEEDING", "action": "PLAIN", "flush": [gap, 8]})
        event("SLICE_DONE", "RESEEDING", "RESEEDING")
        found.append({"kind": "plan", "mode": "RESEEDING", "action": "RESEED", "flush": [8, 0]})
        event("RESEEDED", "RESEEDING", "SPEC")
        event("SETTLED", "SPEC", "SPEC", accepted=[3, 3])
    for i, line in enumerate(found):
        line |= {"seq": i, "t_ns": i * SECOND // 10}
    return found


def recorded() -> Run:
    """A run that meets every condition."""
    jobs = [Job(number, 4) for number in range(24)]
    course = Course(
        answers=[Answer(job, (1, 2), "", 0, SECOND, {}) for job in jobs],
        phases=[("low", 0), ("high", SECOND)],
        load=[(0, 1), (SECOND, 9), (2 * SECOND, 0)],
        ended_ns=3 * SECOND,
    )
    status = {
        "transitions": {"SPEC->DRAINING": 2, "DRAINING->PLAIN": 2, "RESEEDING->SPEC": 2},
        "violations": {},
        "checks": {"I1a": 5, "I2": 5, "I12": 0},
        "switch_off_count": 2,
        "switch_on_count": 2,
        "in_flight_at_drain": 2,
    }
    references = {job.rid: Reference((1, 2), (0.5, 0.5)) for job in jobs}
    return Run(course, timeline.of(lines()), status, references, "a recorded run")


def test_timeline_of_a_trace() -> None:
    """Modes, steps, gaps and switches come out of the trace as they were written into it."""
    found = timeline.of(lines())
    assert found.modes_seen == ["SPEC", "DRAINING", "PLAIN", "RESEEDING"]
    assert len(found.steps) == 10
    assert [gap for _, gap in found.gaps] == [20, 33]
    off, on, *_ = timeline.switches(found)
    assert (off.kind, off.load, off.in_flight, off.gap) == ("off", 6, 1, 0)
    assert (on.kind, on.load, on.gap) == ("on", 2, 20)
    # Before: rounds of 2, 3, 1, 2 tokens a row. After: 3, 3 and what follows.
    assert on.accept_before == pytest.approx(2.0)
    assert on.accept_after is not None
    assert on.accept_after > on.accept_before


def test_mode_spans_cover_the_interval() -> None:
    """The spans follow one another from the interval's start to its end."""
    spans = timeline.of(lines()).mode_spans(0, 3 * SECOND)
    assert (spans[0][0], spans[0][1], spans[-1][2]) == ("SPEC", 0, 3 * SECOND)
    assert all(left[2] == right[1] for left, right in pairwise(spans))


def test_bins_hold_every_token_once() -> None:
    """Tokens per second, summed over the bins, are the tokens of the steps."""
    steps = timeline.of(lines()).steps
    bins = timeline.binned(steps, 0, 3 * SECOND, SECOND // 2)
    assert sum(rate for _, rate, _ in bins) / 2 == sum(step.tokens for step in steps)


def test_cut_off_trace_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    """A server that was killed leaves half a line, which is left out."""
    path = tmp_path / "trace.ndjson"
    whole = "".join(json.dumps(line) + "\n" for line in lines())
    path.write_text(whole + '{"seq": 99, "ki')
    assert timeline.read(path) == timeline.of(lines())


# The verdict


def test_summary_has_what_the_report_promises() -> None:
    """Every documented key is there, and a run that meets every condition passes."""
    summary = summarise(recorded())
    expected = {
        "modes_seen", "transitions", "requests", "outputs_equal", "outputs_near_tie",
        "outputs_different", "violations", "checks", "switch_off_count", "switch_on_count",
        "in_flight_at_drain",
    }  # fmt: skip
    assert expected <= set(summary)
    assert (summary["requests"], summary["outputs_equal"], summary["violations"]) == (24, 24, 0)
    assert summary["passed"]
    json.dumps(summary)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"modes_seen": ["SPEC", "DRAINING", "PLAIN"]}, "all four modes"),
        ({"requests": 23, "outputs_equal": 23}, "at least 24 requests"),
        ({"switch_off_count": 1}, "at least 2 switches off"),
        ({"switch_on_count": 1}, "at least 2 switches on"),
        ({"outputs_equal": 23}, "every output equal or a near tie"),
        ({"outputs_equal": 23, "outputs_different": 1}, "no output different"),
        ({"outputs_equal": 21, "outputs_near_tie": 3}, "near ties at most a tenth"),
        ({"violations": 1}, "no violation"),
        ({"in_flight_at_drain": 0}, "a result in flight when a drain began"),
        ({"largest_gap_rebuilt": 15}, "a gap of at least 16 tokens rebuilt"),
        ({"checks": {"I1a": 5, "I2": 0}}, "every invariant that applies on CPU checked"),
        ({"checks": {}}, "every invariant that applies on CPU checked"),
    ],
)
def test_each_condition_can_fail(change: dict[str, Any], name: str) -> None:
    """Each condition fails when, and names itself because, what it is about is not so."""
    found = judge.conditions(summarise(recorded()) | change)
    assert name in [condition["name"] for condition in found if not condition["holds"]]


def test_violations_are_counted_in_either_form() -> None:
    """A status that counts violations by invariant and one that gives their number agree."""
    run = recorded()
    by_id = replace(run, status={**run.status, "violations": {"I3": 2, "I8": 1}})
    total = replace(run, status={**run.status, "violations": 3})
    assert summarise(by_id)["violations"] == summarise(total)["violations"] == 3


# The report


def test_report_is_one_page_with_its_picture(tmp_path: Path) -> None:
    """The picture is a PNG of a readable size; the page holds it and needs no other file."""
    run = recorded()
    report.draw(tmp_path / "timeline.png", run.timeline, run.course, (5, 3))
    picture = (tmp_path / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    summary = summarise(run) | {"setting": "<b>escaped</b>"}
    report.write(tmp_path, summary)
    page = (tmp_path / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "not speed" in page
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


# The workload


class Words:
    """A tokenizer that counts words."""

    def apply_chat_template(self, chat: list[dict[str, str]], **_: object) -> dict[str, list[int]]:
        """One id a word."""
        return {"input_ids": list(range(len(chat[0]["content"].split())))}


def test_workload_is_what_the_demo_promises() -> None:
    """Concurrency 2, 12, 2, 12, 2; at least 24 requests; every question asked once and shipped."""
    assert [phase.concurrency for phase in PHASES] == [2, 12, 2, 12, 2]
    jobs = [job for phase in PHASES for job in phase.jobs]
    assert len(jobs) >= judge.LEAST_REQUESTS
    assert len({job.rid for job in jobs}) == len(jobs)
    prompts = read_prompts(assets.folder("prompts"), Words())
    assert {job.rid for job in jobs} <= set(prompts)
    assert all(prompts[job.rid] for job in jobs)


def test_high_phases_go_over_the_threshold_and_outlive_it() -> None:
    """A high phase fills the threshold twice over; its longest answers outlive the others."""
    config = Config.load(DEMO_TOML)

    def outlive(phase: Phase) -> int:
        longest = max(job.max_new_tokens for job in phase.jobs)
        return sum(job.max_new_tokens == longest for job in phase.jobs)

    for phase in PHASES[1::2]:
        assert phase.concurrency > 2 * config.disable_above
        assert 0 < outlive(phase) <= config.enable_threshold
        # Nothing is lost: no answer is longer than the stash.
        assert max(job.max_new_tokens for job in phase.jobs) < config.stash_width
