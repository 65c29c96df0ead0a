"""Scenarios in which clients send what they like, on the real scheduler and worker.

Run by `live.run(..., script="client_scenarios.py")`, which starts this file in a process. All of
them share one engine, so that they cost one start.
"""

from __future__ import annotations

import logging
from typing import Any

import client_inputs
from live_scenarios import Live, main, scenario


class Asked:
    """Every request the scheduler took in, by itself and not by its name."""

    def __init__(self, live: Live) -> None:
        self.reqs: list[Any] = []
        self._live = live
        scheduler = live.scheduler
        queue = scheduler._add_request_to_queue

        def noted(req: Any, is_retracted: bool = False) -> None:
            if not any(req is known for known in self.reqs):
                self.reqs.append(req)
            queue(req, is_retracted=is_retracted)

        scheduler._add_request_to_queue = noted

    def wrong(self) -> list[list[Any]]:
        """Requests that ended by themselves with another text than the model's own greedy one."""
        from spec_fsm_sglang.reference import first_difference

        found = []
        for req in self.reqs:
            prompt, output = list(req.origin_input_ids), list(req.output_ids_through_stop)
            if type(req.finished_reason).__name__ == "FINISH_ABORT":
                continue
            difference = first_difference(self._live.pair.target, prompt, output)
            if difference is not None or len(output) != req.sampling_params.max_new_tokens:
                found.append([req.rid, output, str(difference)])
        return found

    def aborted(self) -> int:
        """How many ended as aborted."""
        return sum(type(req.finished_reason).__name__ == "FINISH_ABORT" for req in self.reqs)


class Lines(logging.Handler):
    """What a logger of SGLang or of ours writes from now on."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        source = logging.getLogger(name)
        source.setLevel(logging.INFO)
        source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def thresholds(live: Live, disable_above: int, enable_at: int) -> None:
    """Move the thresholds, as no operator can: it spares an engine of its own."""
    policy = live.fsm.lifecycle.policy
    policy._disable, policy._enable = disable_above, enable_at
    live.fsm.pin(0)


def settle(live: Live) -> None:
    """Nothing runs, and the mode is SPEC."""
    live.finish()
    live.fsm.pin(1)
    while live.fsm.lifecycle.mode.name != "SPEC":
        live.submit(3)
        live.finish()
    live.fsm.pin(0)
    live.modes.clear()


def same_name(live: Live, asked: Asked) -> dict[str, Any]:
    """Three live requests called `n` at a time, across switches, retractions and an abort."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    asked.reqs.clear()
    rows: set[str] = set()
    for round_ in range(4):
        live.fsm.pin(2 if round_ % 2 else 1)
        for i in range(3):
            live.submit(12 + 9 * i, rid="n")
        live.step(5)
        rows |= {req.spec_fsm_row for req in live.scheduler.running_batch.reqs}
        if round_ > 1:
            # The name returns while its owners are retracted.
            live.engine.send(PauseGenerationReqInput(mode="retract"))
            live.submit(8, rid="n")
            live.step(1)
            live.engine.send(ContinueGenerationReqInput())
            live.step(4)
            rows |= {req.spec_fsm_row for req in live.scheduler.running_batch.reqs}
    live.engine.abort("n")
    live.fsm.pin(0)
    live.finish()
    return {"asked": len(asked.reqs), "rows": len(rows), "wrong": asked.wrong(),
            "aborted": asked.aborted()}


def never_decodes(live: Live) -> dict[str, Any]:
    """Five decode at a threshold of five; beside them come requests that end in their prefill."""
    thresholds(live, 5, 3)
    found = {}
    for kind in client_inputs.ENDING:
        settle(live)
        for _ in range(5):
            live.submit(60)
        live.step(6)
        for _ in range(3):
            client_inputs.submit_ending(live, kind)
            live.step(1)
        live.step(4)
        found[kind] = sorted(set(live.modes))
        live.finish()
    settle(live)
    for _ in range(6):
        live.submit(60)
    live.step(6)
    found["a sixth that decodes"] = sorted(set(live.modes))
    live.finish()
    return found


def logged(live: Live) -> dict[str, Any]:
    """Lines and gauges of SGLang's in SPEC, then PLAIN, then mixed; ours of the switches."""
    from spec_fsm_sglang import mode_log

    decode = Lines("sglang.srt.managers.scheduler_components.metrics_reporter")
    reporter = live.scheduler.metrics_reporter
    settle(live)
    now = [100.0]
    ours = Lines(mode_log.logger.name)
    log = live.fsm._mode_log
    # What the scenarios before left to be told is told under their clock, or never.
    log._modes, log._why, log._left_out, log.waiting = [], [], 0, False
    log._clock, log._told_at = lambda: now[0], 0.0
    found: dict[str, Any] = {}
    live.submit(400, live.prompt(5, 6))
    for name, pin, steps in (("spec", 1, 21), ("plain", 2, 30), ("mixed", 1, 11)):
        live.fsm.pin(pin)
        if name == "plain":
            while live.fsm.lifecycle.mode.name != "PLAIN" or not live.fsm.settling_plain:
                live.step(1)
            found["rounds not told yet"] = reporter.spec_num_forward_ct
            now[0] += 60
        decode.lines.clear()
        live.step(steps)
        lines = [line for line in decode.lines if line.startswith("Decode batch")]
        found[name] = {"lines": lines, "gauge": reporter.stats.spec_accept_length}
    now[0] += 60
    live.step(2)
    found["totals"] = [
        reporter.spec_total_num_accept_tokens, reporter.spec_total_num_forward_ct,
    ]  # fmt: skip
    # Ten switches in no time, then the time passes.
    ours_before = len(ours.lines)
    for i in range(10):
        live.fsm.pin(2 - i % 2)
        live.step(6)
    found["burst"] = len(ours.lines) - ours_before
    now[0] += 60
    live.step(2)
    found["ours"] = list(ours.lines)  # the logger goes on
    live.finish()
    return found


