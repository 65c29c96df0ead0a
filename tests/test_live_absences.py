"""Rows whose last token is in flight sit launches of every kind out, on the real scheduler."""

from __future__ import annotations

from live import CHAIN, run


def test_a_row_sits_out_a_launch_of_every_kind() -> None:
    """Outputs, laws and trace hold where SGLang leaves rows out of rounds, plain steps and reseeds.

    No decode launch is issued with more than one result in flight, which its slots are made for.
    """
    fsm = {"disable_above": 40, "enable_at": 40, "dwell": 0, "checks": True}
    result = run("absences", **CHAIN, overlap=True, fsm=fsm, script="absence_scenarios.py")
    assert set(result["absent"]) == {"SPECULATE", "PLAIN", "RESEED"}, result["absent"]
    assert result["most_in_flight"] == 2
    assert result["status"]["violations"] == 0, result["details"]
    assert result["different"] == {}
    assert all(result["finished"].values())
