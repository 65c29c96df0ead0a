"""The public bug reports of docs/bug-corpus.md: scenarios on the real worker, and the table itself.

The rows of the table that other tests answer are answered there; what is here had no test yet.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from live import CHAIN, TREE, run

TESTS = Path(__file__).resolve().parent
TABLE = TESTS.parent / "docs" / "bug-corpus.md"

CORPUS = """
    1 sglang 13804
    2 sglang 26201
    3 sglang 6874
    4 sglang 18984 18647 17050
    5 sglang 2939
    6 sglang 2711
    7 sglang 2730
    10 sglang 24215 14563
    11 sglang 13741 13826
    13 sglang 27789
    14 sglang 7111
    15 sglang 7130
    16 sglang-jax 1147 1098
    18 sglang 29449 27325 28312 28407 28484
    21 sglang 23456
    23 sglang 24055
    24 sglang 26354
    25 sglang 30549 35275
    26 sglang 15399 15143
    27 sglang 10892 6309 8296 8336 9888
    29 sglang 28569
    31 sglang 22832
    32 sglang 37531
    34 sglang 18780
    35 sglang 29516
    37 sglang 29144
    38 sglang 32527 32209
    39 sglang 35898
    40 sglang 28616
    42 sglang 35049
    43 sglang 25805
    44 sglang 24283 15050 17617 21723 28682 20148
    46 sglang 11215 11231
    47 sglang 21125 16964
    48 sglang 28771
    50 sglang 21709
    51 sglang 22780
    52 sglang 26163
    53 sglang 28431
    55 sglang 19177 29858 17349
    56 vllm 49548
    57 vllm 53420
    59 vllm 51510
    60 vllm 46399 48494
    61 vllm 56531 40875
    64 vllm 28558
    65 vllm 30916
    66 vllm 52071
    68 vllm 52873
    69 vllm 41838
    71 vllm 32591 39690 7505 55013 50488
    72 trt 16888
    73 trt 18837
    74 trt 15022
    75 trt 16448
    76 trt 16280
    77 trt 15251
    79 trt 8076
    80 trt 7310 16101 18662 12855
    82 llama.cpp 26478 21815
"""
"""Row number, engine and report numbers: what the table must answer, row by row."""

ENGINES = {
    "sglang": "sgl-project/sglang",
    "sglang-jax": "sgl-project/sglang-jax",
    "vllm": "vllm-project/vllm",
    "trt": "NVIDIA/TensorRT-LLM",
    "llama.cpp": "ggml-org/llama.cpp",
}
FSM = {"disable_above": 5, "dwell": 2, "checks": True, "flush_every": 5}
SLICES = {**FSM, "flush_every": 0, "stash_width": 64, "slice_tokens": 12}
# Admits more than fits in the end, so that rows are retracted.
SMALL_POOL = {"max_total_tokens": 420, "schedule_conservativeness": 0.05}
MODES = {"SPEC", "DRAINING", "PLAIN", "RESEEDING"}


def scenario(name: str, **config: Any) -> dict[str, Any]:
    """A scenario of corpus_scenarios.py; what must hold after each of them is checked here."""
    result = run(name, script="corpus_scenarios.py", **config)
    if result["status"] is not None:
        assert result["status"]["violations"] == 0, result["details"]
        assert result["status"]["rows"] == 0
    assert result["lost_slots"] == 0
    assert all(result["finished"].values())
    return result


# The table


def table() -> list[list[str]]:
    """The cells of each row of the corpus."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0].isdecimal()]


def test_every_report_has_its_row_once() -> None:
    """Number, reports and engine of each row are those of the corpus, in its order."""
    expected = []
    for line in CORPUS.split("\n")[1:-1]:
        number, engine, *reports = line.split()
        expected.append((number, [f"{ENGINES[engine]}/issues/{report}" for report in reports]))
    assert len(expected) == 60
    found = [(row[0], re.findall(r"github\.com/([^)]+)", row[1])) for row in table()]
    assert found == expected
    assert all(len(row) == 7 for row in table())


