"""`model prove`: the table is proved, no rule is copied, and what is assumed of a server is so."""

from __future__ import annotations

import ast
import inspect
import random
import time
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import z3
from typer.testing import CliRunner

import spec_fsm_model
from spec_fsm import Action, Event, Mode, PolicyConfig, StashConfig, invariants, laws
from spec_fsm import _rules as rules_module
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS, Arg, RowState, State
from spec_fsm._table import ALLOWED, EDGE_OF, EDGES
from spec_fsm.invariants import ROW_PREDICATES, STATE_PREDICATES
from spec_fsm.ledger import Ledger
from spec_fsm_model import prove_question
from spec_fsm_model.cli import app
from spec_fsm_model.environment import Environment
from spec_fsm_model.explore import Verdict
from spec_fsm_model.planner import plans
from spec_fsm_model.prove import Failure, Proof, Prover
from spec_fsm_model.prove_claims import CLAUSES
from spec_fsm_model.prove_laws import SHAPE
from spec_fsm_model.prove_question import Question
from spec_fsm_model.prove_steps import Steps
from spec_fsm_model.prove_support import TICK, settled_gap
from spec_fsm_model.rules import RULES
from spec_fsm_model.symbolic import Z3, Sat, Stage, scene
from spec_fsm_model.world import Bounds, World, start
from spec_fsm_model.world import Stage as RequestStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spec_fsm.ops import Ops


@cache
def table() -> tuple[Prover, Proof, float]:
    """A prover that has proved the table, the proof, and the processor time it took."""
    prover, began = Prover(), time.process_time()
    proof = prover.prove()
    return prover, proof, time.process_time() - began


# -- the table ----------------------------------------------------------------------------


def test_every_claim_is_proved_of_the_table() -> None:
    """All obligations hold, there are some of every kind, and it is quick."""
    _, proof, seconds = table()
    assert proof.failures == []
    assert proof.verdict is Verdict.PROVED
    kinds = {"INIT", "INDUCTION", "PROMISE", "ACCEPTED", "FIRES", "NEEDED", "LAWS"}
    assert kinds == set(proof.obligations)
    assert proof.obligations["FIRES"] == len(EDGES)
    assert proof.obligations["INDUCTION"] > 50 * len(EDGES)
    assert seconds < 20


def test_no_clause_is_idle_and_one_guard_is() -> None:
    """Each clause is a claim or carries another's induction; DWELL_OVER carries no number."""
    _, proof, _ = table()
    assert set(proof.needed) == {clause.name for clause in CLAUSES}
    for clause in CLAUSES:
        assert clause.claim is (proof.needed[clause.name] == "a claim by itself")
    assert proof.idle_guards == ["DWELL_OVER"]


def test_the_command_ends_in_the_verdict() -> None:
    """Exit code 0, and what was proved as one JSON object."""
    done = CliRunner().invoke(app, ["prove", "--json"])
    assert done.exit_code == 0, done.output
    assert '"verdict": "proved"' in done.output


