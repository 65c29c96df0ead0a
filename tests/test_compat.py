"""What the adapter refuses, each with one line, and that a refusal leaves SGLang as it was."""

from __future__ import annotations

import logging
import pkgutil
from typing import Any

import pytest
import torch

from live import CHAIN, run
from spec_fsm_sglang import compat, in_force, plugin, start, touched

SUPPORTED = {option: None for option, _test, _shown in compat.NOT_YET} | {
    "speculative_algorithm": "EAGLE3", "disaggregation_mode": "null", "pp_size": 1,
}  # fmt: skip


def test_this_release_is_known() -> None:
    """The installed SGLang is supported and every signature is as written down."""
    assert compat.version_problem() is None
    assert compat.signature_problem() is None


@pytest.mark.parametrize("found", ["0.5.22", "0.6.0", "0.5.23.post1"])
def test_an_unknown_release_is_refused(found: str) -> None:
    """The line names the release found and those supported."""
    problem = compat.version_problem(found)
    assert problem == f"SGLang {found} is not supported; supported: 0.5.23"


def test_a_changed_signature_is_refused() -> None:
    """The line names the function, its parameters and those that are known."""
    name = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.checkpoint"
    problem = compat.signature_problem({name: ("self", "req")})
    assert problem == f"{name} takes (self, req, up_to, kwargs), known is (self, req)"
    assert "is not there" in str(compat.signature_problem({"sglang.srt.no_such_thing": ()}))


REFUSED = {
    "speculative_adaptive": True,
    "speculative_use_rejection_sampling": True,
    "enable_multi_layer_eagle": True,
    "attn_dp_size": 2,
    "pp_size": 2,
    "disaggregation_mode": "prefill",
    "enable_two_batch_overlap": True,
    "enable_pdmux": True,
    "enable_hierarchical_cache": True,
    "enable_hisparse": True,
    "enable_mixed_chunk": True,
    "elastic_ep_backend": "nixl",
}


@pytest.mark.parametrize("option", REFUSED)
def test_every_option_not_supported_yet_is_refused(option: str) -> None:
    """One line that names the option."""
    assert compat.option_problem(SUPPORTED) is None
    problem = compat.option_problem({**SUPPORTED, option: REFUSED[option]})
    assert problem is not None
    assert problem.endswith("is not supported yet")
    assert "\n" not in problem


def test_an_option_that_is_not_there_is_refused() -> None:
    """An option under another name is not taken for one that is off: the line names it."""
    for option, _test, _shown in compat.NOT_YET:
        options = {name: value for name, value in SUPPORTED.items() if name != option}
        problem = compat.option_problem(options)
        assert problem is not None
        assert problem.startswith(f"this SGLang has no option {option}, by which ")


def test_every_option_of_the_list_exists_in_this_sglang() -> None:
    """A renamed option would be refused never: the names are checked against ServerArgs."""
    from sglang.srt.server_args import ServerArgs

    fields = set(ServerArgs.__struct_fields__)
    assert {option for option, _test, _shown in compat.NOT_YET} <= fields


@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM", "DFLASH", None])
def test_another_algorithm_is_refused(algorithm: str | None) -> None:
    """The line names the algorithm and the two that are supported."""
    problem = compat.option_problem({**SUPPORTED, "speculative_algorithm": algorithm})
    assert problem == (
        f"--speculative-algorithm {algorithm} is not supported; supported: EAGLE, EAGLE3"
    )


