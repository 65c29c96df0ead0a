"""The load that the policy sees: requests that decode, or will with the next decode launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch


class Load:
    """Counts the rows that decode: O(batch) where a prefill was chosen, O(1) where a decode was.

    `rows`: the load last counted.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._ending = 0
        """Rows of the last prefill that it ends, and that SGLang may launch once more."""

    def of_decode(self, batch: ScheduleBatch) -> int:
        """Return the load while the decode batch `batch` runs.

        SGLang has left out the rows whose last token is in flight. With overlap scheduling it
        launches a request that was aborted in its prefill once more, for nothing; such rows are
        of the prefill just before, so their number is kept from there.
        """
        self.rows = max(0, len(batch.reqs) - self._ending)
        self._ending = 0
        return self.rows

    def of_prefill(self, scheduler: Any, batch: ScheduleBatch, running: ScheduleBatch) -> int:
        """Return the load while the prefill `batch` runs, beside the rows in `running`.

        A row counts once, from its last prefill chunk on, if it will decode. A chunk that is not
        the last does not count (vLLM issue 49548: counting prefills thrashes the mode), nor does a
        row that the token of its prefill, or the one in flight, ends.
        """
        finishing = set(scheduler._reqs_finishing_inflight(running))
        going_on = sum(
            1 for req in running.reqs if req.to_finish is None and req not in finishing
        )
        joining = [req for req in batch.reqs if req is not batch.chunked_req]
        decoding = sum(1 for req in joining if will_decode(req))
        self._ending = sum(1 for req in joining if req.to_finish is not None)
        self.rows = going_on + decoding
        return self.rows


def will_decode(req: Req) -> bool:
    """Return whether a request decodes after the prefill about to run.

    It does not if its prefill's token is its last one (`max_new_tokens` 0 or 1, also what scoring
    calls and the warm-up of `n > 1` ask for), or if it ends as aborted with its prefill.
    """
    return req.to_finish is None and not req.finished() and not req.next_output_finishes_by_length()


__all__ = ["Load", "will_decode"]
