"""What each hook asks and answers, for a worker of ours and any other; the log without acceptance.

Nothing runs: scheduler, processor and reporter are stand-ins that remember what they were told.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt import runtime_context
from sglang.srt.managers.io_struct import SetInternalStateReq
from sglang.srt.mem_cache import allocation_sizing
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from spec_fsm import Action, Pin
from spec_fsm_sglang import compat, decode_log, hooks, operator_pin, start
from spec_fsm_sglang.decode_log import SPEC_GAUGES, report_without_acceptance
from spec_fsm_sglang.operator_pin import OperatorPin
from spec_fsm_sglang.recovery import FOR_GOOD, VOID

ANSWERS = (
    "before_choice", "boundary", "before_update", "must_settle_first", "before_run", "settled",
    "status", "insertable", "left", "pin_changed",
)  # fmt: skip
"""What the hooks ask the controller."""


class Told(list[Any]):
    """Calls, in order: a name, what was given, and what was given by name if anything was."""

    def of(self, name: str, answer: Any = None) -> Callable[..., Any]:
        """A function of this name that answers so; an exception is raised."""

        def call(*given: Any, **named: Any) -> Any:
            self.append((name, *given, named) if named else (name, *given))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class Recovery:
    """In place of the recovery: an error that is caught makes one due."""

    def __init__(self, told: Told) -> None:
        self._told, self.due, self.hold = told, None, 0
        self.loose: list[Any] = []
        self.recover = told.of("recover", {"running_batch": "recovered"})
        self.nothing_committed = told.of("nothing_committed", [[], []])
        self.launch_failed = told.of("launch_failed", "failed")
        self.tick = told.of("tick")
        self.records = SimpleNamespace(crashed=told.of("crashed"))

    def caught(self, error: Any) -> None:
        """An error of our own."""
        self._told.append(("caught", error))
        self.due = error


def made(told: Told, **answers: Any) -> Any:
    """A controller that gives these answers, and None to what else it is asked."""
    asked: dict[str, Any] = {name: told.of(name, answers.get(name)) for name in ANSWERS}
    return SimpleNamespace(
        **asked, recovery=Recovery(told), tracing=False, settling_plain=False, checks=None,
        differing=SimpleNamespace(admit=told.of("admit")), pins=OperatorPin(Pin.AUTO),
        lifecycle=SimpleNamespace(cache_flushed=told.of("cache_flushed", answers.get("flushed"))),
    )  # fmt: skip


def server(controller: Any = None, **fields: Any) -> Any:
    """A scheduler, or its processor, whose worker has this controller; SGLang's own has none."""
    worker = SimpleNamespace() if controller is None else SimpleNamespace(spec_fsm=controller)
    return SimpleNamespace(model_worker=worker, **fields)


def part_of(scheduler: Any, **fields: Any) -> Any:
    """A part of a scheduler that knows it."""
    return SimpleNamespace(scheduler=scheduler, **fields)


def planned(batch: Any) -> Any:
    """What SGLang chose to run."""
    return SimpleNamespace(batch_to_run=batch)


# -- any worker that is not ours ----------------------------------------------------------------


def test_the_controller_of_a_worker() -> None:
    """Ours has one, SGLang's has none."""
    assert hooks.controller_of(SimpleNamespace(spec_fsm="ours")) == "ours"  # type: ignore[comparison-overlap]
    assert hooks.controller_of(SimpleNamespace(spec_fsm=None)) is None
    assert hooks.controller_of(SimpleNamespace()) is None