def test_every_row_is_answered() -> None:
    """By a test or by a line that says why it cannot arise; every test that is named exists."""
    for row in table():
        number, here = row[0], row[5]
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", here)
        assert named or here.startswith("Cannot arise: "), f"row {number} has no answer"
        for file, test in named:
            source = (TESTS / file).read_text(encoding="utf-8")
            assert f"def {test}(" in source, f"row {number} names {file}::{test}"


def test_kinds_and_invariants_of_the_table_are_known() -> None:
    """Each row's kind is explained above the table, each invariant is one of the lifecycle's."""
    from spec_fsm.invariants import INVARIANTS

    text = TABLE.read_text(encoding="utf-8").split("| # |")[0]
    kinds = set(re.findall(r"^\| ([a-zK V]+) \|", text, re.MULTILINE)) - {"kind"}
    assert {row[4] for row in table()} == kinds
    known = {*INVARIANTS, "-"}
    for row in table():
        assert set(row[6].split()) <= known, row[0]


# Rows, slots, requests that leave


SHAPES = {"tree-overlap": {**TREE, "overlap": True}, "chain-pages": {**CHAIN, "page_size": 8}}


def test_retraction_in_every_mode() -> None:
    """Requests are retracted and come back, others ask for one token: all outputs are right."""
    params = {"modes": ["SPEC", "PLAIN", 2]}
    result = scenario("retracted_in", **TREE, overlap=True, **SMALL_POOL, fsm=SLICES, params=params)
    assert all(result["retracted"])
    assert result["different"] == {}
    assert sorted(map(len, result["outputs"].values())) == [1] * 12 + [120] * 24


def test_all_rows_end_at_once() -> None:
    """The batch is empty when the mode changes and when the next request joins."""
    result = scenario("emptied", **TREE, overlap=True, fsm=FSM)
    assert result["different"] == {}
    assert set(result["modes"]) >= {"SPEC", "PLAIN"}
    assert result["status"]["switch_off_count"] >= 2


@pytest.mark.parametrize("overlap", [True, False])
def test_slots_of_aborted_rows_go_to_newcomers(overlap: bool) -> None:
    """Aborts in each mode, with a launch in flight: who stays and who comes is served right."""
    config = {**TREE, "overlap": overlap, "max_total_tokens": 900, "disable_radix_cache": True}
    result = scenario("aborted_in", **config, fsm={**SLICES, "disable_above": 50})
    assert result["different"] == {}
    assert sorted(result["stayed"].values()) == [20] * 12 + [150] * 2
    assert set(result["modes"]) >= MODES - {"DRAINING"}
    assert result["status"]["switch_off_count"] == 1


# The end of the row


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("strategy", ["bulk", "extend"])
def test_rows_run_to_the_last_position(shape: str, strategy: str) -> None:
    """Every request ends exactly at the server's limit, with the right tokens, in every mode.

    With `extend` a rebuild runs its whole width where the row has few positions left.
    """
    fsm = {**SLICES, "disable_above": 50, "slice_tokens": 4096, "strategy": strategy}
    params = {"modes": ["SPEC", "PLAIN", 1, 2, 5]}
    result = scenario("context_limit", **SHAPES[shape], context_length=128, fsm=fsm, params=params)
    assert result["different"] == {}
    assert len(set(result["ends"])) == 1
    assert result["limit"] - 2 <= result["ends"][0] <= result["limit"] + 1
    assert result["status"]["switch_on_count"] >= 10


# Edges of the configuration


@pytest.mark.parametrize("shape", [
    {"steps": 1, "topk": 1, "num_draft_tokens": 2}, {"steps": 1, "topk": 4, "num_draft_tokens": 4},
], ids=["chain", "tree"])  # fmt: skip
def test_one_draft_step(shape: dict[str, Any]) -> None:
    """With a single draft step there is no draft forward at all; the cycle works."""
    result = run("cycle", **shape, overlap=True)
    assert result["status"]["violations"] == 0, result["details"]
    assert result["status"]["switch_on_count"] >= 2
    assert result["different"] == {}


