"""Speculative decoding that a server turns off under load and on again, with one owner.

`Lifecycle` holds the mode and the figures of every row, says what a decode batch is to do, and
holds each launch against the laws of its phase.  It imports no engine and touches no tensor.
"""

from spec_fsm._runner import Change
from spec_fsm.errors import (
    ConfigError,
    IllegalEvent,
    IllegalLaunch,
    ProgrammingError,
    ShapeViolation,
    SpecFsmError,
    TraceError,
    UnownedWrite,
)
from spec_fsm.invariants import INVARIANTS, Checks, Invariant
from spec_fsm.laws import Shape
from spec_fsm.ledger import Row
from spec_fsm.lifecycle import Lifecycle
from spec_fsm.modes import Action, Event, Hidden, Mode, Phase, Pin, SpecInfo
from spec_fsm.plan import Plan, StashConfig
from spec_fsm.policy import Policy, PolicyConfig
from spec_fsm.protocol import Engine, SeedError, decode_step
from spec_fsm.trace import ListSink, Sink, read_trace
from spec_fsm.trace_file import FileSink

__version__ = "0.1.0"

__all__ = [
    "INVARIANTS",
    "Action",
    "Change",
    "Checks",
    "ConfigError",
    "Engine",
    "Event",
    "FileSink",
    "Hidden",
    "IllegalEvent",
    "IllegalLaunch",
    "Invariant",
    "Lifecycle",
    "ListSink",
    "Mode",
    "Phase",
    "Pin",
    "Plan",
    "Policy",
    "PolicyConfig",
    "ProgrammingError",
    "Row",
    "SeedError",
    "Shape",
    "ShapeViolation",
    "Sink",
    "SpecFsmError",
    "SpecInfo",
    "StashConfig",
    "TraceError",
    "UnownedWrite",
    "__version__",
    "decode_step",
    "read_trace",
]
