"""The errors: one line each, naming mode, event or phase, observed, expected, invariant."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spec_fsm.modes import Event, Mode, Phase


LONGEST_SHOWN = 80
"""Characters of a value that a message shows at most."""


def shown(value: object) -> str:
    """`value` as a message shows it: one printable line, cut, and never an error of its own."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python refuses to print an int of many digits, and to follow deep nesting.
        kind = type(value).__name__
        return f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"a {kind}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def one_line(value: object) -> str:
    """`value` as text: as it is if that is short and printable, else as `shown`."""
    try:
        text = str(value)
    except (ValueError, RecursionError):
        return shown(value)
    return text if len(text) <= 4 * LONGEST_SHOWN and text.isprintable() else shown(value)


class SpecFsmError(Exception):
    """Base of every error this library raises on purpose.

    The fields are None (or empty) where they do not apply; `str()` is one line made of the
    message and of the fields that are set.
    """

    def __init__(  # noqa: PLR0913 -- the fields are the error; all but the message are keywords
        self,
        message: str,
        *,
        mode: Mode | None = None,
        event: Event | None = None,
        phase: Phase | None = None,
        observed: object = None,
        expected: object = None,
        invariant: str = "",
    ) -> None:
        self.message = message
        self.mode = mode
        self.event = event
        self.phase = phase
        self.observed = observed
        self.expected = expected
        self.invariant = invariant
        self.counted = False
        """Whether a lifecycle counted and recorded it, see `Lifecycle.violated`."""
        super().__init__(self._line())

    def _line(self) -> str:
        named = (("mode", self.mode), ("event", self.event), ("phase", self.phase))
        parts = [f"{key} {value.name}" for key, value in named if value is not None]
        if self.observed is not None:
            parts.append(f"observed {one_line(self.observed)}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.invariant:
            parts.append(f"breaks {self.invariant}")
        return f"{self.message} ({', '.join(parts)})" if parts else self.message


class ConfigError(SpecFsmError, ValueError):
    """A setting is wrong; the message names the value and the accepted ones."""


class IllegalEvent(SpecFsmError):
    """An event the table refuses in this mode, or whose guard does not hold; nothing changed."""


class IllegalLaunch(SpecFsmError):
    """A launch this mode does not allow, or a decode batch that must wait; nothing changed."""


class ShapeViolation(IllegalLaunch):
    """A launch whose shape breaks the law of its phase; raised before it is issued."""


class ProgrammingError(SpecFsmError):
    """Code asks for what is not there or gives what is not taken: trying again cannot help."""


class UnownedWrite(SpecFsmError):
    """A batch field was assigned by code that the ownership table does not name."""


class TraceError(SpecFsmError):
    """A trace line that is not of the format, out of sequence, or cannot be written."""


__all__ = [
    "ConfigError",
    "IllegalEvent",
    "IllegalLaunch",
    "ProgrammingError",
    "ShapeViolation",
    "SpecFsmError",
    "TraceError",
    "UnownedWrite",
    "one_line",
    "shown",
]
