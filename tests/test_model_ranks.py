"""What `model check` knows of a prefix cache that is hit, and of two ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spec_fsm._rules import ROW_EFFECTS
from spec_fsm.modes import Mode
from spec_fsm_model.claims import Broken
from spec_fsm_model.explore import BOUNDS, Search, Verdict
from spec_fsm_model.ranks import CATCHES_UP, OneRank, OwnClock, OwnLoad, Ranks, TwoRanks, within
from spec_fsm_model.report import story
from spec_fsm_model.rules import RULES
from spec_fsm_model.sequences import SMALL
from spec_fsm_model.world import Bounds, Cached, Stage, World

APART = Bounds("two ranks", rows=1, in_flight=0, dwell=1, skew=2)


# -- the prefix cache ---------------------------------------------------------------------


def after(world: World, *names: str, bounds: Bounds = SMALL) -> World:
    """The world after acts given by their words."""
    environment = OneRank(bounds)
    for name in names:
        found = {str(act): then for act, then in environment.successors(world)}[name]
        assert isinstance(found, World), found
        world = found
    return world


PREFILLED = ("admit a request", "prefill the rest row 0")


def test_a_prompt_is_cached_and_a_later_request_begins_with_it() -> None:
    """A prefill leaves its prompt in the cache; the next request has all of it but one position."""
    world = after(OneRank(SMALL).start, *PREFILLED, "finished row 0")
    assert world.cached == Cached(SMALL.origin, SMALL.origin)
    hit = after(world, "admit a request (prefix hit)")
    row = hit.rows[0].settled
    assert (row.committed, row.covered, hit.rows[0].stage) == (
        SMALL.origin - 1,
        SMALL.origin - 1,
        Stage.ADMITTED,
    )
    after(hit, "prefill a chunk row 0", "prefill the rest row 0", "launch speculative")


def test_every_mode_has_hits() -> None:
    """Requests begin with a cached prefix in each mode of the graph that is searched."""
    search = Search(SMALL)
    assert search.run().verdict is Verdict.PROVED
    modes = {
        search.worlds[i].mode
        for i, arcs in enumerate(search.arcs)
        for act, _ in arcs
        if act.what == "prefix hit"
    }
    assert modes == set(Mode)


def test_the_cache_is_not_emptied_under_a_prompt_that_began_with_it() -> None:
    """An empty cache gives no hit; while a request holds a part of it, it is not emptied."""
    world = after(OneRank(SMALL).start, *PREFILLED, "finished row 0")
    names = {str(act) for act, _ in OneRank(SMALL).successors(world)}
    assert {"flush the prefix cache", "admit a request (prefix hit)"} <= names
    empty = after(world, "flush the prefix cache")
    names = {str(act) for act, _ in OneRank(SMALL).successors(empty)}
    assert "admit a request (prefix hit)" not in names
    hit = after(world, "admit a request (prefix hit)")
    assert "flush the prefix cache" not in {str(a) for a, _ in OneRank(SMALL).successors(hit)}


class TargetAlone(OneRank):
    """A cache whose older tier gives back the target's KV alone (SG#21125)."""

    def _admit(self, world: World, hit: int) -> World:
        return super()._admit(world._replace(cached=Cached(hit, 0)), hit)._replace(
            cached=world.cached
        )


def test_a_prefix_without_draft_kv_breaks_i15() -> None:
    """A row would count a prefix as covered that has none: the search says so, and how."""
    search = Search(SMALL, environment=TargetAlone(SMALL))
    found = search.run()
    assert found.broken is not None
    assert (found.verdict, found.broken.claim) == (Verdict.REFUTED, "I15")
    assert "admit a request (prefix hit)" in [str(act) for act in found.history]


def test_what_is_cached_beyond_what_is_covered_breaks_i15() -> None:
    """A row that leaves more than it covers is found in the cache, in a world of its own."""

    def everything(*args: object) -> int:
        return 0

    environment = OneRank(SMALL)
    environment.planner.settled_gap = everything  # type: ignore[assignment]
    found = Search(SMALL, environment=environment).run()
    assert found.broken is not None
    assert found.broken.claim == "I15"
    assert "cached" in found.broken.detail


# -- two ranks ----------------------------------------------------------------------------


def test_two_ranks_are_searched() -> None:
    """`model check` has bounds with two ranks, and they say so."""
    bounds = next(b for b in BOUNDS if b.skew)
    assert "two ranks, 2 acts apart" in bounds.stated()
    assert isinstance(within(bounds), TwoRanks)
    assert isinstance(within(SMALL), OneRank)


def test_ranks_apart_decide_the_same() -> None:
    """In every mode one rank is ahead of the other, and both do the same in the end."""
    search = Search(APART)
    assert search.run().verdict is Verdict.PROVED
    worlds: list[Ranks] = search.worlds  # type: ignore[assignment]
    apart = {(w.first.mode, w.second.mode) for w in worlds if w.told}
    assert {(Mode.DRAINING, Mode.SPEC), (Mode.SPEC, Mode.RESEEDING)} <= apart
    assert all(w.first == w.second for w in worlds if not w.told)
    assert {len(w.told) for w in worlds} == {0, 1, 2}


@pytest.mark.parametrize("bug", [OwnLoad, OwnClock])
def test_a_rank_that_goes_by_something_of_its_own_is_refuted_with_a_story(
    bug: type[TwoRanks],
) -> None:
    """I11 breaks at an act in which the ranks are apart; the story has both ranks."""
    found = Search(APART, environment=bug(APART)).run()
    assert found.broken is not None
    assert (found.verdict, found.broken.claim) == (Verdict.REFUTED, "I11")
    assert found.history[-1].name.startswith(CATCHES_UP)
    text = "\n".join(story(found))
    assert "another, which lacks boundary (load" in text


def test_a_faulty_table_is_found_on_two_ranks_too() -> None:
    """The claims of one rank are checked here as well."""
    rows = {**ROW_EFFECTS, "ROW_COVER": lambda o, s, r, a: r}
    found = Search(APART, replace(RULES, row_effects=rows)).run()
    assert isinstance(found.broken, Broken)
    assert found.broken.claim in ("I8", "AGREE")


def test_what_ranks_decide_is_told_from_facts() -> None:
    """A launch is each rank's own: one that would launch something else is refuted."""

    class Other(TwoRanks):
        def behind(self, ranks: Ranks) -> World:
            if ranks.told[0].act.name == "launch plain":
                return ranks.second._replace(mode=Mode.SPEC)
            return ranks.second

    found = Search(APART, environment=Other(APART)).run()
    assert found.broken is not None
    assert found.broken.claim == "I11"
    assert "one rank does 'launch plain', another" in found.broken.detail
