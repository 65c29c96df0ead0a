"""The patches of the original crash are stopped by a law before a launch, not by a crash after."""

from __future__ import annotations

import pytest

from live import TREE, run

STOPPED_BY = {
    "keeps_spec_info": ("ShapeViolation", "I1a"),
    "only_clears_it": ("ShapeViolation", "I2"),
    "keeps_draft_slots": ("ShapeViolation", "I3"),
    "relay_none": ("ShapeViolation", "I1b"),
    # The mode was decided when the batch was chosen: PLAIN, and the launch carries the relay.
    "skips_draft": ("ShapeViolation", "I1a"),
    "owned_clear": ("UnownedWrite", "naive_patches.py"),
}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("patch", STOPPED_BY)
def test_a_naive_patch_is_refused(patch: str, overlap: bool) -> None:
    """Each patch ends in the error that names its law; no wrong decode forward was launched."""
    # `checks` off: what stops a patch is what always runs.
    fsm = {"disable_above": 5, "dwell": 4}
    result = run("naive_patch", **TREE, overlap=overlap, fsm=fsm, params={"patch": patch})
    error, named = STOPPED_BY[patch]
    assert result["error"].startswith(error)
    assert named in result["error"]
    # With the relay gone the first plain step is still right; the next one is refused.
    assert result["launched_after_patch"] == (1 if patch == "relay_none" else 0)
