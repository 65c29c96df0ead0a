"""Ids of rows: one for each time a request joins, whatever a client calls it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spec_fsm_sglang.rows import (
    NAME_LENGTH,
    RowIds,
    last_row_of,
    name_next_token,
    readable,
    row_of,
    rows_of,
)


def req(rid: object = "a") -> Any:
    """A request of that name."""
    return SimpleNamespace(rid=rid)


def test_an_id_lives_as_long_as_its_row() -> None:
    """It is given once, counts up over all names, and a request that comes back is another row."""
    ids, first, second = RowIds(), req(), req()
    assert row_of(first) == last_row_of(first) == RowIds.drop(first) == ""
    assert last_row_of(first) == ""
    assert [ids.of(first), ids.of(second), ids.of(first)] == ["a#0", "a#1", "a#0"]
    assert row_of(first) == "a#0"
    assert RowIds.drop(first) == "a#0"
    assert row_of(first) == ""
    assert RowIds.drop(first) == ""
    assert rows_of(SimpleNamespace(reqs=[first, second])) == ["a#0", "a#1"]  # type: ignore[arg-type]
    assert ids.of(first) == "a#2"
    assert last_row_of(first) == "a#2"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain text", "plain text"), ("a\nb\ud800c", "a?b?c"), (7, "7"), (None, "None"),
        ("x" * NAME_LENGTH + "y", "x" * NAME_LENGTH),
    ],
)  # fmt: skip
def test_a_name_is_cut_to_printable_characters(name: object, text: str) -> None:
    """Anything may be a name."""
    assert readable(name) == text


@pytest.mark.parametrize(
    ("end", "outputs", "told", "expected"),
    [
        (4, [], None, None),  # the last chunk of a prompt: SGLang samples what follows
        (4, [11, 12], None, 11),
        (5, [11, 12], None, 12),
        (6, [11, 12], None, None),
        (3, [11, 12], None, None),  # SGLang knows: it is in the prompt
        (4, [11, 12], 9, 9),
    ],
)
def test_the_token_after_a_chunk_is_named_where_the_request_put_it_out(
    end: int, outputs: list[int], told: int | None, expected: int | None
) -> None:
    """A chunk that ends at `end` of a prompt of four tokens, and of the outputs after it."""
    chunked = SimpleNamespace(extend_end=end, origin_input_ids=[1, 2, 3, 4], output_ids=outputs)
    batch: Any = SimpleNamespace(chunked_req=chunked, chunked_req_next_prompt_token=told)
    name_next_token(batch)
    assert batch.chunked_req_next_prompt_token == expected


def test_a_batch_without_a_chunk_is_left_alone() -> None:
    """There is nothing after a whole prompt."""
    batch: Any = SimpleNamespace(chunked_req=None, chunked_req_next_prompt_token=None)
    name_next_token(batch)
    assert batch.chunked_req_next_prompt_token is None
