"""The places where SGLang's scheduler meets the lifecycle, as hooks of its own plugin registry.

Each hook does nothing unless the scheduler's worker is ours. What must last beyond a launch has
to go through the scheduler: `_forward_isolation` undoes whatever a worker does to its batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.plugins.hook_registry import HookType

from spec_fsm import Action
from spec_fsm_sglang import compat, operator_pin, start, weight_updates
from spec_fsm_sglang.decode_log import report_without_acceptance
from spec_fsm_sglang.recoverable import passes_on
from spec_fsm_sglang.recovery import VOID, cut
from spec_fsm_sglang.sampling import eagle_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm_sglang.controller import Controller
    from spec_fsm_sglang.in_force import Hook

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_RESULTS = (
    "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
)
_METRICS = "sglang.srt.managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter"
_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_VERIFY = "sglang.srt.speculative.eagle_worker_common"
_SIZING = "sglang.srt.mem_cache.allocation_sizing"


def controller_of(worker: Any) -> Controller | None:
    """The controller of a worker of ours, None for any other."""
    return getattr(worker, "spec_fsm", None)


@passes_on
def get_next_batch_to_run(original: Callable[..., Any], scheduler: Any, **kwargs: Any) -> Any:
    """A boundary: recover if that is due; the policy sees the load of the batch just chosen."""
    controller = controller_of(scheduler.model_worker)
    if controller is None:
        return original(scheduler, **kwargs)
    recovery = controller.recovery
    if recovery.due is None:
        try:
            controller.before_choice(scheduler)
        except Exception as error:
            recovery.caught(error)
    if recovery.due is not None:
        kwargs = recovery.recover(scheduler)
    plan = original(scheduler, **kwargs)
    try:
        controller.boundary(scheduler, plan)
    except Exception as error:
        recovery.caught(error)
    if recovery.hold > 0 and plan.batch_to_run is not None:
        recovery.tick()
    return plan


@passes_on
def update_running_batch(original: Callable[..., Any], scheduler: Any, batch: Any) -> Any:
    """The running batch is about to decode: lost rows may be sent back to the queue first."""
    controller = controller_of(scheduler.model_worker)
    if controller is not None:
        try:
            controller.before_update(scheduler, batch)
        except Exception as error:
            controller.recovery.caught(error)
    return original(scheduler, batch)


@passes_on
def is_disable_overlap_for_batch(
    original: Callable[..., bool], scheduler: Any, batch: Any, **kwargs: Any
) -> bool:
    """DRAINING: the result in flight is processed before this decode batch is launched."""
    controller = controller_of(scheduler.model_worker)
    if controller is not None:
        try:
            if controller.must_settle_first(scheduler, batch):
                return True
        except Exception as error:
            controller.recovery.caught(error)
    return original(scheduler, batch, **kwargs)


@passes_on
def run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any) -> Any:
    """A launch, after a drain without the rows that ended in it; none while a recovery is due."""
    controller = controller_of(scheduler.model_worker)
    if controller is None:
        return original(scheduler, batch, *args)
    if controller.recovery.due is not None:
        return VOID
    try:
        controller.before_run(batch)
        return original(scheduler, batch, *args)
    except Exception as error:
        return controller.recovery.launch_failed(error)


@passes_on
def process_batch_result(
    original: Callable[..., Any], scheduler: Any, batch: Any, result: Any
) -> Any:
    """A result, if there is one: what was not launched has none."""
    return None if result is VOID else original(scheduler, batch, result)


@passes_on
def resolve_spec_v2_tokens(
    original: Callable[..., list[list[int]]], processor: Any, result: Any, batch: Any
) -> list[list[int]]:
    """The tokens a decode result commits; a plain result is no verify round and not counted so.

    They are committed whatever the lifecycle says of the result: they were computed.
    """
    controller = controller_of(processor.model_worker)
    if controller is None:
        return original(processor, result, batch)
    recovery = controller.recovery
    if recovery.due is None:
        try:
            if controller.tracing:
                # It says how much of a result a grammar keeps; SGLang advances it once.
                processor.advance_grammar_fsm(result, batch)
            controller.settled(batch, result)
        except Exception as error:
            recovery.caught(error)
    if recovery.loose:
        return recovery.nothing_committed(batch)
    controller.settling_plain = getattr(result, "spec_fsm_action", None) is Action.PLAIN
    if not controller.settling_plain:
        return original(processor, result, batch)
    try:
        return plain_tokens(processor, result, batch)
    except Exception as error:
        recovery.caught(error)
        return recovery.nothing_committed(batch)


def plain_tokens(processor: Any, result: Any, batch: Any) -> list[list[int]]:
    """The tokens that a plain result commits, one a request.

    Mirrors the commit rules of SGLang's `_resolve_spec_v2_tokens`: a request that finished or was
    retracted commits nothing, a grammar keeps what it accepts.
    """
    processor.advance_grammar_fsm(result, batch)
    tokens: list[list[int]] = [[token] for token in result.next_token_ids.tolist()]
    for i, req in enumerate(batch.reqs):
        if req.is_retracted or req.finished():
            continue
        if req.grammar is not None:
            tokens[i] = result.grammar_retained_tokens[i]
        req.kv.kv_committed_len += len(tokens[i])
    return tokens


def update_spec_metrics(
    original: Callable[..., None], reporter: Any, *args: Any, **kw: Any
) -> None:
    """Plain steps stay out of speculation's metrics: they would count as verify rounds."""
    controller = controller_of(reporter.scheduler.model_worker)
    if controller is None or not controller.settling_plain:
        original(reporter, *args, **kw)


