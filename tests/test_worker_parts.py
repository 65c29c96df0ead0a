"""What a launch of the worker is made of, how a rebuild fails, and what weights and sampling do.

Nothing is computed: models, stash and lifecycle are stand-ins that remember what they were told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers import sampler
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from spec_fsm import (
    Action,
    Hidden,
    Mode,
    Phase,
    Plan,
    ProgrammingError,
    ShapeViolation,
    SpecFsmError,
    SpecInfo,
)
from spec_fsm_sglang import (
    graph_state,
    plain,
    plain_graphs,
    rebuild,
    sampling,
    start,
    weight_updates,
)
from spec_fsm_sglang import worker as module
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.sampling import DIFFERING, DifferingRequests, differing, eagle_sample
from spec_fsm_sglang.worker import SpecFsmEagleWorker, stash_hidden_size

TOKENS, STEPS = 4, 3
ROWS, WIDTH_OF_TABLE, HIDDEN = 5, 9, 8


class Told(list[Any]):
    """Calls, in order: a name, what was given, and what was given by name if anything was."""

    def of(self, name: str, *answers: Any) -> Callable[..., Any]:
        """A function of this name. It answers so, each time with the next, at last None; an
        exception is raised."""
        left = list(answers)

        def call(*given: Any, **named: Any) -> Any:
            self.append((name, *given, named) if named else (name, *given))
            answer = left.pop(0) if left else None
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class Bulk(rebuild.BulkRebuild):
    """A bulk rebuild without a model."""

    def __init__(self) -> None:
        self.read_done = "the flush's event"


def controller(told: Told, **answers: Any) -> Any:
    """A controller that gives these answers, without checks, after seven plain launches."""
    lifecycle = SimpleNamespace(
        ledger=SimpleNamespace(t_launched=7), check_launch=told.of("check_launch")
    )
    names = ("prefilled", "launched", "reseeded", "reseed_failed")
    asked: dict[str, Any] = {name: told.of(name, answers.get(name)) for name in names}
    return SimpleNamespace(
        **asked, lifecycle=lifecycle, checks=None, enable_at=4,
        plan_decode=told.of("plan_decode", *answers.get("plans", ())),
        recovery=SimpleNamespace(caught=told.of("caught")),
    )  # fmt: skip


@contextmanager
def parallel(worker: Any, told: Told, name: str, *given: Any) -> Iterator[None]:
    """A context of the draft's that tells when it is entered and left."""
    told.append((f"enter {name}", *given, worker.guard.reseeding))
    yield
    told.append((f"leave {name}", worker.guard.reseeding))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a worker, and SGLang's own below it; all that they call is told."""

    def make(told: Told, **fields: Any) -> Any:
        worker: Any = SpecFsmEagleWorker.__new__(SpecFsmEagleWorker)
        runner = SimpleNamespace(shared_read_done_event="before")
        table = SimpleNamespace(req_to_token=torch.zeros(ROWS, WIDTH_OF_TABLE))
        draft = SimpleNamespace(
            req_to_token_pool=table, draft_runner="the draft's", parallel_layout="layout"
        )
        known = {
            "_target_worker": SimpleNamespace(model_runner=runner), "_draft_worker": draft,
            "stash": SimpleNamespace(joined=told.of("joined"), record=told.of("record")),
            "rebuild": SimpleNamespace(
                flush=told.of("flush"), read_done="the flush's event", by_seed=True, name="bulk"
            ),
            "guard": SimpleNamespace(reseeding=False), "plain_graphs": "graphs",
            "host_lengths": "lengths", "speculative_num_draft_tokens": TOKENS,
            "speculative_num_steps": STEPS,
        }  # fmt: skip
        vars(worker).update({**known, **fields})
        for name, at in (("draft_tp_context", "tp"), ("speculative_moe_backend_context", "moe"),
                         ("speculative_moe_a2a_backend_context", "a2a")):  # fmt: skip
            monkeypatch.setattr(
                module, name, lambda *given, at=at: parallel(worker, told, at, *given)
            )
        monkeypatch.setattr(
            EAGLEWorkerV2, "forward_batch_generation",
            lambda _, *given: told.of("sglang", "result")(*given),
        )  # fmt: skip
        monkeypatch.setattr(module, "name_next_token", told.of("name_next_token"))
        monkeypatch.setattr(module, "on_all_ranks", lambda well: told.of("ranks", well)(well))
        monkeypatch.setattr(rebuild, "seed", told.of("seed"))
        return worker

    return make


def batch_of(mode: ForwardMode, **fields: Any) -> Any:
    """A batch of three rows."""
    known = {
        "forward_mode": mode, "req_pool_indices": "rows", "seq_lens": "lengths", "reqs": [1, 2, 3],
        "enable_overlap": True, "spec_info": "relay",
    }  # fmt: skip
    return SimpleNamespace(**{**known, **fields})


def plan_of(action: Action, upper: int = 0, lower: int = 0, *, seeds: bool = False) -> Plan:
    """A plan."""
    return Plan(action, Mode.PLAIN, flush_upper=upper, flush_lower=lower, seeds=seeds)


SPEC, PLAIN, RESEED = map(plan_of, (Action.SPECULATE, Action.PLAIN, Action.RESEED))


