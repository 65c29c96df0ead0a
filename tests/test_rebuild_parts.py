"""What a rebuild writes where: the bulk write, the draft extend, the seed, and who is chosen."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_fsm_sglang import rebuild
from spec_fsm_sglang.rebuild import (
    BulkRebuild,
    ColdRebuild,
    ExtendRebuild,
    Window,
    bulk_misfit,
    choose,
    run_draft_extend,
    seed,
    slots_of,
    write_sizes,
)
from spec_fsm_sglang.stash import Stash

SINK = 7
"""In place of slot 0, which zeros would hit by chance."""


class LlamaForCausalLMEagle3(SimpleNamespace):
    """A draft model of this name."""


class LlamaForCausalLMEagle(SimpleNamespace):
    """A draft model of this name."""


class MistralForCausalLM(SimpleNamespace):
    """A draft model that the bulk write does not know."""


def twice(inputs: torch.Tensor) -> torch.Tensor:
    """A linear layer."""
    return 2 * inputs


def plus_one(inputs: torch.Tensor) -> torch.Tensor:
    """A norm."""
    return inputs + 1


def embed(tokens: torch.Tensor) -> torch.Tensor:
    """Token t becomes (t, -t)."""
    return torch.stack((tokens, -tokens), dim=1).float()


def eagle() -> Any:
    """An EAGLE draft: its layer takes what `fc` makes of embedding and hidden state."""
    layer = SimpleNamespace(self_attn="attention")
    return LlamaForCausalLMEagle(
        model=SimpleNamespace(layers=[layer], embed_tokens=embed, fc=twice)
    )


def eagle3(**parts: Any) -> Any:
    """An EAGLE-3 draft: two norms in its layer; of three captured states `fc` makes their sum."""
    layer = SimpleNamespace(
        self_attn="attention", input_layernorm=lambda x: x * 10, hidden_norm=lambda x: x / 4
    )
    known = {
        "layers": [layer], "embed_tokens": embed, "input_norm": None, "fc_norm": None,
        "num_aux_hidden_states": 3, "fc": lambda x: x[:, :2] + x[:, 2:4] + x[:, 4:],
    }  # fmt: skip
    return LlamaForCausalLMEagle3(model=SimpleNamespace(**{**known, **parts}))


def draft(model: Any = None, width: int = 3) -> Any:
    """A draft worker; row r owns slot 100 r + p + 1 at position p."""
    table = (torch.arange(5).unsqueeze(1) * 100 + torch.arange(20) + 1).to(torch.int32)
    return SimpleNamespace(
        draft_runner=SimpleNamespace(model=eagle() if model is None else model),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        speculative_num_draft_tokens=width,
    )


def full_stash() -> Stash:
    """At position p < 10 row r has the token 10 r + p + 1 and the state (10 r + p + 1, -1)."""
    stash = Stash(5, 10, 2, torch.float64, "cpu")
    stash.tokens = torch.arange(1, 51).reshape(5, 10)
    stash.hidden[:, :, 0] = stash.tokens.double()
    stash.hidden[:, :, 1] = -1
    return stash


def batch_of(rows: torch.Tensor, lengths: torch.Tensor | None = None) -> Any:
    """A batch of these rows, with these lengths on the host."""
    return SimpleNamespace(
        req_pool_indices=rows, seq_lens="lengths", seq_lens_cpu=lengths, seq_lens_sum="sum",
        out_cache_loc="slots",
    )  # fmt: skip


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> int:
    """The slot of what is masked out."""
    monkeypatch.setattr(rebuild, "SINK_SLOT", SINK)
    return SINK


# -- sizes --------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("most", "above_16"),
    [(16, []), (17, [17]), (20, [18, 20]), (35, [*range(18, 33, 2), 35]),
     (72, [*range(18, 33, 2), *range(36, 65, 4), 72])],
)  # fmt: skip
def test_sizes_of_a_write_grow_by_at_most_an_eighth(most: int, above_16: list[int]) -> None:
    """One by one up to 16, then in steps that double with the size; the last one is `most`."""
    assert write_sizes(most) == [*range(1, 17), *above_16]


@pytest.mark.timeout(20)
def test_there_is_a_size_for_the_smallest_write() -> None:
    """A write has one entry at least."""
    assert [write_sizes(most) for most in (0, 1, 2, 3)] == [[1], [1], [1, 2], [1, 2, 3]]


# -- the slots and the bulk write ---------------------------------------------------------------


def test_slots_are_those_that_the_rows_own() -> None:
    """One for each position, in its shape."""
    positions = torch.tensor([[0, 4, 2], [3, 3, 9]])
    slots = slots_of(draft(), torch.tensor([2, 0]), positions)
    assert (slots.tolist(), slots.dtype) == ([[201, 205, 203], [4, 4, 10]], torch.int64)


class Projection:
    """Q of two, K and V of four each from an input of two; called, it gives something else."""

    def __init__(self, method: object, *, bias: bool = False) -> None:
        self.quant_method = method
        self.weight = torch.arange(20.0).reshape(10, 2)
        self.bias = 100 * torch.arange(10.0) if bias else None

    def __call__(self, inputs: torch.Tensor) -> tuple[torch.Tensor, None]:
        """What a quantized kernel makes: 0 .. 9 times the first input, and no bias."""
        return inputs[:, :1] * torch.arange(10.0), None


INPUTS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])


def projected(projection: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of `INPUTS`."""
    attention = SimpleNamespace(qkv_proj=projection, q_size=2, kv_size=4)
    key, value = BulkRebuild._project(attention, INPUTS)
    assert key.is_contiguous()
    return key, value


