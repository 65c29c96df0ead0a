"""What a reseed relays, row by row, against twins of the rows that were prefilled.

A row that comes back after a gap is given `topk_p`, `topk_index` and `hidden_states` by our
rebuild; its twin, prefilled with the same text, is given them by SGLang's own prefill. They have
to be equal in every row, and the rows have to differ, or a row could hold another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fuzz.world import World

FIELDS = ("topk_p", "topk_index", "hidden_states")
CHAIN = ("topk_index", "hidden_states")
"""With one candidate a draft extend relays 1.0 for every probability, a prefill the probability;
nothing reads it (0.5.23 `eagle_worker_v2.py:1265`)."""
ERROR = 1e-4
DIFFER = 1e-3
"""Least difference of two rows, of some element."""
PROMPTS = (6, 11, 17)

Seed = dict[str, torch.Tensor]


class Difference(Exception):
    """A relay tensor is not its twin's; the message begins with `seeds`."""


def compare(world: World, gap: int) -> dict[str, float]:
    """Plays a gap of `gap` plain steps over three rows, then their twins.

    The worst difference of each field; raises Difference where it is above `ERROR`, or where all
    rows are alike.
    """
    rows = resumed(world, gap)
    outputs = {asked.rid: asked.prompt + list(world.engine.outputs[asked.rid].output_ids)
               for asked in world.asked}
    texts = {rid: outputs[rid][:length] for rid, (length, _) in rows.items()}
    twins = prefilled(world, texts)
    fields = CHAIN if world.config.engine["topk"] == 1 else FIELDS
    return differences({rid: seed for rid, (_, seed) in rows.items()}, twins, fields)


def resumed(world: World, gap: int) -> dict[str, tuple[int, Seed]]:
    """By request: positions committed, and what the launch that reseeds finds in the relay."""
    world.fsm.pin(1)
    for length in PROMPTS:
        world._submit(world._prompt(length, "fresh"), gap + 40, "greedy")
    world.on_step(4)
    world.fsm.pin(2)
    world.on_step(gap)
    found: dict[str, tuple[int, Seed]] = {}
    reseeded = world.fsm.reseeded

    def watched(batch: Any) -> None:
        found.update(_rows(batch))
        reseeded(batch)

    world.fsm.reseeded = watched
    world.fsm.pin(1)
    world._drain()
    world.fsm.reseeded = reseeded
    if len(found) != len(PROMPTS):
        raise Difference(f"seeds: {len(found)} rows were reseeded, not {len(PROMPTS)}")
    return found


def prefilled(world: World, texts: dict[str, list[int]]) -> dict[str, Seed]:
    """By request: what the first decode launch of a twin with that text finds in the relay."""
    world.on_flush_cache()
    found: dict[str, Seed] = {}
    names = {}
    plan_decode = world.fsm.plan_decode

    def watched(batch: Any) -> Any:
        for rid, (length, seed) in _rows(batch).items():
            if rid in names and length == len(texts[names[rid]]):
                found[names[rid]] = seed
        return plan_decode(batch)

    world.fsm.plan_decode = watched
    for rid, text in texts.items():
        names[world._submit(text, 3, "greedy").rid] = rid
    world._drain()
    world.fsm.plan_decode = plan_decode
    if found.keys() != texts.keys():
        raise Difference(f"seeds: {len(found)} twins were seen, not {len(texts)}")
    return found


def differences(
    rows: dict[str, Seed], twins: dict[str, Seed], fields: tuple[str, ...]
) -> dict[str, float]:
    """The worst difference between a row and its twin, by field; see `compare`."""
    worst = {}
    for field in fields:
        ours = torch.stack([seed[field].double() for seed in rows.values()])
        theirs = torch.stack([twins[rid][field].double() for rid in rows])
        if float((theirs - theirs.roll(1, 0)).abs().flatten(1).max(1).values.min()) < DIFFER:
            raise Difference(f"seeds: two rows of {field} are alike, so a swap would not show")
        apart = (ours - theirs).abs().flatten(1).max(1).values
        worst[field] = float(apart.max())
        if worst[field] > ERROR:
            raise Difference(f"seeds: {field} is off its twin's by {apart.tolist()}, row by row")
    return worst


def _rows(batch: Any) -> dict[str, tuple[int, Seed]]:
    """Of each row of a decode batch: its committed positions, and its part of the relay."""
    relay = batch.spec_info
    if any(getattr(relay, field) is None for field in FIELDS):
        return {}
    return {
        req.rid: (int(batch.seq_lens[i]), {f: getattr(relay, f)[i].clone() for f in FIELDS})
        for i, req in enumerate(batch.reqs)
    }
