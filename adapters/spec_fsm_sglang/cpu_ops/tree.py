"""Building and greedily verifying the draft tree: b trees of d nodes each, node 0 the root.

Names and signatures are those SGLang 0.5.23 imports from `sgl_kernel` on CPU. SGLang describes a
tree by `selected_index` [b, d - 1] (the candidate each node 1..d-1 was picked from) and
`parent_list` (the candidate that each group of topk candidates descends from).
"""

from __future__ import annotations

import torch
from torch import Tensor

QLEN_ONLY = 1  # TreeMaskMode.QLEN_ONLY, the only mask the CPU attention reads


def _parents(parent_list: Tensor, selected_index: Tensor, topk: int) -> Tensor:
    """Parent node of nodes 1..d-1, [b, d - 1]; -1 where the parent was not selected."""
    group = selected_index // topk
    if parent_list.shape[-1] == 0:
        return torch.zeros_like(group)
    origin = parent_list.gather(1, group.clamp(max=parent_list.shape[1] - 1))
    same = selected_index[:, None, :] == origin[:, :, None]
    parent = torch.where(same.any(-1), same.int().argmax(-1) + 1, -1)
    return torch.where(group == 0, 0, parent)


def _link_children(parent: Tensor, next_token: Tensor, next_sibling: Tensor) -> None:
    """Writes each node's first child and next sibling, in node order; both keep -1 for none."""
    n = parent.shape[1]
    node = torch.arange(1, n + 1)
    later = node[:, None] < node[None, :]
    siblings = (parent[:, :, None] == parent[:, None, :]) & later & (parent >= 0)[:, :, None]
    has = siblings.any(-1)
    follow = siblings.int().argmax(-1) + 1
    next_sibling[:, 1:] = torch.where(has, follow, next_sibling[:, 1:])
    child = parent[:, None, :] == torch.arange(n + 1)[None, :, None]
    first = child.int().argmax(-1) + 1
    next_token.copy_(torch.where(child.any(-1), first, next_token))


def build_tree_kernel_efficient_cpu(  # noqa: PLR0913 - called by position from SGLang
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fills mask, positions and links of b draft trees.

    `tree_mask` (bool, b * d * d cells) says which nodes a node attends to: itself and its
    ancestors. `positions` [b * d] is `verified_seq_len` plus the node's depth. `retrieve_index`
    [b, d] numbers the nodes of the whole batch; `retrieve_next_token` and
    `retrieve_next_sibling` [b, d] come filled with -1. Raises NotImplementedError for any mask
    mode but QLEN_ONLY.
    """
    if int(tree_mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"the CPU operators build QLEN_ONLY masks, not {tree_mask_mode}")
    b, d = verified_seq_len.numel(), draft_token_num
    retrieve_index.copy_(torch.arange(b * d).view(b, d))
    parent = _parents(parent_list, selected_index, topk)
    _link_children(parent, retrieve_next_token, retrieve_next_sibling)

    mask = torch.zeros(b, d, d, dtype=torch.bool)
    mask[:, :, 0] = True
    up = torch.cat((torch.full((b, 1), -1), parent), dim=1)
    node = torch.arange(d).expand(b, d).clone()
    node[:, 0] = -1
    level = torch.zeros(b, d, dtype=torch.int64)
    for _ in range(depth):
        alive = node > 0
        mask.scatter_(2, node.clamp(min=0)[:, :, None], True)
        level += alive
        node = torch.where(alive, up.gather(1, node.clamp(min=0)), -1)
    tree_mask[: b * d * d] = mask.flatten().to(tree_mask.dtype)
    positions.copy_((verified_seq_len[:, None] + level).flatten())


def verify_tree_greedy_cpu(  # noqa: PLR0913 - called by name from SGLang
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walks each tree down the children that equal the target's own greedy token.

    Writes `accept_index` [b, s + 1] (flat node numbers; cells past the last accepted keep what
    they held), `accept_token_num` [b] (draft tokens accepted, without the bonus token) and, at
    the accepted nodes of `predicts` [b * d], the target's token there.
    """
    b, d = candidates.shape
    row = torch.arange(b)
    target = target_predict.view(b, d)
    base = retrive_index[:, 0]
    accept_index[:, 0] = base.to(accept_index.dtype)
    count = torch.zeros(b, dtype=torch.int64)
    last = torch.zeros(b, dtype=torch.int64)
    walking = torch.ones(b, dtype=torch.bool)
    for _ in range(1, accept_index.shape[1]):
        want = target[row, last]
        child = torch.where(walking, retrive_next_token[row, last], -1)
        found = torch.zeros(b, dtype=torch.bool)
        while bool((open_ := (child >= 0) & ~found).any()):
            at = child.clamp(min=0)
            found |= open_ & (candidates[row, at] == want)
            child = torch.where(open_ & ~found, retrive_next_sibling[row, at], child)
        predicts[retrive_index[row, last][found]] = want[found].to(predicts.dtype)
        count += found
        last = torch.where(found, child, last)
        hit = row[found]
        accept_index[hit, count[hit]] = retrive_index[hit, last[hit]].to(accept_index.dtype)
        walking = found
        if not bool(walking.any()):
            break
    accept_token_num.copy_(count)
    predicts[retrive_index[row, last]] = target[row, last].to(predicts.dtype)
