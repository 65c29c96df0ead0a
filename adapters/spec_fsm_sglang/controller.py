"""Between the scheduler and the lifecycle: turns what SGLang does into facts, and plans into flags.

One controller a worker. Every method that runs once a step is O(1) in the batch size; whatever
looks at single requests runs when a request joins or leaves, or in the checks an operator
switched on.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import TYPE_CHECKING, Any

from sglang.srt.runtime_context import get_parallel, get_schedule
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_fsm import (
    Action,
    Change,
    Event,
    Lifecycle,
    Mode,
    Pin,
    Plan,
    Policy,
    PolicyConfig,
    Shape,
    ShapeViolation,
    StashConfig,
)
from spec_fsm_sglang.checks import TensorChecks
from spec_fsm_sglang.load import Load
from spec_fsm_sglang.mode_log import ModeLog
from spec_fsm_sglang.operator_pin import OperatorPin, Order, Refused
from spec_fsm_sglang.ownership import STRICT
from spec_fsm_sglang.recovery import Recovery
from spec_fsm_sglang.rows import RowIds, last_row_of, row_of, rows_of
from spec_fsm_sglang.sampling import DifferingRequests
from spec_fsm_sglang.trace_file import TraceFile, committed_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.utils import GenerationBatchResult

    from spec_fsm_sglang.config import Config
    from spec_fsm_sglang.worker import SpecFsmEagleWorker

logger = logging.getLogger(__name__)


class Controller:
    """Owns the `Lifecycle` of one worker and answers SGLang's hooks."""

    def __init__(
        self, worker: SpecFsmEagleWorker, config: Config, sizes: StashConfig
    ) -> None:
        """`sizes`: of the worker's ring; its slices are cut to `config.slice_tokens` here."""
        shape = Shape(
            topk=worker.topk,
            num_steps=worker.speculative_num_steps,
            num_draft_tokens=worker.speculative_num_draft_tokens,
            page_size=worker.page_size,
        )
        policy = PolicyConfig(
            disable_above=config.disable_above,
            enable_at=config.enable_at,
            dwell=config.dwell,
            pin=Pin(config.pin.upper()),
        )
        stash = StashConfig(
            width=sizes.width,
            flush_every=sizes.flush_every,
            slice_width=min(config.slice_width(), sizes.width),
            # Only there does a result wait for the launch after it.
            seed_ahead=0 if get_schedule().disable_overlap_schedule else shape.num_draft_tokens,
        )
        # Ranks decide the same (I11); one of them tells.
        trace = config.trace if get_parallel().tp_rank == 0 else None
        self.trace = TraceFile(trace, get_parallel().dp_rank)
        sink = self.trace.sink
        self._rerun, self.reruns = config.lost_rows == "rerun", 0
        self.disable_above, self.enable_at = policy.disable_above, policy.enable_threshold
        self.lifecycle = Lifecycle(shape, Policy(policy), stash, trace=sink)
        self.pins = OperatorPin(policy.pin)
        self.tracing = sink is not None
        if self.tracing:
            # SGLang's processes end their loops, then themselves.
            atexit.register(self.lifecycle.close)
        self.worker, self.config = worker, config
        self._rows = RowIds()
        self.settling_plain = False
        self.in_flight_at_drain = 0
        self._begin()
        self.differing = DifferingRequests(refuse=config.refuse_differing)
        self._mode_log: ModeLog | None = None
        if get_parallel().tp_rank == 0:
            self._mode_log = ModeLog(self._describe_load)
        self.lifecycle.on_change = self._changed
        self.recovery = Recovery(self, config)
        STRICT.mode_of = lambda: self.lifecycle.mode
        checked = config.checks or os.environ.get("SPEC_FSM_STRICT") == "1"
        self.checks = TensorChecks(self) if checked else None

    def _begin(self) -> None:
        self.settle_first = False
        self.settled_first = False
        self._next: Plan | None = None
        self._load = Load()
        self._leaving: Req | None = None
        self._drained = False

    def restart(self) -> None:
        """Forget all that was planned and counted; no request holds KV."""
        self._begin()
        self.lifecycle.restart()

    # Once per scheduler iteration

    def before_choice(self, scheduler: Scheduler) -> None:
        """The boundary proper: a result was processed, no batch is chosen yet."""
        if self.checks is not None:
            self.checks.at_boundary(scheduler)
        if self._mode_log is not None and self._mode_log.waiting:
            self._mode_log.tell()

    def before_update(self, scheduler: Scheduler, batch: ScheduleBatch) -> None:
        """Speculation is due and lost rows are in the way: they are prefilled again (`rerun`).

        By SGLang's own retraction, which a full KV pool would bring about: slots are given back,
        the request joins the queue, and what it put out is a part of its next prefill. Where
        SGLang retracts, too: no prefill is chosen any more in this iteration, so the result in
        flight finds the request retracted and commits nothing to it.
        """
        if not (self._rerun and self.lifecycle.held and self.lifecycle.lost):
            return
        rows = self.lifecycle.ledger.lost_rids
        lost = [i for i, req in enumerate(batch.reqs) if row_of(req) in rows and not req.finished()]
        reqs = [batch.reqs[i] for i in lost]
        for left, i in enumerate(lost, 1):
            batch.release_req(i, len(batch.reqs) - left)
        batch.filter_batch(keep_indices=[i for i in range(len(batch.reqs)) if i not in lost])
        for req in reqs:
            scheduler._add_request_to_queue(req, is_retracted=True)
        self.reruns += len(reqs)
        logger.info("spec-fsm: %d requests beyond their stash are prefilled again", len(reqs))

    def boundary(self, scheduler: Scheduler, plan: Any) -> None:
        """A batch was chosen (`plan.batch_to_run`): let the policy see the load."""
        batch = plan.batch_to_run
        if batch is None:
            return
        lifecycle = self.lifecycle
        if batch.forward_mode.is_decode():
            self._next = self._decide(self._load.of_decode(batch), batch)
            self.settle_first = self._next.settle_first
        else:
            load = self._load.of_prefill(scheduler, batch, plan.running_batch)
            self.settle_first = lifecycle.boundary(load)
        if lifecycle.held and self._mode_log is not None:
            self._mode_log.held(lifecycle.held, lifecycle.mode, lifecycle.lost)

    def _decide(self, load: int, batch: ScheduleBatch) -> Plan:
        """Return the plan of a decode batch under a load."""
        rids = rows_of(batch) if self.tracing else ()
        return self.lifecycle.decide(load, len(batch.reqs), rids)

    def _changed(self, change: Change) -> None:
        """The lifecycle has changed its mode."""
        if change.target is Mode.DRAINING:
            self.in_flight_at_drain += self.lifecycle.unsettled
        elif change.event is Event.DRAINED:
            self._drained = True
        if self._mode_log is not None:
            self._mode_log.changed(change)

    def _describe_load(self) -> str:
        """What decides the mode, for a log line."""
        pin = self.lifecycle.pin
        pinned = "" if pin is Pin.AUTO else f", pinned {pin.name}"
        return (
            f"load {self._load.rows} (off above {self.disable_above}, on at {self.enable_at})"
            f"{pinned}"
        )

    def must_settle_first(self, scheduler: Scheduler, batch: ScheduleBatch | None) -> bool:
        """Whether DRAINING wants the result in flight processed before `batch` is launched."""
        self.settled_first = bool(
            self.settle_first
            and batch is not None
            and batch.forward_mode.is_decode()
            and scheduler.result_queue
        )
        return self.settled_first

    def before_run(self, batch: ScheduleBatch) -> None:
        """A batch is about to run: rows that ended while a drain settled are dropped (I10).

        Without a drain they ride along once more, as in any overlapped step. They do so too
        when nothing would be left to launch; the launch is stream-ordered before the slots'
        next owner either way.
        """
        if self.settled_first:
            self.settled_first = False
            if not all(req.finished() for req in batch.reqs):
                batch.filter_batch()

    def plan_decode(self, batch: ScheduleBatch) -> Plan:
        """What this decode batch is to do. The first plan after a drain tells the stash."""
        self._check_relay(batch)
        plan, self._next = self._next, None
        if plan is None or plan.settle_first:
            plan = self._decide(self._load.rows, batch)
        if self._drained:
            self._drained = False
            self.worker.stash.joined(batch.req_pool_indices, batch.seq_lens)
        if self.checks is not None:
            self.checks.before_decode(batch, plan)
        return plan

    def _check_relay(self, batch: ScheduleBatch) -> None:
        """I1b, I7, before anything is launched: the batch carries the relay, row by row."""
        relay, rows = batch.spec_info, len(batch.reqs)
        self.lifecycle.checks.count("I1b")
        if not isinstance(relay, EagleDraftInput):
            raise ShapeViolation(
                "a decode batch does not carry the relay",
                mode=self.lifecycle.mode,
                observed=type(relay).__name__,
                expected="EagleDraftInput",
                invariant="I1b",
            )
        self.lifecycle.checks.count("I7")
        if relay.bonus_tokens.shape[0] != rows:
            raise ShapeViolation(
                "the relay's rows are not the batch's",
                mode=self.lifecycle.mode,
                observed=relay.bonus_tokens.shape[0],
                expected=rows,
                invariant="I7",
            )

    def launched(self, batch: ScheduleBatch, plan: Plan, result: GenerationBatchResult) -> None:
        """The decode launch was issued; the result remembers of what kind it is."""
        result.spec_fsm_action = plan.action
        if self.tracing:
            # As of the launch: a retracted request may be another row once the result is settled.
            result.spec_fsm_rows = rows_of(batch)
        if plan.action is Action.RESEED:
            # Every other plan counted as launched when it was decided.
            self.lifecycle.launched(plan.action, len(batch.reqs), plan)

    def settled(self, batch: ScheduleBatch, result: GenerationBatchResult) -> None:
        """A decode result is on the host and about to be processed."""
        action: Action | None = getattr(result, "spec_fsm_action", None)
        if action is None:
            return
        steady = self.lifecycle.steady
        if action is steady.action:
            steady.processed += 1
        elif self.tracing:
            rids = result.spec_fsm_rows
            accepted = committed_of(batch, result)
            self.lifecycle.settled(action, len(rids), accepted, rids=rids)
        else:
            self.lifecycle.settled(action, len(batch.reqs))

    # Membership

    def prefilled(self, batch: ScheduleBatch) -> None:
        """A prefill was launched: its rows are covered and seeded up to `extend_end`."""
        for req in batch.reqs:
            row, end, start = self._rows.of(req), req.extend_end, req.prefix_len
            if req is batch.chunked_req:
                self.lifecycle.chunked(row, end, start)
            else:
                self.lifecycle.joined(row, end, start)

    def insertable(self, req: Req, up_to: int, boundary_tokens: int) -> int:
        """How many of the first `up_to` tokens of a request may key a prefix-cache insert (I15).

        `boundary_tokens`: tokens a key needs beyond the positions it names. For EAGLE SGLang
        keys a position by its own token and the next, since draft KV depends on both: n tokens
        name n - 1 positions. The page floor is SGLang's own, on the key.
        """
        if req.finished():
            # Aborted requests too: SGLang keeps their prefix as it does that of any other.
            gap, self._leaving = self._forget(req), req
        else:
            gap = self.lifecycle.ledger.settled_gap(last_row_of(req))
        if gap == 0:
            return up_to
        covered: int = req.kv.kv_committed_len - gap
        return min(up_to, covered + boundary_tokens)

    def left(self, req: Req) -> None:
        """The request gave its KV row back, with or without a cache insert before."""
        if req is not self._leaving:
            self._forget(req)
        self._leaving = None

    def _forget(self, req: Req) -> int:
        """Take a request off the ledger; returns how far its draft KV is behind, in positions."""
        if not req.finished():
            event = Event.RETRACTED
        elif type(req.finished_reason).__name__ == "FINISH_ABORT":
            event = Event.ABORTED
        else:
            event = Event.FINISHED
        row = self._rows.drop(req)
        return self.lifecycle.left(row, event, req.kv.kv_committed_len) if row else 0

    # Reseeding

    def reseeded(self, batch: ScheduleBatch) -> None:
        """Gaps and seeds of `batch` were enqueued: the launch goes on as a speculative round."""
        if self.checks is not None:
            self.checks.after_reseed(batch)
        self.lifecycle.reseeded()

    def reseed_failed(self, error: Exception) -> None:
        """The rebuild raised: back to PLAIN, and back off."""
        self.lifecycle.reseed_failed(f"{type(error).__name__}: {error}")

    # The operator

    def pin(self, code: float) -> bool:
        """Set the pin by its number, without an end; False for a number that means nothing."""
        try:
            order = Order.of({"spec_fsm_pin": code})
        except Refused as refused:
            logger.warning("spec-fsm: %s", refused)
            return False
        if order is not None and self.pins.obey(order):
            self.pin_changed()
        return True

    def pin_changed(self) -> None:
        """The operator's pin is another one, or ended."""
        pin = self.pins.current
        self.recovery.pinned(pin, released=self.pins.ordered and pin is Pin.AUTO)
        left = self.pins.left
        until = "" if left is None else f" for {left:.0f} s"
        logger.info("spec-fsm: pinned %s%s", pin.name, until)

    def status(self) -> dict[str, Any]:
        """What `/server_info` shows under `spec_fsm`."""
        lifecycle = self.lifecycle
        edges: dict[str, int] = {}
        for (source, _event, target), count in lifecycle.transitions.items():
            edges[f"{source}->{target}"] = edges.get(f"{source}->{target}", 0) + count
        stash = self.worker.stash
        return {
            "mode": lifecycle.mode.name,
            **self.pins.status(),
            "replica": get_parallel().dp_rank or 0,
            "disable_above": self.disable_above,
            "transitions": edges,
            "checks": lifecycle.checks.as_dict(),
            "violations": sum(lifecycle.checks.violations.values()),
            **self.recovery.status(),
            "in_flight_at_drain": self.in_flight_at_drain,
            "switch_off_count": edges.get("DRAINING->PLAIN", 0),
            "switch_on_count": edges.get("RESEEDING->SPEC", 0),
            "rows": lifecycle.rows,
            "max_gap": lifecycle.max_gap,
            "lost": lifecycle.lost,
            "reruns": self.reruns,
            "differing_requests": self.differing.seen,
            "refused_requests": self.differing.refused,
            "trace": self.trace.status(),
            "stash_bytes": 0 if stash is None else stash.nbytes,
        }


__all__ = ["Controller"]