@pytest.mark.parametrize("value", ["{", '{"disable_above": 0}', '{"disable_above": 3, "x": 1}'])
def test_a_bad_configuration_leaves_the_plugin_inactive(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang's process goes on; one line says why the plugin is off."""
    monkeypatch.setenv("SPEC_FSM_CONFIG", value)
    with caplog.at_level(logging.ERROR, "spec_fsm"):
        plugin.activate()
    (record,) = caplog.records
    assert "off, the server runs as SGLang would" in record.getMessage()


@pytest.mark.parametrize("check", ["version_problem", "signature_problem"])
def test_a_release_that_is_not_known_gets_no_hook(
    check: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the release or the two watched functions are others, nothing at all is registered."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    registered: list[str] = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, *_args: registered.append(target))
    monkeypatch.setenv("SPEC_FSM_CONFIG", '{"disable_above": 3}')
    with monkeypatch.context() as changed, caplog.at_level(logging.ERROR, "spec_fsm"):
        changed.setattr(compat, check, lambda *_args: "it is another one")
        plugin.activate()
    assert registered == []
    (record,) = caplog.records
    assert record.getMessage().endswith("as SGLang would: it is another one")
    plugin.activate()
    assert registered == list(touched.WATCHED)


def hooked_by_hand(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Another's wrapper in place of ours, which lets no call through to it."""
    owner, _, name = target.rpartition(".")
    monkeypatch.setattr(pkgutil.resolve_name(owner), name, lambda *_args, **_kwargs: None)


def test_a_hook_that_is_not_in_force_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each hook of each role: replaced behind our back, or never applied, it is named."""
    from sglang.srt.plugins.hook_registry import HookType

    def ours(result: Any, *_args: Any, **_kwargs: Any) -> Any:
        return result

    for role in ("tokenizer", "scheduler"):
        for target, _hook, _kind in start.hooks_of(role):
            hooks = ((target, ours, HookType.AFTER),)
            line = f"the hook of {target} is not in force"
            with monkeypatch.context() as kept:
                owner, _, name = target.rpartition(".")
                # Remembered, so that it is put back.
                kept.setattr(*(pkgutil.resolve_name(owner), name, pkgutil.resolve_name(target)))
                assert in_force.missing(hooks) == line
                in_force.put(hooks)
                assert in_force.missing(hooks) is None
                hooked_by_hand(kept, target)
                assert in_force.missing(hooks) == line


def test_a_module_that_kept_the_function_without_its_hook_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A function imported by name before it was hooked would be called past the hook."""
    from sglang.srt.managers import scheduler
    from sglang.srt.mem_cache import allocation_sizing
    from sglang.srt.plugins.hook_registry import HookType

    target = "sglang.srt.mem_cache.allocation_sizing.get_req_to_token_extra_context_len"
    plain = allocation_sizing.get_req_to_token_extra_context_len
    hooks = ((target, lambda result: result, HookType.AFTER),)
    monkeypatch.setattr(allocation_sizing, "get_req_to_token_extra_context_len", plain)
    in_force.put(hooks)
    assert in_force.missing(hooks) is None
    monkeypatch.setattr(scheduler, "kept_by_name", plain, raising=False)
    problem = in_force.missing(hooks)
    assert problem == f"sglang.srt.managers.scheduler holds {target} as it was before the hook"


def test_a_hook_whose_target_cannot_be_patched_raises() -> None:
    """SGLang's registry would log it and go on without the hook."""
    from sglang.srt.plugins.hook_registry import HookType

    with pytest.raises(AttributeError):
        in_force.put((("sglang.srt.managers.scheduler.Scheduler.gone", print, HookType.AFTER),))


class Objects:
    """Attributes as they are given."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def test_a_scheduler_with_another_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache a scheduler has is looked at, not the class that was expected."""

    class Cache:
        def checkpoint(self, req: Any, *, until: int) -> None: ...
        def on_release(self, req: Any, *, checkpointed: bool) -> None: ...

    monkeypatch.setattr(compat, "LIVE", {})
    problem = compat.scheduler_problem(Objects(tree_cache=Cache()))
    assert problem == "Cache.checkpoint takes (req, until), known is (req, up_to)"
    monkeypatch.setattr(compat, "LIVE", {"running_batch": "builtins.dict"})
    problem = compat.scheduler_problem(Objects(running_batch=[]))
    assert problem == "running_batch of the scheduler is list, known is dict"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AttributeError("x"), True), (TypeError("x"), True), (NameError("x"), True),
        (ImportError("x"), True), (KeyError("x"), True), (IndexError("x"), True),
        (AssertionError("x"), True), (ValueError("x"), True), (ZeroDivisionError("x"), True),
        (NotImplementedError("x"), True), (RecursionError("x"), True),
        (torch.OutOfMemoryError("x"), False), (RuntimeError("CUDA error"), False),
        (torch.distributed.DistBackendError("NCCL"), False), (MemoryError("x"), False),
        (OSError("x"), False),
    ],
)  # fmt: skip
def test_a_mistake_in_code_is_no_failed_rebuild(error: Exception, code: bool) -> None:
    """What a device or its memory refuses may be tried again; what code does wrong may not."""
    from spec_fsm_sglang.failures import is_mistake

    assert is_mistake(error) is code



def _serves(**config: Any) -> dict[str, Any]:
    requests = [{"max_new_tokens": 20}] * 7
    return run("pinned", params={"requests": requests}, **config)


def test_a_refused_server_speculates_as_sglang_would() -> None:
    """With an option that is not supported the worker is SGLang's own, and it speculates."""
    result = _serves(**CHAIN, fsm={"disable_above": 3}, enable_mixed_chunk=True,
                     chunked_prefill_size=64, overlap=True)
    assert result["worker"] == "EAGLEWorkerV2"
    assert result["histogram"][1] > 0
    assert result["different"] == {}


def test_without_a_configuration_nothing_is_touched() -> None:
    """Installed and not asked for: SGLang's own worker."""
    result = _serves(**CHAIN, fsm=None, overlap=True)
    assert result["worker"] == "EAGLEWorkerV2"
    assert result["different"] == {}


@pytest.mark.parametrize("layers", [2])
def test_a_draft_the_bulk_write_does_not_fit_falls_back(layers: int) -> None:
    """The misfit is one line; `choose` then takes the draft extend (bulk is for one layer)."""

    class Model:
        class model:
            layers = (1, 2)

    Model.__name__ = "LlamaForCausalLMEagle3"
    from spec_fsm_sglang import rebuild

    assert rebuild.bulk_misfit(Model()) == (
        f"draft LlamaForCausalLMEagle3 has {layers} layers; the bulk write fits one"
    )
    Model.__name__ = "SomethingElse"
    assert "is not one the bulk write knows" in str(rebuild.bulk_misfit(Model()))
