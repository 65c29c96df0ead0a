"""What `spec-fsm bench plain`, `recovery` and `switch` make of what they measured."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_fsm.errors import ConfigError
from spec_fsm.laws import Shape
from spec_fsm_sglang.bench import recovery, switch
from spec_fsm_sglang.bench.arms import Stopped, keeping, pair_of, stoppable, whole_numbers
from spec_fsm_sglang.bench.load import Load, Measured
from spec_fsm_sglang.bench.plain import compared, lower_bound, percentile, summary
from spec_fsm_sglang.bench.recovery import Pair, figures
from spec_fsm_sglang.bench.switch import Cycles, Output


def run(tokens: int, seconds: float, gaps: tuple[float, ...] = (10.0,)) -> Measured:
    """A run of `tokens` in `seconds`, all of it steady."""
    return Measured(tokens, seconds, tokens, seconds, list(gaps))


def test_ratio_is_of_blocks_and_drift_cancels() -> None:
    """A machine that slows down evenly leaves the ratio of an ABBA block at its true value."""
    # A B B A at speeds 100, 99, 98, 97 (A) and 0.5 of the machine's speed at the time (B).
    base, ours = [run(100, 1.0), run(97, 1.0)], [run(49, 1.0), run(49, 1.0)]
    found = compared(base * 3, ours * 3)
    assert found["ratio"] == pytest.approx(98 / 197, abs=1e-4)
    assert len(found["ratios"]) == 3
    assert found["lower_bound"] == found["ratio"]


def test_lower_bound_is_students() -> None:
    """Mean minus t(0.95, 4) = 2.1318 standard errors; one value is its own bound."""
    values = [0.99, 1.0, 1.01, 1.0, 1.0]
    error = 0.0070711 / 5**0.5
    assert lower_bound(values) == pytest.approx(1.0 - 2.1318 * error, abs=1e-5)
    assert lower_bound([0.97]) == 0.97


def test_summary_has_medians_and_percentiles() -> None:
    """Medians over runs, percentiles over all steady iterations."""
    runs = [run(100, 1.0, (1.0, 2.0)), run(300, 1.0, (3.0, 4.0)), run(200, 1.0, (5.0, 90.0))]
    found = summary(runs)
    assert (found["steady_tokens_per_s"], found["steps"]) == (200, 6)
    assert (found["step_ms_p50"], found["step_ms_p99"]) == (4.0, 90.0)
    assert percentile([1.0], 0.99) == 1.0


def pair(ours: list[int], always_on: list[int], gap: int = 16) -> Pair:
    """One request with these accept lengths and no difference in draft KV."""
    return Pair(gap, ours, always_on, True, len(ours), len(always_on), 1e-6, 8.0, 1e-7)


def test_recovery_pools_rounds_and_parts_first_from_later() -> None:
    """The first eight rounds are judged apart from the later ones."""
    first, later = [2] * recovery.FIRST, [3, 3]
    found = figures([pair([1] * recovery.FIRST + later, first + later)] * 4)
    assert found["first_ratio"] == 0.5
    assert found["first_lower_bound"] == 0.5
    assert found["later_ratio"] == 1.0
    assert found["first_rounds"] == 32
    assert found["curve"][0] == [1, 2]
    assert found["curve"][-1] == [3, 3]


def test_recovery_compares_later_rounds_within_the_common_text_as_well() -> None:
    """Rounds after the texts parted are left out of the same-text ratio, on either side."""
    first = [2] * recovery.FIRST
    parted = Pair(16, [*first, 3, 3, 1], [*first, 3, 3, 3], False, 10, 10, 1e-6, 8.0, 1e-7)
    found = figures([parted] * 4)
    assert found["later_ratio"] == pytest.approx(7 / 9, abs=1e-4)
    assert (found["same_text_ratio"], found["same_text_rounds"]) == (1.0, 8)


def test_rounds_within_a_common_text_are_counted_by_their_last_token() -> None:
    """The first token is no round's; a round that ends beyond the common text does not count."""
    assert recovery._common([5, 6, 7, 8], [5, 6, 9]) == 2
    assert recovery._common([5], [6]) == 0
    assert recovery._rounds_within([2, 3, 1], 6) == 2  # ends at tokens 3, 6 and 7
    assert recovery._rounds_within([2, 3, 1], 7) == 3
    assert recovery._rounds_within([2], 1) == 0


