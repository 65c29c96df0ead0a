"""What a start decides on before a model is loaded, and what of the loaded ones it looks at."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.arg_groups import overrides
from sglang.srt.configs import hybrid_arch
from sglang.srt.utils import hf_transformers_utils

from spec_fsm_sglang import compat, in_force, rehearsal, start
from spec_fsm_sglang.compat import DSA_DRAFT, RECURRENT_TARGET, SWA_TARGET

APP = "SGLANG_HTTP_SERVER_APP_PATH"


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of SGLang's arguments."""
    told: list[Any] = []

    def declare(_server_args: Any, owner: str, **values: Any) -> None:
        told.append((owner, values))

    monkeypatch.setattr(overrides, "declare_resolution", declare)
    monkeypatch.setattr(overrides, "resolving_view", lambda server_args: server_args)
    monkeypatch.setenv(APP, "")
    monkeypatch.delenv(APP)
    return told


def arguments(**values: Any) -> Any:
    """Arguments of a server on a GPU that warms up, in one tokenizer process."""
    usual = {
        "tokenizer_worker_num": 1, "warmups": None, "device": "cuda", "skip_server_warmup": False,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **values})


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, rehearsal.NAME),
        ({"warmups": "a,b"}, f"a,b,{rehearsal.NAME}"),
        ({"warmups": f"a,{rehearsal.NAME}"}, None),
        ({"device": "cpu"}, None),
        ({"skip_server_warmup": True}, None),
        ({"tokenizer_worker_num": 2}, None),
    ],
)
def test_where_a_server_rehearses(
    declared: list[Any], given: dict[str, Any], asked: str | None
) -> None:
    """Where it warms up on a device that compiles, in one process, and is not to do so anyway."""
    start._rehearse(arguments(**given))
    assert declared == ([] if asked is None else [("spec_fsm", {"warmups": asked})])