# -- the start ----------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [Config(disable_above=6), None])
def test_before_graphs_are_captured_they_are_limited(
    made: Any, monkeypatch: pytest.MonkeyPatch, config: Config | None
) -> None:
    """After SGLang's backends exist, by the configuration; without one there is no worker."""
    told = Told()
    worker = made(told)
    monkeypatch.setattr(EAGLEWorkerV2, "init_attention_backends", told.of("sglang"))
    monkeypatch.setattr(Config, "from_env", lambda: config)
    monkeypatch.setattr(module, "model_problem", told.of("problem"))
    monkeypatch.setattr(plain_graphs, "limit_verify_graphs", told.of("limit", [1, 2]))
    if config is None:
        with pytest.raises(SpecFsmError, match="created without a configuration"):
            worker.init_attention_backends()
        return
    worker.init_attention_backends()
    assert told == [("sglang", worker), ("problem", worker), ("limit", 6)]
    assert (worker._config, worker._plain_sizes) == (config, [1, 2])


def test_a_model_with_a_problem_is_refused(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a graph of it is captured."""
    told = Told()
    monkeypatch.setattr(EAGLEWorkerV2, "init_attention_backends", lambda worker: None)
    monkeypatch.setattr(Config, "from_env", lambda: Config(disable_above=6))
    monkeypatch.setattr(module, "model_problem", lambda worker: "no such head")
    monkeypatch.setattr(start, "refuse_late", told.of("refuse", RuntimeError("refused")))
    with pytest.raises(RuntimeError, match="refused"):
        made(told).init_attention_backends()
    assert told == [("refuse", "no such head")]


class Guard:
    """In place of the guard."""

    def __init__(self, *given: Any) -> None:
        self.given, self.installed = given, ()

    def install(self, *runners: Any) -> None:
        """In front of these runners."""
        self.installed = runners


def starting(
    made: Any, monkeypatch: pytest.MonkeyPatch, told: Told, graphs: Any = None, **settings: Any
) -> Any:
    """A worker whose graphs are to be captured: five rows of eight numbers in half precision, and
    a KV pool of 800 000 bytes. checks: what the controller has of them."""
    checks = settings.pop("checks", None)
    worker = made(told, _config=Config.of({"disable_above": 6, **settings}), device="cpu")
    fsm = controller(told)
    fsm.checks = checks
    worker._plain_sizes = (1, 2, 8)
    worker.speculative_algorithm = SimpleNamespace(is_eagle3=lambda: False)
    vars(worker.target_worker.model_runner).update(
        model_config=SimpleNamespace(hidden_size=HIDDEN), dtype=torch.bfloat16,
        token_to_kv_pool=SimpleNamespace(get_kv_size_bytes=lambda: (300_000, 500_000)),
    )  # fmt: skip
    captured = SimpleNamespace(graphs=graphs)
    monkeypatch.setattr(EAGLEWorkerV2, "init_cuda_graphs", lambda worker: told.append("sglang"))
    monkeypatch.setattr(graph_state, "eager", lambda runner: "eager")
    monkeypatch.setattr(
        plain_graphs, "capture",
        lambda *given: told.append(("capture", *given, worker.plain_graphs)) or captured,
    )  # fmt: skip
    monkeypatch.setattr(module, "Controller", lambda *given: told.append(given) or fsm)
    monkeypatch.setattr(module, "LaunchGuard", Guard)
    chosen = SimpleNamespace(name="bulk")
    monkeypatch.setattr(rebuild, "choose", lambda *given: told.append(given) or chosen)
    return SimpleNamespace(worker=worker, fsm=fsm, captured=captured, chosen=chosen)


def test_what_a_worker_is_made_of(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLAIN's graphs after SGLang's, a stash of 1 % of the KV pool, the controller, the rebuild
    and the guard, each of the parts before it."""
    told = Told()
    found = starting(made, monkeypatch, told, strategy="extend")
    worker, runner = found.worker, found.worker.target_worker.model_runner
    worker.init_cuda_graphs()
    sizes = told[2][2]
    assert (sizes.width, sizes.flush_every) == (100, 16)
    assert told == [
        "sglang", ("capture", runner, (1, 2, 8), "eager"), (worker, worker._config, sizes),
        ("extend", worker.draft_worker, worker.stash, worker.host_lengths),
    ]  # fmt: skip
    assert worker.stash.hidden.shape == (ROWS, 100, HIDDEN)
    assert (worker.stash.hidden.dtype, worker.stash.hidden.device.type) == (torch.bfloat16, "cpu")
    assert (worker.spec_fsm, worker.rebuild) == (found.fsm, found.chosen)
    assert worker.host_lengths._ledger() is found.fsm.lifecycle.ledger
    assert worker.guard.given == (found.fsm.lifecycle, STEPS, TOKENS)
    assert worker.guard.installed == (runner, "the draft's")
    assert worker.plain_graphs is found.captured
    runner.spec_fsm_recaptured()
    assert told[4:] == [("capture", runner, (1, 2, 8), "eager")]


def test_the_share_of_the_stash(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As configured; a width that takes more is refused, and nothing is made."""
    told = Told()
    worker = starting(made, monkeypatch, told, stash_share=0.02).worker
    worker.init_cuda_graphs()
    assert worker.stash.width == 200
    told.clear()
    monkeypatch.setattr(start, "refuse_late", told.of("refuse", RuntimeError("refused")))
    worker = starting(made, monkeypatch, told, stash_width=64, stash_share=0.001).worker
    with pytest.raises(RuntimeError, match="refused"):
        worker.init_cuda_graphs()
    assert [name for name, *_ in told[1:]] == ["capture", "refuse"]
    assert told[-1][1].startswith("stash_width is 64: the stash would take 0.64 % of the KV pool")
    assert worker.spec_fsm is None


@pytest.mark.parametrize(
    ("graphs", "slice_tokens", "cold"),
    [("captured", 100, 128), ("captured", 400, 400), (None, 400, 0)],
)
def test_the_largest_write_is_warmed_where_there_are_graphs(
    made: Any, monkeypatch: pytest.MonkeyPatch, graphs: Any, slice_tokens: int, cold: int
) -> None:
    """A slice of as many rows as come back, or a flush of the most rows that have a graph."""
    found = starting(
        made, monkeypatch, Told(), graphs, slice_tokens=slice_tokens, enable_at=4, flush_every=16
    )
    found.worker.init_cuda_graphs()
    assert found.worker._cold_entries == cold


def test_graphs_are_watched_by_the_checks(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they all exist, and again when they were captured again."""
    told = Told()
    watch: Any = SimpleNamespace(watch_graphs=lambda: told.append("watch"))
    worker = starting(made, monkeypatch, told, checks=watch).worker
    worker.init_cuda_graphs()
    assert (told.count("watch"), told[-1]) == (1, "watch")
    worker.capture_plain_graphs()
    assert (told[-2][0], told[-1], told.count("watch")) == ("capture", "watch", 2)


@pytest.mark.parametrize(("eagle3", "width"), [(True, 24), (False, HIDDEN)])
def test_the_hidden_state_of_a_position(eagle3: bool, width: int) -> None:
    """The target's last one; for EAGLE-3 as much as its head takes."""
    target = SimpleNamespace(
        model_runner=SimpleNamespace(model_config=SimpleNamespace(hidden_size=HIDDEN))
    )
    head = SimpleNamespace(model=SimpleNamespace(fc=SimpleNamespace(in_features=24)))
    worker: Any = SimpleNamespace(
        target_worker=target, speculative_algorithm=SimpleNamespace(is_eagle3=lambda: eagle3),
        draft_worker=SimpleNamespace(draft_runner=SimpleNamespace(model=head)),
    )  # fmt: skip
    assert stash_hidden_size(worker) == width


# -- one launch ---------------------------------------------------------------------------------


def test_the_scheduler_waits_for_what_read_last(made: Any) -> None:
    """The target after a plain step, the draft after any other."""
    worker = made(Told())
    assert worker.last_shared_read_runner == "the draft's"
    worker._read_last_by_target = True
    assert worker.last_shared_read_runner is worker.target_worker.model_runner


def test_a_launch_that_is_not_ours(made: Any) -> None:
    """Of an idle rank, and any before the lifecycle exists, is SGLang's as it came."""
    told = Told()
    for fsm, mode in (
        (controller(told), ForwardMode.IDLE), (None, ForwardMode.DECODE),
        (None, ForwardMode.EXTEND), (None, ForwardMode.IDLE),
    ):  # fmt: skip
        told.clear()
        worker, batch = made(told, spec_fsm=fsm, _read_last_by_target=True), batch_of(mode)
        result = worker.forward_batch_generation(batch, "publish", "barrier", "proxy")
        assert (result, told) == ("result", [("sglang", batch, "publish", "barrier", "proxy")])
        assert worker._read_last_by_target is False
        assert not hasattr(batch, "spec_fsm")


def test_a_prefill_makes_rows_complete(made: Any) -> None:
    """SGLang's own, with the token after a chunk named; then stash and ledger learn of its rows."""
    told = Told()
    fsm = controller(told)
    worker = made(told, spec_fsm=fsm, _read_last_by_target=True, _warm=told.of("warm"))
    batch = batch_of(ForwardMode.EXTEND)
    assert worker.forward_batch_generation(batch, "publish", "barrier") == "result"
    assert told == [
        ("name_next_token", batch), ("sglang", batch, "publish"), ("joined", "rows", "lengths"),
        ("prefilled", batch), ("warm",),
    ]  # fmt: skip
    assert worker._read_last_by_target is False


def test_a_prefill_that_cannot_be_noted_keeps_its_tokens(made: Any) -> None:
    """The recovery learns why."""
    told, error = Told(), RuntimeError()
    worker = made(told, spec_fsm=controller(told, prefilled=error), _warm=told.of("warm"))
    assert worker.forward_batch_generation(batch_of(ForwardMode.EXTEND)) == "result"
    assert told[-1] == ("caught", error)


def decoding(made: Any, told: Told, *plans: Plan, reseeds: bool = True, **answers: Any) -> Any:
    """A worker whose lifecycle makes these plans, and whether a reseed goes well."""
    fsm = controller(told, plans=plans, **answers)
    return made(
        told, spec_fsm=fsm, _plain=told.of("plain", "plain result"), _read_last_by_target=True,
        _reseed=told.of("reseed", reseeds),
    )  # fmt: skip


@pytest.mark.parametrize("plan", [SPEC, RESEED])
def test_a_speculative_round_is_sglangs(made: Any, plan: Plan) -> None:
    """Its batch says that it is ours; for the first one the gaps were closed before."""
    told, batch = Told(), batch_of(ForwardMode.DECODE)
    worker = decoding(made, told, plan)
    assert worker.forward_batch_generation(batch, "publish", "barrier") == "result"
    reseed = [("reseed", worker.spec_fsm, batch, plan)] if plan is RESEED else []
    assert told == [
        ("plan_decode", batch), *reseed, ("sglang", batch, "publish", "barrier"),
        ("launched", batch, plan, "result"),
    ]  # fmt: skip
    assert (batch.spec_fsm, worker._read_last_by_target) == (True, False)


def test_a_plain_step_is_not(made: Any) -> None:
    """Also the one in place of a reseed that failed."""
    told, batch = Told(), batch_of(ForwardMode.DECODE)
    worker = decoding(made, told, PLAIN)
    assert worker.forward_batch_generation(batch, "publish", "barrier") == "plain result"
    steps = [
        ("plain", worker.spec_fsm, batch, PLAIN, "publish", "barrier"),
        ("launched", batch, PLAIN, "plain result"),
    ]  # fmt: skip
    assert told == [("plan_decode", batch), *steps]
    assert not hasattr(batch, "spec_fsm")
    told.clear()
    worker = decoding(made, told, RESEED, PLAIN, reseeds=False)
    assert worker.forward_batch_generation(batch, "publish", "barrier") == "plain result"
    assert [name for name, *_ in told] == [
        "plan_decode", "reseed", "plan_decode", "plain", "launched"
    ]  # fmt: skip
    assert told[3][3] is PLAIN


def test_a_launch_that_cannot_be_noted_keeps_its_result(made: Any) -> None:
    """The recovery learns why."""
    told, error = Told(), RuntimeError()
    worker = decoding(made, told, SPEC, launched=error)
    assert worker.forward_batch_generation(batch_of(ForwardMode.DECODE)) == "result"
    assert told[-1] == ("caught", error)


def test_the_first_prefill_warms_a_bulk_rebuild(made: Any) -> None:
    """Once, as a rebuild; nothing else is warmed."""
    told, bulk = Told(), Bulk()
    vars(bulk)["warm"] = lambda entries: told.append((entries, worker.guard.reseeding))
    worker = made(told, rebuild=bulk, _cold_entries=0)
    worker._warm()
    assert told == []
    worker._cold_entries = 96
    worker._warm()
    assert (96, True) in told
    assert worker._cold_entries == 0
    told.clear()
    worker._warm()
    worker.rebuild, worker._cold_entries = SimpleNamespace(warm=told.of("warm")), 96
    worker._warm()
    assert (told, worker._cold_entries) == ([], 0)


# -- a plain step -------------------------------------------------------------------------------


def stepping(made: Any, monkeypatch: pytest.MonkeyPatch, told: Told) -> Any:
    """A worker, its batch and what a plain launch of it gives."""
    worker = made(told, _flush_or_retry=told.of("flush"), _seed_ahead=told.of("seed"))
    runner, batch = worker.target_worker.model_runner, batch_of(ForwardMode.DECODE)
    result = SimpleNamespace(
        logits_output=SimpleNamespace(hidden_states="states"), next_token_ids="tokens"
    )

    def prepare(batch: Any, table: Any) -> str:
        assert table is worker.draft_worker.req_to_token_pool.req_to_token
        batch.seq_lens = "longer"
        told.append("prepare")
        return "relay"

    def launch(*given: Any) -> Any:
        told.append(("launch", *given, runner.shared_read_done_event))
        return result

    monkeypatch.setattr(plain, "prepare", prepare)
    monkeypatch.setattr(plain, "launch", launch)
    monkeypatch.setattr(plain, "complete", told.of("complete"))
    return SimpleNamespace(worker=worker, runner=runner, batch=batch, result=result)


def test_a_plain_step_in_its_order(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths are published before the forward; the stash gets the positions from before; the
    target is waited for, by an event of this launch."""
    told = Told()
    found = stepping(made, monkeypatch, told)
    worker, batch = found.worker, found.batch
    given = ("fsm", batch, PLAIN)
    assert worker._plain(*given, told.of("publish"), "barrier") is found.result
    assert told == [
        "prepare", ("publish", "longer"),
        ("launch", worker.target_worker, "graphs", batch, "barrier", None),
        ("record", "rows", "lengths", "states", "tokens"),
        ("complete", found.result, "relay", "longer", {"with_seed": False}),
    ]  # fmt: skip
    assert worker._read_last_by_target is True
    assert found.runner.shared_read_done_event is None
    told.clear()
    worker._plain(*given, None, None)
    assert [each[0] for each in told[1:]] == ["launch", "record", "complete"]


@pytest.mark.parametrize(("seeds", "overlap", "kept"), [
    (False, True, False), (False, False, True), (True, True, True), (True, False, True),
])  # fmt: skip
def test_a_seed_goes_on_where_it_was_just_made(
    made: Any, monkeypatch: pytest.MonkeyPatch, seeds: bool, overlap: bool, kept: bool
) -> None:
    """Or where there is no overlap, and so nothing that is relayed beside it."""
    told = Told()
    found = stepping(made, monkeypatch, told)
    found.batch.enable_overlap = overlap
    plan = plan_of(Action.PLAIN, 2, seeds=seeds)
    found.worker._plain("fsm", found.batch, plan, None, None)
    assert told[-1][-1] == {"with_seed": kept}
    made_ahead = ("seed", "fsm", found.batch, "longer", plan, "relay")
    assert (told[3] == made_ahead) is seeds
    assert (found.runner.shared_read_done_event is None) is seeds


def test_a_flush_beside_a_plain_step(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the contexts of a rebuild; it reads after the target did, so its event counts."""
    told = Told()
    found = stepping(made, monkeypatch, told)
    plan = plan_of(Action.PLAIN, 5, 2)
    found.worker._plain("fsm", found.batch, plan, None, None)
    names = [each[0] for each in told[3:]]
    assert names == [
        "enter tp", "enter moe", "enter a2a", "flush", "leave a2a", "leave moe", "leave tp",
        "complete",
    ]  # fmt: skip
    assert told[6] == ("flush", "fsm", found.batch, "longer", plan)
    assert found.runner.shared_read_done_event == "the flush's event"


# -- flushes, seeds, and how they fail -----------------------------------------------------------


def test_the_contexts_of_a_rebuild(made: Any) -> None:
    """Those of a draft forward; the laws of a rebuild hold inside and not after it."""
    told = Told()
    worker = made(told)
    with worker._rebuilding():
        assert worker.guard.reseeding is True
    assert told == [
        ("enter tp", "layout", False), ("enter moe", False), ("enter a2a", False),
        ("leave a2a", False), ("leave moe", False), ("leave tp", False),
    ]  # fmt: skip
    with pytest.raises(ZeroDivisionError), worker._rebuilding():
        raise ZeroDivisionError
    assert worker.guard.reseeding is False


@pytest.mark.parametrize(("upper", "lower", "tokens"), [(6, 2, 12), (3, 2, 3), (1, 0, 3)])
@pytest.mark.parametrize("checked", [True, False])
def test_a_flush_is_a_launch_that_the_checks_see(
    made: Any, upper: int, lower: int, tokens: int, checked: bool
) -> None:
    """As many tokens and slots as rows and ages make; before anything is written."""
    told, batch, plan = Told(), batch_of(ForwardMode.DECODE), plan_of(Action.PLAIN, upper, lower)
    fsm = controller(told)
    fsm.checks = object() if checked else None
    made(told)._flush(fsm, batch, "committed", plan)
    given = (Phase.FLUSH, 3, tokens, tokens, SpecInfo.NONE, Hidden.NULL)
    seen = [("check_launch", *given, {"width": tokens})] if checked else []
    assert told == [*seen, ("flush", batch, "committed", upper, lower)]


def test_no_ages_are_no_flush(made: Any) -> None:
    """Nothing is missing, or nothing that is to be written now."""
    told = Told()
    fsm = controller(told)
    fsm.checks = object()
    for age in (0, 2):
        made(told)._flush(fsm, batch_of(ForwardMode.DECODE), "c", plan_of(Action.PLAIN, age, age))
    assert told == []


def flushing(made: Any, told: Told, error: Exception | None) -> Any:
    """A worker whose first flush meets this."""
    rebuilds = SimpleNamespace(flush=told.of("flush", error), by_seed=True)
    return made(told, rebuild=rebuilds)


def test_a_flush_that_fails_is_made_again_by_position(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """From the oldest to the newest of the same positions; one that goes well is made once."""
    told, fsm, plan = Told(), controller(Told()), plan_of(Action.PLAIN, 5, 2)
    batch = batch_of(ForwardMode.DECODE)
    caplog.set_level(logging.ERROR, module.logger.name)
    flushing(made, told, None)._flush_or_retry(fsm, batch, "c", plan)
    assert told == [("flush", batch, "c", 5, 2)]
    assert caplog.records == []
    told.clear()
    flushing(made, told, torch.OutOfMemoryError())._flush_or_retry(fsm, batch, "c", plan)
    assert told == [
        ("flush", batch, "c", upper, lower) for upper, lower in ((5, 2), (5, 4), (4, 3), (3, 2))
    ]  # fmt: skip
    assert len(caplog.records) == 1


def test_a_flush_is_not_made_again_for_what_would_fail_again(made: Any) -> None:
    """A violated law is raised as it is, a mistake in code as one."""
    told, fsm, plan = Told(), controller(Told()), plan_of(Action.PLAIN, 5, 2)
    batch = batch_of(ForwardMode.DECODE)
    broken = ShapeViolation("no launch", invariant="I2")
    with pytest.raises(ShapeViolation) as raised:
        flushing(made, told, broken)._flush_or_retry(fsm, batch, "c", plan)
    assert raised.value is broken
    with pytest.raises(ProgrammingError, match="a flush met an error in code, TypeError: no"):
        flushing(made, told, TypeError("no"))._flush_or_retry(fsm, batch, "c", plan)
    assert len(told) == 2


@pytest.mark.parametrize(
    ("by_seed", "missing", "flushed"),
    [(True, TOKENS, False), (True, TOKENS + 1, True), (False, 2, True), (True, 0, False)],
)
def test_a_gap_that_fits_a_seeds_window_is_written_by_it(
    made: Any, by_seed: bool, missing: int, flushed: bool
) -> None:
    """A longer one, and any where a seed cannot, is flushed before: then the seed misses none."""
    told, plan = Told(), plan_of(Action.RESEED, missing)
    worker = made(told, _flush=told.of("flush"))
    worker.rebuild.by_seed = by_seed
    worker._seed("fsm", "batch", "c", plan, "relay")
    left = 0 if flushed else missing
    seed = ("seed", worker.draft_worker, worker.stash, "lengths", "batch", "c", left, "relay")
    assert told == ([("flush", "fsm", "batch", "c", plan)] if flushed else []) + [seed]


def test_seeds_that_were_made_ahead(made: Any) -> None:
    """With the launch they are of; the draft read last then, whether they went well or not."""
    told, plan = Told(), plan_of(Action.PLAIN, 3, seeds=True)
    fsm = controller(told)
    worker = made(
        told, _read_last_by_target=True, _seed=told.of("made"), _flush_or_retry=told.of("flush")
    )
    worker._seed_ahead(fsm, "batch", "c", plan, "relay")
    assert [each for each in told if each[0] in ("made", "flush")] == [
        ("made", fsm, "batch", "c", plan, "relay")
    ]
    assert (worker._ahead, worker._read_last_by_target) == ((7, None), False)


def test_seeds_that_could_not_be_made_ahead(made: Any) -> None:
    """What was missing is written all the same, as a rebuild; the failure is kept."""
    told, plan, error = Told(), plan_of(Action.PLAIN, 3, seeds=True), RuntimeError("no memory")
    fsm = controller(told)
    worker = made(
        told, _read_last_by_target=True, _seed=told.of("made", error),
        _flush_or_retry=lambda *given: told.append(("flush", *given, worker.guard.reseeding)),
    )  # fmt: skip
    worker._seed_ahead(fsm, "batch", "c", plan, "relay")
    assert ("flush", fsm, "batch", "c", plan, True) in told
    assert told.count(("enter tp", "layout", False)) == 2
    assert (worker._ahead, worker._read_last_by_target) == ((7, error), False)


def tried(made: Any, told: Told, error: Exception | None) -> Any:
    """What a rebuild that meets this is said to have failed with."""
    return made(told)._tried(told.of("rebuild", error))


def test_a_rebuild_that_is_tried(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It went well where it did on all ranks, each of which is asked; what failed is logged."""
    told, error = Told(), RuntimeError("no memory")
    caplog.set_level(logging.ERROR, module.logger.name)
    assert tried(made, told, None) is None
    assert [each for each in told if each[0] in ("rebuild", "ranks")] == [
        ("rebuild",), ("ranks", True)
    ]  # fmt: skip
    assert caplog.records == []
    assert tried(made, told, error) is error
    assert told[-1] == ("ranks", False)
    assert len(caplog.records) == 1


def test_a_rebuild_that_failed_on_another_rank(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed here, too."""
    worker = made(Told())
    monkeypatch.setattr(module, "on_all_ranks", lambda well: False)
    failure = worker._tried(lambda: None)
    assert (type(failure), str(failure)) == (RuntimeError, "on another rank")


def test_a_rebuild_that_cannot_go_well_is_not_tried_again(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A violated law is raised at once, a mistake in code when all ranks know."""
    told, broken = Told(), ShapeViolation("no launch", invariant="I2")
    caplog.set_level(logging.ERROR, module.logger.name)
    with pytest.raises(ShapeViolation) as raised:
        tried(made, told, broken)
    assert raised.value is broken
    assert "ranks" not in [each[0] for each in told]
    with pytest.raises(ProgrammingError, match="a rebuild met an error in code, KeyError: 'no'"):
        tried(made, told, KeyError("no"))
    assert told[-1] == ("ranks", False)
    assert caplog.records == []


def reseeding(made: Any, told: Told, error: Exception | None = None, **fields: Any) -> Any:
    """A worker, its controller and a batch of rows 3 and 1 of five; its seeds meet this error."""
    stash = SimpleNamespace(
        covered=torch.arange(ROWS) * 10, seeded=torch.tensor([True, False, True, True, False])
    )

    def seed(*given: Any) -> None:
        told.append(("seed", *given))
        stash.covered[:] = 99
        stash.seeded[:] = True
        if error is not None:
            raise error

    fields = {"stash": stash, "_seed": seed, **fields}
    rows = torch.tensor([3, 1])
    batch = batch_of(ForwardMode.DECODE, req_pool_indices=rows)
    return SimpleNamespace(worker=made(told, **fields), fsm=controller(told), batch=batch)


@pytest.mark.parametrize("ahead", [(-1, None), (6, None), (6, RuntimeError("long ago"))])
def test_a_reseed_makes_what_was_not_made_ahead(made: Any, ahead: Any) -> None:
    """By the launch before this one."""
    told = Told()
    found = reseeding(made, told, _ahead=ahead)
    assert found.worker._reseed(found.fsm, found.batch, RESEED) is True
    assert ("seed", found.fsm, found.batch, "lengths", RESEED, "relay") in told
    assert told[-1] == ("reseeded", found.batch)
    assert found.worker._ahead == (-1, None)
    assert found.worker.stash.covered.tolist() == [99] * ROWS


def test_a_reseed_takes_what_was_made_ahead(made: Any) -> None:
    """Once."""
    told = Told()
    found = reseeding(made, told, _ahead=(7, None))
    assert found.worker._reseed(found.fsm, found.batch, RESEED) is True
    assert told == [("reseeded", found.batch)]
    found.worker._reseed(found.fsm, found.batch, RESEED)
    assert "seed" in [each[0] for each in told]


def test_a_reseed_that_fails_is_told_and_undone(made: Any) -> None:
    """What the stash counts of the batch's rows is as before: the ledger counts them as missing."""
    told, error = Told(), RuntimeError("no memory")
    found = reseeding(made, told, error)
    assert found.worker._reseed(found.fsm, found.batch, RESEED) is False
    assert told[-1] == ("reseed_failed", error)
    assert found.worker.stash.covered.tolist() == [99, 10, 99, 30, 99]
    assert found.worker.stash.seeded.tolist() == [True, False, True, True, True]
    found = reseeding(made, told, _ahead=(7, error))
    told.clear()
    assert found.worker._reseed(found.fsm, found.batch, RESEED) is False
    assert told == [("reseed_failed", error)]


# -- sampling -----------------------------------------------------------------------------------


class Mask:
    """A grammar's mask: the first token is out."""

    def apply(self, logits: torch.Tensor) -> None:
        """In place."""
        logits[:, 0] -= 1


@pytest.mark.parametrize(("mask", "first"), [(Mask(), [-2.0, 0.0]), (None, [0.0, 2.0])])
def test_processors_see_what_the_grammar_leaves(
    monkeypatch: pytest.MonkeyPatch, mask: Any, first: list[float]
) -> None:
    """As in a decode step; each row at all its positions."""
    told = Told()

    def processors(logits: torch.Tensor, info: Any, width: int) -> None:
        told.append((info, width))
        logits *= 2

    monkeypatch.setattr(sampler, "apply_custom_logit_processor", processors)
    logits = torch.tensor([[0.0, 3.0], [1.0, 4.0]])
    sampling._MaskAndProcessors(mask, "info", 2).apply(logits)
    assert logits.tolist() == [[first[0], 6.0], [first[1], 8.0]]
    assert told == [("info", 2)]


@pytest.mark.parametrize(("ours", "custom"), [(True, True), (True, False), (False, True),
                                              (None, True), (False, False)])  # fmt: skip
def test_a_verify_of_ours_applies_custom_processors(ours: bool | None, custom: bool) -> None:
    """Any other, and one without any, is given SGLang's mask."""
    told, verify = Told(), SimpleNamespace(draft_token_num=TOKENS)
    info = SimpleNamespace(has_custom_logit_processor=custom)
    batch = SimpleNamespace(sampling_info=info)
    if ours is not None:
        batch.spec_fsm = ours
    assert eagle_sample(told.of("verify", "r"), verify, batch, "logits", "mask", widen=1) == "r"
    ((_, *given, named),) = told
    mask = given.pop()
    assert (given, named) == ([verify, batch, "logits"], {"widen": 1})
    if ours and custom:
        assert isinstance(mask, sampling._MaskAndProcessors)
        assert (mask._mask, mask._info, mask._width) == ("mask", info, TOKENS)
    else:
        assert mask == "mask"


class Req:
    """A request with these parameters; the others act alike."""

    def __init__(self, **params: Any) -> None:
        alike = {**dict.fromkeys(DIFFERING, 0), "repetition_penalty": 1.0}
        self.sampling_params = SimpleNamespace(**{**alike, **params})
        self.to_finish: str | None = None

    def set_finish_with_abort(self, message: str) -> None:
        """It is to end with this message."""
        self.to_finish = message


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, []), ({"frequency_penalty": -0.5}, ["frequency_penalty"]),
        ({"presence_penalty": 0.1}, ["presence_penalty"]),
        ({"repetition_penalty": 0.9}, ["repetition_penalty"]),
        ({"min_p": 0.1, "min_new_tokens": 1}, ["min_new_tokens", "min_p"]),
    ],
)  # fmt: skip
def test_parameters_that_act_differently(params: dict[str, Any], names: list[str]) -> None:
    """By their values."""
    req: Any = Req(**params)
    assert differing(req) == names


def test_requests_that_differ_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The first one is logged; one that is to end anyway is not counted."""
    counted, alike = DifferingRequests(refuse=False), Req()
    reqs: Any = [Req(min_p=0.1), Req(frequency_penalty=1.0), Req(min_p=0.2)]
    caplog.set_level(logging.INFO, sampling.logger.name)
    assert (counted.seen, counted.refused) == (0, 0)
    counted.admit(alike)  # type: ignore[arg-type]
    reqs[2].to_finish = "aborted"
    for req in reqs:
        counted.admit(req)
    assert (counted.seen, counted.refused) == (2, 0)
    assert [req.to_finish for req in reqs] == [None, None, "aborted"]
    assert [record.args for record in caplog.records] == [("min_p",)]


def test_requests_that_differ_are_refused_where_configured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each is told why."""
    counted, alike = DifferingRequests(refuse=True), Req()
    reqs: Any = [Req(min_p=0.1, presence_penalty=1.0), Req(min_p=0.1)]
    caplog.set_level(logging.INFO, sampling.logger.name)
    for req in (alike, *reqs):
        counted.admit(req)
    assert (counted.seen, counted.refused) == (2, 2)
    assert alike.to_finish is None
    told = [req.to_finish.partition(": ")[0] for req in reqs]
    assert told == ["presence_penalty, min_p", "min_p"]
    assert reqs[0].to_finish.endswith("whether the server speculates (refuse_differing)")
    assert caplog.records == []


# -- weights ------------------------------------------------------------------------------------


class Model:
    """A model that loads."""

    def load_weights(self, weights: list[str], *, direct: bool = False) -> str:
        """What it was given."""
        return f"{weights} {direct}"


def updating() -> Any:
    """An updater with its runner and model."""
    runner, model = SimpleNamespace(), Model()
    return SimpleNamespace(
        get_model_runner=lambda: runner, get_model=lambda: model, runner=runner, model=model
    )


@pytest.mark.parametrize(
    ("begins", "success", "written"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_a_load_counts_as_written_once_it_began(begins: bool, success: bool, written: bool) -> None:
    """Or where it says that it went well: it may have gone another way. Its answer is kept."""
    updater, told = updating(), Told()

    def original(updater: Any, path: str, *, form: str) -> tuple[bool, str]:
        told.append((path, form))
        if begins:
            told.append(updater.get_model().load_weights(["w"], direct=True))
        return success, "message"

    assert weight_updates.load(original, updater, "path", form="auto") == (success, "message")
    assert told == [("path", "auto"), *(["['w'] True"] if begins else [])]
    assert vars(updater.runner) == ({"spec_fsm_written": True} if written else {})
    assert vars(updater.model) == {}
    assert updater.model.load_weights(["w"]) == "['w'] False"


@pytest.mark.parametrize("begins", [True, False])
def test_a_load_that_raises_counts_as_written(begins: bool) -> None:
    """Whether it began or may have gone another way."""
    updater = updating()

    def original(updater: Any) -> tuple[bool, str]:
        if begins:
            updater.get_model().load_weights([])
        raise RuntimeError("a shape does not fit")

    with pytest.raises(RuntimeError, match="a shape does not fit"):
        weight_updates.load(original, updater)
    assert updater.runner.spec_fsm_written is True
    assert vars(updater.model) == {}


def test_the_end_of_an_update_counts_before_it_is_made() -> None:
    """It may fail half way."""
    updater, told = updating(), Told()
    with pytest.raises(RuntimeError):
        weight_updates.end(told.of("end", RuntimeError()), updater, 1, a=2)
    assert told == [("end", updater, 1, {"a": 2})]
    assert updater.runner.spec_fsm_written is True


def manager_of(fsm: Any, *written: bool) -> Any:
    """A manager of runners that were written, or not."""
    runners = [SimpleNamespace(**({"spec_fsm_written": True} if each else {})) for each in written]
    worker = SimpleNamespace() if fsm is None else SimpleNamespace(spec_fsm=fsm)
    named = [(f"runner {i}", runner) for i, runner in enumerate(runners)]
    target = SimpleNamespace(weight_update_runners=lambda: named)
    return SimpleNamespace(draft_worker=worker, tp_worker=target, runners=runners)


def weights_of(told: Told, answer: Any = None) -> Any:
    """A controller that learns of new weights."""
    return SimpleNamespace(
        lifecycle=SimpleNamespace(weights_changed=told.of("changed", answer)),
        recovery=SimpleNamespace(caught=told.of("caught")),
    )


@pytest.mark.parametrize("written", [(True, False), (False, True), (False, False), ()])
def test_a_message_tells_what_was_written_of_the_target(
    monkeypatch: pytest.MonkeyPatch, written: tuple[bool, ...]
) -> None:
    """By any of its runners, which forget it; all ranks are asked."""
    told = Told()
    monkeypatch.setattr(
        weight_updates, "on_all_ranks", lambda nothing: told.of("ranks", nothing)(nothing)
    )
    manager = manager_of(weights_of(told), *written)
    assert weight_updates.message(told.of("original", "answer"), manager, "request") == "answer"
    changed = [("changed",)] if any(written) else []
    assert told == [("original", manager, "request"), ("ranks", not any(written)), *changed]
    assert [vars(runner) for runner in manager.runners] == [{} for _ in written]


def test_a_message_to_another_worker_is_sglangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank is asked. One of ours that cannot be noted is answered all the same."""
    told, error = Told(), RuntimeError()
    monkeypatch.setattr(weight_updates, "on_all_ranks", told.of("ranks", False))
    theirs = manager_of(None, True)
    assert weight_updates.message(told.of("original", "answer"), theirs, "request") == "answer"
    assert told == [("original", theirs, "request")]
    ours = manager_of(weights_of(told, error), True)
    assert weight_updates.message(told.of("original", "answer"), ours, "request") == "answer"
    assert told[2:] == [("ranks", False), ("changed",), ("caught", error)]


def test_the_targets_graphs_bring_plains_with_them() -> None:
    """A runner of no worker of ours has none; what SGLang's function gave is given back."""
    told = Told()
    recaptured: Any = weight_updates.recaptured
    assert recaptured("given", SimpleNamespace(spec_fsm_recaptured=told.of("again")), 1) == "given"
    assert recaptured("given", SimpleNamespace(), a=2) == "given"
    assert told == [("again",)]
