"""What the controller turns into facts: requests that leave, pins, the load, what status shows."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_fsm import (
    Action,
    Lifecycle,
    Mode,
    Phase,
    Pin,
    Policy,
    PolicyConfig,
    Shape,
    ShapeViolation,
    StashConfig,
)
from spec_fsm_sglang import controller as module
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.controller import Controller
from spec_fsm_sglang.guard import LaunchGuard

WIDTH, STEPS, TOKENS, PAGE, TOPK = 40, 3, 4, 2, 1


class Joined(list[Any]):
    """A stash that remembers what joined."""

    nbytes = 96

    def joined(self, rows: Any, lengths: Any) -> None:
        """Rows that are complete up to these lengths."""
        self.append((rows, lengths))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a controller of these settings, on a rank and replica of these numbers."""
    monkeypatch.delenv("SPEC_FSM_STRICT", raising=False)

    def make(
        *, tp_rank: int = 0, dp_rank: int | None = None, serial: bool = False, **settings: Any
    ) -> Controller:
        ranks = SimpleNamespace(tp_rank=tp_rank, dp_rank=dp_rank)
        schedule = SimpleNamespace(disable_overlap_schedule=serial)
        monkeypatch.setattr(module, "get_parallel", lambda: ranks)
        monkeypatch.setattr(module, "get_schedule", lambda: schedule)
        worker = SimpleNamespace(
            topk=TOPK, speculative_num_steps=STEPS, speculative_num_draft_tokens=TOKENS,
            page_size=PAGE, stash=Joined(), device="cpu",
        )
        config = Config.of({"disable_above": 6, **settings})
        sizes = StashConfig(width=WIDTH, flush_every=5)
        return Controller(worker, config, sizes)  # type: ignore[arg-type]

    return make


def decode_batch(rows: int) -> Any:
    """A decode batch of rows without anything special about them."""
    reqs = [SimpleNamespace(finished=lambda: False) for _ in range(rows)]
    return SimpleNamespace(
        reqs=reqs, forward_mode=ForwardMode.DECODE, req_pool_indices="rows", seq_lens="lengths",
        spec_info=relay(rows),
    )


def relay(rows: int) -> EagleDraftInput:
    """What a decode batch carries from the step before."""
    return EagleDraftInput(bonus_tokens=torch.zeros(rows, dtype=torch.int64))


class Running:
    """A request of the running batch."""

    to_finish = None


class Req:
    """A request that holds KV."""

    chunked = False

    def __init__(self, rid: str, start: int, end: int) -> None:
        self.rid, self.prefix_len, self.extend_end = rid, start, end
        self.kv = SimpleNamespace(kv_committed_len=end)
        self.finished_reason: Any = None

    def finished(self) -> bool:
        """Whether its output has ended."""
        return self.finished_reason is not None


def test_the_lifecycle_is_made_of_the_worker_and_the_settings(made: Any) -> None:
    """Shape from the worker, thresholds and pin from the settings, slices no wider than the ring;
    seeds are asked for ahead only where a result waits for the launch after it."""
    found = made(enable_at=2, dwell=3, pin="plain", slice_tokens=30)
    lifecycle = found.lifecycle
    shape = Shape(topk=TOPK, num_steps=STEPS, num_draft_tokens=TOKENS, page_size=PAGE)
    assert (lifecycle.shape, found.disable_above, found.enable_at) == (shape, 6, 2)
    assert lifecycle.policy.config == PolicyConfig(
        disable_above=6, enable_at=2, dwell=3, pin=Pin.PLAIN
    )
    assert lifecycle.stash == StashConfig(
        width=WIDTH, flush_every=5, slice_width=15, seed_ahead=TOKENS
    )
    assert (found.pins.current, lifecycle.pin, found.tracing, found.checks) == (
        Pin.PLAIN, Pin.PLAIN, False, None,
    )  # fmt: skip
    assert made(serial=True).lifecycle.stash.seed_ahead == 0
    assert made(slice_tokens=1000, enable_at=1).lifecycle.stash.slice_width == WIDTH
    assert made(enable_at=None).enable_at == PolicyConfig(disable_above=6).enable_threshold


