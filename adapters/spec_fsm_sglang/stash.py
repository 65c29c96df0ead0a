"""The stash: what PLAIN keeps so that the draft model's KV can be rebuilt later.

A plain step produces, for every row, the target's hidden state at the position it decoded and
the token that follows it. Draft KV at position p is a function of exactly these two (the hidden
state of p and the embedding of token p + 1), so keeping them is keeping the right to rebuild.

Every buffer is indexed by `req_pool_idx`, like SGLang's own `FutureMap`, and everything here is
enqueued on the stream of the launch that produced the values: no host sync, and a row of a
request that has left is overwritten in stream order by its next owner (I10).

`covered` and `seeded` are the device's copy of two ledger variables. The host's ledger stays
the authority for decisions; the device copy exists so that a flush needs no per-row list from
the host. `checks.py` compares the two (I14).
"""

from __future__ import annotations

import torch

from spec_fsm import StashConfig
from spec_fsm_sglang import kernels
from spec_fsm_sglang.stash_size import SHARE_OF_KV

WIDEST = 4096


def fit(
    width: int | None,
    flush_every: int,
    kv_bytes: int,
    position_bytes: int,
    share: float = SHARE_OF_KV,
) -> StashConfig:
    """Width of the ring and steps between flushes for a server with `kv_bytes` of target KV.

    width: as configured, None for as many positions as `share` of the KV pool holds,
    `position_bytes` being those of one position of every row. Where that is too narrow for
    `flush_every`, the flush comes more often instead; a ring of two positions is the least that
    works, also where it takes more than its share.
    """
    if width is None:
        width = min(WIDEST, max(2, int(kv_bytes * share) // position_bytes))
        flush_every = min(flush_every, width - 1)
    return StashConfig(width=width, flush_every=flush_every, slice_width=width)


class Stash:
    """A ring of the last `width` hidden states and next tokens of every running request.

    `hidden`: `[rows, width, hidden_size]` in the target's dtype; `tokens`: `[rows, width]`
    int64; `covered`: `[rows]` int64, positions below it have draft KV; `seeded`: `[rows]` bool,
    the relayed `topk_p`, `topk_index` and `hidden_states` of the row are those of its last
    position. `rows` is the height of `req_to_token`.
    """

    def __init__(
        self, rows: int, width: int, hidden_size: int, dtype: torch.dtype, device: str
    ) -> None:
        self.width = width
        self.hidden = torch.zeros((rows, width, hidden_size), dtype=dtype, device=device)
        self.tokens = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self.covered = torch.zeros((rows,), dtype=torch.int64, device=device)
        self.seeded = torch.zeros((rows,), dtype=torch.bool, device=device)

    @property
    def nbytes(self) -> int:
        """Device memory held, in bytes."""
        buffers = (self.hidden, self.tokens, self.covered, self.seeded)
        return sum(buffer.numel() * buffer.element_size() for buffer in buffers)

    def joined(self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor) -> None:
        """Rows whose draft KV is complete and whose seed is valid at `seq_lens` (`[b]`)."""
        self.covered[req_pool_indices] = seq_lens.to(torch.int64)
        # Not `= True`: a Python scalar would be copied from the host, and waited for.
        self.seeded.index_fill_(0, req_pool_indices.to(torch.int64), True)

    def cover(self, req_pool_indices: torch.Tensor, up_to: torch.Tensor) -> None:
        """Draft KV was written below `up_to` (`[b]`); what reached further already stays."""
        found = torch.maximum(self.covered[req_pool_indices], up_to.to(torch.int64))
        self.covered[req_pool_indices] = found

    def record(
        self,
        req_pool_indices: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        next_tokens: torch.Tensor,
    ) -> None:
        """Keep one plain step: the hidden state at `positions` (`[b]`) and the token after it.

        `hidden_states`: `[b, hidden_size]`; `next_tokens`: `[b]`. The rows lose their seed.
        """
        kernels.record(self, req_pool_indices, positions, hidden_states, next_tokens)

    def read(
        self, req_pool_indices: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states and next tokens at `positions` (`[b, n]`).

        Returns `[b, n, hidden_size]` and `[b, n]`. Positions outside the ring give other
        positions' values: the caller masks them.
        """
        rows = req_pool_indices.unsqueeze(1)
        column = positions % self.width
        return self.hidden[rows, column], self.tokens[rows, column]
