"""Which graphs a launch may replay (I2), and what their buffers hold (I12, I13).

The rules are the adapter's own code, on stand-ins for the graphs that only a GPU can capture; the
GPU script of `docs/measurements.md` runs them on real ones.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from spec_fsm import Lifecycle, Phase, Policy, PolicyConfig, Shape, ShapeViolation, StashConfig
from spec_fsm_sglang.checks import TensorChecks
from spec_fsm_sglang.graph_checks import look
from spec_fsm_sglang.guard import LaunchGuard
from spec_fsm_sglang.ownership import STRICT
from spec_fsm_sglang.plain_graphs import SGLANG_CAP, limit_verify_graphs


def guard_with(graphs: Any) -> LaunchGuard:
    """A guard whose target would replay `graphs`."""
    shape = Shape(topk=4, num_steps=2, num_draft_tokens=16)
    policy = Policy(PolicyConfig(disable_above=5))
    guard = LaunchGuard(Lifecycle(shape, policy, StashConfig()), 2, 16)
    target = SimpleNamespace(forward=None, decode_cuda_graph_runner=graphs)
    guard.install(target, SimpleNamespace(forward=None))  # type: ignore[arg-type]
    return guard


def launch(rows: int, tokens: int, mode: ForwardMode) -> Any:
    """The parts of a `ForwardBatch` that name its shape."""
    return SimpleNamespace(
        batch_size=rows, forward_mode=mode, input_ids=torch.zeros(tokens, dtype=torch.int64)
    )


def graphs_of(width: int, mode: ForwardMode) -> Any:
    """A set of graphs captured at `width` tokens a request in `mode`."""
    return SimpleNamespace(captured_req_width=width, capture_forward_mode=mode)


VERIFY, PLAIN = graphs_of(16, ForwardMode.TARGET_VERIFY), graphs_of(1, ForwardMode.DECODE)


@pytest.mark.parametrize(
    ("graphs", "rows", "tokens", "mode", "fits"),
    [
        (PLAIN, 10, 10, ForwardMode.DECODE, True),
        (VERIFY, 10, 160, ForwardMode.TARGET_VERIFY, True),
        (None, 10, 10, ForwardMode.DECODE, True),
        # The hole of SGLang 0.5.23: no spec_info, so its own width guard does not look.
        (VERIFY, 10, 10, ForwardMode.DECODE, False),
        (VERIFY, 10, 10, ForwardMode.TARGET_VERIFY, False),
        (PLAIN, 10, 160, ForwardMode.TARGET_VERIFY, False),
        (graphs_of(1, ForwardMode.TARGET_VERIFY), 10, 10, ForwardMode.DECODE, False),
    ],
)
def test_launch_fits_the_graphs_that_would_replay_it(
    graphs: Any, rows: int, tokens: int, mode: ForwardMode, fits: bool
) -> None:
    """I2: a launch of another width or mode is refused before it runs."""
    guard, phase = guard_with(graphs), Phase.PLAIN_DECODE
    if fits:
        guard._check_graphs(phase, launch(rows, tokens, mode))
        return
    with pytest.raises(ShapeViolation) as caught:
        guard._check_graphs(phase, launch(rows, tokens, mode))
    assert caught.value.invariant == "I2"


def replay(**changes: Any) -> set[str]:
    """The invariants that a replay of 3 rows in a graph of 4 breaks, after `changes`."""
    buffers = SimpleNamespace(
        req_pool_indices=torch.tensor([5, 2, 7, 0, 9]),
        seq_lens=torch.tensor([11, 12, 13, 1, 99]),
        out_cache_loc=torch.tensor([31, 32, 33, 0, 77]),
    )
    for name, (index, value) in changes.items():
        getattr(buffers, name)[index] = value
    runner = SimpleNamespace(
        raw_bs=3, bs=4, buffers=buffers, seq_len_fill_value=1, captured_req_width=1
    )
    batch = SimpleNamespace(
        req_pool_indices=torch.tensor([5, 2, 7]), seq_lens=torch.tensor([11, 12, 13])
    )
    broken: set[str] = set()
    look("plain", runner, batch, lambda i, holds, _: None if holds else broken.add(i))
    return broken


def test_padding_is_reset_and_buffers_hold_the_batch() -> None:
    """I12 and I13, each broken by one stale entry and by nothing beyond the graph's size."""
    assert replay() == set()
    assert replay(req_pool_indices=(3, 9)) == {"I12"}
    assert replay(seq_lens=(3, 40)) == {"I12"}
    assert replay(out_cache_loc=(3, 34)) == {"I12"}
    assert replay(seq_lens=(1, 40)) == {"I13"}
    assert replay(req_pool_indices=(0, 6)) == {"I13"}


