"""What the adapter refuses, each with one line, and that a refusal leaves SGLang as it was."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from live import CHAIN, run
from spec_fsm_sglang import compat, plugin

SUPPORTED = {"speculative_algorithm": "EAGLE3", "disaggregation_mode": "null", "pp_size": 1}


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
    name = "sglang.srt.mem_cache.radix_cache.RadixCache.checkpoint"
    problem = compat.signature_problem({name: ("self", "req")})
    assert problem == f"{name} takes (self, req, up_to), known is (self, req)"
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
}


@pytest.mark.parametrize("option", REFUSED)
def test_every_option_not_supported_yet_is_refused(option: str) -> None:
    """One line that names the option."""
    assert compat.option_problem(SUPPORTED) is None
    problem = compat.option_problem({**SUPPORTED, option: REFUSED[option]})
    assert problem is not None
    assert problem.endswith("is not supported yet")
    assert "\n" not in problem


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