@pytest.mark.parametrize(("draft", "width"), [("eagle", 64), ("eagle3", 192)])
def test_no_setting_changes(draft: str, width: int) -> None:
    """Switches change none of the server's arguments; the stash is as wide as the draft reads."""
    result = scenario("settings", **TREE, draft=draft, fsm=FSM)
    assert result["same"]
    assert result["stash"] == width
    assert result["different"] == {}


@pytest.mark.parametrize(("change", "named"), [
    ({"swa": True}, "sliding-window"), ({"mamba": True}, "recurrent state"), ({"dsa": True}, "DSA"),
])  # fmt: skip
def test_targets_with_other_state_are_refused(change: dict[str, bool], named: str) -> None:
    """Models with more state than one KV cache a model are refused in one line."""
    from spec_fsm_sglang.compat import model_problem

    def worker(swa: bool = False, mamba: bool = False, dsa: bool = False) -> Any:
        pool = SimpleNamespace(mamba_allocator=object() if mamba else None)
        draft = SimpleNamespace(seed_dsa_topk_from_draft_extend=dsa, req_to_token_pool=pool)
        runner = SimpleNamespace(is_hybrid_swa=swa)
        return SimpleNamespace(draft_worker=draft, target_worker=runner)

    assert model_problem(worker()) is None
    assert named in (model_problem(worker(**change)) or "")


# Grammars


REGEX = {"regex": r"[a-f]{3}-[0-9]{2,16}[a-z]{5,9}", "ignore_eos": False}
SCHEMA = {
    "json_schema": '{"type":"object","properties":{"a":{"type":"boolean"},"b":{"type":"integer"}},'
                   '"required":["a","b"],"additionalProperties":false}',
    "ignore_eos": False,
}  # fmt: skip


@pytest.mark.parametrize("shape", [{**TREE, "overlap": True}, {**CHAIN, "overlap": False}],
                         ids=["tree-overlap", "chain"])  # fmt: skip
def test_grammars_across_switches(shape: dict[str, Any]) -> None:
    """While the mode flips, constrained requests answer as on a server without speculation."""
    requests: list[dict[str, Any]] = [
        {"max_new_tokens": 40, "sampling": REGEX}, {"max_new_tokens": 60, "sampling": SCHEMA},
        {"max_new_tokens": 30}, {"max_new_tokens": 9, "sampling": REGEX},
    ]  # fmt: skip
    plain = scenario("grammars", draft=None, fsm=None, overlap=True, tokenizer=True,
                     params={"requests": requests, "modes": ["PLAIN"]})  # fmt: skip
    modes = [1, 2, 5]
    ours = scenario("grammars", **shape, fsm={**FSM, "disable_above": 50}, tokenizer=True,
                    params={"requests": requests, "modes": modes})  # fmt: skip
    assert ours["status"]["checks"]["I19"] > 20
    assert ours["status"]["switch_on_count"] >= len(modes)
    for kept in ("outputs", "finished"):
        assert ours[kept] == {
            f"{phase}-{rid.partition('-')[2]}": answer
            for phase in range(len(modes))
            for rid, answer in plain[kept].items()
        }


# Cost and thrash


def test_plain_costs_one_target_forward() -> None:
    """A plain step is one forward of the target over one token a row, and none of the draft."""
    result = scenario("forwards", **TREE, overlap=True, fsm={**FSM, "disable_above": 50})
    assert result["plain"] == {"target": 30, "target_tokens": 30 * 4, "draft": 0}
    assert result["draft_in_spec"] > 0


def test_load_around_the_threshold_does_not_thrash() -> None:
    """With a dwell the mode changes seldom, although the load keeps crossing the threshold."""
    counts = {}
    for dwell in (0, 16):
        fsm = {"disable_above": 5, "enable_at": 5, "dwell": dwell, "checks": True}
        result = scenario("flapping", **CHAIN, overlap=True, fsm=fsm, params={"steady": 5})
        counts[dwell] = result["status"]["switch_off_count"]
        assert counts[dwell] <= result["steps"] / (2 * dwell + 1) + 1
    assert counts[0] > 2 * counts[16] > 0