def test_what_z3_does_not_decide_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where z3 gives no answer the verdict is undetermined, never proved and never refuted."""
    monkeypatch.setattr(Question, "ask", lambda *_, **__: z3.unknown)
    proof = Prover().prove(whole=False)
    assert proof.verdict is Verdict.UNDETERMINED
    assert {f.kind for f in proof.failures} == {"INDUCTION", "PROMISE", "ACCEPTED", "FIRES"}
    assert {f.verdict for f in proof.failures} == {Verdict.UNDETERMINED}


@pytest.mark.parametrize("verdict", [Verdict.REFUTED, Verdict.UNDETERMINED])
def test_the_exit_code_is_the_verdict(verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    """One obligation that does not hold or is left open decides, and is told with its story."""
    failure = Failure("INDUCTION", "LOAD_ROSE in SPEC", "ORDER", verdict, ["before:"])
    left = Failure("INDUCTION", "LOAD_ROSE in SPEC", "I8", Verdict.UNDETERMINED)
    proof = Proof({"INDUCTION": 2}, [left, failure])
    monkeypatch.setattr(Prover, "prove", lambda _: proof)
    done = CliRunner().invoke(app, ["prove", "--timeout", "5"])
    assert done.exit_code == int(verdict)
    name = verdict.name.lower()
    assert f"INDUCTION LOAD_ROSE in SPEC: ORDER is {name}\n  before:" in done.output
    assert f"verdict: {name}" in done.output


# -- one definition -----------------------------------------------------------------------


def test_the_prover_reads_what_runs() -> None:
    """Every edge, guard, effect and row effect the prover evaluated is the object that runs."""
    steps = Steps(RULES)
    for mode in Mode:
        for event in Event:
            list(steps.of(mode, event))
    read = {(what, key): value for what, key, value in steps.reads if value is not None}
    runs = {
        **{("edges", key): edge for key, edge in EDGE_OF.items()},
        **{("guards", name): rule for name, rule in GUARDS.items()},
        **{("effects", name): rule for name, rule in EFFECTS.items()},
        **{("row_effects", name): rule for name, rule in ROW_EFFECTS.items()},
        **{("allowed", mode): phases for mode, phases in ALLOWED.items()},
    }
    assert read.keys() == runs.keys()
    assert all(read[key] is runs[key] for key in runs)


@pytest.mark.parametrize("name", [*ROW_PREDICATES, *STATE_PREDICATES])
def test_the_invariants_are_those_that_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each predicate of `spec_fsm.invariants` is evaluated over z3 terms, in some mode."""
    asked: list[Ops] = []
    kind = ROW_PREDICATES if name in ROW_PREDICATES else STATE_PREDICATES
    says: Any = kind[name]

    def watched(ops: Ops, record: Any) -> Any:
        asked.append(ops)
        return says(ops, record)

    monkeypatch.setitem(kind, name, watched)  # type: ignore[arg-type]
    for mode in Mode:
        prove_question.goals(scene(mode, Stage.BOUNDARY))
    assert asked
    assert all(ops is Z3 for ops in asked)


RULE_MODULES = (rules_module, invariants, laws)
FIELDS = {*State._fields, *RowState._fields, *Arg._fields, *type(SHAPE)._fields, "plans_window"}


READINGS = {"And": "all", "Or": "any", "Not": "not_", "Implies": "imp", "If": "ite"}


class _Plain(ast.NodeTransformer):
    """Brings an expression into a form in which names of variables and readings do not matter."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("_")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr in FIELDS:
            return ast.Name(node.attr)
        return ast.Name(READINGS.get(node.attr, node.attr))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node = self.generic_visit(node)  # type: ignore[assignment]
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "eq":
            return ast.Compare(node.args[0], [ast.Eq()], [node.args[1]])
        keywords = sorted(node.keywords, key=lambda k: k.arg or "")
        return ast.Call(node.func, node.args, keywords)


def _forms(tree: ast.AST) -> Iterator[str]:
    """Every expression below a node that speaks of two fields or more, in plain form."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.BinOp, ast.Compare, ast.Call, ast.BoolOp)):
            names = [n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)]
            keywords = [k.arg for k in getattr(node, "keywords", ())]
            if len({*names, *keywords} & FIELDS) >= 2:
                yield ast.unparse(_Plain().visit(ast.parse(ast.unparse(node), mode="eval")))


