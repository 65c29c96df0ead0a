"""`model progress`: the server gets somewhere, and tables that hold it up are refuted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from spec_fsm import Event, Mode, Policy
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS
from spec_fsm._table import EDGE_OF
from spec_fsm_model.cli import app
from spec_fsm_model.explore import Verdict
from spec_fsm_model.progress import BOUNDS, SAYS, progress
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.world import Bounds

SLICES = Bounds("one row, slices", rows=1, in_flight=0, dwell=1, width=4)
SMALL = Bounds("one row", rows=1, in_flight=0, dwell=1)


def edge(mode: Mode, event: Event, **new: Any) -> Rules:
    """The rules with one edge changed."""
    edges = {**EDGE_OF, (mode, event): replace(EDGE_OF[mode, event], **new)}
    return replace(RULES, edges=edges)


def never(*_: Any) -> bool:
    """A guard that never holds."""
    return False


def test_the_table_makes_progress() -> None:
    """Every mode can always be reached, drains and reseeds end, dwell holds, in all of BOUNDS."""
    done = CliRunner().invoke(app, ["progress"])
    assert done.exit_code == 0, done.output
    for bounds in BOUNDS:
        assert f"{bounds.name}: proved" in done.output


def test_a_search_cut_short_shows_no_progress() -> None:
    """Nothing is said about a graph that is not whole."""
    assert progress(SLICES, most=50).verdict is Verdict.UNDETERMINED


# Slices of one position, on the counters and on the rows alike: no claim of safety breaks, but the
# plain launch that carries a slice opens as much as it writes.
NARROW = replace(
    RULES,
    effects={
        **EFFECTS,
        "COVER_SLICE": lambda _, s, __: s._replace(f_launched=max(s.oldest, s.f_launched) + 1),
    },
    row_effects={
        **ROW_EFFECTS,
        "ROW_FLUSH": lambda _, __, r, ___: r._replace(covered=r.covered + 1),
    },
)


FAULTS: dict[str, tuple[Rules, str]] = {
    "speculation never comes back": (
        replace(RULES, guards={**GUARDS, "REBUILDABLE": never}),
        "REACHABLE",
    ),
    "speculation never ends": (edge(Mode.SPEC, Event.LOAD_ROSE, target=Mode.SPEC), "REACHABLE"),
    "a drain that stays": (edge(Mode.DRAINING, Event.DRAINED, target=Mode.DRAINING), "DRAINS"),
    "slices of one position": (NARROW, "RESEEDS"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_table_that_holds_the_server_up_is_refuted(name: str) -> None:
    """The claim is named, with the acts that lead to where it fails."""
    rules, claim = FAULTS[name]
    found = progress(SLICES, rules)
    assert (found.verdict, found.broken) == (Verdict.REFUTED, claim), found
    assert found.detail
    assert claim in SAYS


def test_dwell_is_the_policys_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that asks while its dwell lasts is refuted: the guard alone is a boundary late."""
    asks = Policy.event

    def hasty(policy: Policy, mode: Mode, load: int) -> Event | None:
        waits, policy._dwell = policy._dwell, 0
        event = asks(policy, mode, load)
        policy._dwell = max(0, waits - 1)
        return event

    monkeypatch.setattr(Policy, "event", hasty)
    found = progress(replace(SMALL, dwell=2))
    assert (found.verdict, found.broken) == (Verdict.REFUTED, "DWELL"), found
