"""Recovery: what a serving worker does when a law is violated, in place of ending the server.

The launch is not issued. At the next scheduler iteration, before a batch is chosen, the results in
flight are processed as always, every request that holds KV is retracted to the queue (SGLang's own
retraction: what it put out is a part of its next prefill), and the lifecycle starts afresh, pinned
PLAIN for a number of iterations that doubles with each violation. From violation `limit` on PLAIN
stays until an operator releases it. A request that was retracted for `limit` violations and meets
one more fails with an error, so that a fault of plain decoding itself ends and does not loop.

This is where SGLang's own `pause_generation(mode="retract")` does the same things.
"""

from __future__ import annotations

import logging
import os
import time
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import torch
from sglang.srt.disaggregation.utils import prepare_abort
from sglang.srt.managers.schedule_batch import release_req
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.runtime_context import get_parallel

from spec_fsm import Pin
from spec_fsm_sglang.flight_record import FlightRecords, readable_error
from spec_fsm_sglang.recoverable import recoverable
from spec_fsm_sglang.rows import RowIds

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

    from spec_fsm_sglang.config import Config
    from spec_fsm_sglang.controller import Controller

logger = logging.getLogger("spec_fsm")

VOID: Final = GenerationBatchResult()
"""The result of a launch that was not issued; nobody processes it."""
FIRST_HOLD = 256
"""Scheduler iterations with a batch for which the first violation pins PLAIN."""
FOR_GOOD = -1
_DOUBLINGS = 20
AGREE_SECONDS = 30
"""How long a rank waits for the others at a recovery."""
_QUIET_NS = 5_000_000_000
"""After the first ten violations one is logged in this time."""


class Recovery:
    """The violations of one worker: what was caught, what is due, and how long PLAIN is pinned."""

    def __init__(self, controller: Controller, config: Config) -> None:
        self._controller = controller
        self._limit = config.max_violations
        self._strict = os.environ.get("SPEC_FSM_STRICT") == "1" or config.on_violation == "raise"
        self.records = FlightRecords(controller, config.flight_dir)
        self.due: Exception | None = None
        """What was violated since the last recovery; nothing is launched until the next one."""
        self.hold = 0
        """Iterations that PLAIN stays pinned, `FOR_GOOD` until an operator releases it."""
        self.first_hold = FIRST_HOLD
        self.violations = 0
        """Since the start, or since an operator released the last one."""
        self.recoveries = self.failed = 0
        self.loose: list[Req] = []
        """Requests of results that could not be resolved; none is resolved until the recovery."""
        self._logged_ns = 0

    # What went wrong

    def caught(self, error: Exception) -> None:
        """Take note of `error`; raises it where it is not to be recovered from."""
        if self._strict or not recoverable(error):
            raise error
        self._controller.lifecycle.violated(error)
        if self.due is None:
            self.due = error

    def launch_failed(self, error: Exception) -> GenerationBatchResult:
        """Take note of an error that kept a launch, or the rest of one, from being issued."""
        self.caught(error)
        worker = self._controller.worker
        # Part of it may run: let the scheduler's next write wait for the whole stream.
        worker.target_worker.model_runner.shared_read_done_event = None
        worker.draft_worker.draft_runner.shared_read_done_event = None
        return VOID

    def nothing_committed(self, batch: ScheduleBatch) -> list[list[int]]:
        """Tokens of a result that could not be resolved: none; they are computed again.

        So are those of the results after it. A grammar may be ahead of the output by then (I19),
        so its request fails.
        """
        self._controller.settling_plain = True  # no verify round
        for req in batch.reqs:
            if not req.is_retracted:
                # One whose last token this result holds is in no other batch any more.
                self.loose.append(req)
                if req.grammar is not None:
                    req.spec_fsm_retracted = self._limit
        return [[] for _ in batch.reqs]

    # The next scheduler iteration

    def recover(self, scheduler: Scheduler) -> dict[str, Any]:
        """Start afresh; returns the arguments of `get_next_batch_to_run` as they are now.

        Raises RuntimeError if the other tensor-parallel ranks do not recover as well: launches
        would no longer meet (I11).
        """
        error = self.due
        assert error is not None
        self.violations += 1
        self._tell(error)
        agree(scheduler.forward_ct)
        reqs = _drained(scheduler, self.loose)
        self.loose.clear()
        for left, req in zip(range(len(reqs) - 1, -1, -1), reqs, strict=True):
            self._take_back(scheduler, req, left, error)
        self._controller.restart()
        self._hold()
        self.recoveries += 1
        self.due = None
        return {"running_batch": scheduler.running_batch, "last_batch": scheduler.last_batch}

    def _tell(self, error: Exception) -> None:
        now = time.monotonic_ns()
        if self.violations <= 10 or now - self._logged_ns >= _QUIET_NS:
            self._logged_ns = now
            logger.error(
                "spec-fsm: violation %d: %s; its launch is not issued, requests are prefilled "
                "again, PLAIN is pinned", self.violations, readable_error(error),
            )
        self.records.write("violation", error)

    def _take_back(self, scheduler: Scheduler, req: Req, left: int, error: Exception) -> None:
        """Retract `req` to the queue, or fail it; `left`: how many are still to be taken back."""
        retracted = getattr(req, "spec_fsm_retracted", 0)
        req.spec_fsm_retracted = retracted + 1
        RowIds.drop(req)
        if retracted >= self._limit:
            self._fail(scheduler, req, error)
            return
        if req.kv.holds_kv:
            release_req(
                req=req,
                remaing_req_count=left,
                req_to_token_pool=scheduler.req_to_token_pool,
                token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
                tree_cache=scheduler.tree_cache,
                hisparse_coordinator=scheduler.hisparse_coordinator,
                offload_kv=False,
            )
        if all(req is not waiting for waiting in scheduler.waiting_queue):
            scheduler._add_request_to_queue(req, is_retracted=True)

    def _fail(self, scheduler: Scheduler, req: Req, error: Exception) -> None:
        """End `req` with an error, as SGLang does with a chunked request that is aborted."""
        from sglang.srt.managers.scheduler import _make_abort_req

        self.failed += 1
        reason = f"spec-fsm could not serve this request: {readable_error(error)}"
        prepare_abort(req, reason, HTTPStatus.INTERNAL_SERVER_ERROR)
        req.to_finish = None
        scheduler._release_aborted_request(req)
        if req.kv.holds_kv:
            release_kv_cache(req, scheduler.tree_cache, checkpoint=False)
        abort = _make_abort_req(req, finished_reason=req.finished_reason.to_json())
        scheduler.send_abort_output(abort, req)

    # The pin

    def _hold(self) -> None:
        if self.hold == FOR_GOOD or self.violations >= self._limit:
            self.hold = FOR_GOOD
        else:
            self.hold = self.first_hold << min(self.violations - 1, _DOUBLINGS)
        self._controller.lifecycle.pin = Pin.PLAIN

    def tick(self) -> None:
        """Count one iteration of a hold; after its last the operator's pin is in force again."""
        self.hold -= 1
        if not self.hold:
            self._controller.lifecycle.pin = self._controller.pins.current
            logger.info("spec-fsm: PLAIN is no longer pinned for a violation")

    def pinned(self, pin: Pin, *, released: bool) -> None:
        """The operator's pin is another one, in force at once unless a violation pins PLAIN.

        released: the operator asked for AUTO, which also ends what violations pinned.
        """
        if released:
            self.hold = self.violations = 0
        if not self.hold:
            self._controller.lifecycle.pin = pin

    def status(self) -> dict[str, Any]:
        """What `/server_info` shows of it."""
        record = self.records.path
        return {
            "recoveries": self.recoveries,
            "pinned_by_violation": self.hold != 0,
            "pinned_for": None if self.hold == FOR_GOOD else self.hold,
            "failed_by_violation": self.failed,
            "flight_record": None if record is None else str(record),
        }


