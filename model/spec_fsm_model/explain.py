"""`model explain NAME`: what an event, mode, phase, guard, effect or invariant is, and what for.

The text is put together from where it stands: the table, the docstrings of the words, the source
of guards and effects, the invariants and their reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby

from spec_fsm import laws
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS
from spec_fsm._table import ALLOWED, EDGES, REFUSALS, Edge
from spec_fsm.errors import ConfigError
from spec_fsm.invariants import INVARIANTS
from spec_fsm.modes import MODE_EVENTS, Event, Mode, Phase
from spec_fsm_model import claims, prevents, progress, prove, seeded, sources
from spec_fsm_model.bugs import told

PREDICATES = ("ORDER", "WITHIN_STASH", "COVERED")
RULE_NAMES = frozenset([*Event.__members__, *GUARDS, *EFFECTS, *ROW_EFFECTS])
TOLD_HERE = ("spec_fsm_model/explain.py", "spec_fsm_model/prevents.py")
MOST_PLACES = 12
"""Files of one kind that are listed, each with its first function; the rest is counted."""


class UnknownName(ConfigError):
    """There is no event, mode, phase, rule or claim of that name."""


def explain(name: str) -> list[str]:
    """The lines about `name`; raises UnknownName with the accepted names."""
    kinds = _kinds()
    for names, lines in kinds.values():
        if name in names:
            return [*lines(name), *_where(name)]
    known = "; ".join(f"{kind}: {', '.join(names)}" for kind, (names, _) in kinds.items())
    raise UnknownName(f"{name!r} is no name of the lifecycle. Accepted are {known}")


def names() -> list[str]:
    """Every name that can be explained."""
    return [name for known, _ in _kinds().values() for name in known]


def _kinds() -> Mapping[str, tuple[list[str], Callable[[str], Iterator[str]]]]:
    model = {**claims.SAYS, **progress.SAYS}
    return {
        "events": ([e.name for e in Event], _event),
        "modes": ([m.name for m in Mode], _mode),
        "phases": ([p.name for p in Phase], _phase),
        "guards": (list(GUARDS), _guard),
        "effects": (list(EFFECTS), partial(_effect, EFFECTS, "the shared counters")),
        "row effects": (list(ROW_EFFECTS), partial(_effect, ROW_EFFECTS, "one row")),
        "invariants": (list(INVARIANTS), _invariant),
        "claims of the model": ([c for c in model if c not in INVARIANTS], _claim),
        "clauses of the proof": (
            [c for c in prove.SAYS if c not in {*model, *INVARIANTS}],
            _clause,
        ),
    }


# -- one kind each ------------------------------------------------------------------------


def _event(name: str) -> Iterator[str]:
    event = Event[name]
    kind = "a mode event" if event in MODE_EVENTS else "a ledger event"
    yield f"{name}: {kind}. {sources.member_docs(Event)[name]}"
    edges = [edge for edge in EDGES if edge.event is event]
    for line in _edges(edges):
        yield f"  {line}"
    for mode in Mode:
        if (mode, event) in REFUSALS:
            yield f"  in {mode.name} it is refused: {REFUSALS[mode, event]}"
    yield from _rules_of(edges)
    yield from _without(prevents.EVENTS[event])


def _mode(name: str) -> Iterator[str]:
    mode = Mode[name]
    yield f"{name}: a mode. {sources.member_docs(Mode)[name]}"
    yield f"  launches it allows: {', '.join(p.name for p in sorted(ALLOWED[mode]))}"
    yield "  leaves it:"
    leaving = [e for e in EDGES if e.source is mode and e.target is not mode]
    yield from (f"    {_edge(edge)}" for edge in leaving)
    yield "  leads to it:"
    coming = [e for e in EDGES if e.target is mode and e.source is not mode]
    yield from (f"    {e.event.name} in {e.source.name}" for e in coming)
    yield "  it refuses:"
    for (source, event), reason in REFUSALS.items():
        if source is mode:
            yield f"    {event.name}: {reason}"
    yield from _rules_of(leaving)
    yield from _without(prevents.MODES[mode])


def _phase(name: str) -> Iterator[str]:
    phase = Phase[name]
    yield f"{name}: a phase, one kind of launch. {sources.member_docs(Phase)[name]}"
    modes = ", ".join(mode.name for mode in Mode if phase in ALLOWED[mode])
    yield f"  allowed in: {modes or 'no mode'}"
    info, hidden = laws.spec_info(phase).name, laws.hidden(phase).name
    yield f"  its spec_info is {info}, its hidden-state capture {hidden}"
    yield from _without(prevents.PHASES[phase], "without it" if modes else "with it")


def _guard(name: str) -> Iterator[str]:
    yield f"{name}: a guard. It must hold, or the event is refused and changes nothing."
    yield from _source(GUARDS[name])
    yield "  it guards:"
    yield from (f"    {_edge(edge)}" for edge in EDGES if name in edge.guards)
    yield from _without(prevents.GUARDS[name])


def _effect(rules: Mapping[str, Callable[..., object]], on: str, name: str) -> Iterator[str]:
    yield f"{name}: an effect on {on}."
    yield from _source(rules[name])
    yield "  it is the effect of:"
    edges = [e for e in EDGES if name in e.effects or name == e.row_effect]
    yield from (f"    {line}" for line in _edges(edges))
    events = dict.fromkeys(e.event for e in edges)
    yield "  without it:"
    yield from (f"    {e.name}: {prevents.EVENTS[e].harm}" for e in events)
    kept = dict.fromkeys(i for e in events for i in prevents.EVENTS[e].invariants)
    yield from _reports(kept)


def _invariant(name: str) -> Iterator[str]:
    invariant = INVARIANTS[name]
    yield f"{name}: an invariant. {invariant.says}"
    yield "  the bugs it excludes:" if invariant.bugs else "  no public report is of its kind"
    yield from (f"    {told(bug)}" for bug in invariant.bugs)
    yield "  what keeps it:"
    for kind in (prevents.EVENTS, prevents.MODES, prevents.PHASES):
        for member, without in kind.items():
            if name in without.invariants:
                word = "with it" if member is Phase.MIXED else "without it"
                yield f"    {member.name}: {word} {without.harm}"
    yield "  while serving it is checked by:"
    yield from (f"    {who}" for who in invariant.checked)
    if name in claims.SAYS:
        yield "  the model checks it in every reachable state (spec-fsm model check)"
    clauses = [clause for clause in prove.SAYS if clause.split()[0] == name]
    if clauses:
        yield f"  it is proved for any sizes (spec-fsm model prove): {', '.join(clauses)}"
    broken = [bug.what for bug in seeded.BUGS if bug.invariant == name]
    yield f"  bugs that break it alone (spec-fsm model mutate --stories): {'; '.join(broken)}"


def _clause(name: str) -> Iterator[str]:
    yield f"{name}: a clause of `spec-fsm model prove`. {prove.SAYS[name]}"


def _claim(name: str) -> Iterator[str]:
    if name in claims.SAYS:
        yield f"{name}: a claim of `spec-fsm model check`. {claims.SAYS[name]}"
    else:
        yield f"{name}: a claim of `spec-fsm model progress`. {progress.SAYS[name]}"
    if name in PREDICATES:
        yield "  it says of the counters all rows share what makes I8 and I14 true of each row"


# -- what kinds have in common ------------------------------------------------------------


def _edges(edges: list[Edge]) -> Iterator[str]:
    """Edges in words, the same edge of several modes told once."""
    alike = sorted(edges, key=_alike)
    for _, group in groupby(alike, key=_alike):
        same = list(group)
        yield _edge(same[0], ", ".join(edge.source.name for edge in same))


def _alike(edge: Edge) -> tuple[str, ...]:
    target = "stays" if edge.source is edge.target else edge.target.name
    return edge.event.name, target, *edge.guards, "", *edge.effects, "", edge.row_effect or ""


def _edge(edge: Edge, sources_: str = "") -> str:
    target = "stays there" if edge.source is edge.target else f"goes to {edge.target.name}"
    guards = f" if {' and '.join(edge.guards)}" if edge.guards else ""
    done = [*edge.effects, *([edge.row_effect] if edge.row_effect else [])]
    does = f", does {', '.join(done)}" if done else ", changes no figure"
    return f"{edge.event.name} in {sources_ or edge.source.name} {target}{guards}{does}"


def _rules_of(edges: Iterable[Edge]) -> Iterator[str]:
    """The guards and effects of some edges, each with its text, once."""
    edges = list(edges)
    for title, rules, used in (
        ("guard", GUARDS, [g for e in edges for g in e.guards]),
        ("effect", EFFECTS, [f for e in edges for f in e.effects]),
        ("row effect", ROW_EFFECTS, [e.row_effect for e in edges if e.row_effect]),
    ):
        for name in dict.fromkeys(used):
            yield f"  {title} {name}"
            yield from (f"  {line}" for line in _source(rules[name]))


def _source(rule: Callable[..., object]) -> Iterator[str]:
    comments, body = sources.reading(rule)
    if comments:
        yield f"  why: {' '.join(comments)}"
    yield from (f"    | {line}" for line in body)


def _without(without: prevents.Without, word: str = "without it") -> Iterator[str]:
    yield f"  {word}: {without.harm}"
    yield from _reports(without.invariants)


def _reports(invariants: Iterable[str]) -> Iterator[str]:
    yield "  the invariants it keeps, and public reports of what they exclude:"
    for name in invariants:
        yield f"    {name}: {INVARIANTS[name].says}"
        yield from (f"      {told(bug)}" for bug in INVARIANTS[name].bugs)


def _where(name: str) -> Iterator[str]:
    yield "  where it is checked:"
    if name in RULE_NAMES:
        yield "    model: every search evaluates it as it stands in the table (rules.Table)"
    for folder, title in (
        ("spec_fsm", "code"),
        ("spec_fsm_sglang", "adapter"),
        ("spec_fsm_model", "model"),
        ("tests", "tests"),
    ):
        places = [p for p in sources.mentions(name, folder) if p.file not in TOLD_HERE]
        # The first of each file before a second of any.
        firsts = list({place.file: place for place in reversed(places)}.values())[::-1]
        shown = firsts[:MOST_PLACES]
        for place in shown:
            yield f"    {title}: {place.file}:{place.line} {place.function}"
        if len(places) > len(shown):
            yield f"    {title}: and {len(places) - len(shown)} more functions"
        if not places:
            here = sources.FOLDERS[folder].exists()
            yield f"    {title}: {'nothing names it' if here else 'not in this installation'}"


__all__ = ["UnknownName", "explain", "names"]
