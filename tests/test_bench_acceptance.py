"""`spec-fsm bench acceptance`: what it counts, what it refuses, and one run of the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from spec_fsm.errors import ConfigError
from spec_fsm_sglang import assets
from spec_fsm_sglang.bench.acceptance import (
    Setup,
    acceptance,
    distinct_grams,
    first_turns,
    measure,
    parse_spec,
    verdicts,
)
from spec_fsm_sglang.bench.generate import Answer, EngineFailed, Task, answers
from spec_fsm_sglang.demo.compare import Reference
from spec_fsm_sglang.demo.run import HEAD

CLONE = Path(__file__).resolve().parent.parent
needs_sglang = pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang is not installed")


def answer(
    histogram: tuple[int, ...] = (), output: tuple[int, ...] = (1,), index: int = 0
) -> Answer:
    """An answer with these rounds and tokens."""
    return Answer(index, list(output), list(histogram), [])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `spec-fsm bench acceptance ARGUMENTS` as a process of its own."""
    command = [sys.executable, "-m", "spec_fsm_sglang.cli", "bench", "acceptance", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )


def test_rounds_of_all_answers_make_the_figures() -> None:
    """Rounds add up over answers; the accept length is their mean with the bonus token."""
    found = acceptance([answer((1, 2)), answer((0, 1, 0, 4)), answer()], 3)
    assert found["histogram"] == [1, 3, 0, 4]
    assert found["rounds"] == 8
    assert found["by_position"] == [7 / 8, 4 / 8, 4 / 8]
    by_hand = (1 * 1 + 3 * 2 + 4 * 4) / 8
    assert found["accept_length"] == by_hand


def test_no_round_is_no_accept_length() -> None:
    """Answers of one token, which the prefill gives, divide nothing by zero."""
    found = acceptance([answer(), answer()], 2)
    assert found == {
        "accept_length": 0.0,
        "histogram": [0, 0, 0],
        "by_position": [0.0, 0.0],
        "rounds": 0,
    }


def test_a_round_beyond_the_steps_is_no_round_of_this_spec() -> None:
    """More drafts accepted than the spec drafts is an error, not a longer histogram."""
    with pytest.raises(IndexError):
        acceptance([answer((0, 0, 0, 1))], 2)


@pytest.mark.parametrize(
    ("outputs", "share"),
    [
        ([[1, 2, 3, 4, 5]], 1.0),
        ([[7] * 13], 0.1),
        ([[1, 2, 3, 4], [1, 2, 3, 4]], 1.0),  # alike outputs do not repeat themselves
        ([[1, 2, 3, 4, 1, 2, 3, 4], [9] * 8], (4 + 1) / 10),
        ([[1, 2, 3]], 0.0),
    ],
)
def test_distinct_grams(outputs: list[list[int]], share: float) -> None:
    """A 4-gram counts once within its own output."""
    assert distinct_grams(outputs) == share


def test_outputs_are_judged_by_the_rule_of_the_demo() -> None:
    """Equal, a near tie and a difference are told apart, and the last two are named."""
    references = [Reference((1, 2), (5.0, margin)) for margin in (5.0, 1e-4, 5.0)]
    drafted = [answer(output=(1, second), index=i) for i, second in enumerate((2, 3, 3))]
    found = verdicts(references, drafted)
    assert (found["outputs_equal"], found["outputs_near_tie"], found["outputs_different"]) == (
        1, 1, 1,
    )  # fmt: skip
    assert [row["request"] for row in found["unequal"]] == ["prompt 2", "prompt 3"]
    assert [row["position"] for row in found["unequal"]] == [1, 1]


def test_spec_is_read_in_the_order_of_sglang() -> None:
    """Steps, topk, draft tokens."""
    shape = parse_spec("2/4/16")
    assert (shape.num_steps, shape.topk, shape.num_draft_tokens) == (2, 4, 16)


@pytest.mark.parametrize(
    "text", ["", "3/1", "3/1/4/1", "a/1/4", "3/-1/4", "3 /1/4", "0/1/1", "2/4/22", "3/1/3", "³/1/4"]
)
def test_malformed_spec_is_named(text: str) -> None:
    """A spec that is none, or that SGLang would change, is refused with the accepted form."""
    with pytest.raises(ConfigError, match="accepted") as refusal:
        parse_spec(text)
    assert str(refusal.value).startswith(f"--spec {text}: ")
    assert "\n" not in str(refusal.value)


