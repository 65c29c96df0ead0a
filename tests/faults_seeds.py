"""Seeded faults: what a reseed relays belongs to another row, or to no row at all.

Outputs stay right with all of them, and one row alone shows none: each row's relay is compared
with that of a twin that was prefilled.
"""

from __future__ import annotations

import copy
from typing import Any

from fault_kit import FAULTS, Fault, fault, wrap
from fuzz.world import World


def _made(change: Any) -> None:
    """`change(relay)` of what the draft extend of a seed made."""
    from spec_fsm_sglang import rebuild

    def around(run: Any, *batch: Any) -> Any:
        made = run(*batch)
        change(made)
        return made

    wrap(rebuild, "run_draft_extend", around)


def _rolled(name: str) -> Any:
    def put(world: World) -> None:
        def change(made: Any) -> None:
            setattr(made, name, getattr(made, name).roll(1, 0))

        _made(change)

    return put


for _field in ("topk_p", "topk_index", "hidden_states"):
    for _overlap in (True, False):
        _name = f"roll_{_field}{'' if _overlap else '_serial'}"
        _says = f"a seed's `{_field}` is the row's before it"
        FAULTS[_name] = Fault(_name, _says, "seeds", _rolled(_field), _overlap, "seeds")


@fault("a seed keeps what the relay carried, and drops what was made", "seeds", history="seeds")
def keep_inverted(world: World) -> None:
    """The mask of the rows that are seeded already, the wrong way round."""
    _keep_inverted(world)


@fault("the same, without overlap", "seeds", overlap=False, history="seeds")
def keep_inverted_serial(world: World) -> None:
    """`keep` is `~seeded`."""
    _keep_inverted(world)


def _keep_inverted(world: World) -> None:
    from spec_fsm_sglang import rebuild

    def around(seed: Any, *args: Any) -> None:
        *_, relay = args
        before = copy.copy(relay)
        seed(*args)
        for name in ("topk_p", "topk_index", "hidden_states"):
            setattr(relay, name, getattr(before, name))

    wrap(rebuild, "seed", around)


@fault("seeds made ahead go to the relay rows of other requests", "seeds", history="seeds")
def seeds_to_other_rows(world: World) -> None:
    """The rows a result is stored under are not those it was made for."""
    future_map = world.scheduler.future_map

    def around(stash: Any, indices: Any, payload: Any) -> None:
        if payload.topk_p is not None and world.lifecycle.mode.name in ("PLAIN", "RESEEDING"):
            payload = copy.copy(payload)
            for name in ("topk_p", "topk_index", "hidden_states"):
                setattr(payload, name, getattr(payload, name).roll(1, 0))
        stash(indices, payload)

    wrap(future_map, "stash", around)
