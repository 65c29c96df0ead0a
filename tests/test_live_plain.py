"""PLAIN honours what a plain server honours, switch by switch, against a server without a draft."""

from __future__ import annotations

from typing import Any

import pytest

from live import CHAIN, TREE, run

PLAIN = {"disable_above": 5, "checks": True, "pin": "plain"}
SPEC = {"disable_above": 5, "checks": True, "pin": "spec"}
N = 4

SWITCHES: dict[str, list[dict[str, Any]]] = {
    "logprobs": [{"max_new_tokens": 12, "return_logprob": True, "logprob_start_len": 0}] * N,
    "top_logprobs": [
        {"max_new_tokens": 12, "return_logprob": True, "top_logprobs_num": n} for n in (0, 1, 3, 5)
    ],
    "token_ids_logprob": [
        {"max_new_tokens": 12, "return_logprob": True, "token_ids_logprob": [7, 40 + n, 300]}
        for n in range(N)
    ],
    "logprobs_beside_none": [
        {"max_new_tokens": 12, "return_logprob": bool(n % 2), "top_logprobs_num": 2 * (n % 2)}
        for n in range(N)
    ],
    "frequency_penalty": [
        {"max_new_tokens": 25, "sampling": {"frequency_penalty": 0.2 * n}} for n in range(N)
    ],
    "presence_penalty": [
        {"max_new_tokens": 25, "sampling": {"presence_penalty": 0.5 * n}} for n in range(N)
    ],
    "repetition_penalty": [
        {"max_new_tokens": 25, "sampling": {"repetition_penalty": 1 + 0.2 * n}} for n in range(N)
    ],
    "min_new_tokens": [
        {"max_new_tokens": 30, "sampling": {"min_new_tokens": 5 * n, "ignore_eos": False,
                                            "stop_token_ids": list(range(0, 500, 3))}}
        for n in range(N)
    ],
    "stop_token_ids": [
        {"max_new_tokens": 30, "sampling": {"stop_token_ids": list(range(n, 500, 9)),
                                            "ignore_eos": False}}
        for n in range(N)
    ],
    "sampling_seed": [
        {"max_new_tokens": 25, "sampling": {"temperature": 0.9, "sampling_seed": 11 + n}}
        for n in range(N)
    ],
    "top_k_top_p": [
        {"max_new_tokens": 25, "sampling": {"temperature": 0.7, "top_k": 4 + n, "top_p": 0.9,
                                            "min_p": 0.01 * n, "sampling_seed": n}}
        for n in range(N)
    ],
    "logit_bias": [
        {"max_new_tokens": 12, "sampling": {"logit_bias": {str(50 + n): 5.0}}} for n in range(N)
    ],
}
TOKENIZED: dict[str, list[dict[str, Any]]] = {
    "regex": [
        {"max_new_tokens": 24, "sampling": {"regex": r"[a-f]{3}-[0-9]{2,6}", "ignore_eos": False}}
    ] * N,
    "json_schema": [
        {"max_new_tokens": 60, "sampling": {
            "json_schema": '{"type":"object","properties":{"a":{"type":"boolean"}},'
                           '"required":["a"],"additionalProperties":false}',
            "ignore_eos": False}}
    ] * 2 + [{"max_new_tokens": 20}] * 2,
    "stop_strings": [
        {"max_new_tokens": 40, "sampling": {"stop": [chr(97 + n), chr(48 + n), "Z", "!"],
                                            "ignore_eos": False}}
        for n in range(N)
    ],
}


def compare(requests: list[dict[str, Any]], overlap: bool, **config: Any) -> None:
    """Runs both servers and asserts equal outputs, reasons and meta."""
    common = {"overlap": overlap, "params": {"requests": requests}, **config}
    plain = run("pinned", draft=None, fsm=None, **common)
    ours = run("pinned", **TREE, fsm=PLAIN, **common)
    assert plain["worker"] == "TpModelWorker"
    assert ours["worker"] == "SpecFsmEagleWorker"
    assert ours["status"]["violations"] == 0, ours["details"]
    # Pinned from the start: the first decode launch is a plain one already.
    assert ours["histogram"] == []
    assert ours["outputs"] == plain["outputs"]
    assert ours["finished"] == plain["finished"]
    _assert_close(ours["meta"], plain["meta"])


def _assert_close(ours: Any, plain: Any) -> None:
    if isinstance(plain, dict):
        assert ours.keys() == plain.keys()
        for key, value in plain.items():
            _assert_close(ours[key], value)
    elif isinstance(plain, list):
        assert len(ours) == len(plain)
        for one, other in zip(ours, plain, strict=True):
            _assert_close(one, other)
    else:
        assert ours == pytest.approx(plain, abs=2e-4)


@pytest.mark.parametrize("overlap", [True, False])
def test_switches_of_a_request(overlap: bool) -> None:
    """Logprobs (also top and by id), penalties, stops, seeds, biases: as a plain server."""
    compare([request for requests in SWITCHES.values() for request in requests],
            overlap, tokenizer=True)


@pytest.mark.parametrize("switch", TOKENIZED)
@pytest.mark.parametrize("overlap", [True, False])
def test_switches_that_need_a_tokenizer(switch: str, overlap: bool) -> None:
    """Grammars, with the overlap barrier, and stop strings: as a plain server."""
    compare(TOKENIZED[switch], overlap, tokenizer=True)


@pytest.mark.parametrize("overlap", [True, False])
def test_grammar_cursor_stands_at_committed(overlap: bool) -> None:
    """I19 is evaluated in PLAIN and across switches, and holds."""
    requests = [{"max_new_tokens": 40, "sampling": {"regex": "[a-z]{30,60}", "ignore_eos": False}}]
    for fsm in (PLAIN, {"disable_above": 2, "dwell": 3, "checks": True}):
        result = run("pinned", **CHAIN, overlap=overlap, fsm=fsm, tokenizer=True,
                     params={"requests": requests * 4 + [{"max_new_tokens": 120}] * 2})
        assert result["status"]["checks"]["I19"] > 20
        assert result["status"]["violations"] == 0, result["details"]


@pytest.mark.parametrize("overlap", [True, False])
def test_hidden_states_of_an_eagle_server_are_those_of_a_plain_one(overlap: bool) -> None:
    """EAGLE takes the target's last hidden state, which is what a plain server returns."""
    requests = [{"max_new_tokens": 8, "return_hidden_states": True}] * 3
    common = {"overlap": overlap, "enable_return_hidden_states": True,
              "params": {"requests": requests}}
    plain = run("pinned", draft=None, fsm=None, **common)
    ours = run("pinned", **TREE, draft="eagle", fsm=PLAIN, **common)
    assert ours["outputs"] == plain["outputs"]
    _assert_close(ours["meta"], plain["meta"])


def test_hidden_states_in_plain_are_those_of_spec() -> None:
    """EAGLE-3 returns its captured layers, in PLAIN the same as in SPEC, one row a token."""
    common = {"enable_return_hidden_states": True, "overlap": True,
              "params": {"requests": [{"max_new_tokens": 9, "return_hidden_states": True}] * 2}}
    spec = run("pinned", **TREE, fsm=SPEC, **common)
    plain = run("pinned", **TREE, fsm=PLAIN, **common)
    assert plain["outputs"] == spec["outputs"]
    for rid, meta in plain["meta"].items():
        ours, theirs = meta["output_hidden_states"], spec["meta"][rid]["output_hidden_states"]
        _assert_close(ours[: len(theirs)], theirs[: len(ours)])
