"""Every comparison of every check is needed: with it made vacuous some seeded fault goes uncaught.

`make trials ARGS=vacuous-checks` shows it on the running engine, one site at a time. Here: nothing
was added to or taken from the checks since, every fault named is one, and what that trial cannot
show is shown.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fault_kit import known
from fuzz.requests import NEVER_COMPILED, Asked, Judge
from mutants import sites, vacuous

FOR_FIVE = Asked("r", [5], 5, "greedy")
RECORD: dict[str, str] = json.loads(vacuous.RECORD.read_text(encoding="utf-8"))


def test_every_site_of_a_check_is_needed_by_a_fault_or_explained() -> None:
    """A comparison that is deleted, added or reworded has to be tried again."""
    assert vacuous.judge(RECORD) == []
    names = {site.name for site in sites.everything()}
    assert RECORD.keys() | vacuous.explained().keys() == names
    assert not RECORD.keys() & vacuous.explained().keys()


def test_the_faults_that_need_a_site_are_seeded() -> None:
    """`test_faults.py` plays them: with a vacuous check one of its tests fails."""
    assert set(RECORD.values()) <= known().keys()


@pytest.mark.parametrize("file", sites.FILES)
def test_a_vacuous_check_is_another_code(file: str) -> None:
    """Each site's change compiles to something else; one that changes nothing would prove it."""
    plain = ast.dump(ast.parse(sites.FILES[file].read_text(encoding="utf-8")))
    found = sites.sites(file)
    assert found
    whole = compile(ast.parse(sites.FILES[file].read_text(encoding="utf-8")), "whole", "exec")
    for site in found:
        assert sites.code_of(site).co_consts != whole.co_consts, (site.name, len(plain))


def judge(tmp_path: Path) -> Judge:
    """A judge that never looks at a model."""
    made = Judge.__new__(Judge)
    made._target, made._tokenizer = tmp_path, None
    return made


@pytest.mark.parametrize(
    ("reason", "tokens", "asked", "says"),
    [
        ({"type": "length"}, 3, FOR_FIVE, "ended after 3 tokens for no reason"),
        ({"type": "length"}, 7, FOR_FIVE, "ended after 7 tokens, not 5"),
        ({"type": "abort"}, 2, FOR_FIVE, "aborted by nobody"),
        (
            {"type": "abort", "message": NEVER_COMPILED}, 2,
            Asked("r", [5], 5, "regex", aborted=True), "2 tokens of a request that never ran",
        ),
        (None, 2, FOR_FIVE, "never finished"),
    ],
)
def test_the_judge_refuses_an_answer_that_ends_wrongly(
    tmp_path: Path, reason: Any, tokens: int, asked: Asked, says: str
) -> None:
    """An answer of five tokens ends after five of them, or because somebody aborted it."""
    output = SimpleNamespace(output_ids=[9] * tokens, finished_reason=reason)
    assert says in judge(tmp_path)._end(asked, output)


def test_the_judge_refuses_logprobs_of_another_number(tmp_path: Path) -> None:
    """One for each token."""
    asked = Asked("r", [5], 2, "logprobs")
    output = SimpleNamespace(output_ids=[9, 9], meta={"output_token_logprobs_val": [0.0]})
    assert "1 logprobs for 2 tokens" in judge(tmp_path)._logprobs(asked, output, torch.zeros(2, 10))
