"""The log lines of mode changes: one a switch, few enough to be read, nothing left uncounted."""

from __future__ import annotations

import logging

import pytest

from spec_fsm import Event, Mode
from spec_fsm_sglang.mode_log import EVERY_S, ModeLog, logger

SPEC, DRAINING, PLAIN, RESEEDING = Mode


class Told:
    """A log with a clock that is set by hand, and the lines it wrote."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now, self.load = 0.0, 5
        self.log = ModeLog(lambda: f"load {self.load}", lambda: self.now)
        self._caplog = caplog
        caplog.set_level(logging.INFO, logger.name)

    def lines(self) -> list[str]:
        """What was written since the last call."""
        lines = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return lines

    def change(self, source: Mode, event: Event, target: Mode, gap: int = 0, why: str = "") -> None:
        """A mode change, as the lifecycle tells it."""
        from spec_fsm._runner import Change

        self.log.changed(Change(source, event, target, gap, {"why": why} if why else {}))

    def off(self, gap: int = 0) -> None:
        """Speculation stops."""
        self.change(SPEC, Event.LOAD_ROSE, DRAINING, gap, "load 5 > 4")
        self.change(DRAINING, Event.DRAINED, PLAIN, gap + 2)

    def on(self) -> None:
        """Speculation comes back."""
        self.change(PLAIN, Event.LOAD_FELL, RESEEDING, 7)
        self.change(RESEEDING, Event.RESEEDED, SPEC, 3)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """A log that wrote nothing yet."""
    return Told(caplog)


OFF = "spec-fsm: SPEC -> DRAINING -> PLAIN: LOAD_ROSE (load 5 > 4), DRAINED; load 5, largest gap"


def test_a_switch_is_one_line_when_it_arrives(told: Told) -> None:
    """From, through, to; why; load; the largest gap of all its changes. The first is not late."""
    told.change(SPEC, Event.LOAD_ROSE, DRAINING, 4, "load 5 > 4")
    assert (told.lines(), told.log.waiting) == ([], True)
    told.change(DRAINING, Event.DRAINED, PLAIN, 1)
    assert (told.lines(), told.log.waiting) == ([f"{OFF} 4"], False)


def test_the_next_line_comes_after_a_while_and_tells_what_was_left_out(told: Told) -> None:
    """Two switches within the time: the later one is told at its end, both changes of the other
    are counted; the line after it counts from nothing, and its gap too."""
    told.off()
    assert told.lines() == [f"{OFF} 2"]
    told.now = 1
    told.on()
    told.load = 6
    told.off(gap=1)
    told.now = EVERY_S - 0.01
    told.log.tell()
    assert (told.lines(), told.log.waiting) == ([], True)
    told.now = EVERY_S
    told.log.tell()
    line = f"{OFF} 3; 2 mode changes before it are not shown".replace("load 5,", "load 6,")
    assert told.lines() == [line]
    told.now = 2 * EVERY_S
    told.log.tell()
    assert told.lines() == []
    told.on()
    assert told.lines() == [
        "spec-fsm: PLAIN -> RESEEDING -> SPEC: LOAD_FELL, RESEEDED; load 6, largest gap 7"
    ]


def test_a_switch_that_takes_long_is_told_on_its_way(told: Told) -> None:
    """By the time a line may wait, and its rest with the next one."""
    told.now = 100
    told.change(SPEC, Event.LOAD_ROSE, DRAINING)
    told.now += EVERY_S - 0.01
    told.log.tell()
    assert told.lines() == []
    told.now = 100 + EVERY_S
    told.log.tell()
    assert told.lines() == ["spec-fsm: SPEC -> DRAINING: LOAD_ROSE; load 5, largest gap 0"]
    told.now += EVERY_S
    told.change(DRAINING, Event.DRAINED, PLAIN)
    assert told.lines() == ["spec-fsm: DRAINING -> PLAIN: DRAINED; load 5, largest gap 0"]


def test_a_change_from_a_transient_mode_begins_a_line_where_nothing_is_known(told: Told) -> None:
    """A recovery starts the lifecycle anew: the line has the mode it came from."""
    told.change(RESEEDING, Event.RESEED_FAILED, PLAIN, 2)
    assert told.lines() == ["spec-fsm: RESEEDING -> PLAIN: RESEED_FAILED; load 5, largest gap 2"]


def test_what_keeps_a_change_away_is_told_once_until_the_mode_changes(told: Told) -> None:
    """A guard that does not hold; no guard is nothing to tell."""
    told.log.held("", PLAIN, 0)
    assert told.lines() == []
    for _ in range(2):
        told.log.held("no row lost", PLAIN, 3)
    [line] = told.lines()
    assert line.startswith("spec-fsm: PLAIN stays although another mode is due: no row lost does ")
    assert "; 3 requests decoded plainly" in line
    assert line.endswith("; load 5")
    told.on()
    told.off()
    told.lines()
    told.log.held("no row lost", PLAIN, 1)
    assert len(told.lines()) == 1