@pytest.mark.parametrize(("name", "width"), [("plain", 1), ("verify", 16)])
def test_sglangs_own_filling_keeps_both_rules(name: str, width: int) -> None:
    """SGLang 0.5.23 fills the buffers of its decode graphs so, for every batch of up to 9 rows in
    graphs of 1, 2, 4 and 10, after a larger batch each time.
    """
    from sglang.srt.model_executor.cuda_graph_buffer_registry import build_decode_registry

    most, fill = 10, 1
    registry = build_decode_registry(
        device=torch.device("cpu"), max_bs=most, max_num_token=most * width,
        seq_len_fill_value=fill, cache_loc_dtype=torch.int64, share_pool=False,
    )  # fmt: skip
    buffers = SimpleNamespace(
        **{
            field: registry.get_slot(field).buffer
            for field in ("req_pool_indices", "seq_lens", "out_cache_loc")
        }
    )
    runner = SimpleNamespace(buffers=buffers, seq_len_fill_value=fill, captured_req_width=width)
    seen: dict[str, int] = {"I12": 0, "I13": 0}

    def expect(invariant: str, holds: bool, detail: str) -> None:
        seen[invariant] += 1
        assert holds, detail

    def fill_and_look(rows: int, padded: int) -> None:
        batch = SimpleNamespace(
            input_ids=torch.arange(rows * width) + 7,
            positions=torch.arange(rows * width) + 9,
            out_cache_loc=torch.arange(rows * width) + 30,
            req_pool_indices=torch.arange(rows) + 2,
            seq_lens=torch.arange(rows) + 40,
            seq_lens_cpu=None,
            mrope_positions=None,
        )
        registry.fill_from(
            batch, raw_bs=rows, padded_bs=padded, raw_num_tokens=rows * width,
            padded_num_tokens=padded * width,
        )  # fmt: skip
        runner.raw_bs, runner.bs = rows, padded
        look(name, runner, batch, expect)

    for rows in range(1, most):
        fill_and_look(most, most)
        fill_and_look(rows, next(size for size in (1, 2, 4, 10) if size >= rows))
    assert seen == {"I12": 3 * 6, "I13": 2 * 2 * (most - 1)}


@pytest.mark.parametrize(("disable_above", "largest"), [(8, 48), (64, 64), (200, 192)])
def test_verify_graphs_stop_where_speculation_does(
    monkeypatch: pytest.MonkeyPatch, disable_above: int, largest: int
) -> None:
    """Graphs of width d are captured for batches that may speculate; PLAIN's for all."""
    sizes = [1, 2, 4, 8, 16, 32, 48, 64, 128, 192, 256]
    config = SimpleNamespace(decode=SimpleNamespace(bs=list(sizes)))
    graph = SimpleNamespace(cuda_graph_config=config)
    monkeypatch.setattr(
        "spec_fsm_sglang.plain_graphs.get_exec", lambda: SimpleNamespace(graph=graph)
    )
    assert limit_verify_graphs(disable_above) == sizes
    assert max(config.decode.bs) == largest
    assert largest >= min(SGLANG_CAP, max(sizes))


@pytest.mark.parametrize(("device", "waits"), [("cuda", ["device", "batch"]), ("cpu", ["batch"])])
def test_checks_read_tensors_once_every_stream_is_done(
    device: str, waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy taken on the forward stream is not compared before that stream has made it."""
    seen: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("device"))
    monkeypatch.setattr(STRICT, "check_in_place", lambda _batch: seen.append("batch"))
    worker = SimpleNamespace(device=device)
    checks: Any = TensorChecks(SimpleNamespace(lifecycle=None, worker=worker))  # type: ignore[arg-type]
    running = SimpleNamespace(is_empty=lambda: False, spec_info=None)
    with pytest.raises(AttributeError):  # what comes next wants a whole batch
        checks.at_boundary(SimpleNamespace(running_batch=running))
    assert seen == waits
    seen.clear()
    with pytest.raises(AttributeError):
        checks.before_decode(running, None)
    assert seen == waits
