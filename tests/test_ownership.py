"""Strict ownership by itself: who may write, in which mode, and changes made in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from spec_fsm import Mode, UnownedWrite
from spec_fsm_sglang import ownership
from spec_fsm_sglang.owners import Owner


class Batch:
    """Stands in for `ScheduleBatch`; ownership asks nothing of the class."""

    seq_lens: Any
    other: Any


def writer(batch: Any, value: Any) -> None:
    """The function the table of these tests names."""
    batch.seq_lens = value


def other_field(batch: Any, value: Any) -> None:
    """Named, but not for this field."""
    batch.out_cache_loc = value


@pytest.fixture
def strict() -> ownership.Ownership:
    """An ownership that knows `writer` in PLAIN."""
    owner = Owner(frozenset({"seq_lens"}), frozenset({Mode.PLAIN}), None, "test")
    owners = {(ownership.short_name(__file__), name): owner for name in ("writer", "other_field")}
    found = ownership.Ownership(owners)
    found.mode_of = lambda: Mode.PLAIN
    return found


@pytest.fixture
def batch(strict: ownership.Ownership) -> Any:
    """A batch of a class under ownership."""

    class Owned(Batch):
        pass

    strict.install(Owned)
    return Owned()


def test_an_owner_may_write(batch: Any, strict: ownership.Ownership) -> None:
    """A named function writes its field, and the write is counted."""
    writer(batch, torch.tensor([1]))
    assert list(strict.writes.values()) == [1]


def test_a_stranger_may_not_write(batch: Any) -> None:
    """The error names file, line and function, and the field keeps its value."""
    with pytest.raises(UnownedWrite, match=r"test_ownership\.py:\d+ in test_a_stranger"):
        batch.seq_lens = torch.tensor([1])
    assert not hasattr(batch, "seq_lens")


def test_an_owner_of_another_field_may_not_write(batch: Any) -> None:
    """An entry names its fields; there are no wildcards."""
    with pytest.raises(UnownedWrite, match="out_cache_loc"):
        other_field(batch, None)


def test_an_owner_may_not_write_in_another_mode(batch: Any, strict: ownership.Ownership) -> None:
    """The error names the mode and those in which the function owns the field."""
    strict.mode_of = lambda: Mode.SPEC
    with pytest.raises(UnownedWrite, match=r"an owner in PLAIN only.*mode SPEC"):
        writer(batch, None)


def test_a_change_in_place_is_found(batch: Any, strict: ownership.Ownership) -> None:
    """`add_` bypasses assignment; the copy from the last owned write tells."""
    writer(batch, torch.tensor([1, 2]))
    strict.check_in_place(batch)
    batch.seq_lens.add_(1)
    with pytest.raises(UnownedWrite, match="in place"):
        strict.check_in_place(batch)


def test_other_fields_are_free(batch: Any) -> None:
    """Only the three fields are owned."""
    batch.other = 1
    assert batch.other == 1