def held(live: Live) -> list[str]:
    """A request that outgrew its stash keeps the server plain for many iterations."""
    from spec_fsm_sglang import mode_log

    settle(live)
    live.fsm.pin(2)
    live.submit(60, live.prompt(5, 6))
    live.step(12)
    live.fsm.lifecycle.weights_changed()  # stashed states are worth nothing: the row is lost
    ours = Lines(mode_log.logger.name)
    live.fsm.pin(1)
    live.step(15)
    live.finish()
    return [line for line in ours.lines if "stays although" in line]


def prefilled_again(live: Live) -> dict[str, Any]:
    """A sampled request is retracted and prefilled again in chunks: its draft KV, recomputed."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    import draft_kv_reference

    found: dict[str, Any] = {}
    for mode, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        settle(live)
        live.fsm.pin(2)
        live.submit(160, live.prompt(10, 11), sampling={"temperature": temperature})
        live.step(100)
        live.engine.send(PauseGenerationReqInput(mode="retract"))
        live.step()
        live.engine.send(ContinueGenerationReqInput())
        live.fsm.pin(1)
        live.step(8)
        (req,) = live.scheduler.running_batch.reqs
        worst, compared = draft_kv_reference.worst_difference(live)
        found[mode] = {"worst": worst, "compared": compared, "retracted": req.retraction_count}
        live.finish()
    return found


def only_parity() -> str:
    """A processor, as a client sends it: allows tokens of one parity, by each row's parameters."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    class OnlyParity(CustomLogitProcessor):  # type: ignore[misc]
        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            """Changes logits `[n, vocab]`, one row for each of `custom_param_list`."""
            for row, params in zip(logits, custom_param_list, strict=True):
                row[1 - params["parity"] :: 2] = -float("inf")
            return logits

    text: str = OnlyParity.to_str()
    return text


def processors(live: Live) -> dict[str, Any]:
    """Rows with a custom logit processor, of either parity, and rows without, in both modes."""
    found: dict[str, Any] = {}
    prompts, processor = [live.prompt(6, 7) for _ in range(3)], only_parity()
    for mode, pin in (("spec", 1), ("plain", 2)):
        settle(live)
        live.fsm.pin(pin)
        for i, prompt in enumerate(prompts):
            live.submit(30, prompt, rid=f"{mode} none {i}")
            for parity in (0, 1):
                live.submit(
                    30, prompt, rid=f"{mode} {parity} {i}",
                    sampling={"custom_params": {"parity": parity}},
                    custom_logit_processor=processor,
                )  # fmt: skip
        live.step(8)
        found[f"{mode} reached"] = live.fsm.lifecycle.mode.name
        live.finish()
    outputs = live.engine.outputs
    texts = {rid: list(outputs[rid].output_ids) for rid in outputs if rid.startswith(("sp", "pl"))}
    return found | {"texts": texts}


def parameters(live: Live) -> dict[str, list[int]]:
    """The output of each request of `client_inputs.GREEDY`, all at once."""
    for i, (name, (sampling, fields)) in enumerate(client_inputs.GREEDY.items()):
        prompt = [(7 * i + 31 * j) % 480 + 5 for j in range(9)]
        live.submit(24, prompt, rid=name, sampling=dict(sampling), **fields)
    live.finish()
    return {name: list(live.engine.outputs[name].output_ids) for name in client_inputs.GREEDY}


@scenario
def unspeculated(live: Live) -> dict[str, Any]:
    """The same requests on a server without speculation."""
    return parameters(live)


def both_modes(live: Live) -> dict[str, Any]:
    """The same requests pinned SPEC and pinned PLAIN; how many were counted as differing."""
    found: dict[str, Any] = {}
    before = live.fsm.differing.seen
    for name, pin in (("spec", 1), ("plain", 2)):
        settle(live)
        live.fsm.pin(pin)
        found[name] = parameters(live)
        found[f"{name} reached"] = live.fsm.lifecycle.mode.name
    found["counted equal"] = live.fsm.differing.seen - before
    for field, value in client_inputs.DIFFERING_VALUES.items():
        live.submit(3, rid=field, sampling={field: value})
    live.finish()
    found["counted differing"] = live.fsm.differing.seen - before
    live.fsm.differing._refuse = True
    for field, value in client_inputs.DIFFERING_VALUES.items():
        live.submit(3, rid=field, sampling={field: value})
    live.submit(3, rid="asked for nothing")
    live.finish()
    live.fsm.differing._refuse = False
    names = [*client_inputs.DIFFERING_VALUES, "asked for nothing"]
    found["refused"] = {rid: live.engine.outputs[rid].finished_reason for rid in names}
    return found


@scenario
def clients(live: Live) -> dict[str, Any]:
    """All of it, one after the other."""
    asked = Asked(live)
    parts = live.params.get("parts")
    known = {
        "same_name": lambda: same_name(live, asked),
        "never_decodes": lambda: never_decodes(live),
        "logged": lambda: logged(live),
        "held": lambda: held(live),
        "prefilled_again": lambda: prefilled_again(live),
        "processors": lambda: processors(live),
        "both_modes": lambda: both_modes(live),
        "odd": lambda: client_inputs.play(live, live.params["examples"]),
    }
    found: dict[str, Any] = {name: part() for name, part in known.items()
                             if parts is None or name in parts}  # fmt: skip
    status = live.fsm.status()
    return found | {"status": status, "details": live.fsm.lifecycle.checks.details}


if __name__ == "__main__":
    main()