@pytest.mark.parametrize("bias", [True, False])
def test_only_keys_and_values_are_computed_where_the_weights_are_plain(bias: bool) -> None:
    """The rows of the weight after those of Q, and of the bias if there is one."""
    key, value = projected(Projection(UnquantizedLinearMethod(), bias=bias))
    added = [[200, 300, 400, 500], [600, 700, 800, 900]] if bias else [[0] * 4] * 2
    made = [
        [[4, 6, 8, 10], [5, 7, 9, 11], [13, 19, 25, 31]],
        [[12, 14, 16, 18], [13, 15, 17, 19], [37, 43, 49, 55]],
    ]
    for found, rows, plus in zip((key, value), made, added, strict=True):
        assert found.tolist() == (torch.tensor(rows) + torch.tensor(plus)).tolist()


def test_a_quantized_projection_is_called_as_it_is() -> None:
    """So is one whose weights are packed for AMX; what it makes of Q is left out."""
    packed = Projection(UnquantizedLinearMethod(), bias=True)
    packed.use_intel_amx_backend = True  # type: ignore[attr-defined]
    for projection in (Projection(object(), bias=True), packed):
        key, value = projected(projection)
        assert key.tolist() == [[2, 3, 4, 5], [0] * 4, [4, 6, 8, 10]]
        assert value.tolist() == [[6, 7, 8, 9], [0] * 4, [12, 14, 16, 18]]


def attention_input(model: Any, hidden: torch.Tensor) -> list[list[float]]:
    """What the first layer takes for the tokens 1, 2 and 3."""
    found = BulkRebuild(draft(model), full_stash())
    made: list[list[float]] = found._attention_input(torch.tensor([1, 2, 3]), hidden).tolist()
    return made


def test_an_eagle_layer_takes_what_fc_makes_of_both() -> None:
    """Embedding first, then the target's state."""
    hidden = torch.tensor([[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]])
    assert attention_input(eagle(), hidden) == [[2, -2, 8, 10], [4, -4, 12, 14], [6, -6, 16, 18]]


