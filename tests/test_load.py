"""What counts as load: rows that decode, or will with the next decode launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spec_fsm_sglang.load import Load, will_decode


class Req:
    """What `Load` reads of a request; as SGLang's it is known by its identity."""

    def __init__(self, *, ends: bool = False, done: bool = False, last: bool = False) -> None:
        self.to_finish = object() if ends else None
        self._done, self._last = done, last

    def finished(self) -> bool:
        """Whether its output has ended."""
        return self._done

    def next_output_finishes_by_length(self) -> bool:
        """Whether one more token is its last."""
        return self._last


def batch(*reqs: Req, chunked: Req | None = None) -> Any:
    """A batch of these requests."""
    return SimpleNamespace(reqs=list(reqs), chunked_req=chunked)


def scheduler(*finishing: Req) -> Any:
    """A scheduler whose result in flight ends these requests."""
    return SimpleNamespace(_reqs_finishing_inflight=lambda running: list(finishing))


@pytest.mark.parametrize(
    ("req", "decodes"),
    [
        (Req(), True), (Req(ends=True), False), (Req(done=True), False), (Req(last=True), False),
    ],
)  # fmt: skip
def test_a_request_decodes_unless_something_ends_it_with_its_prefill(
    req: Req, decodes: bool
) -> None:
    """An abort, an end that is known already, or a length that its first token fills."""
    assert will_decode(req) is decodes  # type: ignore[arg-type]


def test_a_prefill_counts_what_goes_on_and_what_joins() -> None:
    """Of the running rows not the aborted and not those the result in flight ends; of the prefill
    neither the chunk that is not the last nor what ends with it."""
    ended, going, more = Req(), Req(), Req()
    running = batch(ended, going, more, Req(ends=True))
    chunk = Req()
    prefill = batch(chunk, Req(), Req(), Req(), Req(last=True), Req(ends=True), chunked=chunk)
    load = Load()
    assert load.of_prefill(scheduler(ended), prefill, running) == 2 + 3
    assert load.rows == 5
    assert load.of_prefill(scheduler(), batch(), running) == 3


def test_rows_aborted_in_their_prefill_are_no_load_in_the_launch_after_it() -> None:
    """SGLang launches them once more; in the launch after that they are gone."""
    load = Load()
    load.of_prefill(scheduler(), batch(Req(), Req(ends=True), Req(ends=True)), batch())
    decode = batch(Req(), Req(ends=True), Req(ends=True))
    assert load.of_decode(decode) == load.rows == 1
    assert load.of_decode(batch(Req(), Req(), Req())) == 3
    load.of_prefill(scheduler(), batch(Req(ends=True)), batch())
    load.of_prefill(scheduler(), batch(Req()), batch())
    assert load.of_decode(batch(Req())) == 1
    load.of_prefill(scheduler(), batch(Req(ends=True), Req(ends=True)), batch())
    assert load.of_decode(batch(Req())) == 0, "never below 0"


def test_before_anything_was_counted_there_is_no_load() -> None:
    """A server starts with none, and its first decode batch counts in full."""
    assert Load().rows == 0
    assert Load().of_decode(batch(Req(), Req())) == 2