def test_worst_ratio_leaves_the_cold_strategy_out() -> None:
    """`worst_first_rounds_ratio` is over what rebuilds; the cold curve stands beside it."""
    good, bad = pair([2] * 8, [2] * 8), pair([1] * 8, [2] * 8)
    cells = [
        {"spec": "3/1/4", "strategy": "flush", "gap": 16, "pairs": [good]},
        {"spec": "3/1/4", "strategy": "cold", "gap": 16, "pairs": [bad]},
    ]
    found = recovery._results(cells)
    assert found["worst_first_rounds_ratio"] == 1.0
    assert {row["strategy"]: row["first_ratio"] for row in found["pooled"]}["cold"] == 0.5


def test_switch_parts_windows_from_steady_steps() -> None:
    """Windows end `WINDOW` iterations after the pin; steady outputs are of the mode asked for."""
    steady = switch.WINDOW + 3
    outputs = [Output(5.0, "PLAIN", "", i, 0) for i in range(3)]
    outputs += [Output(9.0, "SPECULATE", "SPEC", i, 0, 3.0) for i in range(steady + 2)]
    outputs += [Output(7.0, "SPECULATE", "PLAIN", 0, 1, 3.0)]
    outputs += [Output(5.0, "PLAIN", "PLAIN", i, 1) for i in range(1, steady + 2)]
    found = switch.figures(Cycles(outputs, 1, [2.5]), gap=128)
    assert found["off_delay_launches"] == 1
    assert (found["plain_step_ms"], found["spec_round_ms"]) == (5.0, 9.0)
    assert (found["window_p99_ms"], found["window_ratio"]) == (9.0, 1.8)
    # A round of three tokens counts three times a third of its wait.
    assert (found["window_per_token_p99_ms"], found["per_token_ratio"]) == (5.0, 1.0)
    assert found["first_max_ms"] == 9.0
    assert found["longest"][0] == [9.0, "SPECULATE", "SPEC", 0, 0, 3.0]
    assert found["rebuild_per_256"] == 0.5


def test_bad_input_is_named_with_what_is_accepted() -> None:
    """Lists and model names that make no sense are refused in one line."""
    assert whole_numbers("--requests", "1, 8,32") == [1, 8, 32]
    for text in ("", "0", "8,x", "1;2"):
        with pytest.raises(ConfigError, match=r"--requests .*accepted are whole numbers"):
            whole_numbers("--requests", text)
    with pytest.raises(ConfigError, match="--model gpt: accepted are smollm2, llama-8b, tiny"):
        pair_of("gpt", None)  # type: ignore[arg-type]


def test_stopped_measurement_keeps_what_it_has() -> None:
    """SIGTERM ends it; results found by then are kept, and without any it is an error."""
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with stoppable(), keeping([1], said.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert said == ["stopped by SIGTERM: what was measured until now is kept"]
    with pytest.raises(Stopped), stoppable(), keeping([], said.append):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


def test_many_cycles_are_numbered_through_over_loads() -> None:
    """Each load has at most so many that its requests fit; only the first is a fresh server's."""
    asked: list[tuple[int, int]] = []

    class Server:
        def call(self, _name: str, *, load: Load, gap: int, iterations: int) -> dict[str, object]:
            asked.append((iterations, load.output_len))
            outputs = [[5.0, "PLAIN", "PLAIN", 9, cycle, 1.0] for cycle in range(iterations)]
            return {"outputs": outputs, "late": len(asked) % 2, "rebuild_ms": [0.5] * iterations}

    bench: Any = SimpleNamespace(shape=Shape(1, 3, 4), pair=SimpleNamespace(vocab=100))
    setup = switch.Setup(bench, [2], [16], switch.CYCLES_A_LOAD * 2 + 3, 8)
    server: Any = Server()
    found = switch._cycles(setup, server, 2, 16)
    assert [o.cycle for o in found.outputs] == list(range(setup.cycles))
    assert (found.late, len(found.rebuild_ms)) == (1, setup.cycles)
    assert [cycles for cycles, _ in asked] == [switch.CYCLES_A_LOAD, switch.CYCLES_A_LOAD, 3]
    assert asked[0][1] == asked[1][1] > asked[2][1]


def test_draft_kv_is_compared_as_far_as_the_tokens_it_takes_are_known() -> None:
    """Its last position takes the first token that is put out, which may be another one."""
    ours, other = torch.ones(2, 1, 4, 1), torch.ones(2, 1, 5, 1)
    ours[:, :, 3] = 2.0
    assert recovery._difference(ours, other, 4)[0] == 1.0
    assert recovery._difference(ours, other, 3) == (0.0, 1.0, 0.0)
