"""The warm-up `spec-fsm serve` asks for; `test_http.py` runs it on a real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from spec_fsm_sglang.rehearsal import ATTEMPTS, batch_sizes, rehearse


@pytest.mark.parametrize(
    ("disable_above", "sizes"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (5, [1, 2, 4, 5]), (48, [1, 2, 4, 8, 16, 32, 48])],
)
def test_sizes_reach_the_threshold(disable_above: int, sizes: list[int]) -> None:
    """Every size that may have to be rebuilt is near one that was rehearsed."""
    assert batch_sizes(disable_above) == sizes


class HastyManager:
    """SGLang's tokenizer manager on a server that ends requests before it is asked anything.

    The first `hasty` requests are over at once; later ones last until SPEC is asked for. As on a
    real server, the mode changes only while something runs.
    """

    def __init__(self, hasty: int) -> None:
        self.hasty, self.sent, self.rows = hasty, 0, 0
        self.pin, self.mode = 0, "SPEC"
        self.spec_asked = asyncio.Event()

    async def set_internal_state(self, request: Any) -> None:
        """Takes the pin."""
        self.pin = request.server_args["spec_fsm_pin"]
        if self.pin == 1:
            self.spec_asked.set()
        else:
            self.spec_asked.clear()

    async def get_internal_state(self) -> list[dict[str, Any]]:
        """The status, after the requests had their turn."""
        await asyncio.sleep(0)
        status = {"disable_above": 1, "mode": self.mode, "rows": self.rows, "pin": "AUTO"}
        return [{"spec_fsm": status}]

    async def generate_request(self, _request: Any, _http: None) -> AsyncIterator[None]:
        """Decodes plainly; back to SPEC if that is asked for in time."""
        self.sent, self.rows, self.mode = self.sent + 1, self.rows + 1, "PLAIN"
        if self.sent > self.hasty:
            await self.spec_asked.wait()
            self.mode = "SPEC"
        self.rows -= 1
        yield None


@pytest.mark.parametrize(("hasty", "warnings"), [(0, 0), (ATTEMPTS - 1, 0), (ATTEMPTS, 1)])
def test_a_switch_that_came_too_late_is_rehearsed_again(
    hasty: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests may end before SPEC is asked for; the rehearsal tries again, or says so."""
    with caplog.at_level(logging.WARNING, "spec_fsm"):
        manager = HastyManager(hasty)
        asyncio.run(rehearse("null", manager))
    assert manager.sent == min(hasty + 1, ATTEMPTS)
    assert caplog.text.count("could not be rehearsed") == warnings
    assert manager.pin == 0


class TwoReplicas(HastyManager):
    """The same with two replicas, of which only the second is slow to switch."""

    async def get_internal_state(self) -> list[dict[str, Any]]:
        """Rows are dealt out in turn; the first replica has its mode at once."""
        (state,) = await super().get_internal_state()
        status = state["spec_fsm"]
        first = status | {"rows": (status["rows"] + 1) // 2, "mode": "PLAIN"}
        if self.pin == 1:
            first["mode"] = "SPEC"
        return [{"spec_fsm": first}, {"spec_fsm": status | {"rows": status["rows"] // 2}}]


def test_every_replica_is_rehearsed() -> None:
    """Two replicas get twice the requests, and the switch counts when both have made it."""
    manager = TwoReplicas(0)
    asyncio.run(rehearse("null", manager))
    assert (manager.sent, manager.pin) == (2, 0)
