"""The trace of one scheduler process: where it goes, and what becomes of a path that fails."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from spec_fsm import FileSink, TraceError

logger = logging.getLogger(__name__)


class TraceFile:
    """The sink of a configured trace; None where there is none or the path cannot be written.

    A server is worth more than its trace: a path that fails is logged, once, and shown in the
    status, and the server runs on without.
    """

    def __init__(self, path: str | None, replica: int | None = None) -> None:
        """`replica`: the data-parallel rank; each but the first has a file of its own."""
        self.sink: FileSink | None = None
        self._path = path = None if path is None else own_path(path, replica)
        self._error = ""
        if path is not None:
            try:
                self.sink = FileSink(path)
            except TraceError as error:
                self._error = error.message
                logger.error("spec-fsm: no trace: %s", error.message)

    def status(self) -> dict[str, Any] | None:
        """What `/server_info` shows of it; None where no trace was asked for."""
        if self.sink is not None:
            return self.sink.status()
        if self._path is None:
            return None
        return {
            "path": self._path, "writing": False, "lines": 0, "dropped": 0, "error": self._error,
        }


def own_path(path: str, replica: int | None) -> str:
    """The file of a data-parallel replica: `trace.dp1.ndjson` beside `trace.ndjson`."""
    if not replica:
        return path
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}.dp{replica}{whole.suffix}"))


def committed_of(batch: Any, result: Any) -> list[int]:
    """Positions each row of a decode result is about to commit, in batch order.

    As SGLang's `_resolve_spec_v2_tokens` has it: none where the request has ended or was
    retracted, what the grammar keeps where it has one, else all that was accepted.
    """
    committed = []
    for i, (req, length) in enumerate(zip(batch.reqs, result.accept_lens.tolist(), strict=True)):
        if req.is_retracted or req.finished():
            committed.append(0)
        elif req.grammar is not None:
            committed.append(len(result.grammar_retained_tokens[i]))
        else:
            committed.append(length)
    return committed


__all__ = ["TraceFile", "committed_of", "own_path"]