@pytest.mark.parametrize("hook", [
    hooks.get_next_batch_to_run, hooks.is_disable_overlap_for_batch, hooks.update_running_batch,
    hooks.run_batch, hooks.run_event_loop, hooks.resolve_spec_v2_tokens,
])  # fmt: skip
def test_without_a_controller_a_hook_of_the_scheduler_is_sglangs(hook: Any) -> None:
    """What it is given is passed on, and SGLang's answer is given back."""
    told, theirs = Told(), server()
    given = {
        "get_next_batch_to_run": (), "update_running_batch": ("batch",), "run_event_loop": (),
        "is_disable_overlap_for_batch": ("batch",), "run_batch": ("batch", "proxy"),
        "resolve_spec_v2_tokens": ("result", "batch"),
    }[hook.__name__]  # fmt: skip
    named = {
        "get_next_batch_to_run": {"running_batch": 1}, "is_disable_overlap_for_batch": {"last": 2}
    }.get(hook.__name__, {})  # fmt: skip
    assert hook(told.of("original", "answer"), theirs, *given, **named) == "answer"
    assert told == [("original", theirs, *given, named) if named else ("original", theirs, *given)]


def test_without_a_controller_the_parts_of_a_scheduler_are_sglangs() -> None:
    """Its counters, its log, its queue and its state."""
    told, theirs = Told(), server()
    original = told.of("original", "answer")
    reporter = part_of(theirs, forward_ct_decode=40, decode_log_interval=40, spec_num_forward_ct=0)
    req = SimpleNamespace(retracted_stain=False)
    hooks.update_spec_metrics(original, reporter, 3, bs=4)
    hooks.report_decode_stats(original, reporter, 5, running_batch=6)
    hooks.add_request_to_queue(original, theirs, req, 7, is_retracted=True)
    state = part_of(theirs)
    assert hooks.set_internal_state(original, state, "request") == "answer"
    assert told == [
        ("original", reporter, 3, {"bs": 4}),
        ("original", reporter, 5, {"running_batch": 6}),
        ("original", theirs, req, 7, {"is_retracted": True}),
        ("original", state, "request"),
    ]


def test_without_a_controller_answers_of_sglangs_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A state without the lifecycle, and nothing is watched or verified."""
    monkeypatch.setattr(start, "verify", lambda role: pytest.fail("a hook is looked for"))
    result = SimpleNamespace(internal_state={"a": 1})
    assert hooks.get_internal_state(result, part_of(server()), "request") is result
    assert result.internal_state == {"a": 1}
    assert hooks.flush_cache(True, server()) is True
    assert hooks.flush_cache(False, server()) is False
    assert hooks.init_scheduler("made", server(), 1, a=2) == "made"


# -- a boundary ---------------------------------------------------------------------------------


def test_a_boundary_is_before_and_after_the_choice() -> None:
    """The plan is SGLang's; nothing is recovered and no hold counted."""
    told, plan = Told(), planned("batch")
    ours = server(made(told))
    original = told.of("original", plan)
    assert hooks.get_next_batch_to_run(original, ours, running_batch=1) is plan
    assert told == [
        ("before_choice", ours), ("original", ours, {"running_batch": 1}), ("boundary", ours, plan)
    ]  # fmt: skip


def test_what_is_due_is_recovered_before_the_choice() -> None:
    """And SGLang chooses among what the recovery left."""
    told, plan = Told(), planned(None)
    ours = server(made(told))
    ours.model_worker.spec_fsm.recovery.due = "an error"
    hooks.get_next_batch_to_run(told.of("original", plan), ours, running_batch=1)
    assert told == [
        ("recover", ours), ("original", ours, {"running_batch": "recovered"}),
        ("boundary", ours, plan),
    ]  # fmt: skip


def test_an_error_before_the_choice_is_recovered_at_once() -> None:
    """One after it by the next iteration: what was chosen is SGLang's to run."""
    told, plan, error = Told(), planned(None), RuntimeError()
    ours = server(made(told, before_choice=error))
    assert hooks.get_next_batch_to_run(told.of("original", plan), ours) is plan
    assert told[1:3] == [("caught", error), ("recover", ours)]
    told.clear()
    ours = server(made(told, boundary=error))
    assert hooks.get_next_batch_to_run(told.of("original", plan), ours) is plan
    assert told[1:] == [("original", ours), ("boundary", ours, plan), ("caught", error)]


