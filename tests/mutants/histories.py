"""The configurations and histories that mutants are played over; `run.py` chooses among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fuzz.configurations import CHAIN, SMALL, TREE, Configuration

Event = list[Any]
POOL = {"max_total_tokens": 2000, "chunked_prefill_size": 64, "max_running_requests": 16}
FSM = {
    "disable_above": 4, "enable_at": 3, "dwell": 2, "flush_every": 4, "slice_tokens": 6,
    "stash_width": 64, "checks": True,
}
ALWAYS = ("I1a", "I1b", "I2", "I3", "I4", "I5", "I6", "I7", "I9", "I10", "I14", "I15", "I16", "I17")
"""What every history brings about an evaluation of."""


@dataclass(frozen=True)
class Setup:
    """A process. cold: a fork starts its own engine, and leaves a trace that is checked."""

    name: str
    configuration: Configuration
    cold: bool = False


@dataclass(frozen=True)
class History:
    """What is played over a setup. tests: run by pytest in its place; processes: the processes
    that those start are forks of the one that has the mutant, or the tests that need one are left
    out.

    only: modules of which this judges mutants, all if there are none.  start: a cold one's
    configuration, where it is not the setup's.  slip: of `recovery_run.py`, played in place of
    the events on a server that recovers.
    """

    name: str
    configuration: str
    events: list[Event] = field(default_factory=list)
    tests: tuple[str, ...] = ()
    processes: bool = False
    only: tuple[str, ...] = ()
    start: Configuration | None = None
    slip: str = ""

    def play(self, world: Any) -> None:
        """Over a running engine; raises what is wrong, and if the checks were not made."""
        if self.slip:
            recover(world, self.slip)
            return
        before = world.lifecycle.checks.as_dict()
        world.run(self.events)
        after = world.lifecycle.checks.as_dict()
        idle = [name for name in ALWAYS if after[name] == before[name]]
        if idle:
            raise AssertionError(f"never evaluated: {', '.join(idle)}")


def recover(world: Any, slip: str) -> None:
    """A law is violated once or for ever, and the server goes on; raises what is wrong."""
    import recovery_run

    wrong = recovery_run.problem(slip, recovery_run.played(world, slip))
    if wrong:
        raise AssertionError(f"recovery: {wrong}")


def _many(*requests: tuple[int, int, str]) -> list[Event]:
    return [["admit", prompt, "fresh", tokens, kind] for prompt, tokens, kind in requests]


SWITCH: list[Event] = [
    *_many((10, 40, "greedy"), (5, 30, "logprobs"), (7, 30, "greedy")),
    ["step", 5],
    *_many((9, 9, "greedy"), (3, 12, "regex"), (4, 3, "top_logprobs")),
    ["step", 7],
    ["check_kv"],
    ["operator", 0],
    ["step", 12],
    ["new_weights"],
    ["idle", 1],
]
PINS: list[Event] = [
    *_many((10, 30, "greedy"), (12, 24, "stop_ids")),
    ["step", 3],
    ["operator", 2],
    ["step", 6],
    ["check_kv"],
    *_many((3, 2, "greedy")),
    ["step", 5],
    ["operator", 1],
    ["step", 3],
    ["check_kv"],
    ["pin", 2],
    *_many((8, 6, "greedy")),
    ["step", 12],
    ["admit", 2, "finished", 20, "greedy"],
    ["step", 2],
    ["check_kv"],
    ["pin", 0],
    ["idle", 0],
]
RETURNS: list[Event] = [
    ["warm", 24], ["seeds", 3], ["seeds", 9], ["rounds", 12, 6], ["fail_reseed", 5],
    ["fail_rebuild", 1],
    *_many((9, 30, "greedy"), (5, 30, "greedy")),
    ["pin", 2], ["step", 9], ["pin", 0], ["step", 9], ["idle", 0],
]
PRESSURE: list[Event] = [
    ["starve", 7], ["step", 18], ["abort", 1], ["step", 3], ["abort", 0], ["cancel_drain"],
    *_many((60, 9, "greedy"), (25, 5, "penalty"), (24, 1, "sampled")),
    ["step", 6], ["thresholds", 6, 2], ["step", 10], ["idle", 0],
]
LOST: list[Event] = [
    ["pin", 2],
    *_many((10, 60, "greedy"), (12, 60, "greedy")),
    ["step", 30],
    *_many((6, 30, "greedy")),
    ["step", 4],
    ["operator", 1],
    ["step", 14],
    ["check_kv"],
    ["pin", 0],
    ["idle", 0],
    ["reruns"],
]
# Rows that end in the very round a drain waits for.
ENDS: list[Event] = [
    *_many((7, 2, "greedy"), (8, 3, "greedy"), (9, 4, "greedy"), (17, 12, "greedy")),
    ["step", 2], ["pin", 2], ["step", 4], ["pin", 0], ["idle", 0],
]

RECOVERY = ("controller", "flight_record", "hooks", "recoverable", "recovery")

TESTS: dict[str, dict[str, Any]] = {
    "tests of small parts": {
        "tests": (
            "test_load.py", "test_rows.py", "test_recoverable.py", "test_start_ends.py",
            "test_start_decisions.py", "test_in_force.py", "test_mode_log.py",
            "test_recovery_parts.py", "test_controller_parts.py",
        ),
        "only": (
            "compat", "controller", "flight_record", "guard", "in_force", "load", "mode_log",
            "recoverable", "recovery", "rows", "start", "trace_file",
        ),
    },
    "tests of launches": {
        "tests": (
            "test_rebuild_parts.py", "test_plain_parts.py", "test_kernels.py",
            "test_hooks_parts.py", "test_worker_parts.py",
        ),
        "only": (
            "decode_log", "hooks", "kernels", "plain", "rebuild", "sampling", "weight_updates",
            "worker",
        ),
    },
    "tests of settings": {
        "tests": (
            "test_config.py", "test_stash.py", "test_host_lengths.py", "test_operator_pin.py",
            "test_graphs.py", "test_graph_state.py", "test_cli.py::test_cap_problem",
        ),
        "only": (
            "config", "failures", "graph_state", "guard", "host_lengths", "operator_pin",
            "running_cap", "stash", "stash_size",
        ),
    },
    "tests of what SGLang has": {
        "tests": ("test_compat.py",),
        "only": ("compat", "failures", "in_force", "plugin", "touched"),
    },
    "tests of clients": {
        "tests": ("test_client_input.py",), "processes": True,
        "only": ("controller", "decode_log", "hooks", "load", "mode_log", "rows", "sampling"),
    },
    "tests of weights": {
        "tests": ("test_weight_updates.py", "test_live_absences.py"), "processes": True,
        "only": ("controller", "hooks", "weight_updates"),
    },
}
"""Tests of the suite that are played as histories: name -> fields of `History`."""

CONFIGURATIONS = {
    setup.name: setup
    for setup in (
        Setup("tree-overlap", Configuration({**TREE, **POOL, "overlap": True}, FSM, traced=False)),
        Setup(
            "chain-page4-extend",
            Configuration(
                {**CHAIN, **SMALL, "overlap": False, "page_size": 4},
                {**FSM, "strategy": "extend"}, draft="eagle", traced=False,
            ),
        ),
        Setup(
            "tree-lost-rerun",
            Configuration(
                {**TREE, **POOL, "overlap": False},
                {**FSM, "flush_every": 0, "stash_width": 16, "lost_rows": "rerun"}, traced=False,
            ),
        ),
        Setup(
            "chain-overlap-start",
            Configuration({**CHAIN, **POOL, "overlap": True}, {**FSM, "pin": "plain"}), cold=True,
        ),
    )
}
HISTORIES = {
    history.name: history
    for history in (
        History("switch, tree, overlap", "tree-overlap", SWITCH),
        History("pins, tree, overlap", "tree-overlap", PINS),
        History("returns, tree, overlap", "tree-overlap", [*RETURNS, *ENDS]),
        History("switch, chain, serial", "chain-page4-extend", SWITCH),
        History("pins, chain, serial", "chain-page4-extend", PINS),
        History("returns, chain, serial", "chain-page4-extend", RETURNS),
        History("pressure, chain, serial", "chain-page4-extend", PRESSURE),
        History("lost rows", "tree-lost-rerun", LOST),
        History("pins, tree, serial", "tree-lost-rerun", [*PINS, *ENDS]),
        History("returns, tree, serial", "tree-lost-rerun", RETURNS),
        History("from the start", "chain-overlap-start", [*SWITCH, *LOST]),
        History(
            "from the start, serial", "chain-overlap-start", [*SWITCH[:5], *PINS],
            start=Configuration(
                {**TREE, **POOL, "overlap": False},
                {**FSM, "enable_at": 2, "pin": "auto", "dwell": 3, "strategy": "extend"},
            ),
        ),
        *(
            History(f"a violation: {slip}", "tree-overlap", slip=slip, only=RECOVERY)
            for slip in ("guard_verify:once", "settled:once", "boundary:ever")
        ),
        *(History(name, "chain-overlap-start", **given) for name, given in TESTS.items()),
    )
}
