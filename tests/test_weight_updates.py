"""A weight update counts by what was written, not by what was asked or answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from live import TREE, run
from spec_fsm_sglang import weight_updates

FSM = {"disable_above": 50, "dwell": 0, "checks": True}
SCRIPT = "weight_scenarios.py"

NOTHING_WRITTEN = {
    "no such folder": False,
    "no such format": False,
    "refused by the target": False,
    "outside a session": False,
    "not received": False,
    "the draft alone": True,
    "end of the draft alone": True,
    "flushed": True,
}
WRITTEN = {
    "from a tensor": True,
    "end of a session": True,
    "target written, draft refused": False,
    "flush refused": False,
    "from disk": True,
}


def weights() -> dict[str, Any]:
    """Every message, to one server."""
    return run("weights", script=SCRIPT, fsm=FSM, **TREE)


@pytest.mark.parametrize("case", NOTHING_WRITTEN)
def test_an_update_that_wrote_nothing_of_the_target_loses_no_row(case: str) -> None:
    """Refused, not received, or the draft's alone: every stash is as good as before."""
    assert weights()[case] == [NOTHING_WRITTEN[case], 0]


@pytest.mark.parametrize("case", WRITTEN)
def test_an_update_that_wrote_the_target_loses_the_stashes_whatever_it_answers(case: str) -> None:
    """Also where the draft failed after it, and where only the flush was refused."""
    assert weights()[case] == [WRITTEN[case], 3]


def test_a_server_goes_on_after_every_update() -> None:
    """Back to SPEC at once if nothing was lost, else held in PLAIN; every output is right."""
    result = weights()
    assert result["mode after these"] == "SPEC"
    assert result["mode after it"] == "PLAIN"
    assert result["different"] == {}
    assert result["status"]["violations"] == 0


def test_memory_is_released_and_resumed_in_either_mode() -> None:
    """Stash and ledger hold nothing of an idle server that memory could be taken from."""
    result = run("memory", script=SCRIPT, fsm=FSM, **TREE)
    assert result["different"] == {}
    assert len(result["outputs"]) == 16
    assert (result["status"]["rows"], result["status"]["lost"]) == (0, 0)


def test_a_rank_that_wrote_nothing_forgets_with_one_that_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update may fail on one rank alone; all forget, or their modes part (I11)."""
    told: list[str] = []
    lifecycle = SimpleNamespace(weights_changed=lambda: told.append("told"))
    worker = SimpleNamespace(spec_fsm=SimpleNamespace(lifecycle=lifecycle))
    target = SimpleNamespace(weight_update_runners=lambda: [("target", SimpleNamespace())])
    manager = SimpleNamespace(draft_worker=worker, tp_worker=target)
    asked: list[bool] = []

    def on_all_ranks(holds: bool) -> bool:
        asked.append(holds)
        return False  # the other rank wrote

    monkeypatch.setattr(weight_updates, "on_all_ranks", on_all_ranks)
    weight_updates.message(lambda *_: "answer", manager, None)
    assert (asked, told) == ([True], ["told"])


def test_a_load_that_fails_half_way_counts_as_written() -> None:
    """The first weight may have been written once the model began to load."""
    for began in (False, True):
        runner = SimpleNamespace()
        model = SimpleNamespace()
        model.load_weights = lambda weights: None
        updater = SimpleNamespace(get_model_runner=lambda r=runner: r, get_model=lambda m=model: m)

        def original(updater: Any, began: bool = began) -> tuple[bool, str]:
            if began:
                updater.get_model().load_weights([])
            return False, "a shape does not fit"

        assert weight_updates.load(original, updater) == (False, "a shape does not fit")
        assert vars(runner).get("spec_fsm_written", False) is began


def test_plain_graphs_are_captured_again_with_the_targets() -> None:
    """`recapture_cuda_graph`: graphs read weights where they lay. On a GPU: `truth.py`."""
    captured: list[str] = []
    runner = SimpleNamespace(spec_fsm_recaptured=lambda: captured.append("again"))
    weight_updates.recaptured(None, runner)
    weight_updates.recaptured(None, SimpleNamespace())
    assert captured == ["again"]
