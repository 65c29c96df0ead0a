"""What every test shares: Hypothesis draws the same examples each time, so that CI is no lottery."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci")
