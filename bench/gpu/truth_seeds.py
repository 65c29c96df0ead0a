"""The relay a reseed makes for several rows, beside the relay of rows prefilled up to there."""

from __future__ import annotations

from typing import Any

import torch

TENSORS = ("topk_p", "topk_index", "hidden_states")


class Relays:
    """Keeps what reseeds and prefills relay, row by row, on the host."""

    def __init__(self, arm: Any) -> None:
        from spec_fsm_sglang import rebuild

        self.arm = arm
        self.made: dict[str, tuple[int, dict[str, torch.Tensor]]] = {}
        self.prefilled: dict[str, dict[str, torch.Tensor]] = {}
        self.found: list[dict[str, Any]] = []
        seed, generate = rebuild.seed, arm.worker.forward_batch_generation

        def seeded(*args: Any) -> None:
            seed(*args)
            batch, committed, relay = args[3], args[4].tolist(), args[6]
            for i, req in enumerate(batch.reqs):
                self.made[req.rid] = committed[i], _row(relay, i)

        def generated(batch: Any, *args: Any, **kwargs: Any) -> Any:
            extend = batch.forward_mode.is_extend()
            result = generate(batch, *args, **kwargs)
            if extend:
                for i, req in enumerate(batch.reqs):
                    self.prefilled[req.rid] = _row(result.next_draft_input, i)
            return result

        rebuild.seed = seeded
        arm.worker.forward_batch_generation = generated

    def twins(self, gap: int) -> None:
        """Prefill a twin of every row that was reseeded, in another order, and compare."""
        made = dict(self.made)
        for rid in reversed(made):
            text = self.arm.prompts[rid] + list(self.arm.engine.outputs[rid].output_ids)
            self.arm.submit(f"{rid}-twin", text[: made[rid][0]], 2)
        self.arm.step(1000)
        rows = [(made[rid][1], self.prefilled[f"{rid}-twin"]) for rid in made]
        found = compare(rows, self.arm.settings["tie"])
        self.found.append({"gap": gap, "rows": len(rows), **found})


def _row(relay: Any, i: int) -> dict[str, torch.Tensor]:
    return {name: getattr(relay, name)[i].detach().cpu().clone() for name in TENSORS}


def compare(
    rows: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]], tie: float
) -> dict[str, Any]:
    """Worst difference of a row from its twin; least difference of a row from its neighbour's.

    `hidden_states`: by norm, of the twin's. `topk_p`: absolute. `topk_index`: how many differ,
    but for tokens of the twin's whose probabilities are less than `tie` apart.
    """
    own = [difference(made, twin, tie) for made, twin in rows]
    rolled = [rows[i - 1][1] for i in range(len(rows))]
    others = [difference(made, twin, -1.0) for (made, _), twin in zip(rows, rolled, strict=True)]
    return {
        "own": {name: max(one[name] for one in own) for name in TENSORS},
        "neighbour": {name: min(one[name] for one in others) for name in TENSORS},
    }


def difference(
    made: dict[str, torch.Tensor], twin: dict[str, torch.Tensor], tie: float
) -> dict[str, float]:
    """Of one row."""
    hidden, other = made["hidden_states"].double(), twin["hidden_states"].double()
    probability = twin["topk_p"].double()
    worst = float((made["topk_p"].double() - probability).abs().max())
    ids, theirs = made["topk_index"].tolist(), twin["topk_index"].tolist()
    wrong = 0
    for i, token in enumerate(ids):
        if token == theirs[i]:
            continue
        # A token that is missing may tie with the last.
        j = theirs.index(token) if token in theirs else len(theirs) - 1
        wrong += float((probability[i] - probability[j]).abs()) > tie
    return {
        "topk_p": worst,
        "topk_index": float(wrong),
        "hidden_states": float((hidden - other).norm() / other.norm()),
    }
