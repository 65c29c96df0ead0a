"""Off means off: for every refusal the resolved arguments are those of SGLang without the plugin.

One process resolves all cases, each without the plugin and with it (`start_process.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spec_fsm_sglang import compat
from spec_fsm_sglang.cpu_ops import server as cpu_server
from spec_fsm_sglang.tiny import TinyPair, write_pair

TESTS = Path(__file__).resolve().parent
TREE = {
    "speculative_num_steps": 2, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16,
}  # fmt: skip
CHAIN = {
    "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4,
}  # fmt: skip

OPTIONS: dict[str, dict[str, Any]] = {
    "speculative_adaptive": {"speculative_adaptive": True, **CHAIN},
    "speculative_use_rejection_sampling": {"speculative_use_rejection_sampling": True, **CHAIN},
    "enable_multi_layer_eagle": {"enable_multi_layer_eagle": True, **CHAIN},
    "attn_dp_size": {"attn_dp_size": 2, "tp_size": 2},
    "pp_size": {"pp_size": 2},
    "dcp_size": {"dcp_size": 2, "tp_size": 2},
    "attn_cp_size": {"attn_cp_size": 2, "tp_size": 2},
    "disaggregation_mode": {"disaggregation_mode": "prefill"},
    "enable_two_batch_overlap": {"enable_two_batch_overlap": True},
    "enable_single_batch_overlap": {"enable_single_batch_overlap": True},
    "enable_pdmux": {"enable_pdmux": True},
    "enable_hierarchical_cache": {"enable_hierarchical_cache": True},
    "enable_hisparse": {"enable_hisparse": True},
    "enable_lmcache": {"enable_lmcache": True},
    "enable_flexkv": {"enable_flexkv": True},
    "enable_unified_cache_external_linker": {"enable_unified_cache_external_linker": True},
    "enable_unified_memory": {"enable_unified_memory": True},
    "enable_streaming_session": {"enable_streaming_session": True},
    "enable_session_radix_cache": {"enable_session_radix_cache": True},
    "enable_mixed_chunk": {"enable_mixed_chunk": True, "chunked_prefill_size": 64},
    "enable_watermark": {"enable_watermark": True},
    "dllm_algorithm": {"dllm_algorithm": "LowConfidence"},
    "speculative_draft_window_size": {"speculative_draft_window_size": 64},
    "nnodes": {"nnodes": 2, "tp_size": 2, "dist_init_addr": "127.0.0.1:29999"},
    "encoder_only": {"encoder_only": True},
    "elastic_ep_backend": {"elastic_ep_backend": "nixl"},
    "use_ray": {"use_ray": True},
    "smg_grpc_mode": {"smg_grpc_mode": True},
    "grpc_mode": {"grpc_mode": True},
}
"""Row of NOT_YET -> the options that bring it about."""

OTHERS: dict[str, dict[str, Any]] = {
    "algorithm NGRAM": {"speculative_algorithm": "NGRAM", "speculative_draft_model_path": None},
    "algorithm STANDALONE": {"speculative_algorithm": "STANDALONE"},
    "algorithm none": {"speculative_algorithm": None, "speculative_draft_model_path": None},
    "cap": {"max_running_requests": 3},
}

ON: dict[str, dict[str, Any]] = {
    "tree": {},
    "chain": CHAIN,
    "alias": {"speculative_algorithm": "nextn"},
    "own cap": {"max_running_requests": 16},
    "two tokenizers": {"tokenizer_worker_num": 2},
    "own warm-up": {"warmups": "theirs"},
}


def edited(folder: Path, name: str, change: dict[str, Any]) -> str:
    """A copy of the model folder whose `config.json` has `change` in it."""
    copy = folder.parent / name
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | change))
    return str(copy)


def models(pair: TinyPair) -> dict[str, dict[str, Any]]:
    """Model kinds that are refused, told by their configuration files."""
    lfm2 = {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"] * 4, "conv_L_cache": 3, "block_dim": 64,
        "block_ff_dim": 128,
    }  # fmt: skip
    dsa = {"index_share_for_mtp_iteration": True, "index_topk": 8}
    swa = {"is_hybrid_swa": True, "hybrid_layer_pattern": [0, 1] * 4, "sliding_window": 16}
    return {
        "recurrent": {"model_path": edited(pair.target, "recurrent", lfm2)},
        "hybrid SWA": {"model_path": edited(pair.target, "swa", swa)},
        "DSA draft": {
            "speculative_draft_model_path": edited(pair.eagle3, "dsa", dsa), **CHAIN
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the process says of every case."""
    pair = write_pair(tmp_path_factory.mktemp("start") / "pair")
    base = {
        "model_path": str(pair.target), "speculative_draft_model_path": str(pair.eagle3),
        "speculative_algorithm": "EAGLE3", "skip_tokenizer_init": True, "dtype": "float32",
        "mem_fraction_static": 0.3, "log_level": "error", "random_seed": 0,
        **cpu_server.as_fields(), **TREE,
    }  # fmt: skip
    cases: dict[str, Any] = {}
    for name, fields in {**OPTIONS, **OTHERS, **models(pair), **ON}.items():
        cases[name] = {"fields": base | fields}
    cases["rust"] = {"fields": base, "environ": {"SGLANG_RUST_SERVER": "1"}}
    order = sorted(cases, key=lambda name: name in ON)
    environ = os.environ | {"SPEC_FSM_CONFIG": '{"disable_above": 3}', "OMP_NUM_THREADS": "1"}
    environ.pop("SPEC_FSM_STRICT", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TESTS / "start_process.py")],
        input=json.dumps({name: cases[name] for name in order}),
        env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    results: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