def test_an_eagle3_layer_takes_a_state_of_the_drafts_size_as_it_is() -> None:
    """Each is normed by its own norm, the embedding comes first; `fc` has nothing to do."""
    hidden = torch.tensor([[4.0, 8.0], [12.0, 16.0], [20.0, 24.0]])
    model = eagle3(input_norm=plus_one, fc_norm=[plus_one] * 3, fc=None)
    assert attention_input(model, hidden) == [[10, -10, 1, 2], [20, -20, 3, 4], [30, -30, 5, 6]]


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ({}, [[3, 3], [12, 12], [0, 0]]),
        ({"input_norm": plus_one}, [[3.75, 3.75], [12.75, 12.75], [0.75, 0.75]]),
        (
            {"fc_norm": [lambda x: x, lambda x: x * 10, lambda x: x * 100]},
            [[88.5, 88.5], [444, 444], [0, 0]],
        ),
        (
            {"input_norm": plus_one, "fc_norm": [lambda x: x, lambda x: x * 10, lambda x: -x]},
            [[15.25, 15.25], [42.5, 42.5], [2.5, 2.5]],
        ),
    ],
)
def test_captured_states_are_made_one_before_an_eagle3_layer(
    norms: dict[str, Any], expected: list[list[float]]
) -> None:
    """Normed as a whole, then each by its own norm, where the draft has such norms; then `fc`."""
    hidden = torch.tensor([[4.0, 4, 5, 5, 3, 3], [16.0, 16, 16, 16, 16, 16], [0.0] * 6])
    rows = attention_input(eagle3(**norms), hidden)
    assert [row[:2] for row in rows] == [[10, -10], [20, -20], [30, -30]]
    assert [row[2:] for row in rows] == expected


def test_each_captured_state_has_a_norm() -> None:
    """A draft with fewer of them is not run on what is left."""
    with pytest.raises(ValueError, match="zip"):
        attention_input(eagle3(fc_norm=[plus_one] * 2), torch.ones(3, 6))