@pytest.mark.parametrize(
    ("hold", "batch", "counted"),
    [(0, "b", False), (1, None, False), (1, "b", True), (2, "b", True), (FOR_GOOD, "b", False)],
)
def test_a_hold_counts_iterations_that_run_a_batch(hold: int, batch: Any, counted: bool) -> None:
    """None that idles, and none of a hold that is over or for good."""
    told = Told()
    ours = server(made(told))
    ours.model_worker.spec_fsm.recovery.hold = hold
    hooks.get_next_batch_to_run(told.of("original", planned(batch)), ours)
    assert (("tick",) in told) is counted


def test_the_running_batch_is_looked_at_before_it_is_updated() -> None:
    """SGLang updates it also where that failed."""
    told, error = Told(), RuntimeError()
    ours = server(made(told))
    assert hooks.update_running_batch(told.of("original", "left"), ours, "batch") == "left"
    assert told == [("before_update", ours, "batch"), ("original", ours, "batch")]
    ours = server(made(told, before_update=error))
    assert hooks.update_running_batch(told.of("original", "left"), ours, "batch") == "left"
    assert told[3:] == [("caught", error), ("original", ours, "batch")]


def test_a_drain_ends_the_overlap() -> None:
    """SGLang is asked where the lifecycle does not insist, or fails to say."""
    told, error = Told(), RuntimeError()
    original = told.of("original", "sglang's")
    ours = server(made(told, must_settle_first=True))
    assert hooks.is_disable_overlap_for_batch(original, ours, "batch", last="l") is True
    assert told == [("must_settle_first", ours, "batch")]
    ours = server(made(told, must_settle_first=False))
    found: Any = hooks.is_disable_overlap_for_batch(original, ours, "batch", last="l")
    assert (found, told[2:]) == ("sglang's", [("original", ours, "batch", {"last": "l"})])
    ours = server(made(told, must_settle_first=error))
    found = hooks.is_disable_overlap_for_batch(original, ours, "batch", last="l")
    assert (found, told[4]) == ("sglang's", ("caught", error))
    assert told[5:] == [("original", ours, "batch", {"last": "l"})]


# -- a launch and its result --------------------------------------------------------------------


def test_a_launch_comes_after_what_is_dropped_from_its_batch() -> None:
    """Its result is SGLang's."""
    told = Told()
    ours = server(made(told))
    assert hooks.run_batch(told.of("original", "result"), ours, "batch", "proxy") == "result"
    assert told == [("before_run", "batch"), ("original", ours, "batch", "proxy")]


def test_nothing_is_launched_while_a_recovery_is_due() -> None:
    """There is no result, and nothing asks for one."""
    told = Told()
    ours = server(made(told))
    ours.model_worker.spec_fsm.recovery.due = "an error"
    result = hooks.run_batch(told.of("original"), ours, "batch")
    assert result is VOID
    assert hooks.process_batch_result(told.of("original"), ours, "batch", result) is None
    assert told == []
    assert hooks.process_batch_result(told.of("original", "done"), ours, "batch", "r") == "done"
    assert told == [("original", ours, "batch", "r")]


def test_a_launch_that_fails_is_the_recoverys() -> None:
    """Before it or in it."""
    told, error = Told(), RuntimeError()
    ours = server(made(told, before_run=error))
    assert hooks.run_batch(told.of("original"), ours, "batch") == "failed"
    assert told == [("before_run", "batch"), ("launch_failed", error)]
    ours = server(made(told))
    assert hooks.run_batch(told.of("original", error), ours, "batch") == "failed"
    assert told[3:] == [("original", ours, "batch"), ("launch_failed", error)]


