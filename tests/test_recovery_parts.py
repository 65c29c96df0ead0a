"""What a recovery decides by itself: what it logs, how long it pins, whom it fails, who agrees."""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spec_fsm import Pin, ShapeViolation
from spec_fsm_sglang import flight_record, recovery
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.recovery import FIRST_HOLD, FOR_GOOD, VOID, Recovery, agree, cut

LIMIT = 4


def violation() -> ShapeViolation:
    """What a launch was refused with."""
    return ShapeViolation("no launch", invariant="I2")


class Controller:
    """What a recovery asks of the controller; remembers what it was told."""

    def __init__(self) -> None:
        self.violated: list[Exception] = []
        self.restarts = 0
        self.settling_plain = False
        self.lifecycle = SimpleNamespace(pin=Pin.AUTO, violated=self.violated.append)
        self.pins = SimpleNamespace(current=Pin.AUTO)
        self.worker = SimpleNamespace(
            target_worker=SimpleNamespace(model_runner=SimpleNamespace(shared_read_done_event=1)),
            draft_worker=SimpleNamespace(draft_runner=SimpleNamespace(shared_read_done_event=1)),
        )

    def restart(self) -> None:
        """The lifecycle starts afresh."""
        self.restarts += 1


class Records(list[tuple[str, Exception]]):
    """In place of files."""

    path = None

    def write(self, reason: str, error: Exception) -> None:
        """One record."""
        self.append((reason, error))


def made(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Recovery, Controller]:
    """A recovery that recovers, with `LIMIT` violations."""
    monkeypatch.delenv("SPEC_FSM_STRICT", raising=False)
    controller = Controller()
    config = Config.of({"disable_above": 4, "max_violations": LIMIT, **settings})
    return Recovery(controller, config), controller  # type: ignore[arg-type]


def scheduler(*reqs: Any, waiting: tuple[Any, ...] = ()) -> Any:
    """A scheduler that runs these requests."""
    told: list[Any] = []
    return SimpleNamespace(
        told=told,
        forward_ct=7,
        result_queue=deque(),
        process_pending_chunked_abort=lambda: told.append("chunked"),
        running_batch=SimpleNamespace(reqs=list(reqs), batch_is_full=True),
        last_batch=None,
        chunked_req=None,
        cur_batch_for_debug=1,
        waiting_queue=list(waiting),
        tree_cache="cache",
        _add_request_to_queue=lambda req, **how: told.append(("queue", req, how)),
        _release_aborted_request=lambda req: told.append(("released", req)),
        send_abort_output=lambda abort, req: told.append(("abort", abort, req)),
    )


class Req:
    """A request without KV."""

    def __init__(self, retracted: int = 0, *, done: bool = False) -> None:
        self.kv = SimpleNamespace(holds_kv=False)
        self.spec_fsm_retracted = retracted
        self.return_logprob = False
        self.finished_reason: Any = None
        self.to_finish: Any = "an end"
        self.rid, self.http_worker_ipc = "r", None
        self.grammar: Any = None
        self.is_retracted = False
        self.weight_version_events: list[Any] = []
        self.output_ids: list[int] = []
        self.extend_end: int | None = None
        self._done = done

    def finished(self) -> bool:
        """Whether its output has ended."""
        return self._done


def test_a_new_recovery_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is due, pinned, counted or loose."""
    found, _ = made(monkeypatch)
    assert (found.due, found.loose, found.violations) == (None, [], 0)
    assert found.status() == {
        "recoveries": 0, "pinned_by_violation": False, "pinned_for": 0, "failed_by_violation": 0,
        "flight_record": None,
    }  # fmt: skip


def test_the_folder_of_flight_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The setting; else the variable; else where temporary files go. The controller is asked for
    what a record holds."""
    monkeypatch.setenv(flight_record.FOLDER_VAR, "/of/the/variable")
    found, controller = made(monkeypatch, flight_dir=str(tmp_path))
    assert found.records._folder == str(tmp_path)
    assert found.records._controller is controller  # type: ignore[comparison-overlap]
    assert made(monkeypatch)[0].records._folder == "/of/the/variable"
    monkeypatch.delenv(flight_record.FOLDER_VAR)
    assert made(monkeypatch)[0].records._folder == tempfile.gettempdir()


