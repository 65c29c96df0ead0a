"""SGLang 0.5.23: a speculative decode step writes a request's KV reserve into another's row.

    pip install sglang==0.5.23
    TRITON_INTERPRET=1 python req_to_token_row_overrun.py     # no GPU needed

Uses SGLang's own kernel and sizing function with the numbers of EAGLE-3 2/4/16 at page size 1.
See req_to_token_row_overrun.md.
"""

from types import SimpleNamespace

import torch
from sglang.srt.mem_cache.allocation import assign_req_to_token_pool
from sglang.srt.mem_cache.allocation_sizing import page_aligned_decode_alloc_lens

CONTEXT, STEPS, TOPK, DRAFT_TOKENS = 128, 2, 4, 16
# get_req_to_token_extra_context_len() at page size 1: no reserve in it.
WIDTH = CONTEXT + 4 + DRAFT_TOKENS
# get_alloc_reserve_per_decode()
RESERVE = 2 * max(STEPS * TOPK, DRAFT_TOKENS)

device = "cuda" if torch.cuda.is_available() else "cpu"
table = torch.zeros((4, WIDTH), dtype=torch.int32, device=device)
table[2] = -7  # the row of another request

# A request in row 1 that is four tokens short of the context's end.
lengths = SimpleNamespace(kv_committed_len=CONTEXT - 4, kv_allocated_len=CONTEXT - 4)
request = SimpleNamespace(kv=lengths)
start, end, needed = page_aligned_decode_alloc_lens([request], reserve=RESERVE, page_size=1)
slots = torch.arange(1000, 1000 + needed, device=device)
assign_req_to_token_pool[(1,)](
    torch.tensor([1], device=device),
    table,
    torch.tensor(start, dtype=torch.int32, device=device),
    torch.tensor(end, dtype=torch.int32, device=device),
    slots,
    WIDTH,
    1,
)
print(f"row width {WIDTH}, slots assigned to positions {start[0]} to {end[0] - 1}")
print(f"start of the other request's row: {table[2, :12].tolist()}")
assert (table[2] == -7).all(), "the other request's first positions now point to foreign slots"