def test_a_verify_round_is_settled_and_then_sglangs() -> None:
    """A grammar is advanced before only where a trace asks how much it keeps."""
    told = Told()
    ours = server(made(told), advance_grammar_fsm=told.of("advance"))
    controller = ours.model_worker.spec_fsm
    controller.settling_plain = True
    original = told.of("original", [[1, 2]])
    result = SimpleNamespace(spec_fsm_action=Action.SPECULATE)
    assert hooks.resolve_spec_v2_tokens(original, ours, result, "batch") == [[1, 2]]
    assert told == [("settled", "batch", result), ("original", ours, result, "batch")]
    assert controller.settling_plain is False
    told.clear()
    controller.tracing = True
    unknown = SimpleNamespace()
    assert hooks.resolve_spec_v2_tokens(original, ours, unknown, "batch") == [[1, 2]]
    assert told == [
        ("advance", unknown, "batch"), ("settled", "batch", unknown),
        ("original", ours, unknown, "batch"),
    ]  # fmt: skip


def row(committed: int, grammar: str | None = None, **said: bool) -> Any:
    """A request that has so many positions; said: whether it is `retracted` or has `ended`."""
    return SimpleNamespace(
        is_retracted=said.get("retracted", False), finished=lambda: said.get("ended", False),
        grammar=grammar, kv=SimpleNamespace(kv_committed_len=committed),
    )  # fmt: skip


def plain_result() -> Any:
    """Of a plain step of five rows; the grammars keep what is told of them."""
    return SimpleNamespace(
        spec_fsm_action=Action.PLAIN, next_token_ids=torch.tensor([11, 12, 13, 14, 15]),
        grammar_retained_tokens=[[], [], [13], [], None],
    )  # fmt: skip


def test_a_plain_result_commits_one_token_a_row() -> None:
    """None of a row that ended or was retracted, and of one with a grammar what it accepts."""
    told = Told()
    ours = server(made(told), advance_grammar_fsm=told.of("advance"))
    reqs = [
        row(7), row(8, "grammar"), row(9, "grammar"), row(10, "grammar", retracted=True),
        row(11, "grammar", ended=True),
    ]  # fmt: skip
    batch, result = SimpleNamespace(reqs=reqs), plain_result()
    tokens = hooks.resolve_spec_v2_tokens(told.of("original"), ours, result, batch)
    assert tokens == [[11], [], [13], [14], [15]]
    assert [req.kv.kv_committed_len for req in reqs] == [8, 8, 10, 10, 11]
    assert told == [("settled", batch, result), ("advance", result, batch)]
    assert ours.model_worker.spec_fsm.settling_plain is True


def test_a_result_that_cannot_be_settled_is_committed_all_the_same() -> None:
    """It was computed. While a recovery is due nothing is settled."""
    told, error = Told(), RuntimeError()
    ours = server(made(told, settled=error))
    result = SimpleNamespace(spec_fsm_action=Action.SPECULATE)
    assert hooks.resolve_spec_v2_tokens(told.of("original", [[1]]), ours, result, "b") == [[1]]
    assert told[1:] == [("caught", error), ("original", ours, result, "b")]
    told.clear()
    assert hooks.resolve_spec_v2_tokens(told.of("original", [[1]]), ours, result, "b") == [[1]]
    assert told == [("original", ours, result, "b")]


def test_after_a_result_that_was_lost_nothing_more_is_committed() -> None:
    """Its requests are prefilled again from what they had before."""
    told, error = Told(), RuntimeError()
    ours = server(made(told), advance_grammar_fsm=told.of("advance", error))
    result, original = plain_result(), told.of("original")
    assert hooks.resolve_spec_v2_tokens(original, ours, result, "b") == [[], []]
    assert told[1:] == [("advance", result, "b"), ("caught", error), ("nothing_committed", "b")]
    told.clear()
    ours.model_worker.spec_fsm.recovery.loose = ["a request"]
    for later in (result, SimpleNamespace(spec_fsm_action=Action.SPECULATE)):
        assert hooks.resolve_spec_v2_tokens(original, ours, later, "b") == [[], []]
    assert told == [("nothing_committed", "b")] * 2


# -- counters and the log -----------------------------------------------------------------------


