"""The EAGLE worker whose decode rounds are planned by a `Lifecycle`.

A subclass of SGLang's `EAGLEWorkerV2`. Prefill is SGLang's own in every mode (it always runs the
draft prefill, so a new row is covered and seeded from the start); decode asks the lifecycle what
this launch shall be: a speculative round, a plain step, or the launch that brings speculation
back. All tensor work happens here; all decisions happen in `spec_fsm`.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.moe.utils import (
    speculative_moe_a2a_backend_context,
    speculative_moe_backend_context,
)
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.spec_utils import draft_tp_context

from spec_fsm import Action, Hidden, Phase, Plan, SpecFsmError, SpecInfo
from spec_fsm_sglang import graph_state, plain, plain_graphs, rebuild, start, stash_size
from spec_fsm_sglang.compat import model_problem
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.controller import Controller
from spec_fsm_sglang.failures import is_mistake, mistake
from spec_fsm_sglang.guard import LaunchGuard
from spec_fsm_sglang.host_lengths import HostLengths
from spec_fsm_sglang.ranks import on_all_ranks
from spec_fsm_sglang.recoverable import passes_on
from spec_fsm_sglang.rows import name_next_token
from spec_fsm_sglang.stash import Stash, fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.speculative.eagle_info import EagleDraftInput

    from spec_fsm_sglang.graph_state import GraphSet

logger = logging.getLogger("spec_fsm")

_NOTHING_AHEAD = -1, None


class SpecFsmEagleWorker(EAGLEWorkerV2):  # type: ignore[misc]
    """`EAGLEWorkerV2` with a lifecycle: SPEC, DRAINING, PLAIN, RESEEDING.

    `spec_fsm` is None until the models are loaded; until then the worker is SGLang's own.
    """

    spec_fsm: Controller | None = None
    stash: Stash
    rebuild: rebuild.Rebuild
    guard: LaunchGuard
    host_lengths: HostLengths
    plain_graphs: GraphSet
    _read_last_by_target = False
    _ahead: tuple[int, Exception | None] = _NOTHING_AHEAD
    """Plain launches when seeds were last made ahead, and what that failed with."""
    _cold_entries = 0
    """Positions of the largest flush, until it was warmed."""
    _plain_sizes: Sequence[int] = ()

    def init_attention_backends(self) -> None:
        """SGLang's own; then, before any graph is captured, what this server is to have of them."""
        super().init_attention_backends()
        config = Config.from_env()
        if config is None:
            raise SpecFsmError("the worker was created without a configuration")
        self._config = config
        problem = model_problem(self)
        if problem is not None:
            start.refuse_late(problem)
        self._plain_sizes = plain_graphs.limit_verify_graphs(config.disable_above)

    @property
    def last_shared_read_runner(self) -> Any:
        """Whose `shared_read_done_event` the scheduler waits for before it writes again.

        After a plain step that is the target's, as on a plain server: waiting for the draft's,
        which read nothing, would hold the scheduler's stream until the whole forward is done.
        """
        if self._read_last_by_target:
            return self.target_worker.model_runner
        return super().last_shared_read_runner

    def init_cuda_graphs(self) -> None:
        """SGLang's own graphs and PLAIN's; then the stash, sized by pools that exist only now."""
        super().init_cuda_graphs()
        config = self._config
        self.capture_plain_graphs()
        self.target_worker.model_runner.spec_fsm_recaptured = self.capture_plain_graphs
        rows = self.draft_worker.req_to_token_pool.req_to_token.shape[0]
        runner, size = self.target_worker.model_runner, stash_hidden_size(self)
        kv_bytes = sum(runner.token_to_kv_pool.get_kv_size_bytes())
        position_bytes = rows * size * runner.dtype.itemsize
        problem = stash_size.problem(config, kv_bytes, position_bytes)
        if problem is not None:
            start.refuse_late(problem)
        share = config.stash_share or stash_size.SHARE_OF_KV
        sizes = fit(config.stash_width, config.flush_steps, kv_bytes, position_bytes, share)
        self.stash = Stash(rows, sizes.width, size, runner.dtype, self.device)
        self.spec_fsm = fsm = Controller(self, config, sizes)
        self.host_lengths = HostLengths(lambda: fsm.lifecycle.ledger)
        self.rebuild = rebuild.choose(
            config.strategy, self.draft_worker, self.stash, self.host_lengths
        )
        self.guard = LaunchGuard(
            self.spec_fsm.lifecycle, self.speculative_num_steps, self.speculative_num_draft_tokens
        )
        self.guard.install(runner, self.draft_worker.draft_runner)
        if self.plain_graphs.graphs is not None:
            slice_entries = config.slice_width() * config.enable_threshold
            flush_entries = sizes.flush_every * max(self._plain_sizes)
            self._cold_entries = max(slice_entries, flush_entries)
        if self.spec_fsm.checks is not None:
            self.spec_fsm.checks.watch_graphs()
        logger.info(
            "spec-fsm: on; disable above %d running requests, enable at %d; rebuild by %s every "
            "%d steps; stash of %d rows x %d positions, %.1f MB, %.2f %% of the KV pool",
            config.disable_above,
            self.spec_fsm.enable_at,
            self.rebuild.name,
            sizes.flush_every,
            rows,
            sizes.width,
            self.stash.nbytes / 1e6,
            100 * self.stash.nbytes / kv_bytes,
        )

    def capture_plain_graphs(self) -> None:
        """PLAIN's graphs; again whenever SGLang captured the target's again, for the same reason.

        Graphs read weights where they lay, and new ones may lie elsewhere.
        """
        runner = self.target_worker.model_runner
        # First, so that their memory is at hand.
        self.plain_graphs = graph_state.eager(runner)
        self.plain_graphs = plain_graphs.capture(runner, self._plain_sizes)
        if self.spec_fsm is not None and self.spec_fsm.checks is not None:
            self.spec_fsm.checks.watch_graphs()

    @passes_on
    def forward_batch_generation(
        self,
        batch: ScheduleBatch,
        on_publish: Callable[[torch.Tensor], None] | None = None,
        grammar_barrier: Callable[[], None] | None = None,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """One launch. A decode result carries `spec_fsm_action`, the kind of launch it was."""
        fsm = self.spec_fsm
        self._read_last_by_target = False
        if fsm is None or batch.forward_mode.is_idle():
            return super().forward_batch_generation(
                batch, on_publish, grammar_barrier, pp_proxy_tensors
            )
        if batch.forward_mode.is_extend():
            name_next_token(batch)
            result = super().forward_batch_generation(batch, on_publish)
            try:
                self.stash.joined(batch.req_pool_indices, batch.seq_lens)
                fsm.prefilled(batch)
                self._warm()
            except Exception as error:
                # The launch is a right one: its requests keep their token.
                fsm.recovery.caught(error)
            return result
        plan = fsm.plan_decode(batch)
        if plan.action is Action.RESEED and not self._reseed(fsm, batch, plan):
            plan = fsm.plan_decode(batch)
        if plan.action is Action.PLAIN:
            result = self._plain(fsm, batch, plan, on_publish, grammar_barrier)
        else:
            batch.spec_fsm = True  # `sampling.eagle_sample` asks for it
            result = super().forward_batch_generation(batch, on_publish, grammar_barrier)
        try:
            fsm.launched(batch, plan, result)
        except Exception as error:
            fsm.recovery.caught(error)
        return result

    def _warm(self) -> None:
        """After the first prefill: load the kernels of a flush, and have its memory at hand.

        Not at the start: memory is kept by the stream it was asked for on, and forwards run on one
        that the scheduler makes later. SGLang's own warm-up is the first to prefill.
        """
        entries, self._cold_entries = self._cold_entries, 0
        if entries and isinstance(self.rebuild, rebuild.BulkRebuild):
            with self._rebuilding():
                self.rebuild.warm(entries)

    def _plain(
        self,
        fsm: Controller,
        batch: ScheduleBatch,
        plan: Plan,
        on_publish: Callable[[torch.Tensor], None] | None,
        grammar_barrier: Callable[[], None] | None,
    ) -> GenerationBatchResult:
        """One token a row by the target alone; the draft KV it leaves out goes to the stash."""
        rows, positions = batch.req_pool_indices, batch.seq_lens
        relay = plain.prepare(batch, self.draft_worker.req_to_token_pool.req_to_token)
        new_seq_lens = batch.seq_lens
        if on_publish is not None:
            # Before the forward, whose end the scheduler would otherwise wait for to go on: what
            # a plain step commits is known without it.
            on_publish(new_seq_lens)
        self.target_worker.model_runner.shared_read_done_event = None
        result = plain.launch(self.target_worker, self.plain_graphs, batch, grammar_barrier)
        self._read_last_by_target = True
        hidden_states = result.logits_output.hidden_states
        self.stash.record(rows, positions, hidden_states, result.next_token_ids)
        if plan.seeds:
            self._seed_ahead(fsm, batch, new_seq_lens, plan, relay)
        elif plan.flush_upper > plan.flush_lower:
            with self._rebuilding():
                self._flush_or_retry(fsm, batch, new_seq_lens, plan)
            # The flush read slots after the target did.
            self.target_worker.model_runner.shared_read_done_event = self.rebuild.read_done
        with_seed = plan.seeds or not batch.enable_overlap
        plain.complete(result, relay, new_seq_lens, with_seed=with_seed)
        return result

    def _flush(
        self, fsm: Controller, batch: ScheduleBatch, committed: torch.Tensor, plan: Plan
    ) -> None:
        """Write the planned ages of missing draft KV. The matrix is asked where checks are on."""
        rows, ages = len(batch.reqs), plan.flush_upper - plan.flush_lower
        if ages == 0:
            return
        if fsm.checks is not None:
            sizes = (rows, rows * ages, rows * ages)
            none = (SpecInfo.NONE, Hidden.NULL)
            fsm.lifecycle.check_launch(Phase.FLUSH, *sizes, *none, width=rows * ages)
        self.rebuild.flush(batch, committed, plan.flush_upper, plan.flush_lower)

    def _flush_or_retry(
        self, fsm: Controller, batch: ScheduleBatch, committed: torch.Tensor, plan: Plan
    ) -> None:
        """A flush beside a plain step, which the ledger counts as done once it is planned.

        If it fails (a whole slice may not fit the memory that is left) it is made again one
        position at a time, which needs the least; raises what that raises.
        """
        try:
            self._flush(fsm, batch, committed, plan)
        except SpecFsmError:
            raise
        except Exception as error:
            if is_mistake(error):
                raise mistake(error, "a flush") from error
            logger.exception("spec-fsm: a flush failed; once more, position by position")
            for age in range(plan.flush_upper, plan.flush_lower, -1):
                self.rebuild.flush(batch, committed, age, age - 1)

    def _seed_ahead(
        self,
        fsm: Controller,
        batch: ScheduleBatch,
        committed: torch.Tensor,
        plan: Plan,
        relay: EagleDraftInput,
    ) -> None:
        """Make the seeds with the plain launch before the one they are due with (`Plan.seeds`).

        If it fails that is told when they are due; until then nothing depends on them. What was
        missing is written all the same: the ledger counts it as done.
        """
        failure = self._tried(lambda: self._seed(fsm, batch, committed, plan, relay))
        if failure is not None:
            with self._rebuilding():
                self._flush_or_retry(fsm, batch, committed, plan)
        self._ahead = fsm.lifecycle.ledger.t_launched, failure
        # The draft extend reads what the scheduler writes next after the target did.
        self._read_last_by_target = False

    def _seed(
        self,
        fsm: Controller,
        batch: ScheduleBatch,
        committed: torch.Tensor,
        plan: Plan,
        relay: EagleDraftInput,
    ) -> None:
        """Write what is missing down to age 0, and make the seeds.

        A gap that fits the window of the draft extend that makes a seed is written by it: a flush
        of its own would cost the host as much as one of any length.
        """
        missing = plan.flush_upper
        if not self.rebuild.by_seed or missing > self.speculative_num_draft_tokens:
            self._flush(fsm, batch, committed, plan)
            missing = 0
        rebuild.seed(
            self.draft_worker, self.stash, self.host_lengths, batch, committed, missing, relay
        )

    def _reseed(self, fsm: Controller, batch: ScheduleBatch, plan: Plan) -> bool:
        """Rebuild what is left of every gap, and the seeds; False if that failed on any rank.

        Both may have been done with the plain launch before. A failure leaves the target's state
        untouched: only draft KV of positions that still count as missing may have been written,
        so the batch goes on in PLAIN.
        """
        rows, committed = batch.req_pool_indices, batch.seq_lens
        covered, seeded = self.stash.covered[rows], self.stash.seeded[rows]

        (tick, failure), self._ahead = self._ahead, _NOTHING_AHEAD
        if tick != fsm.lifecycle.ledger.t_launched:
            failure = self._tried(
                lambda: self._seed(fsm, batch, committed, plan, batch.spec_info)
            )
        if failure is not None:
            # The flush may have gone well before the seed failed: the ledger does not count it.
            self.stash.covered[rows], self.stash.seeded[rows] = covered, seeded
            fsm.reseed_failed(failure)
            return False
        fsm.reseeded(batch)
        return True

    def _tried(self, rebuilding: Callable[[], None]) -> Exception | None:
        """What `rebuilding` failed with on any rank; None where it went well on all.

        Raises ProgrammingError for what trying again cannot help, once all ranks know.
        """
        failure: Exception | None = None
        try:
            with self._rebuilding():
                rebuilding()
        except SpecFsmError:
            raise
        except Exception as error:
            failure = error
            if not is_mistake(error):
                logger.exception("spec-fsm: reseeding failed; staying in PLAIN")
        well = on_all_ranks(failure is None)
        if failure is not None and is_mistake(failure):
            raise mistake(failure, "a rebuild") from failure
        if well:
            return None
        return failure or RuntimeError("on another rank")

    @contextmanager
    def _rebuilding(self) -> Iterator[None]:
        """The parallel contexts of a draft forward, with the laws of a rebuild in force."""
        with ExitStack() as stack:
            stack.enter_context(draft_tp_context(self.draft_worker.parallel_layout))
            stack.enter_context(speculative_moe_backend_context())
            stack.enter_context(speculative_moe_a2a_backend_context())
            self.guard.reseeding = True
            try:
                yield
            finally:
                self.guard.reseeding = False


def stash_hidden_size(worker: EAGLEWorkerV2) -> int:
    """Width of the hidden state the draft takes from the target at one position.

    EAGLE-3 takes several captured layers side by side (the input width of its `fc`); EAGLE
    takes the target's last one.
    """
    hidden_size: int = worker.target_worker.model_runner.model_config.hidden_size
    if worker.speculative_algorithm.is_eagle3():
        hidden_size = worker.draft_worker.draft_runner.model.model.fc.in_features
    return hidden_size
