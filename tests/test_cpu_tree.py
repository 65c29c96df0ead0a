"""The CPU operators on draft trees against a plain search of each tree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_fsm_sglang.cpu_ops import tree


class Tree:
    """Random draft trees as the draft grows them, and their structure found by plain search.

    Candidates are numbered as SGLang does: topk children of the root, then for each later step
    topk children of each of the topk best candidates of the step before.
    """

    def __init__(self, b: int, topk: int, steps: int, d: int, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.b, self.topk, self.steps, self.d = b, topk, steps, d
        parent_list, selected = [], []
        self.parents: list[list[int]] = []  # node -> parent node, -1 for the root
        for _ in range(b):
            score, parent = {}, {}
            for c in range(topk):
                score[c], parent[c] = float(torch.rand(1, generator=random)), -1
            kept, origins = list(range(topk)), [-1, *range(topk)]
            for step in range(1, steps):
                base = topk + (step - 1) * topk * topk
                for p, origin in enumerate(kept):
                    for j in range(topk):
                        c = base + p * topk + j
                        parent[c] = origin
                        score[c] = score[origin] * float(torch.rand(1, generator=random))
                new = range(base, base + topk * topk)
                kept = sorted(new, key=lambda c: -score[c])[:topk]
                origins += kept
            chosen = sorted(sorted(score, key=lambda c: -score[c])[: d - 1])
            node = {c: i + 1 for i, c in enumerate(chosen)} | {-1: 0}
            self.parents.append([-1] + [node[parent[c]] for c in chosen])
            selected.append(chosen)
            parent_list.append(origins[: 1 + topk * (steps - 1)] if steps > 1 else [])
        self.selected = torch.tensor(selected)
        self.parent_list = torch.tensor(parent_list, dtype=torch.int64).view(b, -1)
        self.lens = torch.randint(1, 500, (b,), generator=random)

    def build(self) -> dict[str, Tensor]:
        """What the operator makes of these trees."""
        shape = (self.b, self.d)
        out = {
            "mask": torch.ones(self.b * self.d * self.d, dtype=torch.bool),
            "positions": torch.empty(self.b * self.d, dtype=torch.int64),
            "index": torch.full(shape, -1),
            "next": torch.full(shape, -1),
            "sibling": torch.full(shape, -1),
        }
        tree.build_tree_kernel_efficient_cpu(
            self.parent_list, self.selected, self.lens, *out.values(),
            self.topk, self.steps, self.d, tree.QLEN_ONLY,
        )
        return out

    def children(self, i: int, node: int) -> list[int]:
        """The node's children in tree i, in order."""
        return [n for n, parent in enumerate(self.parents[i]) if parent == node]

    def path(self, i: int, node: int) -> list[int]:
        """The node and its ancestors."""
        return [] if node < 0 else [node, *self.path(i, self.parents[i][node])]


TREES = [(1, 4, 2, 16), (64, 4, 2, 16), (64, 1, 3, 4), (3, 3, 4, 20), (5, 4, 1, 5)]


@pytest.mark.parametrize(("b", "topk", "steps", "d"), TREES)
def test_tree_structure_equals_a_plain_search(b: int, topk: int, steps: int, d: int) -> None:
    """Mask, positions, first children and siblings are those of the tree the draft grew."""
    trees = Tree(b, topk, steps, d)
    out = trees.build()
    mask, positions = out["mask"].view(b, d, d), out["positions"].view(b, d)
    assert out["index"].flatten().tolist() == list(range(b * d))
    for i in range(b):
        for node in range(d):
            path = trees.path(i, node)
            assert mask[i, node].nonzero().flatten().tolist() == sorted(path)
            assert positions[i, node] == trees.lens[i] + len(path) - 1
            children = trees.children(i, node)
            assert out["next"][i, node] == (children[0] if children else -1)
            siblings = [n for n in trees.children(i, trees.parents[i][node]) if n > node]
            assert out["sibling"][i, node] == (siblings[0] if node and siblings else -1)


def test_tree_refuses_other_masks() -> None:
    """Only the mask that the CPU attention reads is built."""
    empty = torch.empty(0)
    with pytest.raises(NotImplementedError, match="QLEN_ONLY"):
        tree.build_tree_kernel_efficient_cpu(*[empty] * 8, 1, 1, 1, 0)


@pytest.mark.parametrize(("b", "topk", "steps", "d"), TREES)
def test_greedy_verify_walks_the_tree_the_target_agrees_with(
    b: int, topk: int, steps: int, d: int
) -> None:
    """From the root on, the child that carries the target's token is accepted, till none does."""
    trees = Tree(b, topk, steps, d, seed=1)
    out = trees.build()
    random = torch.Generator().manual_seed(2)
    candidates = torch.randint(0, 3, (b, d), generator=random)
    target = torch.randint(0, 3, (b, d), generator=random)
    predicts = torch.full((b * d,), -5, dtype=torch.int32)
    accepted = torch.full((b, steps + 1), -1, dtype=torch.int32)
    count = torch.empty(b, dtype=torch.int32)
    tree.verify_tree_greedy_cpu(
        predicts, accepted, count, candidates, out["index"], out["next"], out["sibling"],
        target.flatten(),
    )
    expected_predicts = [-5] * (b * d)
    for i in range(b):
        walk = [0]
        while len(walk) <= steps:
            want = target[i, walk[-1]]
            hits = [n for n in trees.children(i, walk[-1]) if candidates[i, n] == want]
            if not hits:
                break
            walk.append(hits[0])
        for node in walk:
            expected_predicts[i * d + node] = int(target[i, node])
        assert accepted[i].tolist() == [i * d + n for n in walk] + [-1] * (steps + 1 - len(walk))
        assert count[i] == len(walk) - 1
    assert predicts.tolist() == expected_predicts
    if b == 64:
        assert set(count.tolist()) == set(range(steps + 1))
