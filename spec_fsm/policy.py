"""When to speculate: thresholds on the load, hysteresis, dwell and the operator's pin.

The policy only *asks* for a change of mode (LOAD_ROSE, LOAD_FELL); the table decides whether it
is legal.  It is level-triggered: while a change is due it asks at every boundary, so an event
refused once is not forgotten.  There is no clock in here.  Dwell and back-off count boundaries,
because tensor-parallel ranks see the same boundaries but not the same time (I11).
"""

from __future__ import annotations

from dataclasses import dataclass

from spec_fsm.errors import ConfigError, shown
from spec_fsm.modes import Event, Mode, Pin

_SPEC, _DRAINING, _PLAIN, _RESEEDING = Mode
_AUTO = Pin.AUTO
_ROSE, _FELL = Event.LOAD_ROSE, Event.LOAD_FELL

EVERYWHERE, NOWHERE = (0, 1 << 62), (1, 0)
BACKOFF_CAP = 4096
"""Longest wait after failed reseeds, in boundaries: at 20 ms a step, about 80 s."""


def default_enable_at(disable_above: int) -> int:
    """The enable threshold if none is given: three quarters of the disable threshold, at least 1.

    The quarter between them keeps the finish or arrival of single requests near the threshold
    from flipping the mode.  It is a choice, not a measured optimum: vLLM withdrew a hysteresis
    change because paired runs showed no benefit (vllm-project/vllm PR #51466).
    """
    return max(1, disable_above * 3 // 4)


MOST = 1 << 20
"""Largest count of a setting without a limit of its own, more than any server can use."""


def whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise ConfigError unless `value` is an int in [low, high]; `high` None stands for `MOST`."""
    most = MOST if high is None else high
    number = value if isinstance(value, int) and not isinstance(value, bool) else low - 1
    if low <= number <= most:
        return
    accepted = f"{low} or more" if high is None and number < low else f"{low} to {most}"
    raise ConfigError(f"{name} is {shown(value)}: accepted are whole numbers, {accepted}")


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Settings of the policy, checked when built.

    disable_above: speculation stops when more rows than this decode (>= 1).
    enable_at: it may start again at this many or fewer (1 to disable_above; default three
        quarters of disable_above).
    dwell: boundaries to stay in PLAIN before enabling, and in SPEC after a reseed before
        disabling again (>= 0).
    pin: what the operator asks for at start.

    Raises ConfigError with one line that names the value and the accepted ones.
    """

    disable_above: int
    enable_at: int | None = None
    dwell: int = 16
    pin: Pin = Pin.AUTO

    def __post_init__(self) -> None:
        whole("disable_above", self.disable_above, 1)
        if self.enable_at is None:
            object.__setattr__(self, "enable_at", default_enable_at(self.disable_above))
        whole("enable_at", self.enable_at, 1, self.disable_above)
        whole("dwell", self.dwell, 0)
        object.__setattr__(self, "pin", as_pin(self.pin))

    @property
    def enable_threshold(self) -> int:
        """`enable_at` with the default filled in, in rows."""
        return default_enable_at(self.disable_above) if self.enable_at is None else self.enable_at


def as_pin(value: object) -> Pin:
    """The Pin named by `value`; raises ConfigError naming the accepted values."""
    for pin in Pin:
        if value == pin.value:
            return pin
    accepted = ", ".join(p.value for p in Pin)
    msg = f"pin is {shown(value)}: accepted are {accepted}"
    raise ConfigError(msg)


def _never_calm(_policy: Policy, _mode: Mode) -> tuple[int, int]:
    """`Policy.calm` of a policy whose `event` may say something at any load."""
    return NOWHERE


class Policy:
    """Turns (mode, load) into the mode event that is due, once per boundary."""

    __slots__ = ("_backoff", "_disable", "_dwell", "_enable", "_failures", "config", "pin")

    def __init_subclass__(cls, **settings: object) -> None:
        """A subclass with an `event` of its own and no `calm` to it is asked at every boundary."""
        super().__init_subclass__(**settings)
        event, calm = (
            next(i for i, base in enumerate(cls.__mro__) if name in vars(base))
            for name in ("event", "calm")
        )
        if event < calm:
            cls.calm = _never_calm  # type: ignore[method-assign, assignment]

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config
        self.pin = config.pin
        self._disable = config.disable_above
        self._enable = config.enable_threshold
        self._dwell = 0
        self._backoff = 0
        self._failures = 0

    def restart(self) -> None:
        """Forget dwell, back-off and failed reseeds; settings and pin stay."""
        self._dwell = self._backoff = self._failures = 0

    @property
    def waiting(self) -> int:
        """Boundaries until the load is looked at again (dwell or back-off, the longer)."""
        return max(self._dwell, self._backoff)

    def event(self, mode: Mode, load: int) -> Event | None:
        """The event due at this boundary, or None; counts one boundary of dwell and back-off.

        load: rows that decode or are about to.  A pin ignores the load and the dwell, not the
        back-off after a failed reseed (asking again at each step would only fail at each step).
        """
        dwell, backoff = self._dwell, self._backoff
        if dwell:
            self._dwell = dwell - 1
        if backoff:
            self._backoff = backoff - 1
        if self.pin is not _AUTO:
            return self._pinned(mode, backoff)
        if mode is _SPEC:
            return _ROSE if load > self._disable and not dwell else None
        if mode is _PLAIN:
            return _FELL if load <= self._enable and not dwell and not backoff else None
        if mode is _DRAINING:
            return _FELL if load <= self._enable else None
        return _ROSE if load > self._disable else None

    def _pinned(self, mode: Mode, backoff: int) -> Event | None:
        if self.pin is Pin.PLAIN:
            return _ROSE if mode in (_SPEC, _RESEEDING) else None
        if mode is _DRAINING or (mode is _PLAIN and not backoff):
            return _FELL
        return None

    def calm(self, mode: Mode) -> tuple[int, int]:
        """The loads, from and up to, at which `event` says nothing in `mode` and counts nothing.

        Holds until the mode, the pin or the dwell changes; empty (from above up to) where there
        are none.  It spares the caller the question in almost every step.
        """
        if self._dwell or self._backoff:
            return NOWHERE
        if self.pin is not _AUTO:
            pinned = _SPEC if self.pin is Pin.SPEC else _PLAIN
            return EVERYWHERE if mode is pinned else NOWHERE
        if mode is _SPEC:
            return 0, self._disable
        return (self._enable + 1, EVERYWHERE[1]) if mode is _PLAIN else NOWHERE

    def waiting_for(self, mode: Mode) -> int:
        """Boundaries the table's guard DWELL_OVER still waits for in `mode`; a pin skips dwell."""
        dwell = self._dwell if self.pin is _AUTO else 0
        return max(dwell, self._backoff) if mode is _PLAIN else dwell

    def fired(self, event: Event, target: Mode) -> None:
        """Start the dwell, and after a failed reseed the back-off, that `event` begins.

        The dwell starts at each entry into PLAIN and at RESEEDED.  It does not start when a
        drain is cancelled: nothing was paid for that could be lost.
        """
        if event is Event.RESEED_FAILED:
            self._failures += 1
            wait = max(1, self.config.dwell) << min(self._failures, 32)
            self._backoff = min(wait, BACKOFF_CAP)
        elif event is Event.RESEEDED:
            self._failures = 0
        if event is Event.RESEEDED or target is _PLAIN:
            self._dwell = self.config.dwell


__all__ = [
    "BACKOFF_CAP",
    "EVERYWHERE",
    "MOST",
    "NOWHERE",
    "Policy",
    "PolicyConfig",
    "as_pin",
    "default_enable_at",
    "whole",
]
