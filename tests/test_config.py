"""The configuration: what it accepts, and one line for what it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spec_fsm.errors import ConfigError, shown
from spec_fsm_sglang.config import ENV_VAR, Config

DOCS = Path(__file__).parent.parent / "docs" / "configuration.md"


def refusal(**values: object) -> str:
    """The message with which `values` are refused."""
    with pytest.raises(ConfigError) as caught:
        Config.of(values)
    return str(caught.value)


def test_only_the_threshold_is_required() -> None:
    """`disable_above` alone makes a configuration; everything else has its documented default."""
    config = Config.of({"disable_above": 5})
    assert config == Config(disable_above=5)
    assert (config.enable_threshold, config.pin, config.trace) == (3, "auto", None)
    assert "disable_above is missing" in refusal()


def test_file_is_read_and_overridden(tmp_path: Path) -> None:
    """Values come from the TOML file, and overrides win over them."""
    path = tmp_path / "spec-fsm.toml"
    path.write_text('disable_above = 8\nenable_at = 2\nstrategy = "bulk"\n')
    assert Config.load(path) == Config(disable_above=8, enable_at=2, strategy="bulk")
    assert Config.load(path, disable_above=4).disable_above == 4


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        ("disable_above = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ("disable_above = 5\non = 3\n", "unknown key on: accepted are disable_above,"),
        ("disable_above = 0\n", "disable_above is 0: accepted are whole numbers, 1 or more"),
    ],
)
def test_bad_files_are_one_line(
    tmp_path: Path, content: str | bytes | None, expected: str
) -> None:
    """A missing file, bad TOML, unknown keys and bad values: one line, naming the file."""
    path = tmp_path / "spec-fsm.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("disable_above", 0, "whole numbers, 1 or more"),
        ("disable_above", "5", "whole numbers, 1 or more"),
        ("disable_above", True, "whole numbers, 1 or more"),
        ("dwell", -1, "whole numbers, 0 or more"),
        ("dwell", 1.5, "whole numbers, 0 or more"),
        ("enable_at", 0, "whole numbers, 1 or more"),
        ("enable_at", 6, "1 to disable_above (5)"),
        ("stash_width", 1, "whole numbers, 2 or more"),
        ("flush_every", -1, "whole numbers, 0 or more"),
        ("slice_tokens", 0, "whole numbers, 1 or more"),
        ("pin", "on", "auto, spec, plain"),
        ("strategy", "fast", "auto, bulk, extend, warm, cold"),
        ("lost_rows", "drop", "plain, rerun"),
        ("trace", 3, "file names"),
        ("trace", "", "file names"),
        ("flight_dir", "a\0b", "file names"),
        ("flight_dir", "a" * 5000, "file names"),
        ("stash_share", 0, "numbers above 0, up to 100"),
        ("stash_share", True, "numbers above 0, up to 100"),
        ("stash_share", "a", "numbers above 0, up to 100"),
        ("dwell", None, "whole numbers, 0 or more"),
        ("checks", "yes", "true, false"),
    ],
)
def test_bad_values_name_themselves_and_the_accepted(
    key: str, value: object, accepted: str
) -> None:
    """Each bad value is refused by name, with the value and what would be accepted."""
    message = refusal(**{"disable_above": 5, key: value})
    assert message.startswith(f"{key} is {shown(value)}: accepted are ")
    assert accepted in message


def test_flush_must_fit_a_stash_width_that_is_named() -> None:
    """With a width of its own the interval stays below it; without one the server fits both."""
    assert "0 to stash_width - 1 (63)" in refusal(disable_above=5, stash_width=64, flush_every=64)
    assert Config.of({"disable_above": 5, "flush_every": 64}).stash_width is None


def test_warm_flushes_at_every_step() -> None:
    """The strategy `warm` is a flush at every plain step, whatever `flush_every` says."""
    assert Config(disable_above=5, strategy="warm").flush_steps == 1
    assert Config(disable_above=5).flush_steps == 16


def test_environment_round_trip() -> None:
    """What `to_env` writes `from_env` reads back; without the variable there is no plugin."""
    config = Config(disable_above=5, pin="plain", trace="t.ndjson", checks=True)
    assert Config.from_env(config.to_env()) == config
    assert Config.from_env({}) is None


@pytest.mark.parametrize("text", ["{", "[1]", '{"disable_above": 0}', '{"disable": 3}'])
def test_bad_environment_names_the_variable(text: str) -> None:
    """A spoilt environment variable is refused in one line that names it."""
    with pytest.raises(ConfigError, match=ENV_VAR) as caught:
        Config.from_env({ENV_VAR: text})
    assert "\n" not in str(caught.value)


def test_slice_width_shares_the_budget_among_rows() -> None:
    """All rows at the enable threshold together stay within `slice_tokens`, two tokens at least."""
    assert Config(disable_above=8, enable_at=4, slice_tokens=100).slice_width() == 25
    assert Config(disable_above=8, enable_at=8, slice_tokens=2).slice_width() == 2


def test_every_key_is_documented() -> None:
    """docs/configuration.md has one row for each key, with the default the Struct has."""
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", DOCS.read_text(), re.MULTILINE)
    assert [key for key, _ in rows] == list(Config.__struct_fields__)
    documented = dict(rows)
    default = Config(disable_above=5)
    assert documented["stash_width"] == "what 1 % of the KV pool holds"
    for key in ("dwell", "flush_every", "slice_tokens"):
        assert documented[key] == f"`{getattr(default, key)}`"
    for key in ("pin", "strategy", "lost_rows"):
        assert documented[key] == f'`"{getattr(default, key)}"`'
    assert documented["checks"] == "`false`"
    assert documented["trace"] == "none"