def test_a_plain_step_is_no_verify_round() -> None:
    """Only rounds are counted."""
    told = Told()
    controller = made(told)
    reporter = part_of(server(controller))
    hooks.update_spec_metrics(told.of("original"), reporter, 1, num_accepted=2)
    assert told == [("original", reporter, 1, {"num_accepted": 2})]
    controller.settling_plain = True
    hooks.update_spec_metrics(told.of("original"), reporter, 1, num_accepted=2)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("steps", "plain", "rounds", "by"),
    [
        (80, True, 5, "without"), (80, False, 0, "without"), (80, True, 0, "without"),
        (80, False, 5, "original"), (80, False, 1, "original"),
        (81, True, 0, "original"), (79, True, 0, "original"), (0, True, 5, "without"),
    ],
)  # fmt: skip
def test_an_interval_is_told_without_acceptance(
    monkeypatch: pytest.MonkeyPatch, steps: int, plain: bool, rounds: int, by: str
) -> None:
    """Where it ends in PLAIN or had no round; between intervals SGLang tells nothing."""
    told = Told()
    monkeypatch.setattr(hooks, "report_without_acceptance", told.of("without"))
    controller = made(told)
    controller.settling_plain = plain
    reporter = part_of(
        server(controller), forward_ct_decode=steps, decode_log_interval=40,
        spec_num_forward_ct=rounds,
    )  # fmt: skip
    original = told.of("original")
    hooks.report_decode_stats(original, reporter, True, running_batch="batch")
    first = () if by == "original" else (original,)
    assert told == [(by, *first, reporter, True, {"running_batch": "batch"})]


def gauges(value: float) -> Any:
    """SGLang's statistics of a report, the speculative ones of this value."""
    return SimpleNamespace(**dict.fromkeys(SPEC_GAUGES, value), gen_throughput=value)


class Collector:
    """Exports what the statistics are when it is told."""

    labels = "of the server"

    def __init__(self) -> None:
        self.exported: list[dict[str, float]] = []

    def log_stats(self, stats: Any) -> None:
        """One export."""
        self.exported.append(dict(vars(stats)))


def test_gauges_keep_the_last_interval_that_had_rounds() -> None:
    """A report sets them to 0 without speculation; all else of it is exported as it is."""
    stats, collector = gauges(3.0), Collector()
    keeps = decode_log._KeepsAcceptance(collector, stats)
    vars(stats).update(vars(gauges(0.0)))
    keeps.log_stats(stats)
    assert collector.exported == [{**dict.fromkeys(SPEC_GAUGES, 3.0), "gen_throughput": 0.0}]
    assert vars(stats) == collector.exported[0]
    assert keeps.labels == "of the server"


def reporting(*, metrics: bool) -> Any:
    """A reporter of a speculating server, with a collector where there are metrics."""
    scheduler = SimpleNamespace(spec_algorithm=SpeculativeAlgorithm.EAGLE)
    collector = {"metrics_collector": Collector()} if metrics else {}
    return part_of(
        scheduler, stats=gauges(3.0), current_scheduler_metrics_enabled=metrics, **collector
    )


@pytest.mark.parametrize("metrics", [True, False])
def test_a_report_without_acceptance_is_made_as_by_a_plain_server(metrics: bool) -> None:
    """Then the server speculates as before, and what it exports by is as before."""
    reporter, told = reporting(metrics=metrics), Told()
    before = dict(vars(reporter))

    def original(reporter: Any, *given: Any, **named: Any) -> None:
        told.append((reporter.scheduler.spec_algorithm, given, named))
        if metrics:
            reporter.stats.spec_accept_length = 0.0
            reporter.stats.gen_throughput = 9.0
            reporter.metrics_collector.log_stats(reporter.stats)

    report_without_acceptance(original, reporter, True, running_batch="batch")
    assert told == [(SpeculativeAlgorithm.NONE, (True,), {"running_batch": "batch"})]
    assert reporter.scheduler.spec_algorithm is SpeculativeAlgorithm.EAGLE
    assert vars(reporter) == before
    if metrics:
        exported = {**dict.fromkeys(SPEC_GAUGES, 3.0), "gen_throughput": 9.0}
        assert reporter.metrics_collector.exported == [exported]