def test_a_violation_is_due_once_and_anything_else_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one stays; each is told to the lifecycle. SGLang's errors, and all of them where
    the option says so, are raised."""
    found, controller = made(monkeypatch)
    first, second = violation(), violation()
    found.caught(first)
    found.caught(second)
    assert found.due is first
    assert controller.violated == [first, second]
    with pytest.raises(RuntimeError):
        found.caught(RuntimeError("of SGLang"))
    strict, _ = made(monkeypatch, on_violation="raise")
    with pytest.raises(ShapeViolation):
        strict.caught(violation())


def test_after_a_launch_that_failed_the_scheduler_waits_for_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither model's event says when the last read was: a part of the launch may run."""
    found, controller = made(monkeypatch)
    assert found.launch_failed(violation()) is VOID
    assert controller.worker.target_worker.model_runner.shared_read_done_event is None
    assert controller.worker.draft_worker.draft_runner.shared_read_done_event is None


def test_a_result_that_cannot_be_resolved_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests are kept for the recovery; one whose grammar may be ahead will fail (I19)."""
    found, controller = made(monkeypatch)
    plain, ahead, gone = Req(), Req(), Req()
    ahead.grammar, gone.is_retracted = object(), True
    batch: Any = SimpleNamespace(reqs=[plain, ahead, gone])
    assert found.nothing_committed(batch) == [[], [], []]
    assert found.loose == [plain, ahead]
    assert (plain.spec_fsm_retracted, ahead.spec_fsm_retracted) == (0, LIMIT)
    assert controller.settling_plain


def test_a_recovery_takes_every_request_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loose and what runs, each once, but those that ended; then nothing is due or loose,
    the lifecycle starts afresh, and the scheduler goes on with what is left."""
    found, controller = made(monkeypatch)
    monkeypatch.setattr(recovery, "agree", lambda launches: told.append(("agree", launches)))
    found.records = Records()  # type: ignore[assignment]
    runs, loose, ended, waits = Req(), Req(), Req(done=True), Req()
    server = scheduler(runs, ended, loose, waits, waiting=(waits,))
    told = server.told
    server.last_batch = SimpleNamespace(
        reqs=[runs], forward_mode=SimpleNamespace(is_extend=lambda: False)
    )
    found.due = error = violation()
    found.loose = [loose]
    running = server.running_batch
    assert found.recover(server) == {"running_batch": running, "last_batch": None}
    queue = {"is_retracted": True}
    assert told == [("agree", 7), "chunked", ("queue", runs, queue), ("queue", loose, queue)]
    assert (running.reqs, running.batch_is_full, server.cur_batch_for_debug) == ([], False, None)
    assert (found.due, found.loose, found.recoveries, controller.restarts) == (None, [], 1, 1)
    assert (found.hold, controller.lifecycle.pin) == (FIRST_HOLD, Pin.PLAIN)
    assert [req.spec_fsm_retracted for req in (runs, loose, ended, waits)] == [1, 1, 0, 1]
    assert found.records == [("violation", error)]


def test_what_is_in_flight_is_processed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a prefill's rows and the request whose chunks go on are taken back."""
    found, _ = made(monkeypatch)
    monkeypatch.setattr(recovery, "agree", lambda launches: None)
    found.records = Records()  # type: ignore[assignment]
    prefilled, chunked = Req(), Req()
    server = scheduler()
    server.process_batch_result = lambda batch, result: server.told.append((batch, result))
    server.result_queue.extend([("one", 1), ("two", 2)])
    server.last_batch = SimpleNamespace(
        reqs=[prefilled], forward_mode=SimpleNamespace(is_extend=lambda: True)
    )
    server.chunked_req = chunked
    found.due = violation()
    found.recover(server)
    queue = {"is_retracted": True}
    assert server.told == [
        ("one", 1), ("two", 2), "chunked", ("queue", prefilled, queue), ("queue", chunked, queue)
    ]  # fmt: skip
    assert server.chunked_req is None


def test_a_request_is_failed_after_so_many_retractions(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 500 and the reason, as SGLang ends an aborted request: what it held is released."""
    found, _ = made(monkeypatch)
    monkeypatch.setattr(recovery, "agree", lambda launches: None)
    monkeypatch.setattr(recovery, "release_kv_cache", lambda req, cache, **how: held.append(req))
    serving = SimpleNamespace(weight_version="default")
    monkeypatch.setattr("sglang.srt.managers.scheduler.get_serving", lambda: serving)
    found.records = Records()  # type: ignore[assignment]
    held: list[Any] = []
    req, holds, goes_on = Req(LIMIT), Req(LIMIT), Req(LIMIT - 1)
    holds.kv.holds_kv = True
    server = scheduler(req, holds, goes_on)
    found.due = violation()
    found.recover(server)
    kinds = [(told[0], told[-1] if told[0] == "abort" else told[1]) for told in server.told[1:]]
    assert kinds == [
        ("released", req), ("abort", req), ("released", holds), ("abort", holds), ("queue", goes_on)
    ]  # fmt: skip
    abort = server.told[2][1]
    assert abort.finished_reason["status_code"] == 500
    assert abort.finished_reason["message"].startswith("spec-fsm could not serve this request: ")
    assert (req.to_finish, held, found.failed) == (None, [holds], 2)


def test_few_violations_are_logged_and_each_is_recorded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first ten, then one in five seconds."""
    found, _ = made(monkeypatch)
    found.records = Records()  # type: ignore[assignment]
    now = 10**12
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)

    def logged() -> int:
        caplog.clear()
        found.violations += 1
        found._tell(violation())
        return len(caplog.records)

    caplog.set_level(logging.ERROR, recovery.logger.name)
    assert [logged() for _ in range(12)] == [1] * 10 + [0, 0]
    now += 5_000_000_000 - 1
    assert logged() == 0
    now += 1
    assert logged() == 1
    assert logged() == 0
    assert len(found.records) == 15  # type: ignore[arg-type]


