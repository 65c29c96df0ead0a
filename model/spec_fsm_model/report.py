"""Words for what a search found: totals, and a counterexample as a story."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from spec_fsm_model.claims import SAYS, Broken
from spec_fsm_model.ranks import Ranks, within
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.world import Stage, World

if TYPE_CHECKING:
    from spec_fsm._rules import RowState
    from spec_fsm_model.explore import Found
    from spec_fsm_model.world import Request


def story(found: Found, rules: Rules = RULES) -> list[str]:
    """The counterexample of `found` line by line: each act, the edges it followed, both states."""
    if found.broken is None:
        return []
    environment: Any = within(found.bounds, rules)
    before, after = environment.start, None
    lines = [f"counterexample within '{found.bounds.name}', {len(found.history)} acts:"]
    for number, wanted in enumerate(found.history, 1):
        if after is not None:
            before = after
        for act, outcome in environment.successors(before):
            if act == wanted:
                after = None if isinstance(outcome, Broken) else outcome
                break
            environment.steps.clear()
        edges = ", ".join(str(step) for step in environment.steps) or "no edge"
        environment.steps.clear()
        lines.append(f"  {number:2}. {wanted}: {edges}")
    lines += ["before the last act:", *describe(before)]
    if after is not None:
        lines += ["after it:", *describe(after)]
    error: Broken = found.broken
    return [*lines, f"breaks {error.claim} ({SAYS[error.claim]})", f"  {error.detail}"]


def describe(world: World | Ranks) -> list[str]:
    """A world in words; ticks count from the last settled plain launch."""
    if isinstance(world, Ranks):
        acts = ", ".join(str(told.act) for told in world.told) or "nothing"
        ahead, behind = describe(world.first), describe(world.second)
        return ["  one rank:", *ahead, f"  another, which lacks {acts}:", *behind]
    s, waiting = world.state, world.policy
    lines = [
        f"  {world.mode.name}, pin {waiting.pin.name}, dwell {waiting.dwell}, "
        f"back-off {waiting.backoff}",
        f"  counters: rows {s.rows}, lost {s.lost}, oldest {s.oldest}, unsettled {s.unsettled}, "
        f"launched tick {s.t_launched} flush {s.f_launched} seed {s.seed_launched}, "
        f"settled tick {s.t_settled} flush {s.f_settled} seed {s.seed_settled}",
    ]
    flights = ", ".join(f.action.name for f in world.flights) or "nothing"
    lines.append(f"  in flight: {flights}")
    return lines + [f"  row {i}: {_request(r)}" for i, r in enumerate(world.rows)]


def _request(r: Request) -> str:
    if r.stage is not Stage.RUNNING:
        return r.stage.name.lower()
    ending = ", its last token is in flight" if r.ending else ""
    views = f"launched {_figures(r.launched)}, settled {_figures(r.settled)}"
    return f"joined at {r.base}, {views}{ending}"


def _figures(row: RowState) -> str:
    flags = [name for name in ("seeded", "lost") if getattr(row, name)]
    figures = f"{row.covered}/{row.committed} covered, stashed from {row.stashed}"
    return f"({', '.join([figures, *flags])})"


def write(lines: list[str]) -> None:
    """Lines to standard output, whole."""
    sys.stdout.write("\n".join(lines) + "\n")


__all__ = ["describe", "story", "write"]