def _rules_of(module: Any) -> Iterator[str]:
    """What each rule of a module returns, in plain form."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.FunctionDef):
            for statement in ast.walk(node):
                if isinstance(statement, ast.Return) and statement.value is not None:
                    wanted = ast.unparse(
                        _Plain().visit(ast.parse(ast.unparse(statement.value), mode="eval"))
                    )
                    if wanted in set(_forms(statement.value)):
                        yield wanted


def copies(source: str) -> set[str]:
    """The rules of `spec_fsm` that a source text says again."""
    said = {rule for module in RULE_MODULES for rule in _rules_of(module)}
    return said & set(_forms(ast.parse(source)))


def test_the_model_says_no_rule_again() -> None:
    """No expression of the model is what a guard, an effect, an invariant or a law returns."""
    for file in Path(spec_fsm_model.__file__).parent.glob("*.py"):
        assert copies(file.read_text()) == set(), file.name


@pytest.mark.parametrize(
    "copy",
    [
        "gap = x.t_launched - Z3.max(x.oldest, x.f_launched)",
        "z3.And(row.covered >= 0, row.covered <= row.committed, row.committed <= row.reserved)",
        "state._replace(t_settled=state.t_settled + 1, f_settled=brings.point)",
        "now.t_settled < now.t_launched",
        "z3.If(n.plans_window, rows * n.num_draft_tokens, slots(Phase.DRAFT, rows, n))",
    ],
)
def test_a_copy_would_be_seen(copy: str) -> None:
    """A rule said again, with other names and in the words of z3, is found."""
    assert copies(copy) != set()


# -- what is assumed ----------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 2, 5, 64])
@pytest.mark.parametrize("width", [2, 3, 7])
def test_slices_are_as_the_prover_takes_them(width: int, ahead: int) -> None:
    """A slice starts at the largest gap and leaves less than there was, or a reseed is due."""
    stash, config = StashConfig(32, 4, width, seed_ahead=ahead), PolicyConfig(4)
    planned = plans(SMALL.shape, config, stash)
    for gap, due in product(range(31), (False, True)):
        plan = planned(Mode.RESEEDING, gap, due)
        if plan.action is Action.RESEED:
            assert gap == due == 0 if ahead else gap <= width
            continue
        with_the_launch = gap + 1
        assert plan.flush_upper == with_the_launch
        rest = max(0, plan.flush_upper - width)
        assert plan.flush_lower == (max(1, rest) if plan.flush_upper > ahead else rest)
        assert plan.flush_lower == rest or (plan.flush_lower == 1 and plan.flush_upper > 2)
        assert plan.flush_lower <= max(0, with_the_launch - 2)
        assert plan.seeds is (plan.flush_lower == 0)
        assert ahead or not plan.seeds
        assert not plan.seeds or plan.flush_upper <= ahead
    for gap in range(31):
        plan = planned(Mode.PLAIN, gap, True)
        assert plan.flush_lower == 0
        assert plan.flush_upper in (0, gap + 1)


def test_the_settled_gap_is_the_ledgers() -> None:
    """The prover's reading of `Ledger.settled_gap` gives what the ledger gives."""
    rng = random.Random(0)
    free = scene(Mode.PLAIN, Stage.BOUNDARY)
    term = settled_gap(free)
    for _ in range(300):
        base, point, t, f = (rng.randrange(9) for _ in range(4))
        lost = rng.random() < 0.5
        ledger = Ledger(3)
        ledger.t_settled, ledger.f_settled = t, f
        if lost:
            ledger._lost["r"] = (base, point)
        else:
            ledger._base["r"] = base
        known = (
            (free.row.base, z3.IntVal(base)),
            (free.row.point, z3.IntVal(point)),
            (free.row.counted, z3.BoolVal(lost)),
            (free.state.t_settled, z3.IntVal(t)),
            (free.state.f_settled, z3.IntVal(f)),
        )
        value = z3.simplify(z3.substitute(term, *known)).as_long()
        assert value == ledger.settled_gap("r")


SMALL = Bounds("two rows", width=3, flush_every=2, slice_width=2, failures=1, pins=True)
NO_FLUSHES = Bounds("two rows, no flushes", width=2, slice_width=2)


@cache
def invariant(mode: Mode) -> Any:
    """All clauses between two acts in a mode."""
    return z3.And(*(term for _, term in prove_question.goals(scene(mode, Stage.BOUNDARY))))


OFTEN = {"launch": 9, "a ": 9, "go on": 9, "prefill": 5, "the last token": 3, "boundary": 2}
OFTEN |= dict.fromkeys(("finished", "aborted", "retracted"), 0.1)
"""How often the acts of a random history are chosen, by how they begin; the others count once."""