def cut(req: Req, up_to: int) -> int:
    """Tokens that may key an insert into the prefix cache while a recovery is due (I15).

    Those of its prefill, which always writes draft KV; how far that goes beyond is in doubt.
    """
    return min(up_to, req.extend_end or 0) if req.finished() else up_to


def agree(launches: int) -> None:
    """Wait until every tensor-parallel rank recovers, each after as many launches (I11).

    The laws are asked on figures that all ranks have, so all violate one alike. Raises RuntimeError
    where one does not: it waits for this one in a collective, and no launch can be called off.
    """
    group = get_parallel().tp_group
    if group.world_size == 1:
        return
    try:
        torch.distributed.monitored_barrier(
            group.cpu_group, timeout=timedelta(seconds=AGREE_SECONDS)
        )
        ends = torch.tensor([launches, -launches])
        torch.distributed.all_reduce(ends, op=torch.distributed.ReduceOp.MAX, group=group.cpu_group)
    except RuntimeError as error:
        raise RuntimeError(
            f"spec-fsm: a law was violated on rank {get_parallel().tp_rank} and not on all"
        ) from error
    if ends.sum().item() != 0:
        raise RuntimeError("spec-fsm: a law was violated at different launches of the ranks")


def _drained(scheduler: Scheduler, loose: list[Req]) -> list[Req]:
    """Process what is in flight; returns the requests that hold KV, no longer in any batch.

    `loose`: requests that may be in no batch already.
    """
    while scheduler.result_queue:
        scheduler.process_batch_result(*scheduler.result_queue.popleft())
    scheduler.process_pending_chunked_abort()
    running, last, chunked = scheduler.running_batch, scheduler.last_batch, scheduler.chunked_req
    reqs = [*running.reqs, *loose]
    if last is not None and last.forward_mode.is_extend():
        reqs += last.reqs
    if chunked is not None:
        reqs.append(chunked)
    running.reqs, running.batch_is_full = [], False
    scheduler.last_batch = scheduler.chunked_req = scheduler.cur_batch_for_debug = None
    return [req for req in dict.fromkeys(reqs) if not req.finished()]


__all__ = ["AGREE_SECONDS", "FIRST_HOLD", "FOR_GOOD", "VOID", "Recovery", "agree", "cut"]
