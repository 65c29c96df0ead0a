"""The operator's pin of one scheduler: what a request may ask, what holds, and when it ends.

A request to `/set_internal_state` carries numbers only (SGLang 0.5.23 `SetInternalStateReq`):

| key | value | meaning |
|---|---|---|
| `spec_fsm_pin` | 0, 1, 2 | AUTO, SPEC, PLAIN |
| `spec_fsm_pin_for` | seconds, above 0, up to 30 days | the pin ends by itself after this time |
| `spec_fsm_pin_id` | 1 to 2**53 | the client's number for this pin, to take it back by |
| `spec_fsm_pin_undo` | 1 to 2**53 | take the pin of this number back; alone in its request |

A request is all or nothing: every key is checked before one is applied, SGLang's own included.

The end of a pin is decided by one clock. Tensor-parallel ranks must agree at each boundary (I11),
and their clocks do not. Only the rank that receives a replica's requests looks at its clock; when
the time is over it sends `PinEnds` to itself through the broadcast that brings every request to
every rank in the same iteration, the way SGLang sends the aborts of its own timeouts
(`Scheduler.ingest_requests`, `local_reqs`). The client that pinned need not be alive.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from sglang.srt.managers.io_struct import SetInternalStateReq, SetInternalStateReqOutput

from spec_fsm import Pin
from spec_fsm.errors import shown

logger = logging.getLogger(__name__)

PIN_CODES: Final[dict[float, Pin]] = {0: Pin.AUTO, 1: Pin.SPEC, 2: Pin.PLAIN}
"""The values of `spec_fsm_pin`."""
LONGEST_S: Final = 30 * 24 * 3600
"""Longest time to live of a pin, in seconds: 30 days."""
LARGEST_ID: Final = 1 << 53
"""Largest number that every JSON reader keeps exactly."""

_PREFIX = "spec_fsm_"


class PinEnds(SetInternalStateReq):  # type: ignore[misc]
    """The time of pin `number` is over. Made by the scheduler; no client can send this type."""

    number: int


class Refused(Exception):
    """A request that is not applied; the message is one line and names the accepted values."""


@dataclass(frozen=True)
class Order:
    """A checked request: pin for `seconds` (None: until the next), or take pin `undo` back."""

    pin: Pin = Pin.AUTO
    seconds: float | None = None
    id: int | None = None
    undo: int | None = None

    @classmethod
    def of(cls, asked: Mapping[str, object]) -> Order | None:
        """The order in the keys `asked`, all of this adapter; None where there are none.

        Raises Refused for an unknown key, a value of another type or out of range, or keys that
        make no sense together.
        """
        if not asked:
            return None
        if "spec_fsm_pin_undo" in asked:
            if len(asked) > 1:
                raise Refused("spec_fsm_pin_undo goes alone")
            return cls(undo=_whole("spec_fsm_pin_undo", asked["spec_fsm_pin_undo"]))
        values = dict(asked)
        code = values.pop("spec_fsm_pin", None)
        if not _is_number(code) or code not in PIN_CODES:
            raise Refused(f"spec_fsm_pin is {shown(code)}: accepted are 0 (auto), 1 (spec), "
                          "2 (plain)")  # fmt: skip
        seconds = number = None
        for key, value in values.items():
            if key == "spec_fsm_pin_for":
                seconds = _seconds(key, value)
            elif key == "spec_fsm_pin_id":
                number = _whole(key, value)
            else:
                raise Refused(f"{shown(key)} is no key of spec-fsm: accepted are spec_fsm_pin, "
                              "spec_fsm_pin_for, spec_fsm_pin_id, spec_fsm_pin_undo")  # fmt: skip
        return cls(PIN_CODES[code], seconds, number)


class OperatorPin:
    """The pin without an end, the one with an end that lies over it, and the way back."""

    def __init__(self, pin: Pin, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.lasting = pin
        self.ordered = False
        """Whether the last change was a new pin; it may also have ended, or been taken back."""
        self._passing: tuple[Pin, float] | None = None
        """A pin with an end, and when that is."""
        self._number = 0
        """Counts changes. All ranks see the same ones, so it names a pin on all of them."""
        self._told = -1
        self._id: int | None = None
        self._before: tuple[Pin, tuple[Pin, float] | None] | None = None

    @property
    def current(self) -> Pin:
        """The pin that holds now."""
        return self.lasting if self._passing is None else self._passing[0]

    @property
    def left(self) -> float | None:
        """Seconds until the pin ends, by this rank's clock; None for one without an end."""
        return None if self._passing is None else max(0.0, self._passing[1] - self._clock())

    def obey(self, order: Order) -> bool:
        """Apply an order; False where the pin it takes back is not the last one."""
        self.ordered = order.undo is None
        if order.undo is not None:
            if order.undo != self._id or self._before is None:
                return False
            self.lasting, self._passing = self._before
            self._id = self._before = None
        else:
            self._before, self._id = (self.lasting, self._passing), order.id
            if order.seconds is None:
                self.lasting, self._passing = order.pin, None
            else:
                self._passing = order.pin, self._clock() + order.seconds
        self._number += 1
        return True

    def end(self, number: int) -> bool:
        """The time of pin `number` is over; False where another one holds by now."""
        if number != self._number or self._passing is None:
            return False
        self._passing, self.ordered = None, False
        self._number += 1
        return True

    def due(self) -> PinEnds | None:
        """The message that ends the pin, once, when its time is over by this rank's clock."""
        if self._passing is None or self._told == self._number:
            return None
        if self._clock() < self._passing[1]:
            return None
        self._told = self._number
        return PinEnds(server_args={}, number=self._number)

    def status(self) -> dict[str, Any]:
        """What `/server_info` shows of it."""
        left = self.left
        return {
            "pin": self.current.name,
            "pin_left_s": None if left is None else round(left, 1),
            "pin_after": None if left is None else self.lasting.name,
            "pin_id": self._id,
        }


