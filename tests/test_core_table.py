"""The table: total over the grid, consistent, and the very thing the machine runs."""

from __future__ import annotations

import itertools

import pytest
from transitions import MachineError

from core_support import TREE
from spec_fsm import _rules
from spec_fsm._table import ALLOWED, EDGE_OF, EDGES, REFUSALS
from spec_fsm.laws import hidden, spec_info
from spec_fsm.machine import ModeMachine, diagram, to_transitions
from spec_fsm.modes import LEDGER_EVENTS, MODE_EVENTS, Event, Hidden, Mode, Phase, SpecInfo

GRID = list(itertools.product(Mode, Event))


def test_every_pair_is_an_edge_or_a_refusal() -> None:
    """Each of the 4 x 21 pairs is exactly one edge or exactly one refusal with a reason."""
    assert len(EDGES) == len(EDGE_OF), "two edges for one pair"
    assert set(EDGE_OF).isdisjoint(REFUSALS)
    assert set(EDGE_OF) | set(REFUSALS) == set(GRID)
    assert all(len(reason.split()) >= 3 for reason in REFUSALS.values())


def test_the_edges_of_the_modes_are_the_plan_of_record() -> None:
    """The mode events have these targets and guards; else only new weights change the mode."""
    M, E = Mode, Event
    moving = {
        (M.SPEC, E.LOAD_ROSE): (M.DRAINING, ("DWELL_OVER",)),
        (M.DRAINING, E.DRAINED): (M.PLAIN, ("NOTHING_UNSETTLED",)),
        (M.DRAINING, E.LOAD_FELL): (M.SPEC, ()),
        (M.PLAIN, E.LOAD_FELL): (M.RESEEDING, ("DWELL_OVER", "REBUILDABLE")),
        (M.RESEEDING, E.SLICE_DONE): (M.RESEEDING, ("REACHES_OLDEST",)),
        (M.RESEEDING, E.RESEEDED): (M.SPEC, ("REST_FITS",)),
        (M.RESEEDING, E.LOAD_ROSE): (M.PLAIN, ()),
        (M.RESEEDING, E.RESEED_FAILED): (M.PLAIN, ()),
    }
    found = {
        key: (edge.target, edge.guards)
        for key, edge in EDGE_OF.items()
        if edge.event in MODE_EVENTS
    }
    assert found == moving
    others = {e for e in EDGES if e.event in LEDGER_EVENTS and e.source is not e.target}
    assert others == {EDGE_OF[M.RESEEDING, E.WEIGHTS_CHANGED]}


def test_names_resolve_and_none_is_idle() -> None:
    """Each guard and effect the table names exists, and each one that exists is named."""
    assert {g for e in EDGES for g in e.guards} == set(_rules.GUARDS)
    assert {f for e in EDGES for f in e.effects} == set(_rules.EFFECTS)
    assert {e.row_effect for e in EDGES if e.row_effect} == set(_rules.ROW_EFFECTS)


def test_events_split_in_two_kinds() -> None:
    """Mode events and ledger events are all events, without overlap."""
    assert (*MODE_EVENTS, *LEDGER_EVENTS) == tuple(Event)
    assert len(MODE_EVENTS) == 6


def test_matrix() -> None:
    """Each mode allows exactly the launches of the plan; mixed chunks are allowed nowhere."""
    P = Phase
    always = {P.PREFILL, P.IDLE}
    assert {
        Mode.SPEC: always | {P.DRAFT, P.VERIFY, P.DRAFT_EXTEND},
        Mode.DRAINING: always,
        Mode.PLAIN: always | {P.PLAIN_DECODE, P.FLUSH, P.SEED_EXTEND},
        Mode.RESEEDING: always | {P.PLAIN_DECODE, P.FLUSH, P.SEED_EXTEND},
    } == ALLOWED


def test_draft_kv_is_written_only_where_it_is_owned() -> None:
    """No mode allows both a plain decode and a draft: their spec_info would have to differ."""
    for phases in ALLOWED.values():
        assert not {Phase.PLAIN_DECODE, Phase.DRAFT} <= phases


@pytest.mark.parametrize(("mode", "event"), GRID)
def test_the_machine_agrees_with_the_table(mode: Mode, event: Event) -> None:
    """For every pair the `transitions` machine reaches the edge's target, or refuses."""
    machine = ModeMachine(mode)
    edge = EDGE_OF.get((mode, event))
    if edge is None:
        with pytest.raises(MachineError):
            machine.fire(event)
        assert machine.mode is mode
    else:
        assert machine.fire(event) is edge.target
        assert machine.mode is edge.target


def test_the_machine_has_no_edge_of_its_own() -> None:
    """The machine is given the table's edges and no automatic transitions."""
    assert len(to_transitions()) == len(EDGES)
    assert not hasattr(ModeMachine(), "to_PLAIN")


def test_an_edge_that_stays_is_an_internal_transition() -> None:
    """`transitions` leaves no mode and enters none for an edge that stays: its `dest` is None."""
    assert to_transitions() == [
        {
            "trigger": edge.event.name,
            "source": edge.source.name,
            "dest": None if edge.target is edge.source else edge.target.name,
        }
        for edge in EDGES
    ]


def test_diagram_draws_every_mode_edge() -> None:
    """The Mermaid diagram has one arrow a pair of modes and names each mode event's edge."""
    text = diagram()
    assert "stateDiagram-v2" in text
    for edge in EDGES:
        if edge.event in MODE_EVENTS:
            arrow = f"{edge.source.name} --> {edge.target.name}:"
            line = next(line for line in text.splitlines() if arrow in line)
            assert edge.event.name in line
            assert all(guard in line for guard in edge.guards)


def test_every_phase_has_its_laws() -> None:
    """spec_info and hidden capture are defined for each phase, and differ where it matters."""
    assert TREE.topk == 4
    assert {p: spec_info(p) for p in (Phase.PLAIN_DECODE, Phase.VERIFY)} == {
        Phase.PLAIN_DECODE: SpecInfo.NONE,
        Phase.VERIFY: SpecInfo.VERIFY,
    }
    assert all(isinstance(hidden(p), Hidden) for p in Phase)
    # The seed and the next flush need the hidden states of a plain step.
    assert hidden(Phase.PLAIN_DECODE) is Hidden.FULL
