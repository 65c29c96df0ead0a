"""The pages of `docs/generated`, written from the table: `make docs`.

A test writes them again and compares bytes, so that no page says what the table no longer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from spec_fsm import laws
from spec_fsm._rules import EFFECTS, GUARDS, ROW_EFFECTS
from spec_fsm._table import ALLOWED, EDGES, REFUSALS, Edge
from spec_fsm.invariants import INVARIANTS
from spec_fsm.laws import Shape
from spec_fsm.machine import diagram
from spec_fsm.modes import MODE_EVENTS, Event, Mode, Phase
from spec_fsm_model import claims, progress, sources, symbols
from spec_fsm_model.bugs import BUGS, TRACKERS
from spec_fsm_model.drawing import draw

DRAWING = "modes.svg"
TREE = Shape(topk=4, num_steps=2, num_draft_tokens=16)
"""The example of the pages: the tree of the crash the project starts from."""
ROWS, WIDTH, COMMITTED = 10, 3, 100
_NOTE = "<!-- Written by `make docs` from spec_fsm/_table.py. Do not edit. -->"


def write_all(folder: Path) -> list[Path]:
    """Write every page and the drawing to `folder`; returns the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, page in PAGES.items():
        file = folder / name
        file.write_text("\n".join((_NOTE, "", *page())) + "\n")
        files.append(file)
    draw(folder / DRAWING)
    return [*files, folder / DRAWING]


def stale(folder: Path, fresh: Path) -> list[str]:
    """Names of files in which `folder` differs from what `write_all` writes to `fresh`."""
    written = {file.name: file.read_bytes() for file in write_all(fresh)}
    here = {file.name: file.read_bytes() for file in folder.glob("*") if file.is_file()}
    names = sorted(written.keys() | here.keys())
    return [name for name in names if written.get(name) != here.get(name)]


# -- pages --------------------------------------------------------------------------------


def _modes() -> Iterator[str]:
    yield from ("# The modes and their edges", "")
    yield from (f"![The four modes and the edges between them]({DRAWING})", "")
    yield from ("The same as Mermaid draws it, as `transitions` writes it down:", "")
    chart = (line.rstrip() for line in diagram().strip().splitlines())
    yield from ("```mermaid", *chart, "```", "")
    docs = sources.member_docs(Mode)
    yield from _table(("mode", "what it means"), ((f"`{m.name}`", docs[m.name]) for m in Mode))
    mode_events = [e for e in EDGES if e.event in MODE_EVENTS]
    yield from ("## Mode events", "", *_edges(mode_events))
    ledger = [e for e in EDGES if e.event not in MODE_EVENTS]
    yield from ("## Ledger events", "", *_edges(ledger))
    yield from ("## Events", "")
    texts = sources.member_docs(Event)
    yield from _table(("event", "what happened"), ((f"`{e.name}`", texts[e.name]) for e in Event))
    for title, rules in (
        ("Guards", GUARDS),
        ("Effects on the shared counters", EFFECTS),
        ("Effects on one row", ROW_EFFECTS),
    ):
        yield from (f"## {title}", "", *_rules(rules))


def _refusals() -> Iterator[str]:
    yield from ("# What is refused, and why", "")
    total = len(Mode) * len(Event)
    yield f"Of the {total} pairs of a mode and an event {len(EDGES)} are edges. The other"
    yield f"{len(REFUSALS)} are refused in every state; a refused event changes nothing."
    yield ""
    rows = ((f"`{m.name}`", f"`{e.name}`", why) for (m, e), why in REFUSALS.items())
    yield from _table(("mode", "event", "why"), rows)
    yield from ("An edge whose guard does not hold refuses its event too:", "")
    for event, guard in dict.fromkeys((e.event, g) for e in EDGES for g in e.guards):
        modes = [e.source for e in EDGES if e.event is event and guard in e.guards]
        yield f"- `{event.name}` in {_names(modes)}: `{guard}`"


def _laws() -> Iterator[str]:
    yield from ("# The shape laws", "")
    yield "For b requests, k `topk`, s `num_steps`, d `num_draft_tokens`, w a launch's own width:"
    yield ""
    heads = ("phase", "tokens", "`out_cache_loc`", "`seq_lens` in attention", "`spec_info`")
    rows = (_law(phase) for phase in Phase)
    yield from _table((*heads, "hidden capture"), rows)
    yield f"A draft of a chain may own `{symbols.window()}` slots instead (SGLang on CUDA)."
    yield "`0` in attention: no attention runs. A row may take `alloc_len` slots a step and holds"
    yield "`reserve`, twice as many, beyond what it committed."
    yield ""
    k, s, d = TREE.topk, TREE.num_steps, TREE.num_draft_tokens
    yield f"With k {k}, s {s}, d {d}, {ROWS} requests of {COMMITTED} positions and w {WIDTH}:"
    yield ""
    numbers = (_numbers(phase) for phase in Phase)
    yield from _table(("phase", "tokens", "slots", "attention sees"), numbers)
    yield f"alloc_len {laws.alloc_len(TREE)}, reserve {laws.reserve(TREE)} slots a row."