def test_first_turns_of_the_first_rows(tmp_path: Path) -> None:
    """Blank lines are no rows, later turns are not asked, and rows past the limit not read."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["a", "b"]}\n\n{"turns": ["c"], "more": 1}\nnot JSON\n')
    assert first_turns(file, 2) == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"turns": ["a"]}\n{"question": "b"}\n', "line 2 has no turns"),
        ('{"turns": []}\n', r"line 1 has turns \[\]"),
        ('{"turns": "a"}\n', 'line 1 has turns "a"'),
        ('{"turns": [1]}\n', r"line 1 has turns \[1\]"),
        ("[]\n", "line 1 has no turns"),
        ("hello\n", "line 1 is not JSON"),
        ("\n", "no rows"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, words: str) -> None:
    """What is not a row is refused with its line and the accepted form, on one line."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as refusal:
        first_turns(file)
    assert str(file) in str(refusal.value)
    assert "accepted are JSON lines" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_shipped_prompts_are_all_of_mt_bench() -> None:
    """80 first turns, none twice."""
    texts = first_turns(assets.folder("prompts") / "mt_bench.jsonl")
    assert len(texts) == len(set(texts)) == 80


@needs_sglang
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompts", "/nowhere.jsonl"), "--prompts /nowhere.jsonl: No such file"),
        (("--spec", "3/1"), "--spec 3/1: accepted is STEPS/TOPK/DRAFT_TOKENS"),
        (("--device", "tpu"), "--device tpu: accepted are cpu, cuda and auto"),
        (("--model", "/nowhere"), "--model /nowhere needs --draft"),
        (("--draft", "/nowhere"), "--draft /nowhere: no config.json"),
        (("--server-arg", "x"), "--server-arg x: accepted is FIELD=VALUE"),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], words: str) -> None:
    """The command refuses bad input before an engine starts: one line, exit code 2."""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"spec-fsm: error: {words}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_model_card_shows_the_recorded_run() -> None:
    """The card's table is the JSON of the run over all 80 prompts, which meets its bar."""
    card = (assets.folder(HEAD) / "README.md").read_text()
    found = json.loads((CLONE / "bench" / "results" / "acceptance-cpu-fp32.json").read_text())
    assert [result["spec"] for result in found["results"]] == ["3/1/4", "2/4/16"]
    for result in found["results"]:
        counts = ", ".join(map(str, result["histogram"]))
        shares = ", ".join(f"{share:.2f}" for share in result["by_position"])
        length = f"{result['accept_length']:.2f}"
        assert f"| {result['spec']} | {length} | {counts} | {shares} | 80 of 80 |" in card
        assert result["accept_length"] >= 2.2
        assert result["outputs_equal"] == result["prompts"] == 80


@needs_sglang
def test_a_broken_engine_says_why(tmp_path: Path) -> None:
    """When the engine's process dies, the error ends with what it said."""
    task = Task(str(tmp_path / "nothing"), "", "cpu", 4, [[1, 2, 3]])
    with pytest.raises(EngineFailed, match="nothing"):
        list(answers(task, tmp_path / "log"))


@needs_sglang
def test_two_prompts_in_the_real_engine() -> None:
    """The table and the JSON line of a real run, whose outputs equal those without speculation."""
    done = run("--spec", "2/4/16", "--limit", "2", "--max-new-tokens", "16", "--json",
               "--device", "cpu")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2/4/16" in done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    (result,) = found["results"]
    assert result["outputs_equal"] + result["outputs_near_tie"] == result["prompts"] == 2
    assert result["tokens"] == found["reference"]["tokens"] == 32
    assert (result["device"], result["dtype"]) == ("cpu", "float32")
    # The head drafts: with a random one hardly any round accepts a draft.
    assert 1.5 < result["accept_length"] <= 3
    counts = result["histogram"]
    assert len(counts) == 3
    # Each answer is the prefill's token and what its rounds committed; the last may overshoot.
    committed = sum(n * (accepted + 1) for accepted, n in enumerate(counts))
    assert 30 <= committed <= 30 + 2 * 2


def test_measure_needs_a_draft_for_another_model(tmp_path: Path) -> None:
    """The shipped head is never run on a target it was not trained for."""
    with pytest.raises(ConfigError, match="needs --draft"):
        measure(Setup(specs=["3/1/4"], model=tmp_path), lambda *_: None)
