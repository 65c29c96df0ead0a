"""`model prove`: faults are refuted with a story, laws with sizes; equal tables are told."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import z3

from spec_fsm import Event, Mode, Phase, laws
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS, Arg, RowState, State, max_gap
from spec_fsm._table import ALLOWED, EDGE_OF
from spec_fsm_model import prove as prove_module
from spec_fsm_model import prove_question
from spec_fsm_model.explore import Verdict
from spec_fsm_model.prove import SAYS, Failure, prove
from spec_fsm_model.prove_claims import CLAUSES
from spec_fsm_model.prove_equal import equal
from spec_fsm_model.prove_support import Clause
from spec_fsm_model.rules import RULES, Rules
from test_model_prove import table

if TYPE_CHECKING:
    from spec_fsm.ops import Ops


# -- faults -------------------------------------------------------------------------------


def edge(mode: Mode, event: Event, **new: Any) -> Rules:
    """The rules with one edge changed."""
    return replace(RULES, edges={**EDGE_OF, (mode, event): replace(EDGE_OF[mode, event], **new)})


def without(mode: Mode, event: Event) -> Rules:
    """The rules without one edge."""
    return replace(RULES, edges={k: e for k, e in EDGE_OF.items() if k != (mode, event)})


def guard(name: str, rule: Any) -> Rules:
    """The rules with one guard replaced."""
    return replace(RULES, guards={**GUARDS, name: rule})


def effect(name: str, **wrong: Any) -> Rules:
    """The rules with fields of one effect on the counters wrong; each is given by a function."""

    def rule(ops: Ops, s: State, a: Arg) -> State:
        after = EFFECTS[name](ops, s, a)
        return after._replace(**{field: value(s, after) for field, value in wrong.items()})

    return replace(RULES, effects={**EFFECTS, name: rule})


def row(name: str, **wrong: Any) -> Rules:
    """The rules with fields of one row effect wrong; each is given by a function."""

    def rule(ops: Ops, s: State, r: RowState, a: Arg) -> RowState:
        after = ROW_EFFECTS[name](ops, s, r, a)
        return after._replace(**{field: value(r, after) for field, value in wrong.items()})

    return replace(RULES, row_effects={**ROW_EFFECTS, name: rule})


def matrix(mode: Mode, *phases: Phase) -> Rules:
    """The rules with the phases of one mode changed."""
    return replace(RULES, allowed={**ALLOWED, mode: frozenset(phases)})


def _always(*_: Any) -> Any:
    return z3.BoolVal(True)


def _before(name: str) -> Any:
    """The field is left as it was."""
    return lambda before, _: getattr(before, name)


M, E = Mode, Event
FAULTS: dict[str, tuple[Rules, str]] = {
    "no drain": (edge(M.SPEC, E.LOAD_ROSE, target=M.PLAIN), "DRAINED OUT"),
    "a drain that does not wait": (edge(M.DRAINING, E.DRAINED, guards=()), "DRAINED OUT"),
    "a reseed of any size": (edge(M.RESEEDING, E.RESEEDED, guards=()), "SLICE FITS"),
    "a reseed without seeds": (edge(M.RESEEDING, E.RESEEDED, effects=()), "COVERED"),
    "a reseed that writes nothing": (edge(M.RESEEDING, E.RESEEDED, row_effect=None), "I8"),
    "weights forget nothing": (edge(M.PLAIN, E.WEIGHTS_CHANGED, row_effect=None), "OLD WEIGHTS"),
    "results that are not in flight": (edge(M.SPEC, E.SETTLED, guards=()), "ORDER"),
    "plain results that are not in flight": (edge(M.PLAIN, E.DECODED, guards=()), "ORDER"),
    "a row that joins twice": (edge(M.PLAIN, E.PREFILLED, guards=()), "AGREE rows"),
    "a cache emptied at any time": (edge(M.SPEC, E.CACHE_FLUSHED, guards=()), "CACHE"),
    "a launch of any kind": (edge(M.SPEC, E.LAUNCHED, guards=()), "COVERED"),
    "a row dropped too early": (edge(M.PLAIN, E.STASH_DROPPED, guards=()), "lost point"),
    "a gap as wide as the stash": (
        guard("REBUILDABLE", lambda o, s, _: o.all(o.eq(s.lost, 0), max_gap(o, s) <= s.width)),
        "WITHIN_STASH",
    ),
    "speculation with a lost row": (
        guard("REBUILDABLE", lambda o, s, _: max_gap(o, s) < s.width),
        "none lost",
    ),
    "a flush above a hole": (
        guard("REACHES_OLDEST", lambda o, s, a: o.all(a.lower >= 0, a.lower <= a.upper)),
        "NO HOLE",
    ),
    "a flush of what is to come": (
        guard("REACHES_OLDEST", lambda o, s, a: a.upper >= max_gap(o, s)),
        "ORDER",
    ),
    "a launch that is not counted": (effect("LAUNCH", unsettled=_before("unsettled")), "flying"),
    "oldest that stands still": (effect("LAUNCH", oldest=_before("oldest")), "AGREE alone"),
    "a result that moves no point": (
        effect("SETTLE_PLAIN", f_settled=_before("f_settled")),
        "AGREE settled",
    ),
    "rows that are not counted": (effect("ROW_OUT", rows=_before("rows")), "AGREE rows"),
    "losses that are not counted": (effect("ROW_LOST", lost=_before("lost")), "AGREE lost rows"),
    "a loss that moves no oldest": (effect("ROW_LOST", oldest=_before("oldest")), "AGREE alone"),
    "a row in that is the oldest": (
        effect("ROW_IN", oldest=lambda s, _: s.t_launched),
        "AGREE oldest",
    ),
    "a slice that is not counted": (
        effect("COVER_SLICE", f_launched=_before("f_launched")),
        "AGREE gap",
    ),
    "a plain token that covers itself": (
        row("ROW_DECODE", covered=lambda _, after: after.committed),
        "AGREE gap",
    ),
    "a plain step that keeps the seed": (
        row("ROW_DECODE", seeded=_before("seeded")),
        "AGREE seeded",
    ),
    "a plain step that stashes nothing": (
        row("ROW_DECODE", stashed=lambda _, after: after.committed),
        "I14 launched",
    ),
    "a gap that loses no row": (row("ROW_DECODE", lost=_before("lost")), "AGREE lost"),
    "a verify that covers nothing": (row("ROW_ACCEPT", covered=_before("covered")), "I8"),
    "a flush that writes nothing": (row("ROW_FLUSH", covered=_before("covered")), "I15"),
    "a flush that writes too much": (
        row("ROW_FLUSH", covered=lambda r, _: r.committed + 1),
        "I5 launched",
    ),
    "a prefill that covers nothing": (row("ROW_PREFILL", covered=lambda *_: 0), "I8"),
    "a chunk beyond its slots": (
        row("ROW_CHUNK", committed=lambda r, _: r.reserved + 1),
        "I5 settled",
    ),
    "a plain step of two tokens": (
        row("ROW_DECODE", committed=lambda _, after: after.committed + 1),
        "views",
    ),
    "a fresh row in an old stash": (
        row("ROW_FORGET_STASH", lost=_before("lost")),
        "OLD WEIGHTS",
    ),
    "a fact without an edge": (without(M.PLAIN, E.STASH_DROPPED), "an edge"),
    "a fact that is refused": (guard("PLAIN_IN_FLIGHT", lambda *_: False), "PLAIN_IN_FLIGHT"),
    "an edge nothing follows": (
        edge(M.SPEC, E.LOAD_ROSE, guards=("NOTHING_UNSETTLED", "SPECULATIVE_IN_FLIGHT")),
        "can be followed",
    ),
    "a mode that may not do its work": (matrix(M.PLAIN, Phase.PREFILL), "ALLOWED"),
    "a mode that may not flush": (
        matrix(M.PLAIN, Phase.PREFILL, Phase.IDLE, Phase.PLAIN_DECODE),
        "MATRIX",
    ),
    "plain steps among speculation": (
        matrix(M.SPEC, *ALLOWED[M.SPEC], Phase.PLAIN_DECODE),
        "CARRIES",
    ),
    "a round that commits one too many": (
        row("ROW_ACCEPT", committed=lambda _, after: after.committed + 1),
        "ROOM",
    ),
    "a drain that changes something": (
        edge(M.DRAINING, E.DRAINED, effects=("ROW_IN",)),
        "DRAINED IS IDLE",
    ),
}


FOLLOWS = {"RESEED FIRST"}
"""Promises that no table breaks before it breaks the clause they follow from: a reseed's launch
begins where nothing speculates, which `stages` and DRAINED OUT say of the act before it."""


@cache
def failures(name: str) -> tuple[Failure, ...]:
    """What a prover that has proved the table finds wrong with a faulty one."""
    prover, _, _ = table()
    return tuple(prover.prove(FAULTS[name][0], whole=False).failures)


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_refuted(name: str) -> None:
    """The claim, clause or guard is named, and nothing is left open."""
    found = failures(name)
    assert FAULTS[name][1] in {f.claim for f in found}
    assert {f.verdict for f in found} == {Verdict.REFUTED}


def test_every_claim_is_broken_by_a_fault() -> None:
    """No claim and no promise is one that nothing can break."""
    broken = {f.claim for name in FAULTS for f in failures(name)}
    claims = {c.name for c in CLAUSES if c.claim} | (SAYS.keys() - {c.name for c in CLAUSES})
    assert claims - broken == FOLLOWS


def test_a_counterexample_is_a_story() -> None:
    """It names event and mode, what the event brings, both scenes, and what broke."""
    (failure,) = [f for f in failures("a gap as wide as the stash") if f.lines]
    text = "\n".join(failure.lines)
    assert text.startswith("counterexample: LOAD_FELL in PLAIN, which brings")
    assert "before:\n  PLAIN, between two acts" in text
    assert "after:\n  RESEEDING, between two acts" in text
    assert "breaks WITHIN_STASH" in text
    before, after = (line for line in failure.lines if line.startswith("  counters:"))
    assert before == after, "LOAD_FELL moves no counter"
    told = [f for f in failures("a verify that covers nothing") if f.lines]
    assert any("the row joined at" in line and "covered" in line for line in told[0].lines)


def test_the_numbers_of_a_story_are_the_counterexample() -> None:
    """The counters told before the step are at the edge of what RESEEDING may start from."""
    (failure,) = [f for f in failures("a gap as wide as the stash") if f.lines]
    text = "\n".join(failure.lines)
    wanted = (r"oldest (-?\d+)", r"launched tick (-?\d+)", r"launched tick -?\d+ flush (-?\d+)")
    oldest, tick, flush = (int(re.findall(pattern, text)[0]) for pattern in wanted)
    assert tick - max(oldest, flush) == int(re.findall(r"stash (\d+),", text)[0])


def test_a_prover_stops_at_the_first_if_asked() -> None:
    """One refuted obligation is enough for a verdict, without what follows."""
    prover, _, _ = table()
    faulty = FAULTS["a flush that writes nothing"][0]
    first, whole = prover.prove(faulty, first=True, whole=False), prover.prove(faulty, whole=False)
    assert first.verdict is whole.verdict is Verdict.REFUTED
    assert sum(first.obligations.values()) < sum(whole.obligations.values())


def test_an_idle_clause_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clause that is inductive, no claim, and that nothing leans on is not kept."""
    idle = Clause("idle", "Idle.", False, lambda s, _: s.others >= 0)
    for module in (prove_module, prove_question):
        monkeypatch.setattr(module, "CLAUSES", (*CLAUSES, idle))
    prove_question._invariant.cache_clear()
    prove_question.obligations.cache_clear()
    proof = prove()
    prove_question._invariant.cache_clear()
    prove_question.obligations.cache_clear()
    assert [(f.kind, f.claim) for f in proof.failures] == [("NEEDED", "idle")]


