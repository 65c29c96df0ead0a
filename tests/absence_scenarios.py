"""Rows that sit a launch out on the real scheduler, run by `live.run` in a process.

    python absence_scenarios.py SCENARIO CONFIG_JSON RESULT_FILE
"""

from __future__ import annotations

from typing import Any

from live_scenarios import Live, main, scenario


@scenario
def absences(live: Live) -> dict[str, Any]:
    """Requests that end at every step, in SPEC, while speculation goes off, and at the reseed."""
    seen: dict[str, int] = {}
    most = 0
    launched = live.fsm.launched

    def record(batch: Any, plan: Any, result: Any) -> None:
        nonlocal most
        lifecycle = live.fsm.lifecycle
        if lifecycle.rows > len(batch.reqs):
            seen[plan.action.name] = seen.get(plan.action.name, 0) + 1
        launched(batch, plan, result)
        most = max(most, lifecycle.ledger.in_flight)

    live.fsm.launched = record
    for _ in range(3):
        live.submit(150)
    live.step(3)
    for n in range(1, 6):
        live.submit(n)
        live.step()
    live.step(6)
    for off in (6, 8, 10):
        live.fsm.pin(2)
        for n in range(off, off + 10):
            live.submit(n)
        live.step(off)
        live.fsm.pin(1)
        live.step(14)
    live.fsm.pin(0)
    live.finish()
    return live.result() | {"absent": seen, "most_in_flight": most}


if __name__ == "__main__":
    main()
