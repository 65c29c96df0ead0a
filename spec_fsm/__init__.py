"""Speculative decoding that a server can turn off under load and on again, owned by a machine."""

from spec_fsm.errors import (
    ConfigError,
    IllegalEvent,
    IllegalLaunch,
    ShapeViolation,
    SpecFsmError,
    TraceError,
    UnownedWrite,
)
from spec_fsm.invariants import Checks
from spec_fsm.laws import Shape
from spec_fsm.ledger import Row
from spec_fsm.lifecycle import Lifecycle, Plan, StashConfig
from spec_fsm.modes import Action, Event, Hidden, Mode, Phase, Pin, SpecInfo
from spec_fsm.policy import Policy, PolicyConfig
from spec_fsm.trace import FileSink, Sink

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Checks",
    "ConfigError",
    "Event",
    "FileSink",
    "Hidden",
    "IllegalEvent",
    "IllegalLaunch",
    "Lifecycle",
    "Mode",
    "Phase",
    "Pin",
    "Plan",
    "Policy",
    "PolicyConfig",
    "Row",
    "Shape",
    "ShapeViolation",
    "Sink",
    "SpecFsmError",
    "SpecInfo",
    "StashConfig",
    "TraceError",
    "UnownedWrite",
    "__version__",
]
