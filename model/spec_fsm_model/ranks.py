"""Two ranks of one server: the same facts in the same order, not at the same time.

Tensor-parallel ranks each have a machine of their own.  Every rank is told the same facts (requests
that come and go, results, loads, pins, new weights, a rebuild that failed), in one order; one rank
may have come further in it than the other, by `Bounds.skew` acts.  What to launch each rank decides
by itself, from its own counters and its own policy; launches pair up over the ranks in their order,
so I11 asks that the n-th act of both is the same and leaves both in the same mode.

Which rank is ahead makes no difference, and they can only change places where neither is: so it is
always the first.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from spec_fsm.modes import Mode
from spec_fsm_model.claims import Broken, broken
from spec_fsm_model.environment import Act, Environment
from spec_fsm_model.refuses import wrongly_answered
from spec_fsm_model.rules import RULES, Rules
from spec_fsm_model.world import Bounds, World, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DECIDED = ("launch", "go on after the drain")
"""How acts begin that a rank decides by itself; all others are facts it is told."""
CATCHES_UP = "the other rank"


class Told(NamedTuple):
    """An act the first rank has done and the second has not, and the first's mode after it."""

    act: Act
    mode: Mode


class Ranks(NamedTuple):
    """Both ranks.  told: what lies between them, the oldest first."""

    first: World
    second: World
    told: tuple[Told, ...] = ()

    @property
    def mode(self) -> Mode:
        """The mode of the rank that is ahead."""
        return self.first.mode


class TwoRanks:
    """All that can happen next on two ranks; each of them is in an `Environment` of its own."""

    def __init__(self, bounds: Bounds, rules: Rules = RULES) -> None:
        self.bounds, self.one = bounds, Environment(bounds, rules)
        self.table, self.steps = self.one.table, self.one.steps
        self._after: Callable[[World], dict[Act, World | Broken]] = cache(
            lambda world: dict(self.one.successors(world))
        )

    @property
    def start(self) -> Ranks:
        """A server that was just started."""
        world = self.one.canonical(start(self.bounds))
        return Ranks(world, world)

    def successors(self, ranks: Ranks) -> Iterator[tuple[Act, Ranks | Broken]]:
        """Every act of the first rank, as far as it may be ahead, and the second one's next."""
        first, second, told = ranks
        if len(told) < self.bounds.skew:
            for act, after in self._after(first).items():
                if isinstance(after, Broken):
                    yield act, after
                else:
                    yield act, Ranks(after, second, (*told, Told(act, after.mode)))
        if told:
            for act in self.seen(ranks):
                caught_up = Act(f"{CATCHES_UP}: {act.name}", act.row, act.what)
                yield caught_up, self._catch_up(ranks, act)

    def seen(self, ranks: Ranks) -> Iterator[Act]:
        """The oldest act between the ranks as the second one is told of it, or decides it."""
        act = ranks.told[0].act
        if not act.name.startswith(DECIDED):
            yield act
            return
        mine = [a for a in self._after(self.behind(ranks)) if a.name.startswith(DECIDED)]
        yield from mine or [Act("launch nothing")]

    def behind(self, ranks: Ranks) -> World:
        """The second rank, as it takes up its next act."""
        return ranks.second

    def _catch_up(self, ranks: Ranks, act: Act) -> Ranks | Broken:
        told, *rest = ranks.told
        if act.name.startswith(DECIDED) and act != told.act:
            return Broken("I11", f"one rank does '{told.act}', another '{act}'")
        after = self._after(self.behind(ranks)).get(act)
        if after is None:
            return Broken("I11", f"'{act}' happens on one rank and is not possible on another")
        if isinstance(after, World) and after.mode is not told.mode:
            modes = f"one rank is in {told.mode.name}, another in {after.mode.name}"
            return Broken("I11", f"{modes} after '{act}'")
        return after if isinstance(after, Broken) else Ranks(ranks.first, after, tuple(rest))

    def asked(self, _: Ranks) -> Broken | None:
        """Nothing: what the table must refuse and grant, the searches of one rank ask."""
        return None

    def broken(self, ranks: Ranks) -> Broken | None:
        """The first claim that does not hold of the rank that was ahead last."""
        return broken(ranks.first)


class OneRank(Environment):
    """An `Environment` with the claims about its worlds."""

    @property
    def start(self) -> World:
        """A server that was just started."""
        return self.canonical(start(self.bounds))

    def asked(self, world: World) -> Broken | None:
        """What the table wrongly accepts or refuses in a world."""
        return wrongly_answered(world, self.table)

    def broken(self, world: World) -> Broken | None:
        """The first claim about a world that does not hold."""
        return broken(world)


def within(bounds: Bounds, rules: Rules = RULES) -> OneRank | TwoRanks:
    """What can happen within `bounds`."""
    return TwoRanks(bounds, rules) if bounds.skew else OneRank(bounds, rules)


# -- ranks that go by something of their own ----------------------------------------------


class OwnLoad(TwoRanks):
    """The second rank counts the requests it sees when its turn comes."""

    def seen(self, ranks: Ranks) -> Iterator[Act]:
        """As `TwoRanks.seen`, with the newest load where a load is told."""
        act = ranks.told[0].act
        if act.name == "boundary":
            act = next(told.act for told in reversed(ranks.told) if told.act.name == act.name)
            yield act
        else:
            yield from super().seen(ranks)


class OwnClock(TwoRanks):
    """The second rank's dwell is time, which goes on while it is behind."""

    def behind(self, ranks: Ranks) -> World:
        """As `TwoRanks.behind`, later by the acts it is behind."""
        policy = ranks.second.policy
        dwell = max(0, policy.dwell - len(ranks.told) + 1)
        return ranks.second._replace(policy=policy._replace(dwell=dwell))


class FailsAlone(TwoRanks):
    """The rebuild can fail on one rank and go well on the other."""

    def seen(self, ranks: Ranks) -> Iterator[Act]:
        """As `TwoRanks.seen`, and a failure where the first rank's rebuild went well."""
        yield from super().seen(ranks)
        if ranks.told[0].act.name == "launch reseed":
            yield Act("the reseed fails")


__all__ = [
    "CATCHES_UP",
    "DECIDED",
    "FailsAlone",
    "OneRank",
    "OwnClock",
    "OwnLoad",
    "Ranks",
    "Told",
    "TwoRanks",
    "within",
]
