"""The invariants that need real tensors or single requests, evaluated on the running server.

Off by default: this reads tensors back and looks at every request, which no serving path may do.
`checks = true` in the configuration, or `SPEC_FSM_STRICT=1`, turns it on; every evaluation is
counted per invariant. A violation raises; `recovery.py` says what follows from that.

The laws of a single launch (I1a, I2, I3, I16) are not here: `guard.py` checks them always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sglang.srt.speculative.eagle_info import EagleDraftInput

from spec_fsm import Action, Mode, ShapeViolation, laws
from spec_fsm_sglang import graph_checks
from spec_fsm_sglang.ownership import STRICT
from spec_fsm_sglang.rows import last_row_of, row_of

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

    from spec_fsm import Plan
    from spec_fsm_sglang.controller import Controller


class TensorChecks:
    """Evaluates invariants for one controller; `lifecycle.checks` counts them."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._lifecycle = controller.lifecycle
        self._on_cuda = str(controller.worker.device).startswith("cuda")

    def _await_device(self) -> None:
        """Let every stream finish: what is read here was enqueued on more than one of them."""
        if self._on_cuda:
            torch.cuda.synchronize()

    def _expect(self, invariant: str, holds: bool, detail: str) -> None:
        lifecycle = self._lifecycle
        lifecycle.checks.count(invariant)
        if holds:
            return
        error = ShapeViolation(detail, mode=lifecycle.mode, invariant=invariant)
        lifecycle.violated(error)
        raise error

    def watch_graphs(self) -> None:
        """I12, I13 at every graph replay; nothing on a server without graphs."""
        graph_checks.watch(self._controller.worker, self._expect)

    @property
    def _plain_in_flight(self) -> int:
        ledger = self._lifecycle.ledger
        return ledger.in_flight - ledger.unsettled

    # At a boundary: after a result was processed, before the next batch is chosen

    def at_boundary(self, scheduler: Scheduler) -> None:
        """Everything that holds between steps."""
        running = scheduler.running_batch
        if running.is_empty():
            return
        self._await_device()
        STRICT.check_in_place(running)
        self._relay(running)
        owners = scheduler.invariant_checker._requests_owning_rows()
        self._pool(scheduler, owners)
        for req in owners:
            self._ledger(req)
        self._lengths(scheduler, running)

    def _relay(self, running: ScheduleBatch) -> None:
        """I1b, I7: the batch carries the relay, its rows are the batch's rows in order."""
        relay = running.spec_info
        self._expect(
            "I1b",
            isinstance(relay, EagleDraftInput),
            f"between steps spec_info is {type(relay).__name__}, not EagleDraftInput",
        )
        rows = len(running.reqs)
        if relay.future_indices is not None:
            aligned = torch.equal(relay.future_indices, running.req_pool_indices)
            found = f"future_indices {relay.future_indices.tolist()}"
        else:
            aligned = relay.bonus_tokens.shape[0] == relay.topk_index.shape[0] == rows
            found = f"{relay.bonus_tokens.shape[0]} bonus tokens, {relay.topk_index.shape[0]} seeds"
        self._expect("I7", aligned, f"the relay is not row by row the batch's {rows}: {found}")

    def _pool(self, scheduler: Scheduler, owners: list[Req]) -> None:
        """I4, I5, I6: slots conserved, within their row, one owner each."""
        checker = scheduler.invariant_checker
        if checker.get_last_batch() is not None:
            uncached, _swa = checker._get_total_uncached_sizes()
            stats = scheduler.pool_stats_observer.get_pool_stats()
            leak, detail = checker._check_full_pool(stats, uncached=uncached)
            self._expect("I4", not leak, detail)
        table = scheduler.req_to_token_pool.req_to_token
        width = table.shape[1]
        owned = []
        for req in owners:
            kv = req.kv
            self._expect(
                "I5",
                0 <= kv.kv_committed_len <= kv.kv_allocated_len <= width,
                f"{last_row_of(req)}: committed {kv.kv_committed_len}, "
                f"reserved {kv.kv_allocated_len}, row {width}",
            )
            owned.append(table[kv.req_pool_idx, kv.cache_protected_len : kv.kv_allocated_len])
        if not owned:
            return
        slots = torch.cat(owned)
        free = scheduler.token_to_kv_pool_allocator.get_all_free_pages()
        pages = torch.unique(slots // scheduler.page_size)
        twice = slots.numel() - torch.unique(slots).numel()
        freed = int(torch.isin(pages, free).sum())
        detail = f"{twice} slots owned twice, {freed} owned pages are free"
        self._expect("I6", not twice and not freed, detail)

    def _ledger(self, req: Req) -> None:
        """I5, I8 and I14 by the ledger's own audit, I14 on the device too, I19; for one request."""
        lifecycle, kv, row_id = self._lifecycle, req.kv, row_of(req)
        if row_id not in lifecycle.ledger or req.finished():
            return
        row = lifecycle.audit(row_id, kv.kv_committed_len, kv.kv_allocated_len)
        if lifecycle.mode in (Mode.PLAIN, Mode.RESEEDING) and not row.lost:
            # What the device holds is as of the launches, the row as of the settled results.
            expected = row.committed + self._plain_in_flight - lifecycle.gap(row_id)
            covered = int(self._controller.worker.stash.covered[kv.req_pool_idx])
            self._expect("I14", covered == expected, f"{row}: device {covered}, ledger {expected}")
        cursor = getattr(req.grammar, "accepted_tokens", None)
        if cursor is not None:
            self._expect(
                "I19",
                len(cursor) == len(req.output_ids),
                f"{row_id}: grammar at {len(cursor)}, {len(req.output_ids)} tokens committed",
            )

    def _lengths(self, scheduler: Scheduler, running: ScheduleBatch) -> None:
        """I9: what attention will see is what was committed (plus a plain launch in flight)."""
        if self._lifecycle.unsettled:
            return
        if running.enable_overlap:
            seq_lens = scheduler.future_map.new_seq_lens_buf[running.req_pool_indices]
        else:
            seq_lens = running.seq_lens
        flying = scheduler.last_batch is running and self._plain_in_flight
        for req, seq_len in zip(running.reqs, seq_lens.tolist(), strict=True):
            if not req.finished():
                expected = req.kv.kv_committed_len + int(flying)
                detail = f"{row_of(req)}: {seq_len} != {expected}"
                self._expect("I9", seq_len == expected, detail)

    # Around a launch

    def before_decode(self, batch: ScheduleBatch, plan: Plan) -> None:
        """I10, I17, I18 for the decode batch that is about to be launched."""
        self._await_device()
        STRICT.check_in_place(batch)
        gone = [last_row_of(req) for req in batch.reqs if not req.kv.holds_kv]
        self._expect("I10", not gone or len(gone) == len(batch.reqs), f"rows that left: {gone}")
        if batch.seq_lens_cpu is not None:
            self._expect(
                "I18",
                torch.equal(batch.seq_lens.cpu(), batch.seq_lens_cpu)
                and batch.seq_lens_sum in (None, int(batch.seq_lens_cpu.sum())),
                f"seq_lens {batch.seq_lens.tolist()}, cpu {batch.seq_lens_cpu.tolist()}, "
                f"sum {batch.seq_lens_sum}",
            )
        tokens = batch.spec_info.bonus_tokens.tolist()
        # A plan counts as launched once decided, but for a reseed.
        in_flight = self._lifecycle.ledger.in_flight - (plan.action is not Action.RESEED)
        settled = in_flight == 0
        self._room(batch, in_flight)
        for req, token in zip(batch.reqs, tokens, strict=True):
            # A row prefilled again after a retraction has outputs, but not the token in flight.
            known = len(req.origin_input_ids) + len(req.output_ids) > req.kv.kv_committed_len
            last = req.output_ids[-1] if settled and known and req.output_ids else token
            self._expect(
                "I17",
                token >= 0 and (token == last or req.finished()),
                f"{last_row_of(req)}: launched on {token}, last output token {last} "
                f"({plan.action.name})",
            )

    def _room(self, batch: ScheduleBatch, in_flight: int) -> None:
        """I5 of what comes: each row owns slots for this launch and the one result in flight."""
        need = laws.alloc_len(self._lifecycle.shape)
        for req in batch.reqs:
            room = req.kv.kv_allocated_len - req.kv.kv_committed_len
            self._expect(
                "I5",
                req.finished() or (in_flight <= 1 and room >= need * (in_flight + 1)),
                f"{last_row_of(req)}: {room} slots for {in_flight + 1} launches of {need}",
            )

    def after_reseed(self, batch: ScheduleBatch) -> None:
        """I8 on the device: every row of the first draft is covered and seeded."""
        stash, rows = self._controller.worker.stash, batch.req_pool_indices
        missing = (batch.seq_lens.to(torch.int64) - stash.covered[rows]).tolist()
        seeded = bool(stash.seeded[rows].all())
        self._expect("I8", seeded and not any(missing), f"missing {missing}, seeded {seeded}")

    def at_insert(self, req: Req, positions: int) -> None:
        """I15: the positions that enter the prefix cache have draft KV, all of them.

        By what the device has written, not by the ledger that made the cut. A row that has its
        seed is covered in full; `covered` is then as of when it was made, and rounds go on.
        """
        self._await_device()
        stash, kv = self._controller.worker.stash, req.kv
        seeded = bool(stash.seeded[kv.req_pool_idx])
        covered = kv.kv_committed_len
        if not seeded:
            covered = min(covered, int(stash.covered[kv.req_pool_idx]))
        detail = f"{last_row_of(req)}: {positions} positions inserted, {covered} covered"
        self._expect("I15", positions <= covered, detail)


__all__ = ["TensorChecks"]