def report_decode_stats(
    original: Callable[..., None], reporter: Any, *args: Any, **kw: Any
) -> None:
    """PLAIN's decode lines and gauges tell of no acceptance; others of the verify rounds' alone.

    Rounds of an interval that ends in PLAIN are told with the next interval that ends in SPEC.
    """
    periodic = reporter.forward_ct_decode % reporter.decode_log_interval == 0
    controller = controller_of(reporter.scheduler.model_worker)
    if periodic and controller is not None and (
        controller.settling_plain or reporter.spec_num_forward_ct == 0
    ):  # fmt: skip
        report_without_acceptance(original, reporter, *args, **kw)
    else:
        original(reporter, *args, **kw)


def add_request_to_queue(
    original: Callable[..., None], scheduler: Any, req: Any, *args: Any, **kw: Any
) -> None:
    """A request is admitted: parameters that act differently by mode are counted or refused."""
    controller = controller_of(scheduler.model_worker)
    if controller is not None and not req.retracted_stain:
        controller.differing.admit(req)
    original(scheduler, req, *args, **kw)


def get_internal_state(result: Any, state: Any, *_args: Any, **_kwargs: Any) -> Any:
    """`/server_info` shows the lifecycle under `spec_fsm`."""
    controller = controller_of(state.scheduler.model_worker)
    if controller is not None:
        try:
            result.internal_state["spec_fsm"] = controller.status()
        except Exception as error:
            controller.recovery.caught(error)
    return result


def set_internal_state(original: Callable[..., Any], state: Any, recv_req: Any) -> Any:
    """`/set_internal_state` takes the operator's pin as well (`operator_pin`)."""
    controller = controller_of(state.scheduler.model_worker)
    if controller is None:
        return original(state, recv_req)
    return operator_pin.set_internal_state(
        controller.pins, controller.pin_changed, lambda request: original(state, request), recv_req
    )


def calculate_spec_decoding_metrics(
    result: Any, _manager: Any, meta_info: dict[str, Any], *_args: Any, **_kwargs: Any
) -> Any:
    """A client's accept length counts verify rounds only, not the tokens of plain steps."""
    rounds = meta_info.get("spec_verify_ct", 0)
    if rounds:
        meta_info["spec_accept_length"] = meta_info["spec_num_correct_drafts"] / rounds + 1
    return result


def flush_cache(result: bool, scheduler: Any, *_args: Any, **_kwargs: Any) -> bool:
    """The prefix cache was emptied (SGLang does it only when nothing runs)."""
    controller = controller_of(scheduler.model_worker)
    if controller is not None and result:
        try:
            controller.lifecycle.cache_flushed()
        except Exception as error:
            controller.recovery.caught(error)
    return result


def req_to_token_headroom(result: int, *_args: Any, **_kwargs: Any) -> int:
    """Positions of a request's row beyond the context: all that a decode step reserves (I5).

    SGLang leaves less with pages of 1, and near the context's end writes the reserve of one
    request into the row of the next (`docs/upstream/`).
    """
    from sglang.srt.mem_cache import allocation_sizing as sizing
    from sglang.srt.runtime_context import get_context

    if start.refusal_of(get_context().server_args) is not None:
        return result
    reserve: int = sizing.get_alloc_reserve_per_decode() + sizing.get_alloc_page_size() - 1
    return max(result, reserve)