def test_chunks_of_a_long_prompt_are_no_load() -> None:
    """A prompt in prefill decodes nothing: beside as many rows as allowed, SPEC goes on."""
    result = scenario(
        "long_prefill", **TREE, overlap=True, chunked_prefill_size=16, fsm=FSM, params={"steady": 5}
    )
    assert len(result["during"]) > 8
    assert set(result["during"]) == {"SPEC"}
    assert result["different"] == {}


# Draft KV


def test_new_weights_lose_the_stash() -> None:
    """States stashed under old weights rebuild nothing: PLAIN until those rows end, then SPEC."""
    result = scenario("new_weights", **TREE, overlap=True, fsm={**FSM, "disable_above": 50})
    assert result["lost"] == 3
    assert result["held"] == "PLAIN"
    assert result["status"]["mode"] == "SPEC"
    assert result["status"]["switch_on_count"] == 1
    assert result["different"] == {}


@pytest.mark.parametrize("shape", [TREE, CHAIN], ids=["tree", "chain"])
def test_many_gaps_cost_no_acceptance(shape: dict[str, Any]) -> None:
    """After a dozen gaps a row accepts, round by round, what a freshly prefilled one accepts."""
    fsm = {**FSM, "disable_above": 50, "dwell": 0}
    result = scenario(
        "rounds_after_many_gaps", **shape, overlap=True, disable_radix_cache=True, fsm=fsm
    )
    assert result["status"]["switch_on_count"] >= 10
    assert len(result["resumed"]) > 20
    assert result["resumed"] == result["prefilled"]
    assert result["different"] == {}


# Graphs


@pytest.mark.parametrize(("mode", "width", "fits"), [
    ("DECODE", 1, True), ("TARGET_VERIFY", 16, False), ("DECODE", 16, False), (None, None, True),
])  # fmt: skip
def test_graphs_of_another_mode_or_width_are_refused(
    mode: str | None, width: int | None, fits: bool
) -> None:
    """A plain launch of 10 rows is replayed by graphs of mode DECODE and width 1, or by none."""
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

    from spec_fsm import Lifecycle, Phase, Policy, PolicyConfig, Shape, ShapeViolation, StashConfig
    from spec_fsm_sglang.guard import LaunchGuard

    torch = pytest.importorskip("torch")
    shape = Shape(topk=4, num_steps=2, num_draft_tokens=16, page_size=1)
    policy = Policy(PolicyConfig(disable_above=5))
    stash = StashConfig(width=64, flush_every=16, slice_width=64)
    lifecycle = Lifecycle(shape, policy, stash)
    for i in range(10):
        lifecycle.joined(f"r{i}", 8)
    while lifecycle.decide(10, 10).settle_first:
        pass
    assert lifecycle.mode.name == "PLAIN"
    launched: list[Any] = []
    graphs = None
    if mode is not None:
        graphs = SimpleNamespace(captured_req_width=width, capture_forward_mode=ForwardMode[mode])
    target = SimpleNamespace(decode_cuda_graph_runner=graphs, forward=launched.append)
    LaunchGuard(lifecycle, 2, 16).install(target, SimpleNamespace(forward=launched.append))
    batch = SimpleNamespace(
        forward_mode=ForwardMode.DECODE, batch_size=10, input_ids=torch.zeros(10),
        out_cache_loc=torch.zeros(10), spec_info=None,
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )  # fmt: skip
    if fits:
        target.forward(batch)
    else:
        with pytest.raises(ShapeViolation, match="graphs") as found:
            target.forward(batch)
        assert found.value.invariant == "I2"
        assert str(Phase.PLAIN_DECODE.name) in str(found.value)
    assert len(launched) == fits
