"""What clients send, and what an operator is told: on the real scheduler and worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from client_inputs import DIFFERING_VALUES, GREEDY
from live import TREE, run
from spec_fsm_sglang.sampling import DIFFERING

FSM = {"disable_above": 5, "enable_at": 3, "dwell": 0, "checks": True}
ENGINE = {
    "tokenizer": True, "chunked_prefill_size": 32, "decode_log_interval": 5,
    "enable_metrics": True, "max_total_tokens": 4096, "enable_custom_logit_processor": True,
}  # fmt: skip
EXAMPLES = 12


def clients() -> dict[str, Any]:
    """One engine, all scenarios; shared by the tests."""
    params = {"examples": EXAMPLES}
    return run("clients", script="client_scenarios.py", fsm=FSM, params=params, **ENGINE, **TREE)


def test_live_requests_may_share_a_name() -> None:
    """Each request with a name that others have, too, is a row of its own and answered rightly."""
    found = clients()["same_name"]
    assert found["asked"] == 14
    assert found["rows"] > found["asked"]
    assert found["wrong"] == []
    assert clients()["status"]["violations"] == 0, clients()["details"]
    assert clients()["status"]["rows"] == 0


def test_a_request_that_ends_with_its_prefill_is_no_load() -> None:
    """Five decode at a threshold of five: no such request beside them changes the mode."""
    found = clients()["never_decodes"]
    sixth = found.pop("a sixth that decodes")
    assert len(found) == 5
    assert all(modes == ["SPEC"] for modes in found.values()), found
    assert "PLAIN" in sixth


def test_plain_decode_lines_and_gauges_show_no_acceptance() -> None:
    """SGLang's line has no `accept len` in PLAIN, in mixed intervals that of the rounds alone."""
    found = clients()["logged"]
    assert len(found["plain"]["lines"]) > 4
    assert found["rounds not told yet"] > 0  # so that PLAIN's first line is of a mixed interval
    assert not any("accept" in line for line in found["plain"]["lines"])
    for part in ("spec", "mixed"):
        lengths = re.findall(r"accept len: ([\d.]+)", " ".join(found[part]["lines"]))
        assert lengths
        assert all(1 <= float(length) <= 3 for length in lengths), lengths
    assert found["plain"]["gauge"] >= 1
    assert found["totals"][0] >= found["totals"][1] > 0


def test_switches_are_logged_and_not_too_often() -> None:
    """One line a switch says from, to, why, load and gap; ten in no time are one line and a count.

    At most one every few seconds: what was left out is counted in the next.
    """
    found = clients()["logged"]
    first, second = found["ours"][:2]
    for part in ("SPEC -> DRAINING -> PLAIN", "LOAD_ROSE, DRAINED", "load 1", "largest gap 0"):
        assert part in first
    assert "PLAIN -> RESEEDING -> SPEC: LOAD_FELL, RESEEDED" in second
    assert any(re.search(r"largest gap [1-9]", line) for line in found["ours"])
    assert found["burst"] <= 2
    assert re.search(r"; \d+ mode changes before it are not shown", found["ours"][-1])


def test_a_guard_that_holds_the_mode_is_logged_once() -> None:
    """Speculation is due for fifteen iterations and a lost request is in its way: one line."""
    (line,) = clients()["held"]
    assert "PLAIN stays" in line
    assert "1 requests" in line


def test_a_custom_logit_processor_acts_in_verify_as_in_decode() -> None:
    """Texts are the same in both modes, and every token is one that the processor allows."""
    found = clients()["processors"]
    assert (found["spec reached"], found["plain reached"]) == ("SPEC", "PLAIN")
    for i in range(3):
        for kind in ("none", "0", "1"):
            texts = [found["texts"][f"{mode} {kind} {i}"] for mode in ("spec", "plain")]
            assert texts[0] == texts[1]
            assert len(texts[0]) == 30
            parities = {token % 2 for token in texts[0]}
            assert parities == ({0, 1} if kind == "none" else {int(kind)})


def test_texts_are_equal_with_every_parameter_said_to_be_equal() -> None:
    """Pinned to SPEC, pinned to PLAIN, and on a server without speculation."""
    found = clients()["both_modes"]
    plain = {name: value for name, value in ENGINE.items() if name == "tokenizer"}
    unspeculated = run(
        "unspeculated", script="client_scenarios.py", fsm=None, draft=None, **plain
    )
    assert (found["spec reached"], found["plain reached"]) == ("SPEC", "PLAIN")
    assert all(unspeculated.values())
    assert found["spec"] == unspeculated
    assert found["plain"] == unspeculated
    assert found["counted equal"] == 0


def test_parameters_that_differ_are_counted_and_refused_where_asked() -> None:
    """Each of them is counted; with `refuse_differing` it is an error 400, and no other is."""
    found = clients()["both_modes"]
    assert found["counted differing"] == len(DIFFERING)
    reasons = found["refused"]
    assert reasons.pop("asked for nothing")["type"] == "length"
    assert set(reasons) == set(DIFFERING)
    for name, reason in reasons.items():
        assert (reason["type"], reason["status_code"]) == ("abort", 400)
        assert reason["message"].startswith(f"{name}: not accepted")


def test_the_page_has_every_sampling_parameter() -> None:
    """docs/sampling.md names each field of `SamplingParams`; its classes are those tested here."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    text = (Path(__file__).parents[1] / "docs" / "sampling.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", text, re.MULTILINE))
    made = set(re.findall(r"`(\w+)`", text.split("`stop_strs`")[1].split("are made by")[0]))
    made.add("stop_strs")
    assert set(rows) | made == set(SamplingParams.__struct_fields__)
    assert {name for name, kind in rows.items() if kind == "differs"} == set(DIFFERING)
    assert set(DIFFERING) == set(DIFFERING_VALUES)
    asked = set(GREEDY) - {"return_logprob"}
    rest = {"n", "structural_tag"}
    assert {n for n, kind in rows.items() if kind in ("equal", "in distribution")} == asked | rest


def test_the_lines_the_page_points_at_are_there() -> None:
    """Each file and line of SGLang's that docs/sampling.md names exists."""
    import sglang

    text = (Path(__file__).parents[1] / "docs" / "sampling.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+\w+\.py):(\d+)`", text)
    assert len(named) > 7
    for file, line in named:
        source = (Path(sglang.__file__).parent / "srt" / file).read_text(encoding="utf-8")
        assert source.count("\n") >= int(line)


def test_draft_kv_is_right_where_a_retracted_request_is_prefilled_in_chunks() -> None:
    """A chunk that ends among the outputs takes the token that followed, sampled or not."""
    for found in clients()["prefilled_again"].values():
        assert found["retracted"] == 1
        assert found["compared"] > 100
        assert found["worst"] < 1e-4


def test_nothing_a_client_sends_raises() -> None:
    """Random names, parameters, aborts, pauses and sessions, in both modes, end on a whole server.

    The histories are the same ones each time. What SGLang's tokenizer refuses is not drawn.
    """
    found = clients()["odd"]
    assert found["failure"] == "", found["failure"][-2500:] + found["history"][:3000]
    assert found["played"] >= EXAMPLES
    assert found["sent"] - found["refused"] > 4 * EXAMPLES