def watch_prefix_cache(scheduler: Any, controller: Controller) -> None:
    """Cut what a leaving request inserts into the prefix cache, and learn that it left (I15)."""
    tree_cache = scheduler.tree_cache
    checkpoint, on_release = tree_cache.checkpoint, tree_cache.on_release
    core = getattr(tree_cache, "tree_core", tree_cache)
    boundary_tokens = int(getattr(core, "is_eagle", False))

    recovery = controller.recovery

    @passes_on
    def cut_checkpoint(req: Any, *, up_to: int, **kwargs: Any) -> Any:
        allowed = up_to
        if recovery.due is None:
            try:
                allowed = controller.insertable(req, up_to, boundary_tokens)
                if controller.checks is not None:
                    controller.checks.at_insert(req, allowed - boundary_tokens)
            except Exception as error:
                recovery.caught(error)
        if recovery.due is not None:
            allowed = cut(req, up_to)
        return checkpoint(req, up_to=allowed, **kwargs)

    @passes_on
    def note_release(req: Any, **kwargs: Any) -> Any:
        if recovery.due is None:
            try:
                controller.left(req)
            except Exception as error:
                recovery.caught(error)
        return on_release(req, **kwargs)

    tree_cache.checkpoint = cut_checkpoint
    tree_cache.on_release = note_release


def init_scheduler(result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> Any:
    """The scheduler is complete: attach what needs both worker and caches."""
    controller = controller_of(scheduler.model_worker)
    if controller is not None:
        start.verify("scheduler")
        problem = compat.scheduler_problem(scheduler)
        if problem is not None:
            start.refuse_late(problem)
        watch_prefix_cache(scheduler, controller)
        operator_pin.watch(scheduler, controller.pins)
    return result


@passes_on
def run_event_loop(original: Callable[..., Any], scheduler: Any) -> Any:
    """The scheduler's loop: what ends it leaves a flight record."""
    try:
        return original(scheduler)
    except Exception as error:
        controller = controller_of(scheduler.model_worker)
        if controller is not None:
            controller.recovery.records.crashed(error)
        raise


SCHEDULER_HOOKS: tuple[Hook, ...] = (
    (f"{_SCHEDULER}.__init__", init_scheduler, HookType.AFTER),
    (f"{_SCHEDULER}.get_next_batch_to_run", get_next_batch_to_run, HookType.AROUND),
    (f"{_SCHEDULER}.update_running_batch", update_running_batch, HookType.AROUND),
    (f"{_SCHEDULER}.is_disable_overlap_for_batch", is_disable_overlap_for_batch, HookType.AROUND),
    (f"{_SCHEDULER}.run_batch", run_batch, HookType.AROUND),
    (f"{_SCHEDULER}.process_batch_result", process_batch_result, HookType.AROUND),
    (f"{_SCHEDULER}.run_event_loop", run_event_loop, HookType.AROUND),
    (f"{_RESULTS}._resolve_spec_v2_tokens", resolve_spec_v2_tokens, HookType.AROUND),
    (f"{_SCHEDULER}._add_request_to_queue", add_request_to_queue, HookType.AROUND),
    (f"{_VERIFY}.eagle_sample", eagle_sample, HookType.AROUND),
    (f"{_METRICS}.update_spec_metrics", update_spec_metrics, HookType.AROUND),
    (f"{_METRICS}.report_decode_stats", report_decode_stats, HookType.AROUND),
    (f"{_SCHEDULER}.flush_cache", flush_cache, HookType.AFTER),
    *weight_updates.HOOKS,
    (f"{_SIZING}.get_req_to_token_extra_context_len", req_to_token_headroom, HookType.AFTER),
    (f"{_STATE}.get_internal_state", get_internal_state, HookType.AFTER),
    (f"{_STATE}.set_internal_state", set_internal_state, HookType.AROUND),
)
"""Dotted target, hook, kind. `compat.SIGNATURES` says what each target must look like."""

TOKENIZER_HOOKS: tuple[Hook, ...] = (
    (
        f"{_TOKENIZER}._calculate_spec_decoding_metrics",
        calculate_spec_decoding_metrics,
        HookType.AFTER,
    ),
)
"""The same in the processes that answer clients."""

HOOKS = (*SCHEDULER_HOOKS, *TOKENIZER_HOOKS)

__all__ = ["HOOKS", "SCHEDULER_HOOKS", "TOKENIZER_HOOKS", "controller_of", "watch_prefix_cache"]
