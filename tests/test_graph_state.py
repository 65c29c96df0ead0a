"""A set of decode graphs and its runner's state are exchanged as one (`graph_state.py`).

On SGLang's own LoRA manager and backends, which can be made without a GPU; what a runner of graphs
does to them when it is constructed is done to them here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.lora.backend.chunked_backend import ChunkedSgmvLoRABackend
from sglang.srt.lora.backend.torch_backend import TorchNativeLoRABackend
from sglang.srt.lora.backend.triton_backend import TritonLoRABackend
from sglang.srt.lora.lora_manager import LoRAManager

from spec_fsm_sglang import graph_state

BACKENDS = [ChunkedSgmvLoRABackend, TorchNativeLoRABackend, TritonLoRABackend]


@pytest.fixture(autouse=True)
def options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one option of a server that a LoRA backend asks for."""
    monkeypatch.setattr(
        "sglang.srt.lora.backend.chunked_backend.get_lora",
        lambda: SimpleNamespace(max_lora_chunk_size=16),
    )


def runner_with(backend: Any) -> Any:
    """A runner whose verify graphs, of width 16 for 48 requests, were captured by SGLang."""
    manager = LoRAManager.__new__(LoRAManager)
    manager.attn_dp_enabled = False
    manager.lora_backend = backend(3, torch.device("cpu"), server_args=None)
    runner = SimpleNamespace(lora_manager=manager, graph_shared_output="verify's", hooks=["one"])
    graphs = build(runner, 48, 16)()
    runner.decode_cuda_graph_runner, runner.attn_backend = graphs, graphs.attn_backend
    return runner


def build(runner: Any, rows: int, width: int) -> Any:
    """What constructing a `DecodeCudaGraphRunner` sets on its runner, as far as it can be here."""

    def construct() -> Any:
        runner.lora_manager.init_decode_cuda_graph_batch_info(rows, width)
        runner.graph_shared_output = f"of {rows} x {width}"
        runner.lora_manager.lora_backend.batch_info = f"dummy batch of width {width}"
        return SimpleNamespace(attn_backend=f"backend of width {width}", width=width)

    return construct


def state(runner: Any) -> list[dict[str, Any]]:
    """Every attribute of the runner, its LoRA manager and its LoRA backend."""
    return [dict(vars(owner)) for owner in graph_state._owners(runner)]


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether two states hold the very same objects."""
    return all(
        a.keys() == b.keys() and all(a[name] is b[name] for name in a)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_set_leaves_the_first_its_state(backend: Any) -> None:
    """Capturing width 1 replaces nothing of width 16's, which is not so without the exchange."""
    runner = runner_with(backend)
    before = state(runner)
    graph_state.capture(runner, build(runner, 64, 1), 64)
    assert same(before, state(runner))
    build(runner, 64, 1)()
    assert not same(before, state(runner))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_sets_each_have_their_own_in_force(backend: Any) -> None:
    """A ladder of widths: LoRA's batch information, its cap and the graphs are the entered set's,
    also for a set entered inside another, and SGLang's own come back."""
    runner = runner_with(backend)
    before = state(runner)
    sets = {w: graph_state.capture(runner, build(runner, 64 // w, w), 64) for w in (1, 2, 4)}
    infos = set()
    for _ in range(2):
        for width, one in sets.items():
            with one:
                backend_state = runner.lora_manager.lora_backend
                info = backend_state.cuda_graph_batch_info
                infos.add(id(info))
                assert info is not before[2]["cuda_graph_batch_info"]
                assert runner.lora_manager.max_bs_in_decode_cuda_graph == 64 // width
                assert runner.decode_cuda_graph_runner.width == width
                assert runner.attn_backend == f"backend of width {width}"
                assert runner.graph_shared_output == f"of {64 // width} x {width}"
                other = 4 if width == 1 else 1
                with sets[other]:
                    assert runner.decode_cuda_graph_runner.width == other
                    assert runner.lora_manager.max_bs_in_decode_cuda_graph == 64 // other
                assert backend_state.cuda_graph_batch_info is info
            assert same(before, state(runner))
    assert len(infos) == 3


def test_what_a_launch_sets_stays_with_its_set() -> None:
    """LoRA's last batch of one set is not found by the other's launches, and is kept."""
    runner = runner_with(TritonLoRABackend)
    lora = runner.lora_manager.lora_backend
    one = graph_state.capture(runner, build(runner, 64, 1), 64)
    lora.batch_info = "a verify batch"
    with one:
        assert lora.batch_info == "dummy batch of width 1"
        lora.batch_info = "a plain batch"
    assert lora.batch_info == "a verify batch"
    with pytest.raises(ZeroDivisionError), one:
        1 / 0  # noqa: B018
    assert lora.batch_info == "a verify batch"


def test_a_capture_that_fails_changes_nothing() -> None:
    """Its error goes on, and the runner's state is the one before."""
    runner = runner_with(TritonLoRABackend)
    before = state(runner)

    def failing() -> Any:
        build(runner, 64, 1)()
        runner.hooks.clear()
        raise MemoryError("no room for graphs")

    with pytest.raises(MemoryError):
        graph_state.capture(runner, failing, 64)
    assert same(before, state(runner))
    assert runner.hooks == ["one"]


def test_a_container_that_is_changed_in_place_is_exchanged_too() -> None:
    """The old holder keeps its contents, the set sees what was made of them."""
    runner = runner_with(TritonLoRABackend)
    hooks, plain = runner.hooks, build(runner, 64, 1)

    def construct() -> Any:
        runner.hooks[:] = ["another"]
        return plain()

    one = graph_state.capture(runner, construct, 64)
    assert (runner.hooks, hooks) == (hooks, ["one"])
    with one:
        assert runner.hooks == ["another"]
    assert runner.hooks is hooks


@pytest.mark.parametrize("provisional", [1000, 192])
def test_routing_buffers_of_moe_adapters_belong_to_one_set(provisional: int) -> None:
    """SGLang empties them in place when they are too large for the graphs it captures, and keeps
    them when they are too small: each set has its own, of its size, and the first keeps its."""
    runner = runner_with(TritonLoRABackend)
    lora = runner.lora_manager.lora_backend
    weight = SimpleNamespace(device=torch.device("cpu"))
    layer = SimpleNamespace(
        base_layer=SimpleNamespace(top_k=2, num_experts=4),
        _quant_info=SimpleNamespace(w13_weight=weight),
    )
    lora.init_cuda_graph_moe_buffers(provisional, 3, torch.float32, layer)
    held = lora.moe_cg_buffers
    tensors = dict(held)
    one = graph_state.capture(runner, build(runner, 256, 1), 256)
    assert lora.moe_cg_buffers is held
    assert held.keys() == tensors.keys()
    assert all(held[name] is tensors[name] for name in held)
    with one:
        assert lora.moe_cg_buffers is not held
        assert lora.moe_cg_buffers["token_lora_mapping"].shape == (256,)
    assert lora._moe_cg_buffer_max_bs == provisional


def test_a_set_without_graphs_finds_none_and_no_batch_information_of_graphs() -> None:
    """A plain launch beside verify graphs must not fill LoRA's batch of width 16."""
    runner = runner_with(TritonLoRABackend)
    before = state(runner)
    with graph_state.eager(runner):
        assert runner.decode_cuda_graph_runner is None
        assert not hasattr(runner.lora_manager, "max_bs_in_decode_cuda_graph")
    assert same(before, state(runner))