SGLANG_REFUSES = {
    "enable_lmcache", "enable_unified_memory", "dllm_algorithm", "encoder_only",
}  # fmt: skip
"""Rows that SGLang itself refuses for these models or on the CPU, with and without the plugin."""


def refused() -> set[str]:
    """Every case in which the plugin stays off."""
    return {*OPTIONS, *OTHERS, "recurrent", "hybrid SWA", "DSA draft", "rust"}


def test_every_row_of_not_yet_is_a_case() -> None:
    """No option is refused without a comparison of what SGLang then resolves."""
    assert [option for option, _test, _shown in compat.NOT_YET] == [*OPTIONS]


def test_a_refused_server_has_the_arguments_sglang_gives_it(found: dict[str, Any]) -> None:
    """Arguments, environment and errors are the same with the plugin and without, one line said."""
    for name in sorted(refused()):
        case = found[name]
        assert case["same_error"], name
        assert (case["args"], case["environ"]) == ({}, []), name
        if name in SGLANG_REFUSES:
            assert case["error"] is not None, name
            continue
        assert case["error"] is None, name
        line = f"spec-fsm: off, the server runs as SGLang would: {case['refusal']}"
        assert case["said"] == [line], name


def test_a_refusal_names_what_it_refuses(found: dict[str, Any]) -> None:
    """The line of an option is that of its row; a model's says what kind of model it is."""
    for option, _test, shown in compat.NOT_YET:
        if option not in SGLANG_REFUSES and option != "grpc_mode":
            assert found[option]["refusal"] == f"{shown} is not supported yet"
    # SGLang makes the older spelling the newer one.
    assert found["grpc_mode"]["refusal"] == "--smg-grpc-mode is not supported yet"
    kinds = {"recurrent": compat.RECURRENT_TARGET, "hybrid SWA": compat.SWA_TARGET}
    for name, line in {**kinds, "DSA draft": compat.DSA_DRAFT}.items():
        assert found[name]["refusal"] == line


def test_a_refused_server_has_none_of_the_hooks(found: dict[str, Any]) -> None:
    """In the processes that such a server starts, no hook of any role is in force."""
    for name in sorted(refused() - SGLANG_REFUSES):
        assert (found[name]["tokenizer"], found[name]["scheduler"]) == (0, 0), name


def test_a_server_that_is_on_differs_in_what_is_meant_to(found: dict[str, Any]) -> None:
    """SGLang's own cap is lifted, an operator's is kept; every hook of the role is in force."""
    lifted = {"max_running_requests": [48, None]}
    for name in ON:
        case = found[name]
        assert (case["refusal"], case["said"]) == (None, []), name
        assert case["args"] == ({} if name == "own cap" else lifted), name
        for role in ("tokenizer", "scheduler"):
            assert case[role] == case[f"{role}_hooks"] > 1, name
        app = ["SGLANG_HTTP_SERVER_APP_PATH"] if name == "two tokenizers" else []
        assert case["environ"] == app, name


def test_the_rehearsal_is_asked_for_where_kernels_are_compiled(found: dict[str, Any]) -> None:
    """On a GPU beside the operator's own warm-ups, once; not where warm-ups are skipped."""
    assert found["warmups"] == {
        "none": "spec_fsm", "theirs": "a,b,spec_fsm", "ours": "spec_fsm,a", "skipped": None,
        "two tokenizers": None,
    }  # fmt: skip