def _law(phase: Phase) -> tuple[str, ...]:
    info, hidden = laws.spec_info(phase).name, laws.hidden(phase).name
    sizes = (symbols.tokens(phase), symbols.slots(phase), symbols.attention(phase))
    return (f"`{phase.name}`", *(f"`{size}`" for size in sizes), info, hidden)


def _numbers(phase: Phase) -> tuple[str, ...]:
    sizes = (
        laws.tokens(phase, ROWS, TREE, WIDTH),
        laws.slots(phase, ROWS, TREE, WIDTH),
        laws.attention_len(phase, COMMITTED, TREE, WIDTH),
    )
    return (f"`{phase.name}`", *(str(size) for size in sizes))


def _invariants() -> Iterator[str]:
    yield from ("# The invariants", "")
    yield "Stated at a boundary or for one launch, for b > 0. The last column says who is able to"
    yield "check it while serving; the formal model and the tests come on top."
    yield ""
    rows = (
        (f"`{i.id}`", i.says, " ".join(_link(b) for b in i.bugs) or "-", "; ".join(i.checked))
        for i in INVARIANTS.values()
    )
    yield from _table(("id", "what it says", "reports it excludes", "checked by"), rows)
    yield from ("## Claims of the model", "")
    both = ((claims.SAYS, "check"), (progress.SAYS, "progress"))
    told = ((f"`{c}`", text, f"`model {by}`") for says, by in both for c, text in says.items())
    yield from _table(("claim", "what it says", "checked by"), told)
    yield from ("## Reports", "")
    projects = ", ".join(f"{short} {name}" for short, (name, _) in TRACKERS.items())
    yield from (f"{projects}.", "")
    yield from _table(("report", "symptom"), ((_link(b), text) for b, text in BUGS.items()))


def _matrix() -> Iterator[str]:
    yield from ("# Which mode launches what", "")
    heads = ("phase", *(m.name for m in Mode), "what it is")
    docs = sources.member_docs(Phase)
    rows = (
        (f"`{p.name}`", *("yes" if p in ALLOWED[m] else "-" for m in Mode), docs[p.name])
        for p in Phase
    )
    yield from _table(heads, rows)
    yield from ("## Which mode has which event", "")
    yield "`->` a change of mode, `yes` an edge that stays, `(g)` with a guard, `-` refused."
    yield ""
    grid = ((f"`{e.name}`", *(_cell(m, e) for m in Mode)) for e in Event)
    yield from _table(("event", *(m.name for m in Mode)), grid)


def _cell(mode: Mode, event: Event) -> str:
    for edge in EDGES:
        if (edge.source, edge.event) == (mode, event):
            stays = "yes" if edge.target is mode else f"-> {edge.target.name}"
            return f"{stays} (g)" if edge.guards else stays
    return "-"


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "modes.md": _modes,
    "refusals.md": _refusals,
    "laws.md": _laws,
    "invariants.md": _invariants,
    "matrix.md": _matrix,
}

# -- parts --------------------------------------------------------------------------------


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = list(heads)
    yield _line(heads)
    yield _line("---" for _ in heads)
    yield from (_line(cell.replace("|", "\\|") for cell in row) for row in rows)
    yield ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _edges(edges: Iterable[Edge]) -> Iterator[str]:
    """Edges as a table; the same edge of several modes in one line."""
    alike: dict[tuple[str, str, str, str], list[Mode]] = {}
    for e in edges:
        target = "stays" if e.target is e.source else f"`{e.target.name}`"
        effects = [*e.effects, *([e.row_effect] if e.row_effect else [])]
        key = (f"`{e.event.name}`", target, _code(e.guards), _code(effects))
        alike.setdefault(key, []).append(e.source)
    rows = ((event, _names(modes), *rest) for (event, *rest), modes in alike.items())
    yield from _table(("event", "in", "goes to", "guards", "effects"), rows)


def _names(modes: Iterable[Mode]) -> str:
    modes = list(modes)
    return "every mode" if len(modes) == len(Mode) else ", ".join(m.name for m in modes)


def _code(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names) or "-"


def _rules(rules: Mapping[str, Callable[..., object]]) -> Iterator[str]:
    for name, rule in rules.items():
        comments, body = sources.reading(rule)
        yield from (f"`{name}`{': ' + ' '.join(comments) if comments else ''}", "")
        yield from ("```python", *body, "```", "")


def _link(bug: str) -> str:
    tracker, _, number = bug.partition("#")
    return f"[{bug}](https://github.com/{TRACKERS[tracker][1]}/issues/{number})"


__all__ = ["DRAWING", "PAGES", "stale", "write_all"]