@pytest.mark.parametrize("metrics", [True, False])
def test_a_report_that_fails_leaves_a_speculating_server(metrics: bool) -> None:
    """Its error is SGLang's."""
    reporter = reporting(metrics=metrics)
    before = dict(vars(reporter))
    with pytest.raises(ZeroDivisionError):
        report_without_acceptance(Told().of("original", ZeroDivisionError()), reporter)
    assert reporter.scheduler.spec_algorithm is SpeculativeAlgorithm.EAGLE
    assert vars(reporter) == before


@pytest.mark.parametrize(
    ("rounds", "correct", "length"), [(4, 6, 2.5), (1, 3, 4.0), (5, 0, 1.0), (2, 1, 1.5)]
)
def test_a_clients_accept_length_is_that_of_its_rounds(
    rounds: int, correct: int, length: float
) -> None:
    """The drafts that were right, and one token of the target's own a round."""
    meta: dict[str, Any] = {
        "spec_verify_ct": rounds, "spec_num_correct_drafts": correct, "spec_accept_length": 9.0
    }  # fmt: skip
    assert hooks.calculate_spec_decoding_metrics("result", None, meta, 1, a=2) == "result"
    assert meta["spec_accept_length"] == length


def test_a_client_without_a_round_is_told_what_sglang_says() -> None:
    """There is nothing to divide by."""
    for meta in ({}, {"spec_verify_ct": 0, "spec_accept_length": 7.0}):
        kept: dict[str, Any] = dict(meta)
        assert hooks.calculate_spec_decoding_metrics(None, None, kept) is None
        assert kept == meta


# -- requests, state, cache ---------------------------------------------------------------------


def test_a_request_is_counted_once_it_is_admitted() -> None:
    """Not again where it comes back from a retraction."""
    told = Told()
    ours = server(made(told))
    fresh, back = SimpleNamespace(retracted_stain=False), SimpleNamespace(retracted_stain=True)
    hooks.add_request_to_queue(told.of("original"), ours, fresh, 1, is_retracted=False)
    hooks.add_request_to_queue(told.of("original"), ours, back, 1, is_retracted=True)
    assert told == [
        ("admit", fresh), ("original", ours, fresh, 1, {"is_retracted": False}),
        ("original", ours, back, 1, {"is_retracted": True}),
    ]  # fmt: skip


def test_the_state_shows_the_lifecycle() -> None:
    """SGLang's alone where ours cannot be told."""
    told, error = Told(), RuntimeError()
    result = SimpleNamespace(internal_state={"a": 1})
    state = part_of(server(made(told, status={"mode": "SPEC"})))
    assert hooks.get_internal_state(result, state, "request", a=1) is result
    assert result.internal_state == {"a": 1, "spec_fsm": {"mode": "SPEC"}}
    result = SimpleNamespace(internal_state={"a": 1})
    assert hooks.get_internal_state(result, part_of(server(made(told, status=error)))) is result
    assert (result.internal_state, told[-1]) == ({"a": 1}, ("caught", error))


def test_an_operators_pin_is_set_with_sglangs_own_keys() -> None:
    """The pin by the controller, which learns that it changed; other keys by SGLang."""
    told = Told()
    controller = made(told)
    state = part_of(server(controller))
    original = told.of("original", SimpleNamespace(updated=True))
    request = SetInternalStateReq(server_args={"spec_fsm_pin": 2, "pp_max_micro_batch_size": 3})
    assert hooks.set_internal_state(original, state, request).updated is True
    assert controller.pins.current is Pin.PLAIN
    assert told == [("original", state, request), ("pin_changed",)]
    assert request.server_args == {"pp_max_micro_batch_size": 3}


