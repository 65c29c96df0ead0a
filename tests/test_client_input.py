"""No input of a client raises in the scheduler."""

from __future__ import annotations

from live import TREE, run

FSM = {"disable_above": 30, "dwell": 0, "checks": True}


def test_live_requests_may_share_a_name() -> None:
    """Each request with a name that others have, too, is a row of its own and answered rightly."""
    found = run("same_name", script="client_scenarios.py", fsm=FSM, **TREE)
    assert found["asked"] == 14
    assert found["rows"] > found["asked"]
    assert found["wrong"] == []
    assert found["status"]["violations"] == 0, found["details"]
    assert found["status"]["rows"] == 0