def set_internal_state(
    pin: OperatorPin, changed: Callable[[], None], original: Callable[[Any], Any], request: Any
) -> Any:
    """Answer a `SetInternalStateReq`: all of it or nothing, whatever a client wrote into it.

    `original`: SGLang's own handler, for keys that are not of this adapter. `changed` is called
    after the pin changed. Returns None, which SGLang sends to nobody, for the message `PinEnds`.
    """
    if isinstance(request, PinEnds):
        if pin.end(request.number):
            changed()
        return None
    settings = request.server_args
    try:
        if not isinstance(settings, dict):
            raise Refused(f"server_args is {shown(settings)}: accepted are keys with numbers")
        ours = {k: v for k, v in settings.items() if isinstance(k, str) and k.startswith(_PREFIX)}
        order = Order.of(ours)
    except Refused as refused:
        logger.warning("spec-fsm: %s", refused)
        return SetInternalStateReqOutput(updated=False)
    rest = {key: value for key, value in settings.items() if key not in ours}
    if order is not None and order.undo is None and not rest:
        pin.obey(order)
        changed()
        return SetInternalStateReqOutput(updated=True)
    if order is None or rest:
        request.server_args = rest
        answer = _guarded(original, request)
        if order is None or not answer.updated:
            return answer
    done = pin.obey(order)
    if done:
        changed()
    return SetInternalStateReqOutput(updated=done)


def _guarded(original: Callable[[Any], Any], request: Any) -> Any:
    """SGLang's own answer; refused where its handler raises on a value, which ends a scheduler."""
    try:
        return original(request)
    except Exception as error:
        logger.warning("spec-fsm: refused, SGLang raised %s: %s", type(error).__name__, error)
        return SetInternalStateReqOutput(updated=False)


def watch(scheduler: Any, pin: OperatorPin) -> None:
    """Send `PinEnds` with the aborts of SGLang's own timeouts, on the rank that polls them."""
    poll = scheduler._poll_timeout_aborts

    def with_pin_end() -> list[Any]:
        messages: list[Any] = poll()
        ends = pin.due()
        return messages if ends is None else [*messages, ends]

    scheduler._poll_timeout_aborts = with_pin_end


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(key: str, value: object) -> float:
    # A NaN compares false with everything, and so is refused.
    if not _is_number(value) or not 0 < value <= LONGEST_S:
        raise Refused(f"{key} is {shown(value)}: accepted are seconds, above 0, up to {LONGEST_S}")
    return float(value)


def _whole(key: str, value: object) -> int:
    if (
        not _is_number(value)
        or not 1 <= value <= LARGEST_ID
        or value != math.floor(value)
    ):
        raise Refused(f"{key} is {shown(value)}: accepted are whole numbers, 1 to {LARGEST_ID}")
    return int(value)


__all__ = [
    "LARGEST_ID",
    "LONGEST_S",
    "PIN_CODES",
    "OperatorPin",
    "Order",
    "PinEnds",
    "Refused",
    "set_internal_state",
    "watch",
]