def test_a_cache_that_was_emptied_is_told() -> None:
    """One that was not is not; SGLang's answer stays."""
    told, error = Told(), RuntimeError()
    assert hooks.flush_cache(False, server(made(told)), 1, a=2) is False
    assert told == []
    assert hooks.flush_cache(True, server(made(told))) is True
    assert told == [("cache_flushed",)]
    assert hooks.flush_cache(True, server(made(told, flushed=error))) is True
    assert told[2:] == [("caught", error)]


@pytest.mark.parametrize(
    ("refusal", "page", "sglangs", "room"),
    [(None, 1, 8, 12), (None, 4, 8, 15), (None, 4, 15, 15), (None, 4, 20, 20), ("off", 4, 8, 8)],
)
def test_a_row_has_room_for_the_reserve_of_a_step(
    monkeypatch: pytest.MonkeyPatch, refusal: str | None, page: int, sglangs: int, room: int
) -> None:
    """Of 12, and for the rest of its last page; where we are off it has what SGLang gives."""
    args = SimpleNamespace(_spec_fsm_refusal=refusal)
    monkeypatch.setattr(runtime_context, "get_context", lambda: SimpleNamespace(server_args=args))
    monkeypatch.setattr(allocation_sizing, "get_alloc_reserve_per_decode", lambda: 12)
    monkeypatch.setattr(allocation_sizing, "get_alloc_page_size", lambda: page)
    assert hooks.req_to_token_headroom(sglangs, 1, a=2) == room


# -- the prefix cache ---------------------------------------------------------------------------


def watched(told: Told, **answers: Any) -> Any:
    """The cache that a controller of these answers watches, and its recovery. Six tokens may be
    inserted; `at_insert` is what the checks say, where there are checks."""
    controller = made(told, **{"insertable": 6, **answers})
    if "at_insert" in answers:
        controller.checks = SimpleNamespace(at_insert=told.of("at_insert", answers["at_insert"]))
    cache = SimpleNamespace(
        checkpoint=told.of("checkpoint", "inserted"), on_release=told.of("release", "released"),
        is_eagle=answers.get("eagle", True),
    )  # fmt: skip
    hooks.watch_prefix_cache(SimpleNamespace(tree_cache=cache), controller)
    return SimpleNamespace(cache=cache, recovery=controller.recovery)


@pytest.mark.parametrize(("eagle", "boundary"), [(True, 1), (False, 0)])
def test_what_a_leaving_request_inserts_is_cut(eagle: bool, boundary: int) -> None:
    """To what the controller allows; the checks see the positions that its keys name."""
    told = Told()
    cache = watched(told, at_insert=None, eagle=eagle).cache
    assert cache.checkpoint("req", up_to=9, priority=1) == "inserted"
    assert told == [
        ("insertable", "req", 9, boundary), ("at_insert", "req", 6 - boundary),
        ("checkpoint", "req", {"up_to": 6, "priority": 1}),
    ]  # fmt: skip


def test_the_keys_of_a_cache_are_those_of_its_core() -> None:
    """Where it has one; a cache that says nothing names a position by one token."""
    for cores, boundary in (
        ({"tree_core": SimpleNamespace(is_eagle=True), "is_eagle": False}, 1),
        ({"tree_core": SimpleNamespace(), "is_eagle": True}, 0),
        ({}, 0),
    ):  # fmt: skip
        told = Told()
        cache = SimpleNamespace(checkpoint=told.of("insert"), on_release=None, **cores)
        controller = made(told, insertable=5)
        hooks.watch_prefix_cache(SimpleNamespace(tree_cache=cache), controller)
        cache.checkpoint("req", up_to=5)
        assert told == [("insertable", "req", 5, boundary), ("insert", "req", {"up_to": 5})]


def ended(prefilled: int) -> Any:
    """A request that ended, whose prefill went so far."""
    return SimpleNamespace(finished=lambda: True, extend_end=prefilled)