def test_several_tokenizer_workers_import_what_loads_plugins(
    declared: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that an operator has set stays."""
    caplog.set_level(logging.INFO, start.logger.name)
    start._rehearse(arguments(tokenizer_worker_num=2))
    assert os.environ[APP] == "spec_fsm_sglang.http_app:app"
    assert "no rehearsal of switches with several tokenizer workers" in caplog.text
    monkeypatch.setenv(APP, "own:app")
    start._rehearse(arguments(tokenizer_worker_num=2))
    assert os.environ[APP] == "own:app"
    monkeypatch.delenv(APP)
    start._rehearse(arguments())
    assert APP not in os.environ
    assert declared != []


@pytest.mark.parametrize(
    ("role", "workers", "strict", "gets"),
    [
        ("tokenizer", 1, "1", ["registered"]),
        ("tokenizer", 2, "1", []),
        ("scheduler", 1, "1", ["ScheduleBatch"]),
        ("scheduler", 1, "0", []),
        ("detokenizer", 1, "1", []),
    ],
)
def test_what_a_process_of_a_server_that_is_on_gets_besides_hooks(
    monkeypatch: pytest.MonkeyPatch, role: str, workers: int, strict: str, gets: list[str]
) -> None:
    """The one tokenizer process the rehearsal; a scheduler under test the owners of its fields."""
    from spec_fsm_sglang.ownership import STRICT

    told: list[str] = []
    monkeypatch.setattr(in_force, "put", lambda _hooks: None)
    monkeypatch.setattr(in_force, "missing", lambda _hooks: None)
    monkeypatch.setattr(rehearsal, "register", lambda: told.append("registered"))
    monkeypatch.setattr(type(STRICT), "install", lambda _self, cls: told.append(cls.__name__))
    monkeypatch.setenv("SPEC_FSM_STRICT", strict)
    on = SimpleNamespace(_spec_fsm_refusal=None, tokenizer_worker_num=workers)
    start.published(None, None, on, role=role)
    assert told == gets


# The first reason to stay off


ASKED = (
    (compat, "option_problem"),
    (compat, "environment_problem"),
    (compat, "signature_problem"),
    (compat, "attribute_problem"),
    (start, "_worker_problem"),
    (compat, "configured_model_problem"),
    (start.running_cap, "lift"),
)


@pytest.mark.parametrize("first", range(len(ASKED)))
def test_the_first_problem_is_the_refusal(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """In this order; the cap is lifted last, so never on a server that stays off."""
    asked: list[str] = []

    def answers(name: str, answer: str | None) -> Any:
        def answered(*_given: Any) -> str | None:
            asked.append(name)
            return answer

        return answered

    monkeypatch.setattr(in_force, "holds", lambda *_: True)
    for i, (module, name) in enumerate(ASKED):
        monkeypatch.setattr(module, name, answers(name, name if i >= first else None))
    args: Any = SimpleNamespace(resolved_dict=dict)
    config: Any = SimpleNamespace(disable_above=3)
    assert start._first_refusal(args, config) == ASKED[first][1]
    assert asked == [name for _, name in ASKED[: first + 1]]


def test_a_server_without_a_problem_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the second hook is not in force, or something raises: then it runs as SGLang's."""
    monkeypatch.setattr(in_force, "holds", lambda *_: True)
    for module, name in ASKED:
        monkeypatch.setattr(module, name, lambda *_: None)
    args: Any = SimpleNamespace(resolved_dict=dict)
    config: Any = SimpleNamespace(disable_above=3)
    assert start._first_refusal(args, config) is None
    monkeypatch.setattr(in_force, "holds", lambda *_: False)
    assert "is not in force" in str(start._first_refusal(args, config))

    def fail() -> None:
        raise KeyError("gone\nfor good")

    monkeypatch.setattr(in_force, "holds", lambda *_: True)
    args.resolved_dict = fail
    told = start._first_refusal(args, config)
    assert told == "its options cannot be checked: KeyError: 'gone\\nfor good'"


@pytest.mark.parametrize("refusal", [None, "too old"])
def test_a_decision_is_kept_on_the_arguments(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusal: str | None
) -> None:
    """And only a server that is on rehearses; without a configuration nothing is decided."""
    told: list[Any] = []
    monkeypatch.setattr(start, "_first_refusal", lambda _args, _config: refusal)
    monkeypatch.setattr(start, "_rehearse", told.append)
    args: Any = SimpleNamespace()
    monkeypatch.delenv("SPEC_FSM_CONFIG", raising=False)
    start.decide(None, args)
    assert (vars(args), told) == ({}, [])
    monkeypatch.setenv("SPEC_FSM_CONFIG", '{"disable_above": 3}')
    start.decide(None, args)
    assert args._spec_fsm_refusal == refusal
    assert told == ([args] if refusal is None else [])
    assert ("too old" in caplog.text) == (refusal is not None)


@pytest.mark.parametrize("name", ["EAGLEWorkerV2", "SpecFsmEagleWorker", "Other"])
def test_a_worker_of_somebody_elses_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """SGLang's own is fine, and ours, where the hook is in force by then."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    found = SimpleNamespace(create_worker=lambda args: {"args": type(name, (), {})}[args])
    monkeypatch.setattr(
        SpeculativeAlgorithm, "from_string", lambda text: {"EAGLE": found}[text]
    )
    told = start._worker_problem({"speculative_algorithm": "EAGLE"}, "args")
    assert told == (
        "the worker Other is not SGLang's own EAGLEWorkerV2" if name == "Other" else None
    )


# Models


def models(
    monkeypatch: pytest.MonkeyPatch, *, draft: Any = None, swa: bool = False,
    recurrent: bool = False, **given: Any
) -> tuple[str | None, list[Any]]:  # fmt: skip
    """What is found of a server's models, and what was asked of their files."""
    asked: list[Any] = []
    target = SimpleNamespace(is_hybrid_swa=swa)

    def get_config(path: str, **how: Any) -> Any:
        asked.append((path, how))
        return draft or SimpleNamespace()

    monkeypatch.setattr(overrides, "resolving_view", lambda server_args: server_args)
    monkeypatch.setattr(overrides, "model_config_of", lambda _server_args: target)
    monkeypatch.setattr(
        hybrid_arch, "mambaish_config", lambda config: {id(target): recurrent or None}[id(config)]
    )
    monkeypatch.setattr(hf_transformers_utils, "get_config", get_config)
    usual = {
        "speculative_draft_model_path": "draft", "model_path": "target", "trust_remote_code": 1,
        "speculative_draft_model_revision": "r", "json_model_override_args": None,
        "speculative_eagle_topk": 1,
    }  # fmt: skip
    return compat.configured_model_problem(SimpleNamespace(**{**usual, **given})), asked


def test_the_draft_is_looked_up_as_sglang_looks_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its revision and the overrides of the command; a model with a draft inside is its own
    draft."""
    found, asked = models(monkeypatch)
    how = {"trust_remote_code": 1, "revision": "r", "model_override_args": {}}
    assert (found, asked) == (None, [("draft", how)])
    found, asked = models(
        monkeypatch, speculative_draft_model_path=None, json_model_override_args='{"a": 2}'
    )
    assert (found, asked) == (None, [("target", {**how, "model_override_args": {"a": 2}})])


@pytest.mark.parametrize(
    ("shares", "topk_of_index", "topk", "refused"),
    [
        (True, 5, 1, True), (True, 5, 2, False), (True, None, 1, False), (False, 5, 1, False),
        (None, 5, 1, False), (True, "", 1, False),
    ],
)  # fmt: skip
def test_a_draft_whose_seed_carries_indexer_positions_is_refused(
    monkeypatch: pytest.MonkeyPatch, shares: bool | None, topk_of_index: Any, topk: int,
    refused: bool,
) -> None:  # fmt: skip
    """It shares its index over the steps, has one, and drafts a chain."""
    draft = SimpleNamespace()
    if shares is not None:
        draft.index_share_for_mtp_iteration = shares
    if topk_of_index != "":
        draft.index_topk = topk_of_index
    found, _ = models(monkeypatch, draft=draft, speculative_eagle_topk=topk)
    assert found == (DSA_DRAFT if refused else None)


def test_targets_with_other_caches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their configuration, before the draft's is read."""
    assert models(monkeypatch, swa=True) == (SWA_TARGET, [])
    assert models(monkeypatch, recurrent=True) == (RECURRENT_TARGET, [])


@pytest.mark.parametrize(
    ("seeds", "swa", "allocator", "refused"),
    [
        (False, False, None, None),
        (True, True, 1, DSA_DRAFT),
        (False, True, 1, SWA_TARGET),
        (False, False, 1, RECURRENT_TARGET),
    ],
)
def test_loaded_models_are_asked_again(
    seeds: bool, swa: bool, allocator: Any, refused: str | None
) -> None:
    """By what they are, whatever their files said."""
    pool = SimpleNamespace(mamba_allocator=allocator)
    worker = SimpleNamespace(
        draft_worker=SimpleNamespace(seed_dsa_topk_from_draft_extend=seeds, req_to_token_pool=pool),
        target_worker=SimpleNamespace(is_hybrid_swa=swa),
    )
    assert compat.model_problem(worker) == refused
    if refused is None:
        del pool.mamba_allocator
        assert compat.model_problem(worker) is None
