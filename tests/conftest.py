"""What every test shares.

Strict ownership is on in every process that a test starts, and Hypothesis draws the same examples
each time, so that CI is no lottery.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci")

os.environ["SPEC_FSM_STRICT"] = "1"

FLIGHTS = tempfile.mkdtemp(prefix="spec-fsm-flights-")
"""Where engines under test write their flight records; many end by a violation on purpose."""
os.environ["SPEC_FSM_FLIGHT_DIR"] = FLIGHTS
atexit.register(shutil.rmtree, FLIGHTS, ignore_errors=True)