class Written:
    """A bulk rebuild over stubs of a layer of two heads of three; remembers what they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, warmed: tuple[int, ...]) -> None:
        attention = SimpleNamespace(
            rotary_emb=self.rotate, attn=SimpleNamespace(tp_k_head_num=2), head_dim=3
        )
        worker = draft()
        worker.draft_runner.model.model.layers[0].self_attn = attention
        worker.draft_runner.token_to_kv_pool = SimpleNamespace(set_kv_buffer=self.set_kv_buffer)
        self.attention, self.bulk = attention, BulkRebuild(worker, full_stash())
        self.bulk._warmed = warmed
        monkeypatch.setattr(self.bulk, "_attention_input", self.attention_input)
        monkeypatch.setattr(self.bulk, "_project", self.project)

    def attention_input(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Stands for what the layer takes."""
        self.tokens, self.hidden = tokens, hidden
        return tokens

    def project(self, attention: Any, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """K counts up over all entries, V is larger by 1000."""
        assert attention is self.attention
        assert inputs is self.tokens
        self.key = torch.arange(6.0 * inputs.shape[0]).reshape(-1, 6)
        return self.key, self.key + 1000

    def rotate(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[str, torch.Tensor]:
        """K is larger by 0.5 afterwards."""
        assert key is self.key
        assert query.shape == key.shape
        assert query is not key
        self.positions = positions
        return "query", key + 0.5

    def set_kv_buffer(
        self, attn: Any, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """The pool's."""
        assert attn is self.attention.attn
        self.slots, self.kv = slots, (key, value)


@pytest.mark.parametrize(
    ("warmed", "entries", "spare"),
    [((), 3, 0), ((1, 2, 5), 3, 2), ((1, 3), 3, 0), ((1, 2), 3, 0), ((2, 4), 1, 1)],
)
def test_a_write_is_padded_to_the_next_size_that_is_warm(
    monkeypatch: pytest.MonkeyPatch, sink: int, warmed: tuple[int, ...], entries: int, spare: int
) -> None:
    """With zeros into the sink slot; a larger write than any goes as it is. K is rotated at its
    positions, and both go head by head into their slots."""
    found = Written(monkeypatch, warmed)
    positions, tokens = torch.arange(4, 4 + entries), torch.arange(20, 20 + entries)
    hidden, slots = torch.ones(entries, 2), torch.arange(40, 40 + entries)
    found.bulk._write(positions, tokens, hidden, slots)
    assert found.positions.tolist() == [*positions.tolist(), *[0] * spare]
    assert found.tokens.tolist() == [*tokens.tolist(), *[0] * spare]
    assert found.hidden.tolist() == [[1, 1]] * entries + [[0, 0]] * spare
    assert found.slots.tolist() == [*slots.tolist(), *[sink] * spare]
    wanted = torch.arange(6.0 * (entries + spare)).reshape(entries + spare, 2, 3)
    assert torch.equal(found.kv[0], wanted + 0.5)
    assert torch.equal(found.kv[1], wanted + 1000)


def watched_write(monkeypatch: pytest.MonkeyPatch, found: BulkRebuild) -> list[Any]:
    """What `_write` of this rebuild will be given."""
    written: list[Any] = []
    monkeypatch.setattr(found, "_write", lambda *given: written.append(given))
    return written


@pytest.mark.timeout(20)
def test_warming_writes_every_size_once_into_the_sink(
    monkeypatch: pytest.MonkeyPatch, sink: int
) -> None:
    """Zeros of the stash's kind, without a graph; from then on writes are padded to these."""
    found = BulkRebuild(draft(), full_stash())
    kept: list[bool] = []
    written: list[Any] = []

    def write(*given: torch.Tensor) -> None:
        kept.append(torch.is_grad_enabled() or bool(found._warmed))
        written.append(given)

    monkeypatch.setattr(found, "_write", write)
    found.warm(18)
    sizes = [*range(1, 17), 18]
    assert [given[0].shape[0] for given in written] == list(found._warmed) == sizes
    assert not any(kept)
    for size, (positions, tokens, hidden, slots) in zip(sizes, written, strict=True):
        assert positions.tolist() == tokens.tolist() == [0] * size
        assert (positions.dtype, slots.dtype, hidden.dtype) == (
            torch.int64, torch.int64, torch.float64
        )  # fmt: skip
        assert hidden.tolist() == [[0, 0]] * size
        assert slots.tolist() == [sink] * size


def test_a_bulk_flush_writes_what_is_missing_of_its_ages(
    monkeypatch: pytest.MonkeyPatch, sink: int
) -> None:
    """Two ages of four rows: what lies below `covered` or before the row goes to the sink; then
    the rows are covered up to the last age, where they were not covered further."""
    stash, rows = full_stash(), torch.tensor([2, 0, 3, 1])
    stash.covered = torch.tensor([0, 5, 3, 4, 2])
    found = BulkRebuild(draft(), stash)
    written = watched_write(monkeypatch, found)
    found.flush(batch_of(rows), torch.tensor([5, 1, 7, 5], dtype=torch.int32), 3, 1)
    ((positions, tokens, hidden, slots),) = written
    assert positions.tolist() == [2, 3, 0, 0, 4, 5, 2, 3]
    assert tokens.tolist() == [23, 24, 1, 1, 35, 36, 13, 14]
    assert hidden.tolist() == [[float(token), -1] for token in tokens.tolist()]
    assert slots.tolist() == [sink, 204, sink, sink, 305, 306, sink, sink]
    assert stash.covered.tolist() == [0, 5, 4, 6, 2]
    assert found.read_done is None


@pytest.mark.parametrize(("upper", "lower"), [(2, 2), (1, 2), (0, 0)])
def test_a_bulk_flush_of_no_age_does_nothing(
    monkeypatch: pytest.MonkeyPatch, upper: int, lower: int
) -> None:
    """Nothing is written, and no row is covered any further."""
    stash = full_stash()
    found = BulkRebuild(draft(), stash)
    written = watched_write(monkeypatch, found)
    found.flush(batch_of(torch.tensor([2, 0])), torch.tensor([9, 8]), upper, lower)
    assert written == []
    assert stash.covered.tolist() == [0] * 5


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def test_on_a_gpu_a_flush_tells_when_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the slots are looked up, and before the write: the scheduler goes on meanwhile."""
    events: list[str] = []

    def looked_up(*given: Any) -> torch.Tensor:
        events.append("slots")
        return slots_of(*given).as_subclass(OnGpu)

    def recorded() -> str:
        events.append("recorded")
        return "event"

    monkeypatch.setattr(rebuild, "slots_of", looked_up)
    stream = SimpleNamespace(record_event=recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    found = BulkRebuild(draft(), full_stash())
    monkeypatch.setattr(found, "_write", lambda *given: events.append("write"))
    assert found.read_done is None
    found.flush(batch_of(torch.tensor([2])), torch.tensor([5]), 3, 1)
    assert events == ["slots", "recorded", "write"]
    assert found.read_done == "event"


MISFITS = {
    "unknown": (
        MistralForCausalLM(model=eagle().model),
        "draft MistralForCausalLM is not one the bulk write knows "
        "(LlamaForCausalLMEagle3, -Eagle)",
    ),
    "deep": (
        eagle3(layers=[1, 2]),
        "draft LlamaForCausalLMEagle3 has 2 layers; the bulk write fits one",
    ),
    "bare": (
        LlamaForCausalLMEagle(model=object()),
        "draft LlamaForCausalLMEagle has 0 layers; the bulk write fits one",
    ),
    "mrope": (
        eagle3(is_mrope_enabled=True),
        "draft LlamaForCausalLMEagle3 uses mrope positions, which the bulk write does not build",
    ),
}
"""Models that the bulk write does not fit, and what is said of them."""


@pytest.mark.parametrize("name", MISFITS)
def test_a_draft_that_the_bulk_write_does_not_fit_is_refused(name: str) -> None:
    """With the reason, by which a server says why it rebuilds otherwise."""
    model, why = MISFITS[name]
    assert bulk_misfit(model) == why
    with pytest.raises(ValueError) as raised:
        BulkRebuild(draft(model), full_stash())
    assert str(raised.value) == why


@pytest.mark.parametrize("model", [eagle(), eagle3(), eagle3(is_mrope_enabled=False)])
def test_a_llama_draft_of_one_layer_fits(model: Any) -> None:
    """Of either algorithm."""
    assert bulk_misfit(model) is None


# -- the others ---------------------------------------------------------------------------------


def test_without_a_rebuild_the_ages_count_as_written() -> None:
    """Up to the last one, and never less than before."""
    stash = full_stash()
    stash.covered = torch.tensor([0, 8, 3, 4, 2])
    committed = torch.tensor([5, 9, 7], dtype=torch.int32)
    ColdRebuild(stash).flush(batch_of(torch.tensor([2, 1, 3])), committed, 4, 2)
    assert stash.covered.tolist() == [0, 8, 3, 5, 2]


class Host:
    """Positions on the host, which are not those of the device here."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def flush_span(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Where a flush begins and ends."""
        self.asked.append(given)
        return torch.tensor([10, 20, 30]), torch.tensor([11, 25, 30])

    def seed_start(self, *given: Any) -> torch.Tensor:
        """Where a seed begins."""
        self.asked.append(given)
        return torch.tensor([10, 20, 30, 40])


def extended(
    monkeypatch: pytest.MonkeyPatch, batch: Any, stash: Stash, host: Any
) -> list[Window]:
    """Windows of a flush of ages 5 .. 2, two positions wide, of rows with 9, 6 and 4 positions."""
    windows: list[Window] = []
    worker = draft(width=2)

    def extend(*given: Any) -> None:
        assert given[:3] == (worker, stash, batch)
        windows.append(given[3])

    monkeypatch.setattr(rebuild, "run_draft_extend", extend)
    committed = torch.tensor([9, 6, 4], dtype=torch.int32)
    ExtendRebuild(worker, stash, host).flush(batch, committed, 5, 1)
    for window in windows:
        assert window.committed.tolist() == [9, 6, 4]
        assert window.committed.dtype == window.first.dtype == torch.int64
    return windows


@pytest.mark.parametrize("with_lengths", [True, False])
def test_an_extend_flush_goes_over_the_gap_in_ascending_windows(
    monkeypatch: pytest.MonkeyPatch, with_lengths: bool
) -> None:
    """From the first missing position of a row, at most to its last; on the host, where lengths
    are there, as the ledger says. Then the rows are covered up to the last age."""
    stash, host = full_stash(), Host()
    stash.covered = torch.tensor([6, 2, 3, 4, 2])
    lengths = torch.tensor([9, 6, 4]) if with_lengths else None
    batch = batch_of(torch.tensor([2, 0, 1]), lengths)
    windows = extended(monkeypatch, batch, stash, host)
    assert [window.first.tolist() for window in windows] == [[4, 6, 2], [6, 6, 3]]
    assert stash.covered.tolist() == [6, 3, 8, 4, 2]
    on_host = [None if w.first_cpu is None else w.first_cpu.tolist() for w in windows]
    assert on_host == ([[10, 20, 30], [11, 22, 30]] if with_lengths else [None, None])
    assert host.asked == ([(batch, lengths, 5, 1)] if with_lengths else [])


class Extend:
    """A draft worker's own extend; remembers what it was given, and makes a proposal."""

    def __init__(self, worker: Any) -> None:
        worker._draft_extend_for_decode = self
        self.calls: list[Any] = []

    def __call__(self, view: Any, result: Any) -> None:
        """Writes where SGLang's does."""
        self.calls.append((view, result))
        result.next_draft_input.topk_p = "proposal"


ROWS = torch.tensor([2, 0, 3, 1])


def ran(first_cpu: torch.Tensor | None) -> tuple[Any, Any, torch.Tensor, Any, Any]:
    """An extend of three positions over four rows of six: what it is given, and what came back.

    Two positions of the first row are committed, none of the second, all of the third, and one
    of the last. Returns view, result, `committed`, batch, proposal.
    """
    worker = draft()
    extend = Extend(worker)
    batch, committed = batch_of(ROWS, torch.tensor([6, 6, 6, 6])), torch.tensor([6, 6, 6, 6])
    window = Window(torch.tensor([4, 6, 2, 5], dtype=torch.int32), committed, first_cpu)
    proposal = run_draft_extend(worker, full_stash(), batch, window)
    ((view, result),) = extend.calls
    return view, result, committed, batch, proposal


def test_a_draft_extend_is_given_what_is_committed() -> None:
    """States and tokens of the stash, zeros beyond; the last committed position is the last that
    counts, the first one where there is none."""
    _, result, committed, _, proposal = ran(None)
    tokens = [25, 26, 0, 0, 0, 0, 33, 34, 35, 16, 0, 0]
    assert result.next_token_ids.tolist() == tokens
    hidden = result.logits_output.hidden_states
    assert hidden.tolist() == [[token, -1 if token else 0] for token in tokens]
    assert hidden.dtype == torch.float64
    assert result.accept_lens.tolist() == [2, 1, 3, 1]
    assert result.accept_lens.dtype == torch.int32
    assert result.new_seq_lens is committed
    assert isinstance(proposal, EagleDraftInput)
    assert proposal.topk_p == "proposal"


def test_a_draft_extend_writes_from_the_windows_first_positions() -> None:
    """Lengths, and the slots of all positions, in a copy of the batch: the batch stays."""
    first_cpu = torch.tensor([4, 6, 2, 5])
    view, _, _, batch, _ = ran(first_cpu)
    assert view is not batch
    assert view.req_pool_indices is ROWS
    assert (view.seq_lens.tolist(), view.seq_lens.dtype) == ([4, 6, 2, 5], torch.int64)
    assert view.seq_lens_cpu is first_cpu
    assert (view.seq_lens_sum, type(view.seq_lens_sum)) == (17, int)
    slots = [205, 206, 207, 7, 8, 9, 303, 304, 305, 106, 107, 108]
    assert (view.out_cache_loc.tolist(), view.out_cache_loc.dtype) == (slots, torch.int64)
    assert (batch.seq_lens, batch.seq_lens_sum, batch.out_cache_loc) == ("lengths", "sum", "slots")
    assert batch.seq_lens_cpu.tolist() == [6, 6, 6, 6]


def test_a_draft_extend_without_positions_on_the_host_leaves_its_lengths_there() -> None:
    """There is nothing to put in their place."""
    view, _, _, batch, _ = ran(None)
    assert view.seq_lens_cpu is batch.seq_lens_cpu
    assert view.seq_lens_sum == "sum"


# -- the seed -----------------------------------------------------------------------------------


def relay_of(value: int, *dtypes: torch.dtype) -> EagleDraftInput:
    """A proposal of four rows, all of this value."""
    p, index, hidden = dtypes
    return EagleDraftInput(
        topk_p=torch.full((4, 2), value, dtype=p),
        topk_index=torch.full((4, 2), value, dtype=index),
        hidden_states=torch.full((4, 3), value, dtype=hidden),
    )


class Seeded:
    """A seed of four rows with nine positions each, the last of which is seeded already."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, missing: int, lengths: torch.Tensor | None
    ) -> None:
        self.windows: list[Window] = []
        self.worker, self.stash, self.host = draft(), full_stash(), Host()
        self.stash.covered = torch.tensor([7, 9, 4, 9, 2])
        self.stash.seeded = torch.tensor([False, True, False, False, False])
        self.batch = batch_of(ROWS, lengths)
        self.relay = relay_of(1, torch.float32, torch.int64, torch.float16)
        monkeypatch.setattr(rebuild, "run_draft_extend", self.extend)
        committed = torch.tensor([9, 9, 9, 9], dtype=torch.int32)
        host: Any = self.host
        seed(self.worker, self.stash, host, self.batch, committed, missing, self.relay)

    def extend(self, *given: Any) -> EagleDraftInput:
        """Makes a proposal of other dtypes."""
        assert given[:3] == (self.worker, self.stash, self.batch)
        self.windows.append(given[3])
        return relay_of(2, torch.float64, torch.int32, torch.float32)


def test_a_seed_is_made_for_the_rows_that_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded row keeps what is relayed, the others get what the extend made, in the relay's
    dtypes; afterwards all of them are complete and seeded, and no other row is."""
    found = Seeded(monkeypatch, 3, None)
    relay, rows = found.relay, [2, 2, 2, 1]
    assert relay.topk_p.tolist() == relay.topk_index.tolist() == [[n] * 2 for n in rows]
    assert relay.hidden_states is not None
    assert relay.hidden_states.tolist() == [[n] * 3 for n in rows]
    assert (relay.topk_p.dtype, relay.topk_index.dtype, relay.hidden_states.dtype) == (
        torch.float32, torch.int64, torch.float16
    )  # fmt: skip
    assert found.stash.covered.tolist() == [9, 9, 9, 9, 2]
    assert found.stash.seeded.tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("missing", "first"),
    [(3, [6, 7, 8, 9]), (7, [4, 7, 8, 9]), (1, [8, 8, 8, 9]), (0, [8, 8, 8, 9])],
)
def test_the_window_of_a_seed_begins_at_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, missing: int, first: list[int]
) -> None:
    """Never below `covered`, at the last position where nothing is missing, and after it in the
    row that is seeded."""
    (window,) = Seeded(monkeypatch, missing, None).windows
    assert (window.first.tolist(), window.first.dtype) == (first, torch.int64)
    assert (window.committed.tolist(), window.committed.dtype) == ([9, 9, 9, 9], torch.int64)
    assert window.first_cpu is None


def test_the_ledger_says_on_the_host_where_a_seed_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the batch has its lengths there."""
    lengths = torch.tensor([9, 9, 9, 9])
    found = Seeded(monkeypatch, 3, lengths)
    (window,) = found.windows
    assert window.first_cpu is not None
    assert window.first_cpu.tolist() == [10, 20, 30, 40]
    assert found.host.asked == [(found.batch, lengths, 3)]


# -- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "model", "kind", "said"),
    [
        ("cold", eagle(), ColdRebuild,
         "strategy cold: draft KV is never rebuilt, acceptance will drop"),
        ("extend", eagle(), ExtendRebuild, None),
        ("bulk", eagle(), BulkRebuild, None),
        ("auto", eagle3(), BulkRebuild, None),
        ("warm", eagle3(), BulkRebuild, None),
        ("auto", MISFITS["deep"][0], ExtendRebuild,
         f"{MISFITS['deep'][1]}; rebuilding draft KV by draft extend instead"),
    ],
)  # fmt: skip
def test_the_strategy_that_is_chosen(
    caplog: pytest.LogCaptureFixture, strategy: str, model: Any, kind: type, said: str | None
) -> None:
    """The one asked for, bulk where it fits; what costs acceptance or time is said."""
    worker, stash, host = draft(model), full_stash(), Host()
    with caplog.at_level(logging.WARNING, rebuild.logger.name):
        found: Any = choose(strategy, worker, stash, host)  # type: ignore[arg-type]
    assert isinstance(found, kind)
    assert found._stash is stash
    if kind is not ColdRebuild:
        assert found._draft_worker is worker
    if kind is ExtendRebuild:
        assert (found._host, found._width) == (host, 3)
    assert caplog.messages == ([] if said is None else [f"spec-fsm: {said}"])
