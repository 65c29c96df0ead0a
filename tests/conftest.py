"""What every test shares.

Strict ownership is on in every process that a test starts, and Hypothesis draws the same examples
each time, so that CI is no lottery.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci")

os.environ["SPEC_FSM_STRICT"] = "1"