def test_a_hold_doubles_and_the_last_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its iterations are over the operator's pin waits; AUTO of an operator ends it."""
    found, controller = made(monkeypatch)
    held = []
    for n in range(1, LIMIT + 2):
        found.violations = n
        found._hold()
        held.append(found.hold)
        assert controller.lifecycle.pin is Pin.PLAIN
    assert held == [FIRST_HOLD, 2 * FIRST_HOLD, 4 * FIRST_HOLD, FOR_GOOD, FOR_GOOD]
    found.violations = 0  # whatever is counted since: for good is for good
    found._hold()
    assert (found.hold, found.status()["pinned_for"]) == (FOR_GOOD, None)
    found.pinned(Pin.SPEC, released=False)
    assert (controller.lifecycle.pin, found.hold) == (Pin.PLAIN, FOR_GOOD)
    found.violations = LIMIT
    found.pinned(Pin.AUTO, released=True)
    assert (controller.lifecycle.pin, found.hold, found.violations) == (Pin.AUTO, 0, 0)
    found.pinned(Pin.SPEC, released=False)
    assert controller.lifecycle.pin is Pin.SPEC


def test_a_hold_ends_with_its_last_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then what the operator asked for in between is in force."""
    found, controller = made(monkeypatch)
    found.hold, controller.lifecycle.pin, controller.pins.current = 2, Pin.PLAIN, Pin.SPEC
    found.tick()
    assert (found.hold, controller.lifecycle.pin) == (1, Pin.PLAIN)
    found.tick()
    assert (found.hold, controller.lifecycle.pin) == (0, Pin.SPEC)


def test_what_is_inserted_while_a_recovery_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request that ended what its prefill wrote, of any other what SGLang asks for (I15)."""
    ended: Any = Req(done=True)
    for extend_end, allowed in ((3, 3), (9, 5), (None, 0)):
        ended.extend_end = extend_end
        assert cut(ended, 5) == allowed
    runs: Any = Req()
    assert cut(runs, 5) == 5


class Group:
    """Ranks that meet; `theirs`: launches of the others, None for one that never comes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, world_size: int, theirs: int | None
    ) -> None:
        self.world_size, self.cpu_group, self.theirs = world_size, object(), theirs
        self.calls: list[Any] = []
        parallel = SimpleNamespace(tp_group=self, tp_rank=1)
        monkeypatch.setattr(recovery, "get_parallel", lambda: parallel)
        monkeypatch.setattr(torch.distributed, "monitored_barrier", self.barrier)
        monkeypatch.setattr(torch.distributed, "all_reduce", self.reduce)

    def barrier(self, group: object, timeout: timedelta) -> None:
        """All come, or an error."""
        self.calls.append((group is self.cpu_group, timeout))
        if self.theirs is None:
            raise RuntimeError("rank 0 did not come")

    def reduce(self, tensor: torch.Tensor, op: object, group: object = None) -> None:
        """The larger of both ranks' figures."""
        assert op == torch.distributed.ReduceOp.MAX
        self.calls.append(group is self.cpu_group)
        assert self.theirs is not None
        tensor.copy_(torch.maximum(tensor, torch.tensor([self.theirs, -self.theirs])))


def test_ranks_recover_after_the_same_launches_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the group of processes on the host, within a time (I11). One rank alone asks nobody."""
    group = Group(monkeypatch, 1, 5)
    agree(4)
    assert group.calls == []
    group = Group(monkeypatch, 2, 4)
    agree(4)
    assert group.calls == [(True, timedelta(seconds=recovery.AGREE_SECONDS)), True]
    for theirs in (3, 5):
        Group(monkeypatch, 2, theirs)
        with pytest.raises(RuntimeError, match="at different launches of the ranks"):
            agree(4)
    Group(monkeypatch, 2, None)
    with pytest.raises(RuntimeError, match="violated on rank 1 and not on all"):
        agree(4)