# -- laws and equality --------------------------------------------------------------------


WRONG_LAWS: dict[str, tuple[str, Any, str]] = {
    "no room for the verify": ("alloc_len", lambda n, ops=None: n.topk * n.num_steps, "RESERVE"),
    "a reserve of one": ("reserve", lambda n, ops=None: laws.alloc_len(n, ops), "RESERVE"),
    "a window for every draft": (
        "window_slots",
        lambda b, n, ops=None: b * n.num_draft_tokens * n.num_steps,
        "RESERVE",
    ),
    "tokens that do not grow with b": ("tokens", lambda *_: z3.IntVal(7), "DENSE"),
    "attention beyond the slots": (
        "attention_len",
        lambda _, committed, n: committed + 2 * n.num_draft_tokens,
        "ATTENTION",
    ),
    "any graph fits": ("graph_fits", lambda *_: z3.BoolVal(True), "GRAPH"),
    "a plain step as wide as a verify": (
        "tokens",
        lambda phase, b, n, *_: b * n.num_draft_tokens,
        "CRASH",
    ),
}


@pytest.mark.parametrize("name", WRONG_LAWS)
def test_a_wrong_law_is_refuted_with_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law is named, with the b, k, s, d and page size it is wrong for."""
    law, wrong, claim = WRONG_LAWS[name]
    prover, _, _ = table()
    monkeypatch.setattr(laws, law, wrong)
    monkeypatch.setattr(prover, "_needed", lambda *_: None)
    refuted = [f for f in prover.prove().failures if f.verdict is Verdict.REFUTED]
    assert claim in {f.claim for f in refuted}
    for failure in refuted:
        assert "b = " in failure.lines[0]
        assert "page = " in failure.lines[0]


SAME = {
    "a drain that is over covers all": edge(M.DRAINING, E.DRAINED, row_effect="ROW_COVER"),
    "lost rows are asked for twice": guard(
        "REST_FITS", lambda o, s, _: max_gap(o, s) <= s.slice_width
    ),
    "results that are not plain": guard("NOTHING_UNSETTLED", lambda o, s, _: o.eq(s.unsettled, 0)),
}
OTHER = {
    "no dwell": edge(M.SPEC, E.LOAD_ROSE, guards=()),
    "a drain that goes back": edge(M.DRAINING, E.DRAINED, target=M.SPEC),
    "no cancel": without(M.DRAINING, E.LOAD_FELL),
    "a cancel more": edge(M.RESEEDING, E.LOAD_ROSE, guards=("DWELL_OVER",)),
    "plain steps among speculation": matrix(M.SPEC, *ALLOWED[M.SPEC], Phase.PLAIN_DECODE),
    "a stash that forgets to count": effect("ROW_LOST", lost=_before("lost")),
}


@pytest.mark.parametrize("name", SAME)
def test_a_change_that_is_none_is_proved_to_be(name: str) -> None:
    """Two tables that do the same in every state are equal, and both are proved."""
    assert equal(RULES, SAME[name]) == (Verdict.PROVED, [])
    assert table()[0].prove(SAME[name], whole=False).verdict is Verdict.PROVED


@pytest.mark.parametrize("name", OTHER)
def test_a_change_that_can_be_seen_is_shown(name: str) -> None:
    """Two tables that differ in a state that can be reached are not, with a step that differs."""
    found = equal(RULES, OTHER[name])
    assert found.verdict is Verdict.REFUTED
    assert found.lines[0].startswith("counterexample: ")