def walk(bounds: Bounds, seed: int, acts: int) -> Iterator[World]:
    """Worlds of one random history; ticks and positions are not brought into a smaller form."""
    rng, world = random.Random(seed), start(bounds)
    environment = Environment(bounds)
    for _ in range(acts):
        possible = list(environment._acts(world))
        names = [act.name for act, _ in possible]
        often = [max((OFTEN[w] for w in OFTEN if name.startswith(w)), default=1) for name in names]
        ((_, deed),) = rng.choices(possible, often)
        world = deed()
        yield world


def facts(world: World, i: int) -> list[Any]:
    """What is known of the scene of the i-th row of a world."""
    s = scene(world.mode, Stage.BOUNDARY)
    r, row, f = world.rows[i], s.row, s.flights
    running = r.stage is RequestStage.RUNNING
    plain = [x for x in world.flights if x.action is Action.PLAIN]
    others = [x for k, x in enumerate(world.rows) if k != i and x.stage is RequestStage.RUNNING]
    sat = Sat.NO
    if r.sat_out:
        sat = Sat.PLAIN if world.flights[-1].action is Action.PLAIN else Sat.RESEED
    flying = sum(
        r.flying >> k & 1 for k, x in enumerate(world.flights) if x.action is not Action.PLAIN
    )
    reseeds = sum(x.action is Action.RESEED for x in world.flights)
    known = [a == b for a, b in zip(s.state, world.state, strict=True)]
    for mine, its in ((row.launched, r.launched), (row.settled, r.settled)):
        known += [a == b for a, b in zip(mine, its, strict=True)]
    held = [x for k, x in enumerate(world.flights) if r.flying >> k & 1]
    known += [
        row.rebuilt == any(x.action is Action.RESEED for x in held),
        row.running == running,
        row.counted == bool(running and r.launched.lost),
        row.base == r.base,
        row.sat == int(sat),
        row.flying == flying,
        s.others == len(others),
        s.others_lost == sum(x.launched.lost for x in others),
        f.plain == len(plain),
        f.speculative == len(world.flights) - len(plain),
        f.reseeds == reseeds,
        s.sizes.num_draft_tokens == SMALL.shape.num_draft_tokens,
        s.sizes.need == laws.alloc_len(SMALL.shape),
        s.sizes.reserve == laws.reserve(SMALL.shape),
        s.sizes.ahead == SMALL.in_flight,
    ]
    if r.launched.lost:
        known.append(row.point == r.point)
    for x in world.flights[len(plain) :]:
        known.append(f.spec_point == x.point)
    for tick, x in enumerate(plain, world.state.t_settled + 1):
        known += [
            f.point[tick] == x.point,
            f.flush[tick] == int(bool(x.carried)),
            f.lower[tick] == x.lower,
            (f.forget[tick] != 0) == bool(x.forget),
        ]
    return known


@pytest.mark.parametrize("bounds", [SMALL, NO_FLUSHES], ids=lambda b: str(b.name))
def test_what_a_server_does_stays_within_the_invariant(bounds: Bounds) -> None:
    """On random histories of the other model every row is in a state the prover's clauses allow.

    So the prover's steps leave nothing out that the search knows.  Since when a row is lost is not
    part of a world: some tick must fit all clauses.
    """
    seen = set()
    for seed in (2, 11, 15):
        for world in walk(bounds, seed, 120):
            for i, r in enumerate(world.rows):
                solver = z3.Solver()
                solver.add(*facts(world, i))
                for tick in range(world.state.t_settled, world.state.t_launched + 1):
                    solver.add(z3.substitute(invariant(world.mode), (TICK, z3.IntVal(tick))))
                assert solver.check() == z3.sat, (world, i)
                seen |= {world.mode.name, f"{len(world.flights)} in flight"}
                seen |= {word for word in ("lost", "seeded") if getattr(r.settled, word)}
                if world.flights and r.ending and not r.flying >> len(world.flights) - 1:
                    seen.add(f"sat {world.flights[-1].action.name} out")
    flights = {f"{n} in flight" for n in range(3)}
    absences = {f"sat {action.name} out" for action in Action}
    assert seen == {*Mode.__members__, *flights, *absences, "lost", "seeded"}
