"""A counterexample to an obligation, in words: a step, the scene before it and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import z3

from spec_fsm._rules import Arg, RowState, State
from spec_fsm_model.symbolic import Sat, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm.ops import Term
    from spec_fsm_model.prove_edges import Step
    from spec_fsm_model.symbolic import Scene

_STAGES = {
    Stage.BOUNDARY: "between two acts",
    Stage.IN_PLAIN: "in the middle of a plain launch",
    Stage.IN_RESEED: "after RESEEDED, before its launch",
}


def value(model: Any, term: Term) -> int | bool:
    """The value of a term in a model; what the model leaves open reads as zero or false."""
    if isinstance(term, (bool, int)):
        return term
    found = model.eval(term, model_completion=True)
    return int(found.as_long()) if z3.is_int_value(found) else z3.is_true(found)


def numbers(step: Step) -> Iterator[Term]:
    """The integers a story tells, for a solver that is to keep them small."""
    before = step.before
    row = before.row
    yield from before.state
    yield from step.brings
    yield from (*row.launched, *row.settled, row.base, row.flying, row.point, row.lost_at)
    yield from (before.others, before.others_lost)


def story(step: Step, model: Any, claim: str, says: str, term: Term | None = None) -> list[str]:
    """Mode and event, what it brings, state and row before and after, and what broke."""
    brings = {f: value(model, t) for f, t in zip(Arg._fields, step.brings, strict=True)}
    said = ", ".join(f"{f} {v}" for f, v in brings.items() if v) or "nothing"
    lines = [f"counterexample: {step.name}, which brings {said}"]
    lines += ["before:", *describe(step.before, model)]
    lines += ["after:", *describe(step.after, model)]
    lines.append(f"breaks {claim} ({says})")
    return lines if term is None else [*lines, f"  {' '.join(str(term).split())}"]


def describe(scene: Scene, model: Any) -> list[str]:
    """A scene in words."""
    s = State(*(value(model, t) for t in scene.state))
    row = scene.row
    lines = [
        f"  {scene.mode.name}, {_STAGES[scene.stage]}",
        f"  counters: rows {s.rows}, lost {s.lost}, oldest {s.oldest}, unsettled {s.unsettled}, "
        f"launched tick {s.t_launched} flush {s.f_launched} seed {s.seed_launched}, "
        f"settled tick {s.t_settled} flush {s.f_settled} seed {s.seed_settled}",
        f"  stash {s.width}, slice {s.slice_width}, dwell {s.dwell}",
        f"  other rows: {value(model, scene.others)}, {value(model, scene.others_lost)} lost",
    ]
    if not value(model, row.running):
        return [*lines, f"  the row does not decode: {_figures(row.launched, model)}"]
    flying = value(model, row.flying)
    lines.append(
        f"  the row joined at {value(model, row.base)}, {flying} speculative in flight hold it; "
        f"launched {_figures(row.launched, model)}, settled {_figures(row.settled, model)}"
    )
    if value(model, row.counted):
        lines.append(
            f"  it is on the books as lost since {value(model, row.lost_at)}, "
            f"covered to {value(model, row.point)}"
        )
    if value(model, row.sat) != Sat.NO:
        lines.append("  it sat out the newest launch, its last token is in flight")
    return lines


def _figures(row: RowState, model: Any) -> str:
    r = RowState(*(value(model, t) for t in row))
    flags = [name for name in ("seeded", "lost") if getattr(r, name)]
    words = f"{r.covered}/{r.committed} covered, stashed from {r.stashed}, {r.reserved} slots"
    return f"({', '.join([words, *flags])})"


__all__ = ["describe", "numbers", "story", "value"]
