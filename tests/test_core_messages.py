"""What a refusal says, word by word: messages are what an operator has when something is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from core_support import CHAIN, TREE, in_mode, launch, make
from spec_fsm import (
    Action,
    ConfigError,
    Event,
    Hidden,
    Lifecycle,
    ListSink,
    Mode,
    Phase,
    Pin,
    Plan,
    Policy,
    PolicyConfig,
    Shape,
    SpecFsmError,
    SpecInfo,
    StashConfig,
    TraceError,
    decode_step,
    laws,
)
from spec_fsm.policy import MOST
from spec_fsm.protocol import SeedError
from spec_fsm.trace import _check_line

P = Phase


def said(act: Callable[[], object]) -> str:
    """The text of the error that `act` raises."""
    with pytest.raises(SpecFsmError) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize(
    ("mode", "act", "text"),
    [
        (
            Mode.PLAIN,
            lambda lc: lc.joined("r0", 3),
            "refused: row 'r0' joined already (mode PLAIN, event PREFILLED)",
        ),
        (
            Mode.SPEC,
            lambda lc: lc.chunked("r0", 3),
            "refused: row 'r0' joined already (mode SPEC, event PREFILLED_CHUNK)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.plan_decode(4),
            "a decode launch holds the rows that joined: at least one, no stranger, none left out"
            " twice (mode PLAIN, observed 4 rows, 0 left out before, expected 2 rows, of which 0"
            " more may linger, breaks I7)",
        ),
        (
            Mode.DRAINING,
            lambda lc: lc.plan_decode(2),
            "a decode batch must wait for the results in flight (mode DRAINING, observed 1,"
            " expected 0)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.launched(Action.SPECULATE, 2, Plan(Action.PLAIN, Mode.PLAIN)),
            "the launch is not the one that was planned (mode PLAIN, observed SPECULATE, expected"
            " the plan's PLAIN)",
        ),
        (
            Mode.RESEEDING,
            lambda lc: lc.launched(Action.RESEED, 2, Plan(Action.RESEED, Mode.RESEEDING)),
            "reseeded() was not called between a RESEED plan and its launch (mode RESEEDING,"
            " observed RESEED, expected the plan's RESEED)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.launched(Action.SPECULATE, 2, Plan(Action.SPECULATE, Mode.SPEC)),
            "the plan was made in SPEC, and the mode has changed since: plan again (mode PLAIN,"
            " observed SPECULATE, expected the plan's SPECULATE)",
        ),
        (
            Mode.SPEC,
            lambda lc: (launch(lc), lc.launched(Action.RESEED, 2, Plan(Action.RESEED, Mode.SPEC))),
            "a RESEED plan was reported as launched twice, or after another launch (mode SPEC,"
            " observed 1, expected 0)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.launched(Action.PLAIN, 2, Plan(Action.PLAIN, Mode.PLAIN, False, 5)),
            "refused: REACHES_OLDEST (mode PLAIN, event FLUSHED, observed 5, expected 6)",
        ),
        (
            Mode.RESEEDING,
            lambda lc: lc.launched(Action.PLAIN, 2, Plan(Action.PLAIN, Mode.RESEEDING, False, 5)),
            "refused: REACHES_OLDEST (mode RESEEDING, event SLICE_DONE, observed 5, expected 6)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.settled(Action.PLAIN, 2),
            "refused: results come in launch order (mode PLAIN, event DECODED, observed PLAIN,"
            " expected nothing)",
        ),
        (
            Mode.DRAINING,
            lambda lc: lc.settled(Action.RESEED, 2),
            "refused: results come in launch order (mode DRAINING, event SETTLED, observed RESEED,"
            " expected SPECULATE)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.reseeded(),
            "refused: seeds are made in RESEEDING (mode PLAIN, event RESEEDED)",
        ),
        (
            Mode.PLAIN,
            lambda lc: lc.cache_flushed(),
            "refused: NO_ROWS (mode PLAIN, event CACHE_FLUSHED)",
        ),
        (
            Mode.SPEC,
            lambda lc: lc.left("r0", Event.MERGED),
            "event is MERGED: accepted are FINISHED, RETRACTED, ABORTED",
        ),
        (
            Mode.SPEC,
            lambda lc: lc.noted(Event.FINISHED, 2),
            "event is FINISHED: accepted are ADMITTED, FILTERED, MERGED",
        ),
    ],
)
def test_what_a_refusal_says(mode: Mode, act: Callable[[Lifecycle], object], text: str) -> None:
    """Each refusal of the lifecycle is this line."""
    lifecycle = in_mode(mode)
    assert said(lambda: act(lifecycle)) == text


def test_a_result_told_the_quick_way_that_is_not_due() -> None:
    """The refusal of a count names the event of the action that was counted."""
    for mode, load, text in (
        (Mode.PLAIN, 100, "mode PLAIN, event DECODED"),
        (Mode.SPEC, 1, "mode SPEC, event SETTLED"),
    ):
        lifecycle = in_mode(mode)
        lifecycle.decide(load, 2)
        lifecycle.steady.processed += 2
        expected = f"refused: results come in launch order ({text})"
        assert said(lambda lc=lifecycle: lc.ledger) == expected  # type: ignore[misc]
    fresh = make()
    fresh.steady.processed += 1
    expected = "refused: results come in launch order (mode SPEC, event SETTLED)"
    assert said(lambda: fresh.ledger) == expected


LAUNCHES: list[tuple[Mode, Shape, tuple[Any, ...], str]] = [
    (
        Mode.PLAIN,
        TREE,
        (P.VERIFY, 2, 32, 32, SpecInfo.VERIFY, Hidden.FULL),
        "this mode has no such launch (mode PLAIN, phase VERIFY, observed VERIFY, expected"
        " PREFILL, PLAIN_DECODE, FLUSH, SEED_EXTEND, IDLE, breaks matrix)",
    ),
    (
        Mode.SPEC,
        TREE,
        (P.IDLE, 0, 1, 2, SpecInfo.NONE, Hidden.NULL),
        "an idle launch has no rows (mode SPEC, phase IDLE, observed (0, 1, 2), expected"
        " (0, 0, 0), breaks I2)",
    ),
    (
        Mode.PLAIN,
        TREE,
        (P.PLAIN_DECODE, 0, 0, 0, SpecInfo.NONE, Hidden.FULL),
        "a launch needs rows (mode PLAIN, phase PLAIN_DECODE, observed 0, expected 1 row or more,"
        " breaks I2)",
    ),
    (
        Mode.PLAIN,
        TREE,
        (P.PLAIN_DECODE, 2, 2, 2, SpecInfo.DRAFT, Hidden.FULL),
        "wrong spec_info (mode PLAIN, phase PLAIN_DECODE, observed DRAFT, expected NONE, breaks"
        " I1a)",
    ),
    (
        Mode.PLAIN,
        TREE,
        (P.PLAIN_DECODE, 2, 2, 2, SpecInfo.NONE, Hidden.LAST),
        "wrong hidden capture (mode PLAIN, phase PLAIN_DECODE, observed LAST, expected FULL,"
        " breaks I16)",
    ),
    (
        Mode.PLAIN,
        TREE,
        (P.PLAIN_DECODE, 2, 3, 2, SpecInfo.NONE, Hidden.FULL),
        "wrong number of tokens for 2 rows (mode PLAIN, phase PLAIN_DECODE, observed 3, expected"
        " 2, breaks I2)",
    ),
    (
        Mode.SPEC,
        CHAIN,
        (P.DRAFT, 2, 2, 5, SpecInfo.DRAFT, Hidden.LAST),
        "wrong out_cache_loc for 2 rows (mode SPEC, phase DRAFT, observed 5, expected 6 or 8,"
        " breaks I3)",
    ),
    (
        Mode.PLAIN,
        TREE,
        (P.FLUSH, 2, 9, 8, SpecInfo.NONE, Hidden.NULL, 9),
        "wrong out_cache_loc for 2 rows (mode PLAIN, phase FLUSH, observed 8, expected 9, breaks"
        " I3)",
    ),
    (
        Mode.PLAIN,
        TREE,
        (P.FLUSH, 2, 9, 9, SpecInfo.NONE, Hidden.NULL),
        "FLUSH needs a width (phase FLUSH)",
    ),
]


@pytest.mark.parametrize(("mode", "shape", "launch", "text"), LAUNCHES)
def test_what_a_refused_launch_says(
    mode: Mode, shape: Shape, launch: tuple[Any, ...], text: str
) -> None:
    """Each refusal of a launch is this line, and `checks.details` keeps it."""
    lifecycle = in_mode(mode, shape=shape)
    assert said(lambda: lifecycle.check_launch(*launch)) == text
    if "breaks" in text:
        invariant = text.rsplit(" ", 1)[1].rstrip(")")
        assert lifecycle.checks.details == [f"{invariant}: {text}"]


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda: laws.tokens(P.PREFILL, 1, TREE), "PREFILL needs a width (phase PREFILL)"),
        (
            lambda: laws.tokens(P.SEED_EXTEND, 1, TREE),
            "SEED_EXTEND needs a width (phase SEED_EXTEND)",
        ),
        (
            lambda: laws.attention_len(P.SEED_EXTEND, 9, TREE),
            "SEED_EXTEND needs a width (phase SEED_EXTEND)",
        ),
        (
            lambda: Shape(1, 3, 5),
            "num_draft_tokens is 5: accepted are 2 to 4 for topk 1 and num_steps 3",
        ),
        (lambda: Shape(1, 0, 2), "num_steps is 0: accepted are whole numbers, 1 or more"),
        (
            lambda: PolicyConfig(disable_above=0),
            "disable_above is 0: accepted are whole numbers, 1 or more",
        ),
        (
            lambda: PolicyConfig(disable_above=4, enable_at=5),
            "enable_at is 5: accepted are whole numbers, 1 to 4",
        ),
        (
            lambda: PolicyConfig(disable_above=4, enable_at=0),
            "enable_at is 0: accepted are whole numbers, 1 to 4",
        ),
        (
            lambda: PolicyConfig(disable_above=MOST + 1),
            f"disable_above is {MOST + 1}: accepted are whole numbers, 1 to {MOST}",
        ),
        (
            lambda: PolicyConfig(disable_above=4, dwell=-1),
            "dwell is -1: accepted are whole numbers, 0 or more",
        ),
        (
            lambda: PolicyConfig(disable_above=4, pin="on"),  # type: ignore[arg-type]
            "pin is 'on': accepted are AUTO, SPEC, PLAIN",
        ),
        (
            lambda: StashConfig(width=1),
            "width is 1: accepted are whole numbers, 2 or more",
        ),
        (
            lambda: StashConfig(width=8, flush_every=8),
            "flush_every is 8: accepted are whole numbers, 0 to 7",
        ),
        (
            lambda: StashConfig(slice_width=True),
            "slice_width is True: accepted are whole numbers, 2 or more",
        ),
        (
            lambda: StashConfig(seed_ahead=True),
            "seed_ahead is True: accepted are whole numbers, 0 or more",
        ),
        (
            lambda: StashConfig(seed_ahead=1),
            "seed_ahead is 1: accepted are 0 and whole numbers from 2",
        ),
    ],
)
def test_what_a_wrong_setting_says(act: Callable[[], object], text: str) -> None:
    """Each wrong setting is a ConfigError of this line."""
    with pytest.raises(ConfigError) as caught:
        act()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("number", "line", "text"),
    [
        (
            0,
            {"seq": 0, "kind": "plan"},
            "line 0 is of the wrong kind (observed plan, expected start)",
        ),
        (
            1,
            {"seq": 1, "kind": "start"},
            "line 1 is of the wrong kind (observed start, expected boundary, dropped, end,"
            " event, obs, pin, plan, refused, violation)",
        ),
        (
            1,
            {"seq": 1, "kind": "what"},
            "line 1 is of the wrong kind (observed what, expected boundary, dropped, end,"
            " event, obs, pin, plan, refused, violation)",
        ),
        (
            2,
            {"seq": 3, "kind": "plan"},
            "line 2 is out of sequence (observed 3, expected 2)",
        ),
        (
            0,
            {"seq": 0, "kind": "start", "v": 1},
            "the trace is of another version (observed 1, expected 2)",
        ),
    ],
)
def test_what_a_wrong_trace_line_says(number: int, line: dict[str, Any], text: str) -> None:
    """Each wrong line of a trace is a TraceError of this line."""
    with pytest.raises(TraceError) as caught:
        _check_line(number, line)
    assert str(caught.value) == text


class Broken:
    """An engine whose seeds cannot be made."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.rows = lambda: lifecycle.rows

    def load(self) -> int:
        """One row."""
        return 1

    def plain(self, _upper: int, _lower: int) -> None:
        """Nothing."""

    def rebuild(self, _upper: int) -> None:
        """Fails."""
        raise SeedError("no room for the seed")


def test_why_a_rebuild_failed_is_traced() -> None:
    """The text of a SeedError is the `why` of RESEED_FAILED."""
    sink = ListSink()
    lifecycle = in_mode(Mode.RESEEDING, trace=sink)
    while lifecycle.mode is Mode.RESEEDING:
        decode_step(Broken(lifecycle), lifecycle)  # type: ignore[arg-type]
    failed = [line for line in sink.lines if line.get("event") == "RESEED_FAILED"]
    assert [line["why"] for line in failed] == ["no room for the seed"]


def test_a_pin_may_be_given_by_its_name() -> None:
    """Both a Pin and its name are taken."""
    policy = Policy(PolicyConfig(disable_above=4, pin="PLAIN"))  # type: ignore[arg-type]
    assert policy.pin is Pin.PLAIN
    lifecycle = make(pin=Pin.SPEC)
    assert lifecycle.pin is Pin.SPEC
    lifecycle.pin = "AUTO"  # type: ignore[assignment]
    assert lifecycle.pin is Pin.AUTO
