"""Log lines for mode changes, few enough to be read."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spec_fsm import Change, Mode

logger = logging.getLogger(__name__)

EVERY_S = 5.0
"""Least seconds between two lines."""
TRANSIENT = frozenset(("DRAINING", "RESEEDING"))


class ModeLog:
    """Tells of each switch in one line: from, to, why, load, largest gap.

    A switch is told when it arrives in SPEC or PLAIN, with the modes it passed; one that takes
    longer than `EVERY_S` is told on its way. At most one line every `EVERY_S` seconds: the next
    line counts the changes that were left out. `waiting` says that something is left to be told;
    `tell` is then called at each scheduler iteration.
    """

    def __init__(
        self, describe: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`describe`: what a line says of the load, called when a change is noted."""
        self._describe, self._clock = describe, clock
        self.waiting = False
        self._modes: list[str] = []
        self._why: list[str] = []
        self._began = 0.0
        self._facts = ""
        self._gap = 0
        self._left_out = 0
        self._told_at = -EVERY_S
        self._held = ""

    def changed(self, change: Change) -> None:
        """Note a mode change."""
        if not self._modes or change.source.name not in TRANSIENT:
            # A switch begins; one that was never told is left out.
            self._left_out += max(0, len(self._modes) - 1)
            self._modes, self._why, self._gap = [change.source.name], [], 0
            self._began = self._clock()
        self._modes.append(change.target.name)
        why = change.fields.get("why", "")
        self._why.append(f"{change.event.name} ({why})" if why else change.event.name)
        self._gap = max(self._gap, change.gap)
        self._facts = self._describe()
        self._held = ""
        self.waiting = True
        self.tell()

    def tell(self) -> None:
        """Write the line that is due, if enough time has passed since the last one."""
        now = self._clock()
        if not self.waiting or now - self._told_at < EVERY_S:
            return
        if self._modes[-1] in TRANSIENT and now - self._began < EVERY_S:
            return
        self._told_at, self.waiting = now, False
        line = f"{' -> '.join(self._modes)}: {', '.join(self._why)}; {self._facts}"
        line += f", largest gap {self._gap}"
        if self._left_out:
            line += f"; {self._left_out} mode changes before it are not shown"
        self._modes, self._why, self._left_out = self._modes[-1:], [], 0
        logger.info("spec-fsm: %s", line)

    def held(self, guard: str, mode: Mode, lost: int) -> None:
        """Tell that `guard` keeps a change from being made: once, until the mode changes."""
        if guard and guard != self._held:
            self._held = guard
            logger.warning(
                "spec-fsm: %s stays although another mode is due: %s does not hold; %d requests "
                "decoded plainly for longer than their stash reaches (setting lost_rows); %s",
                mode.name, guard, lost, self._describe(),
            )  # fmt: skip


__all__ = ["EVERY_S", "ModeLog"]
