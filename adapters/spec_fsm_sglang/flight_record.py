"""The flight record: what a server writes down when a law is violated or its scheduler crashes.

One JSON file: the error, versions, options, status and the last thousand lines of the lifecycle.
Nothing in it depends on a trace being written. Failing to write it costs one log line.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import tempfile
import traceback
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from sglang.srt.runtime_context import get_context, get_parallel

import spec_fsm

if TYPE_CHECKING:
    from spec_fsm_sglang.controller import Controller

logger = logging.getLogger(__name__)

FOLDER_VAR: Final = "SPEC_FSM_FLIGHT_DIR"
"""Where records go if the configuration does not say."""
MOST = 8
"""Records of one process. A fault that returns for ever shall not fill a disk."""
FORMAT = 1
_SECRET = re.compile(r"api_key|password|secret|credential", re.IGNORECASE)
_LONGEST = 4000
"""Characters kept of one error."""
_DEEPEST = 120
"""Lines kept of one traceback."""


class FlightRecords:
    """Writes the records of one process, the first `MOST` of them."""

    def __init__(self, controller: Controller, folder: str | None) -> None:
        self._controller = controller
        self._folder = folder or os.environ.get(FOLDER_VAR) or tempfile.gettempdir()
        self.path: Path | None = None
        """The last record written."""
        self._tried = 0

    def write(self, reason: str, error: BaseException) -> None:
        """Write one record and log where it lies; what goes wrong is logged and never raised."""
        self._tried += 1
        if self._tried <= MOST:
            self._write(reason, error)

    def crashed(self, error: BaseException) -> None:
        """Write the record of what ends the scheduler, whatever was written before."""
        self._write("crash", error)

    def _write(self, reason: str, error: BaseException) -> None:
        try:
            self.path = self._written(reason, error)
        except Exception as problem:
            logger.error("spec-fsm: no flight record could be written: %s", readable_error(problem))
        else:
            logger.error("spec-fsm: flight record in %s", self.path)

    def _written(self, reason: str, error: BaseException) -> Path:
        text = msgspec.json.encode(record(self._controller, reason, error), enc_hook=str)
        Path(self._folder).mkdir(parents=True, exist_ok=True)
        # Created anew with mode 0600 under a name nobody can foresee: the default is shared.
        descriptor, name = tempfile.mkstemp(
            prefix=f"spec-fsm-flight-{os.getpid()}-", suffix=".json", dir=self._folder
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        return Path(name)


def record(controller: Controller, reason: str, error: BaseException) -> dict[str, Any]:
    """The record as plain data."""
    lifecycle = controller.lifecycle
    return {
        "kind": "spec-fsm flight record",
        "v": FORMAT,
        "written": datetime.now(UTC).isoformat(),
        "reason": reason,
        "violation": {
            "type": type(error).__name__,
            "error": readable_error(error),
            "invariant": getattr(error, "invariant", ""),
            "traceback": _traceback(error),
        },
        "versions": _versions(),
        "options": {
            "spec_fsm": msgspec.to_builtins(controller.config),
            "sglang": _server_options(),
            "shape": msgspec.to_builtins(lifecycle.shape),
            "stash": msgspec.to_builtins(lifecycle.stash),
        },
        "rank": get_parallel().tp_rank,
        "status": _status(controller),
        "lines": lifecycle.flight.lines(),
    }


def readable_error(error: BaseException) -> str:
    """An error on one line of printable characters."""
    return _printable(f"{type(error).__name__}: {error}"[:_LONGEST])


def _printable(text: str) -> str:
    """Lone surrogates and control characters become "?": no JSON encoder takes all of them."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _traceback(error: BaseException) -> list[str]:
    lines = "".join(traceback.format_exception(error)).splitlines()
    return [_printable(line) for line in lines[-_DEEPEST:]]


def _versions() -> dict[str, str]:
    return {
        "spec_fsm": spec_fsm.__version__,
        "sglang": version("sglang"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _server_options() -> dict[str, Any]:
    """SGLang's resolved options without keys and passwords."""
    options = get_context().resolved_server_args_dict()
    return {name: "(kept back)" if value and _SECRET.search(name) else value
            for name, value in options.items()}


def _status(controller: Controller) -> dict[str, Any]:
    try:
        return controller.status()
    except Exception as error:  # a record with a hole is better than none
        return {"error": readable_error(error)}


__all__ = ["FOLDER_VAR", "MOST", "FlightRecords", "readable_error", "record"]
