"""Scenarios in which clients send what they like, on the real scheduler and worker.

Run by `live.run(..., script="client_scenarios.py")`, which starts this file in a process.
"""

from __future__ import annotations

from typing import Any

from live_scenarios import Live, main, scenario


class Asked:
    """Every request the scheduler took in, by itself and not by its name."""

    def __init__(self, live: Live) -> None:
        self.reqs: list[Any] = []
        scheduler = live.scheduler
        queue = scheduler._add_request_to_queue

        def noted(req: Any, is_retracted: bool = False) -> None:
            if not any(req is known for known in self.reqs):
                self.reqs.append(req)
            queue(req, is_retracted=is_retracted)

        scheduler._add_request_to_queue = noted

    def wrong(self, live: Live) -> list[list[Any]]:
        """Requests that ended by themselves with another text than the model's own greedy one."""
        from spec_fsm_sglang.reference import first_difference

        found = []
        for req in self.reqs:
            output = list(req.output_ids_through_stop)
            if type(req.finished_reason).__name__ == "FINISH_ABORT":
                continue
            difference = first_difference(live.pair.target, list(req.origin_input_ids), output)
            if difference is not None or len(output) != req.sampling_params.max_new_tokens:
                found.append([req.rid, output, str(difference)])
        return found


@scenario
def same_name(live: Live) -> dict[str, Any]:
    """Three live requests called `n` at a time, across switches, retractions and an abort."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    asked = Asked(live)
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
    status = live.fsm.status()
    return {
        "asked": len(asked.reqs), "rows": len(rows), "wrong": asked.wrong(live),
        "aborted": sum(type(r.finished_reason).__name__ == "FINISH_ABORT" for r in asked.reqs),
        "status": status, "details": live.fsm.lifecycle.checks.details,
    }


if __name__ == "__main__":
    main()
