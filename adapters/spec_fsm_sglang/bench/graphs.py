"""I2's graph half, I12 and I13 on real CUDA graphs: modes flip while the batch takes every size.

Every size from 1 to the largest meets each of its padding cases: a batch of n replays the graph of
the next captured size. The engine runs with every check on and raises at the first violation.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from spec_fsm_sglang.bench.arms import Bench, Say, spec_fsm_server, started
from spec_fsm_sglang.bench.load import Load

GRAPHS: Final = ("I2", "I12", "I13")
FLIPS: Final = 8


def measure(bench: Bench, say: Say) -> dict[str, Any]:
    """Flips modes at every size; `evaluated` counts each invariant, `violations` all of them.

    Raises ArmFailed, with the violation in its log, as soon as one is found.
    """
    with tempfile.TemporaryDirectory() as name:
        engine, environ = spec_fsm_server(bench, checks=True)
        servers = {"checked": (engine, environ | {"SPEC_FSM_STRICT": "1"})}
        with started(servers, bench.logs or Path(name), say) as arms:
            arm = arms["checked"]
            for size in range(1, bench.requests + 1):
                say(f"{size} requests")
                load = Load(size, min(size, 4), 8 + size % 7, 48, bench.pair.vocab)
                arm.call("flip", load=load, iterations=FLIPS)
            status = arm.call("status")["spec_fsm"]
    return {
        "sizes": bench.requests,
        "evaluated": {name: status["checks"][name] for name in GRAPHS},
        "violations": status["violations"],
        "transitions": status["transitions"],
        "checks": status["checks"],
    }


__all__ = ["GRAPHS", "measure"]