def test_checks_are_made_where_they_are_asked_for(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the setting or by the variable of the tests."""
    assert made(checks=True).checks is not None
    monkeypatch.setenv("SPEC_FSM_STRICT", "1")
    assert made().checks is not None
    monkeypatch.setenv("SPEC_FSM_STRICT", "0")
    assert made().checks is None


def test_one_rank_tells(made: Any, tmp_path: Path) -> None:
    """The first tensor-parallel rank logs changes and writes the trace; a replica has its own."""
    trace = str(tmp_path / "trace.ndjson")
    first, second = made(trace=trace), made(trace=trace, tp_rank=1)
    assert (first.tracing, second.tracing) == (True, False)
    assert (first._mode_log is None, second._mode_log is None) == (False, True)
    third = made(trace=trace, dp_rank=2)
    assert third.trace.status()["path"] == str(tmp_path / "trace.dp2.ndjson")
    for one in (first, third):
        one.lifecycle.close()


def test_a_boundary_looks_and_tells_only_where_something_waits(made: Any) -> None:
    """With checks they look at the scheduler; a log with nothing to say is left alone, and so is
    a rank without one."""
    found, told = made(), []
    for waiting, mode_log in ((True, True), (False, True), (True, False)):
        log = SimpleNamespace(waiting=waiting, tell=lambda: told.append("told"))
        found._mode_log = log if mode_log else None
        found.before_choice("scheduler")
    assert told == ["told"]
    found.checks = SimpleNamespace(at_boundary=told.append)
    found.before_choice("scheduler")
    assert told == ["told", "scheduler"]


def test_the_load_of_a_batch_decides(made: Any) -> None:
    """A decode batch's plan is kept for its launch; a prefill's load has the rows beside it; no
    batch, no look at all."""
    found, held = made(enable_at=1, dwell=0), []
    found._mode_log = SimpleNamespace(
        held=lambda *what: held.append(what), changed=lambda _change: None
    )
    found.boundary("scheduler", SimpleNamespace(batch_to_run=None))
    assert (found._next, found.settle_first) == (None, False)
    batch = decode_batch(3)
    for _ in range(3):
        found._rows.of(Req("r", 0, 4))
    for i in range(3):
        found.lifecycle.joined(f"r#{i}", 4, 0)
    found.boundary("scheduler", SimpleNamespace(batch_to_run=batch))
    assert found._next.action is Action.SPECULATE
    assert found._load.rows == 3
    prefill = SimpleNamespace(
        reqs=[], forward_mode=ForwardMode.EXTEND, chunked_req=None
    )
    running = SimpleNamespace(reqs=[Running() for _ in range(7)])
    scheduler = SimpleNamespace(_reqs_finishing_inflight=lambda _running: [])
    plan = SimpleNamespace(batch_to_run=prefill, running_batch=running)
    found.lifecycle.held = ""
    found.boundary(scheduler, plan)
    assert (found._load.rows, found.lifecycle.mode, found.settle_first) == (7, Mode.DRAINING, True)
    assert held == []
    found.lifecycle.held, found.lifecycle.boundary = "GUARD", lambda load: load == 8
    running.reqs.append(Running())
    found.boundary(scheduler, plan)
    assert held == [("GUARD", Mode.DRAINING, 0)]
    assert found.settle_first
    found._mode_log = None
    found.boundary(scheduler, plan)


@pytest.mark.parametrize(
    ("due", "batch", "in_flight", "must"),
    [
        (True, decode_batch(1), ["result"], True),
        (False, decode_batch(1), ["result"], False),
        (True, None, ["result"], False),
        (True, SimpleNamespace(forward_mode=ForwardMode.EXTEND), ["result"], False),
        (True, decode_batch(1), [], False),
    ],
)
def test_a_drain_settles_before_a_decode_launch(
    made: Any, due: bool, batch: Any, in_flight: list[Any], must: bool
) -> None:
    """Where a result is in flight, and the next launch is a decode."""
    found = made()
    found.settle_first = due
    scheduler = SimpleNamespace(result_queue=in_flight)
    assert found.must_settle_first(scheduler, batch) is must
    assert found.settled_first is must


def test_rows_that_ended_while_a_drain_settled_are_dropped(made: Any) -> None:
    """Once, and not where nothing would be left; without a drain they ride along."""
    found, filtered = made(), []
    ended, runs = (SimpleNamespace(finished=lambda now=now: now) for now in (True, False))

    def batch(*reqs: Any) -> Any:
        return SimpleNamespace(reqs=reqs, filter_batch=lambda: filtered.append(len(reqs)))

    found.before_run(batch(ended, runs))
    assert filtered == []
    for reqs in ((ended, ended), (ended, runs), (ended, runs)):
        found.settled_first = len(filtered) == 0
        found.before_run(batch(*reqs))
        assert not found.settled_first
    assert filtered == [2]


def test_a_plan_that_was_made_is_taken_once(made: Any) -> None:
    """One that only settles, or none, is made anew for the load of the boundary."""
    found, asked = made(), []
    fresh = SimpleNamespace(settle_first=False)

    def decide(load: int, batch: Any) -> Any:
        asked.append((load, batch))
        return fresh

    found._decide, found._load.rows = decide, 9
    batch, kept = decode_batch(2), SimpleNamespace(settle_first=False)
    found._next = kept
    assert found.plan_decode(batch) is kept
    assert asked == []
    assert found.plan_decode(batch) is fresh
    found._next = SimpleNamespace(settle_first=True)
    assert found.plan_decode(batch) is fresh
    assert asked == [(9, batch), (9, batch)]
    assert found.worker.stash == []


def test_the_first_plan_after_a_drain_tells_the_stash(made: Any) -> None:
    """Once: every row is complete up to its length. The checks see every plan."""
    found, seen = made(), []
    found.checks = SimpleNamespace(before_decode=lambda batch, plan: seen.append((batch, plan)))
    batch, plan = decode_batch(2), SimpleNamespace(settle_first=False)
    for drained in (True, False):
        found._next, found._drained = plan, found._drained or drained
        found.plan_decode(batch)
        assert not found._drained
    assert found.worker.stash == [("rows", "lengths")]
    assert seen == [(batch, plan), (batch, plan)]


@pytest.mark.parametrize(
    ("carried", "invariant", "observed", "counts"),
    [
        (None, "I1b", "NoneType", (1, 0)),
        (relay(3), "I7", 3, (1, 1)),
        (relay(2), "", None, (1, 1)),
    ],
)
def test_a_decode_batch_carries_the_relay(
    made: Any, carried: Any, invariant: str, observed: Any, counts: tuple[int, int]
) -> None:
    """Of SGLang's class, with a token for each row; each look is counted."""
    found, batch = made(), decode_batch(2)
    batch.spec_info = carried
    try:
        found._check_relay(batch)
        told = None
    except ShapeViolation as error:
        told = error
    assert ("" if told is None else told.invariant) == invariant
    if told is not None:
        assert told.observed == observed
    checks = found.lifecycle.checks.as_dict()
    assert (checks["I1b"], checks["I7"]) == counts


def test_a_result_remembers_its_kind_and_with_a_trace_its_rows(made: Any) -> None:
    """A reseed counts as launched here, every other plan did when it was decided."""
    found, told = made(), []
    found.lifecycle.launched = lambda *what: told.append(what)
    batch = decode_batch(2)
    plain, reseed = (SimpleNamespace(action=a) for a in (Action.PLAIN, Action.RESEED))
    result = SimpleNamespace()
    found.launched(batch, plain, result)
    assert (vars(result), told) == ({"spec_fsm_action": Action.PLAIN}, [])
    found.tracing = True
    for req, name in zip(batch.reqs, "ab", strict=True):
        req.spec_fsm_row = name
    found.launched(batch, reseed, result)
    assert vars(result) == {"spec_fsm_action": Action.RESEED, "spec_fsm_rows": ["a", "b"]}
    assert told == [(Action.RESEED, 2, reseed)]


def test_a_result_of_the_usual_kind_is_only_counted(made: Any) -> None:
    """One of another kind is told, with a trace also its rows and what they commit; one without
    a kind is nobody's."""
    found, told = made(), []
    found.lifecycle.settled = lambda *what, **more: told.append((what, more))
    batch, steady = decode_batch(2), found.lifecycle.steady
    steady.action = Action.SPECULATE
    for req in batch.reqs:
        req.is_retracted, req.grammar = False, None
    found.settled(batch, SimpleNamespace())
    before = steady.processed
    found.settled(batch, SimpleNamespace(spec_fsm_action=steady.action))
    assert (steady.processed, told) == (before + 1, [])
    other = Action.PLAIN if steady.action is not Action.PLAIN else Action.SPECULATE
    result = SimpleNamespace(
        spec_fsm_action=other, spec_fsm_rows=["a", "b"], accept_lens=torch.tensor([3, 1])
    )
    found.settled(batch, result)
    found.tracing = True
    found.settled(batch, result)
    assert told == [((other, 2), {}), ((other, 2, [3, 1]), {"rids": ["a", "b"]})]
    assert steady.processed == before + 1


def test_a_prefilled_row_joins_and_a_chunk_does_not(made: Any) -> None:
    """With where its prefill began and ended."""
    found, told = made(), []
    found.lifecycle.joined = lambda *what: told.append(("joined", *what))
    found.lifecycle.chunked = lambda *what: told.append(("chunked", *what))
    whole, chunk = Req("a", 0, 7), Req("b", 8, 16)
    found.prefilled(SimpleNamespace(reqs=[whole, chunk], chunked_req=chunk))
    assert told == [("joined", "a#0", 7, 0), ("chunked", "b#1", 16, 8)]


def left_behind(found: Controller, gap: int) -> list[Any]:
    """Has every row that leaves be `gap` positions behind; what is told of them."""
    told: list[Any] = []

    def left(row: str, event: Any, committed: int) -> int:
        told.append((row, event.name, committed))
        return gap

    found.lifecycle = SimpleNamespace(  # type: ignore[assignment]
        left=left, ledger=SimpleNamespace(settled_gap=lambda row: gap)
    )
    return told


@pytest.mark.parametrize(
    ("gap", "up_to", "beyond", "may"),
    [(0, 30, 1, 30), (3, 30, 1, 18), (3, 30, 0, 17), (3, 9, 1, 9)],
)
def test_what_may_key_an_insert_ends_where_the_draft_is_behind(
    made: Any, gap: int, up_to: int, beyond: int, may: int
) -> None:
    """I15: for a request that runs on and for one that ends."""
    found, req = made(), Req("a", 0, 20)
    told = left_behind(found, gap)
    found._rows.of(req)  # type: ignore[arg-type]
    assert found.insertable(req, up_to, beyond) == may
    assert told == []
    req.finished_reason = SimpleNamespace()
    assert found.insertable(req, up_to, beyond) == may
    assert told == [("a#0", "FINISHED", 20)]
    found.left(req)
    assert len(told) == 1


def test_a_request_leaves_once_and_for_the_reason_it_has(made: Any) -> None:
    """Ended, aborted or retracted; with or without an insert before; one without a row is
    none."""

    class FINISH_ABORT:
        """An abort."""

    found = made()
    told = left_behind(found, 0)
    ended, aborted, retracted, unknown = (Req(name, 0, 5) for name in "abcd")
    for req in (ended, aborted, retracted):
        found._rows.of(req)  # type: ignore[arg-type]
    ended.finished_reason, aborted.finished_reason = SimpleNamespace(), FINISH_ABORT()
    assert found.insertable(aborted, 5, 1) == 5
    for req in (ended, aborted, retracted, unknown):
        found.left(req)
    assert told == [("b#1", "ABORTED", 5), ("a#0", "FINISHED", 5), ("c#2", "RETRACTED", 5)]


def test_lost_rows_are_prefilled_again_where_they_hold_speculation(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """By SGLang's retraction, each with the number of requests that stay; others are left."""
    caplog.set_level(logging.INFO, module.logger.name)
    found, told = made(lost_rows="rerun"), []
    reqs = [Req(name, 0, 5) for name in "abcd"]
    for req in reqs:
        found._rows.of(req)
    reqs[2].finished_reason = "an end"
    batch = SimpleNamespace(
        reqs=reqs,
        release_req=lambda i, left: told.append(("released", i, left)),
        filter_batch=lambda keep_indices: told.append(("kept", keep_indices)),
    )
    scheduler = SimpleNamespace(
        _add_request_to_queue=lambda req, is_retracted: told.append((req.rid, is_retracted))
    )

    class Lost:
        """A lifecycle in which two rows are lost, of which one has ended."""

        held, lost = "NOTHING_LOST", 2
        ledger = SimpleNamespace(lost_rids={"a#0", "c#2", "d#3"})

    found.lifecycle = Lost()
    found.before_update(scheduler, batch)
    assert told == [
        ("released", 0, 3), ("released", 3, 2), ("kept", [1, 2]), ("a", True), ("d", True),
    ]  # fmt: skip
    assert found.reruns == 2
    assert "2 requests beyond their stash" in caplog.text
    for name, value in (("held", ""), ("lost", 0)):
        told.clear()
        found.lifecycle = Lost()
        setattr(found.lifecycle, name, value)
        found.before_update(scheduler, batch)
        assert told == []


def test_a_pin_by_its_number(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A number that means nothing changes nothing, and says so."""
    found, told = made(), []
    found.pin_changed = lambda: told.append(found.pins.current)
    assert found.pin(2)
    assert not found.pin(7)
    assert "spec_fsm_pin is 7" in caplog.text
    found.pins.obey = lambda order: False
    assert found.pin(1)
    assert told == [Pin.PLAIN]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("pin", [Pin.AUTO, Pin.PLAIN])
def test_only_an_ordered_auto_releases_a_recovery(
    made: Any, caplog: pytest.LogCaptureFixture, ordered: bool, pin: Pin
) -> None:
    """A pin that ran out releases nothing; the log line says until when the pin holds."""
    caplog.set_level(logging.INFO, module.logger.name)
    found, told = made(), []
    found.recovery.pinned = lambda pin, *, released: told.append((pin, released))
    for left, line in ((None, f"pinned {pin.name}"), (2.6, f"pinned {pin.name} for 3 s")):
        found.pins = SimpleNamespace(current=pin, ordered=ordered, left=left)
        found.pin_changed()
        assert caplog.messages[-1] == f"spec-fsm: {line}"
    assert told == [(pin, ordered and pin is Pin.AUTO)] * 2


def test_status_counts_edges_by_their_ends(made: Any) -> None:
    """Whatever event took them; the replica is 0 where there is one only, and no stash no
    bytes."""
    found = made(dp_rank=None)
    found.lifecycle.transitions = {
        ("DRAINING", "DRAINED", "PLAIN"): 3, ("DRAINING", "LOAD_ROSE", "PLAIN"): 2,
        ("RESEEDING", "RESEEDED", "SPEC"): 4,
    }  # fmt: skip
    told = found.status()
    assert told["transitions"] == {"DRAINING->PLAIN": 5, "RESEEDING->SPEC": 4}
    assert (told["switch_off_count"], told["switch_on_count"]) == (5, 4)
    assert (told["replica"], told["stash_bytes"], told["disable_above"]) == (0, 96, 6)
    assert (told["mode"], told["in_flight_at_drain"], told["reruns"]) == ("SPEC", 0, 0)
    second = made(dp_rank=3)
    second.worker.stash = None
    told = second.status()
    assert (told["replica"], told["stash_bytes"]) == (3, 0)
    assert (told["switch_off_count"], told["switch_on_count"]) == (0, 0)


def test_the_load_is_described_with_its_thresholds(made: Any) -> None:
    """And with the pin, where there is one."""
    found = made(enable_at=2)
    found._load.rows = 5
    assert found._describe_load() == "load 5 (off above 6, on at 2)"
    found.lifecycle.pin = Pin.SPEC
    assert found._describe_load() == "load 5 (off above 6, on at 2), pinned SPEC"


def test_a_restart_forgets_what_was_planned(made: Any) -> None:
    """And starts the lifecycle afresh."""
    found, told = made(), []
    found._next, found._drained, found.settle_first = "plan", True, True
    found._leaving, found._load.rows, found.settled_first = "req", 4, True
    found.lifecycle.restart = lambda: told.append("restarted")
    found.restart()
    assert (found._next, found._drained, found.settle_first) == (None, False, False)
    assert (found._leaving, found._load.rows, found.settled_first) == (None, 0, False)
    assert told == ["restarted"]


def test_an_error_of_a_rebuild_is_told_by_its_class(made: Any) -> None:
    """And a reseed with checks is looked at first."""
    found, told = made(), []
    found.lifecycle.reseed_failed = told.append
    found.reseed_failed(ValueError("no room"))
    found.lifecycle.reseeded = lambda: told.append("reseeded")
    found.checks = SimpleNamespace(after_reseed=told.append)
    found.reseeded("batch")
    found.checks = None
    found.reseeded("batch")
    assert told == ["ValueError: no room", "batch", "reseeded", "reseeded"]


# The guard of launches


def guard() -> Any:
    """A guard of a chain in PLAIN, whose slow path is watched."""
    shape = Shape(topk=TOPK, num_steps=STEPS, num_draft_tokens=TOKENS)
    lifecycle = Lifecycle(shape, Policy(PolicyConfig(disable_above=5)), StashConfig())
    lifecycle.laws = lifecycle._laws[Mode.PLAIN]
    found: Any = LaunchGuard(lifecycle, STEPS, TOKENS)
    found.slow = []
    lifecycle.check_launch = lambda *what: found.slow.append(what)  # type: ignore[method-assign]
    return found


def forward(tokens: int, mode: CaptureHiddenMode, rows: int = 2) -> Any:
    """The fields of a `ForwardBatch` that a law is about."""
    return SimpleNamespace(
        batch_size=rows, input_ids=torch.zeros(tokens, dtype=torch.int64), spec_info=None,
        capture_hidden_mode=mode,
    )


@pytest.mark.parametrize(
    ("rows", "tokens", "hidden", "slots", "quick"),
    [
        (2, 2, CaptureHiddenMode.FULL, 2, True),
        (2, 3, CaptureHiddenMode.FULL, 2, False),
        (2, 2, CaptureHiddenMode.NULL, 2, False),
        (2, 2, CaptureHiddenMode.FULL, 3, False),
    ],
)
def test_a_launch_as_the_law_has_it_is_only_counted(
    rows: int, tokens: int, hidden: CaptureHiddenMode, slots: int, quick: bool
) -> None:
    """Any other is looked at as a whole, with what was seen of it."""
    found = guard()
    law = found.lifecycle.laws[Phase.PLAIN_DECODE]
    assert law is not None
    before = found.lifecycle.checks.launches
    found._check(Phase.PLAIN_DECODE, forward(tokens, hidden, rows), slots)
    assert found.lifecycle.checks.launches == before + quick
    assert len(found.slow) == (not quick)
    if not quick:
        assert found.slow[0][:4] == (Phase.PLAIN_DECODE, rows, tokens, slots)


def test_a_phase_without_a_law_now_is_looked_at_as_a_whole() -> None:
    """With the width of a draft extend while the worker rebuilds, and of a prefill its tokens."""
    found = guard()
    found.lifecycle.laws = dict.fromkeys(Phase)
    batch = forward(8, CaptureHiddenMode.FULL)
    for phase in (Phase.SEED_EXTEND, Phase.PREFILL, Phase.VERIFY):
        found._check(phase, batch, 8)
    assert [(told[0], told[-1]) for told in found.slow] == [
        (Phase.SEED_EXTEND, TOKENS), (Phase.PREFILL, 8), (Phase.VERIFY, None),
    ]  # fmt: skip
