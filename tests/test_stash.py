"""The size of the stash, and what its ring forgets."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from spec_fsm_sglang import demo, stash_size
from spec_fsm_sglang.config import Config
from spec_fsm_sglang.stash import WIDEST, Stash, fit
from spec_fsm_sglang.stash_size import SHARE_OF_KV


def test_width_that_is_named_is_kept() -> None:
    """A configured width wins over the share of the KV pool, and so does its flush interval."""
    sizes = fit(64, 16, kv_bytes=1, position_bytes=10**9)
    assert (sizes.width, sizes.flush_every) == (64, 16)


def test_unnamed_width_takes_at_most_its_share() -> None:
    """As many positions as 1 % of the KV pool holds, and never more bytes than that."""
    kv, position = 10**9, 10**5
    sizes = fit(None, 16, kv, position)
    assert sizes.width == 100
    assert sizes.width * position <= kv * SHARE_OF_KV < (sizes.width + 1) * position
    assert fit(None, 16, 10**15, 1).width == WIDEST


def test_narrow_ring_is_flushed_more_often() -> None:
    """Where the share is too small for the interval, the interval shrinks, so no row is lost."""
    sizes = fit(None, 16, 10**7, 10**4)
    assert (sizes.width, sizes.flush_every) == (10, 9)
    assert (fit(None, 16, 1, 1).width, fit(None, 16, 1, 1).flush_every) == (2, 1)
    assert fit(None, 0, 10**7, 10**4).flush_every == 0


def test_ring_keeps_the_last_positions() -> None:
    """Positions older than the width are overwritten; a record unseeds its rows alone."""
    stash = Stash(4, 3, 2, torch.float32, "cpu")
    rows = torch.tensor([2])
    stash.joined(torch.tensor([1, 2]), torch.tensor([5, 7]))
    for position in range(7, 12):
        hidden = torch.full((1, 2), float(position))
        stash.record(rows, torch.tensor([position]), hidden, torch.tensor([position + 100]))
    hidden, tokens = stash.read(rows, torch.tensor([[9, 10, 11]]))
    assert hidden[0, :, 0].tolist() == [9, 10, 11]
    assert tokens.tolist() == [[109, 110, 111]]
    assert stash.seeded.tolist() == [False, True, False, False]
    assert stash.covered.tolist() == [0, 5, 7, 0]


def test_a_width_above_its_share_is_refused_with_what_would_fit() -> None:
    """The exact check, once the pool is there: width and share that would do are named, and do."""
    config = Config(disable_above=8, stash_width=192, stash_share=0.01)
    found = stash_size.problem(config, 1_000_000, 1000)
    assert found is not None
    assert "stash_width is 192: the stash would take 19.2 % of the KV pool" in found
    assert "accepted are widths 2 to 10, or a stash_share of 0.192 or more" in found
    assert stash_size.problem(Config(disable_above=8, stash_width=10, flush_every=9,
                                     stash_share=0.01), 1_000_000, 1000) is None  # fmt: skip
    declared = Config(disable_above=8, stash_width=192, stash_share=0.192)
    assert stash_size.problem(declared, 1_000_000, 1000) is None
    fitted = Config(disable_above=8, stash_share=0.01)
    assert stash_size.problem(fitted, 1, 1000) is None
    assert fit(None, 16, 1_000_000, 1000, share=0.192).width == 192


def test_a_width_that_cannot_fit_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    """From `config.json` and the arguments alone; where they leave it open, nothing is said."""
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    options: dict[str, Any] = {
        "model_path": tmp_path, "max_running_requests": 64, "dp_size": 1, "dtype": "float32",
        "max_total_tokens": 4096, "device": "cpu",
    }  # fmt: skip
    wide = Config(disable_above=8, stash_width=4096).held_to_share()

    def early(**changed: Any) -> str | None:
        return stash_size.early_problem(wide, SimpleNamespace(**options | changed))

    found = early()
    assert found is not None
    assert "stash_width is 4096" in found
    assert early(max_total_tokens=10**9) is None
    assert early(max_total_tokens=None) is None, "a host has more memory than 64 rows take"
    assert early(max_total_tokens=None, max_running_requests=10**7) is not None
    for content in ("[", "[" * 99999, "[]", "{}", '{"hidden_size": "x"}', json.dumps(
        shape | {"num_attention_heads": 0})):  # fmt: skip
        (tmp_path / "config.json").write_text(content)
        assert early() is None


def test_serve_holds_every_server_to_a_share() -> None:
    """`serve` hands on 1 % where the configuration names none, and what it names otherwise."""
    assert Config(disable_above=8).held_to_share().stash_share == SHARE_OF_KV
    assert Config(disable_above=8, stash_share=2.0).held_to_share().stash_share == 2.0


def test_the_demo_follows_the_rule() -> None:
    """Its stash, with a row for each request and one more, is within the share it declares."""
    config = Config.load(Path(demo.__file__).with_name("demo.toml"))
    assert config.stash_share is not None
    rows, hidden, token_bytes = 24 + 1, 3 * 576, 30 * 2 * 3 * 64 * 4
    assert "--max-running-requests" in Path(demo.__file__).with_name("run.py").read_text()
    assert stash_size.problem(config, 16384 * token_bytes, rows * hidden * 4) is None