def test_while_a_recovery_is_due_only_a_prefill_is_inserted() -> None:
    """Neither the ledger nor the checks are asked, nor told who leaves."""
    told, req = Told(), ended(3)
    found = watched(told, at_insert=None)
    found.recovery.due = "an error"
    assert found.cache.checkpoint(req, up_to=9) == "inserted"
    assert found.cache.on_release(req, a=1) == "released"
    assert told == [("checkpoint", req, {"up_to": 3}), ("release", req, {"a": 1})]


@pytest.mark.parametrize("fails", ["insertable", "at_insert"])
def test_an_insert_that_cannot_be_judged_is_that_of_a_prefill(fails: str) -> None:
    """By the ledger or by the checks."""
    told, req, error = Told(), ended(3), RuntimeError()
    found = watched(told, **{"at_insert": None, fails: error})
    assert found.cache.checkpoint(req, up_to=9) == "inserted"
    assert told[-2:] == [("caught", error), ("checkpoint", req, {"up_to": 3})]


def test_a_request_that_gives_its_row_back_has_left() -> None:
    """SGLang releases it also where that could not be noted."""
    told, error = Told(), RuntimeError()
    found = watched(told)
    assert found.cache.on_release("req", is_insert=True) == "released"
    assert told == [("left", "req"), ("release", "req", {"is_insert": True})]
    found = watched(told, left=error)
    assert found.cache.on_release("req") == "released"
    assert told[3:] == [("caught", error), ("release", "req")]


# -- the start and the end of a scheduler -------------------------------------------------------


def starting(monkeypatch: pytest.MonkeyPatch, problem: str | None) -> Told:
    """What a scheduler's start asks, where that problem shows."""
    told = Told()
    monkeypatch.setattr(start, "verify", told.of("verify"))
    monkeypatch.setattr(start, "refuse_late", told.of("refuse_late", RuntimeError(problem)))
    monkeypatch.setattr(compat, "scheduler_problem", told.of("problem", problem))
    monkeypatch.setattr(hooks, "watch_prefix_cache", told.of("watch_prefix_cache"))
    monkeypatch.setattr(operator_pin, "watch", told.of("watch_pins"))
    return told


def test_a_scheduler_that_is_complete_is_verified_and_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its hooks first, then itself; then its cache and its pins are watched."""
    told = starting(monkeypatch, None)
    controller = made(told)
    ours = server(controller)
    assert hooks.init_scheduler("made", ours, 1, a=2) == "made"
    assert told == [
        ("verify", "scheduler"), ("problem", ours), ("watch_prefix_cache", ours, controller),
        ("watch_pins", ours, controller.pins),
    ]  # fmt: skip


def test_a_scheduler_with_a_problem_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything of it is watched."""
    told = starting(monkeypatch, "no such cache")
    with pytest.raises(RuntimeError, match="no such cache"):
        hooks.init_scheduler("made", server(made(told)))
    assert told[2:] == [("refuse_late", "no such cache")]


def test_what_ends_the_loop_leaves_a_record() -> None:
    """It goes on to SGLang; one of a worker that is not ours leaves none."""
    told, error = Told(), RuntimeError("the end")
    ours = server(made(told))
    assert hooks.run_event_loop(told.of("loop", "over"), ours) == "over"
    assert told == [("loop", ours)]
    with pytest.raises(RuntimeError, match="the end"):
        hooks.run_event_loop(told.of("loop", error), ours)
    assert told[2:] == [("crashed", error)]
    with pytest.raises(RuntimeError, match="the end"):
        hooks.run_event_loop(told.of("loop", error), server())
    assert len(told) == 4


def test_every_hook_is_a_function_of_its_process() -> None:
    """No target twice, and a client's figures where clients are answered."""
    targets = [target for target, _, _ in hooks.HOOKS]
    assert len(set(targets)) == len(targets) == len(hooks.SCHEDULER_HOOKS) + 1
    assert [hook for _, hook, _ in hooks.TOKENIZER_HOOKS] == [
        hooks.calculate_spec_decoding_metrics
    ]
