"""Ids of the rows on the ledger: one for each time a request joins the server's batch.

A row is a request from its first prefill chunk until it gives its KV row back. The name a client
chose cannot key it: two live requests may have the same one, and a name may return while its last
owner's result is in flight. Neither can `req_pool_idx`, which is reused just as early.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

NAME_LENGTH = 48
"""Characters of a client's name that an id repeats."""


class RowIds:
    """Gives row ids; each is kept on its request as `spec_fsm_row` while the row lives.

    Ids count up per server and in batch order, so that all tensor-parallel ranks give the same.
    """

    def __init__(self) -> None:
        self._numbers = count()

    def of(self, req: Req) -> str:
        """Return the id of the row of `req`; the first call of a row gives it one."""
        row: str = getattr(req, "spec_fsm_row", "")
        if not row:
            row = req.spec_fsm_row = f"{readable(req.rid)}#{next(self._numbers)}"
        return row

    @staticmethod
    def drop(req: Req) -> str:
        """End the row of `req` and return its id, "" without one.

        A request that is prefilled again after a retraction is another row.
        """
        row = row_of(req)
        if row:
            req.spec_fsm_row, req.spec_fsm_last_row = "", row
        return row


def row_of(req: Req) -> str:
    """Return the id of the living row of `req`, "" without one."""
    return getattr(req, "spec_fsm_row", "")


def last_row_of(req: Req) -> str:
    """Return the id of the living row of `req`, else of the last one it had, for people to read."""
    return row_of(req) or getattr(req, "spec_fsm_last_row", "")


def rows_of(batch: ScheduleBatch) -> list[str]:
    """Return the row ids of a batch about to be launched, those that left and ride along included.

    O(batch), for traces.
    """
    return [last_row_of(req) for req in batch.reqs]


def name_next_token(batch: ScheduleBatch) -> None:
    """Tell a prefill batch the token after its chunk where that is one the request put out.

    Draft KV at the end of a chunk is made with the token that follows. SGLang 0.5.23 takes it from
    the prompt (`schedule_batch.py:2448`); where a retracted request is prefilled again and a chunk
    ends among its outputs, it takes the token it samples there, which is another one unless the
    request is greedy.
    """
    req = batch.chunked_req
    if req is None or batch.chunked_req_next_prompt_token is not None:
        return
    at = req.extend_end - len(req.origin_input_ids)
    if 0 <= at < len(req.output_ids):
        batch.chunked_req_next_prompt_token = int(req.output_ids[at])


def readable(name: Any) -> str:
    """Cut a client's name to `NAME_LENGTH` printable characters.

    Any type may come, and lone surrogates, which no JSON encoder takes.
    """
    return "".join(c if c.isprintable() else "?" for c in str(name)[:NAME_LENGTH])


__all__ = [
    "NAME_LENGTH",
    "RowIds",
    "last_row_of",
    "name_next_token",
    "readable",
    "row_of",
    "rows_of",
]
