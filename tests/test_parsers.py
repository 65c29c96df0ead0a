"""Every parser of input, with any input: success, or one line that says what is accepted.

The body of `/set_internal_state` has its own in `test_operator_pin.py`, a server's answers theirs
in `test_client.py`.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from spec_fsm.errors import ConfigError, SpecFsmError, TraceError, one_line, shown
from spec_fsm.trace import read_trace
from spec_fsm_model.trace_check import check_file
from spec_fsm_sglang import cli, serve
from spec_fsm_sglang.address import Address, Keys, seconds_of
from spec_fsm_sglang.bench.acceptance import first_turns, parse_spec
from spec_fsm_sglang.bench.arms import whole_numbers
from spec_fsm_sglang.config import ENV_VAR, Config

FUZZ = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def one_line_or_none(parse: Callable[[], object]) -> str | None:
    """What `parse` refused its input with, which is short, printable and one line."""
    try:
        parse()
    except ConfigError as error:
        message = str(error)
    except TraceError as error:
        message = str(error)
    else:
        return None
    assert message.isprintable(), message
    assert len(message) < 1500, message
    return message


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    """A file that is written anew for each example."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "input")


# TOML and the environment

KEYS = st.sampled_from([*Config.__struct_fields__, "on", "\u001b[31m"])
SCALARS = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.integers(-1, 70),
    st.sampled_from(["auto", "plain", "spec", "bulk", "", "\0", "x" * 5000]), st.just(10**400),
)  # fmt: skip
JSON = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
)


def toml(values: dict[str, Any]) -> str:
    """Lines of TOML, good and bad: a string and a number look as JSON has them."""
    return "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items())


@FUZZ
@given(values=st.dictionaries(KEYS, JSON, max_size=5))
@example(values={"disable_above": 10**400})
@example(values={"disable_above": 8, "stash_width": 100_000_000})
def test_a_configuration_of_any_values_is_read_or_refused(
    file: Path, values: dict[str, Any]
) -> None:
    """TOML, the environment and the mapping between them agree on what they refuse."""
    file.write_text(toml(values), encoding="utf-8", errors="replace")
    one_line_or_none(lambda: Config.load(file))
    mapped = one_line_or_none(lambda: Config.of(values))
    text = json.dumps(values)
    read = one_line_or_none(lambda: Config.from_env({ENV_VAR: text}))
    assert mapped is None or read is not None
    if mapped is None:
        config = Config.of(values)
        assert Config.from_env(config.to_env()) == config


@FUZZ
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-16")))
@example(content=b"disable_above = " + b"9" * 5000)
@example(content=b"disable_above = 0x" + b"f" * 20_000)
@example(content=b"a = " + b"[" * 20_000)
@example(content=b"a = " + b"{a=" * 20_000)
@example(content=b"[" + b"a." * 20_000 + b"a]")
@example(content=b"#" * 70_000)
def test_any_bytes_are_toml_or_refused(file: Path, content: bytes) -> None:
    """Bytes, deep nesting, numbers without end and long files: read, or one line with the file."""
    file.write_bytes(content)
    message = one_line_or_none(lambda: Config.load(file))
    assert message is None or message.startswith(str(file))


@FUZZ
@given(text=st.text(max_size=40))
@example(text="[" * 50_000)
@example(text='{"a":' * 12_000)
@example(text='{"disable_above":' + "9" * 5000 + "}")
@example(text="\udcff")
@example(text=" " * 70_000)
def test_any_text_in_the_environment_is_read_or_refused(text: str) -> None:
    """What is in the variable is JSON of a configuration, or refused in one line that names it."""
    message = one_line_or_none(lambda: Config.from_env({ENV_VAR: text}))
    assert message is None or ENV_VAR in message


@pytest.mark.parametrize("path", ["", "\0", "x" * 5000, "\udcff", "no\nfile", ".", "/dev/zero"])
def test_any_path_is_a_configuration_or_refused(path: str) -> None:
    """Names no file system takes, folders and files without end."""
    assert one_line_or_none(lambda: Config.load(Path(path))) is not None


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("disable_above", 65537, "1 to 65536"),
        ("enable_at", 10**9, "1 to 65536"),
        ("dwell", 1 << 40, "0 to 1048576"),
        ("stash_width", 100_000_000, "2 to 1048576"),
        ("flush_every", 1 << 21, "0 to 1048576"),
        ("slice_tokens", 10**30, "1 to 1048576"),
        ("slice_tokens", 16**5000, "1 to 1048576"),
        ("stash_share", 101, "above 0, up to 100"),
        ("stash_share", 0, "above 0, up to 100"),
        ("stash_share", float("nan"), "above 0, up to 100"),
        ("stash_share", True, "above 0, up to 100"),
    ],
    ids=lambda value: shown(value)[:20],
)
def test_every_number_has_an_upper_bound(key: str, value: object, accepted: str) -> None:
    """Each number of the configuration is refused above its bound, which the line names."""
    message = one_line_or_none(lambda: Config.of({"disable_above": 8, key: value}))
    assert message is not None
    assert f"{key} is {shown(value)}: accepted are " in message
    assert accepted in message


def test_what_a_message_shows_is_short_and_printable() -> None:
    """Values of any size and kind, deep and long ones and ints that Python does not print."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("x" * 9999, "\x1b[31m\n", 16**5000, deep, [16**5000], None, {"a": "\n"}):
        assert shown(value).isprintable()
        assert one_line(value).isprintable()
        assert max(len(shown(value)), len(one_line(value))) <= 400


# Traces

START = {
    "seq": 0, "t_ns": 1, "kind": "start",
    "shape": {"topk": 1, "num_steps": 3, "num_draft_tokens": 4, "page_size": 1},
    "policy": {"disable_above": 5, "enable_at": 3, "dwell": 2, "pin": "AUTO"},
    "stash": {"width": 64, "flush_every": 4, "slice_width": 64, "seed_ahead": 0},
}  # fmt: skip
NAMES = st.sampled_from(
    ["kind", "event", "mode", "to", "rows", "unsettled", "rid", "load", "batch", "action", "flush",
     "committed", "gap", "phase", "b", "tokens", "slots", "v", "shape", "stash", "seq", "lines"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["start", "event", "plan", "obs", "refused", "violation", "dropped", "SPEC", "PLAIN", "RESEED",
     "LOAD_ROSE", "PREFILLED", "LAUNCHED", "SETTLED", "FINISHED", "DRAFT", "VERIFY", "r#1"]
)  # fmt: skip
FIELDS = st.dictionaries(NAMES, WORDS | JSON, max_size=6)


def check(path: Path) -> None:
    """Both readers of a trace."""
    list(read_trace(path))
    check_file(path)


def version() -> int:
    """The version of trace this tree writes."""
    from spec_fsm.trace import VERSION

    return VERSION


@FUZZ
@given(
    start=FIELDS, lines=st.lists(st.tuples(st.sampled_from(["event", "plan", "obs"]), FIELDS)),
    packed=st.booleans(),
)  # fmt: skip
def test_a_trace_of_any_lines_is_checked_or_refused(
    file: Path, start: dict[str, Any], lines: list[tuple[str, dict[str, Any]]], packed: bool
) -> None:
    """Lines with any fields of any type: a verdict, or one line."""
    head = START | {"v": version()} | {k: v for k, v in start.items() if len(lines) % 3 == 0}
    rows = [head, *({"kind": kind, **fields, "seq": i, "t_ns": i} for i, (kind, fields) in
                    enumerate(lines, 1))]  # fmt: skip
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = file.with_suffix(".ndjson.gz" if packed else ".ndjson")
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    one_line_or_none(lambda: check_file(path))
    if not packed:
        one_line_or_none(lambda: list(read_trace(path)))


GOOD = json.dumps(START | {"v": 1}).encode()


@FUZZ
@given(content=st.binary(max_size=60), packed=st.booleans())
@example(content=b"[" * 100_000, packed=False)
@example(content=b'{"a":' * 100_000, packed=False)
@example(content=b'{"seq":0,"kind":"start","v":' + b"9" * 5000 + b"}", packed=False)
@example(content=b'{"seq":0,"kind":["start"]}', packed=False)
@example(content=b'{"seq":0,"kind":{"a":1},"v":{}}', packed=False)
@example(content=b"\xff\xfe\n" + GOOD, packed=False)
@example(content=gzip.compress(b" " * 50_000_000), packed=True)
@example(content=gzip.compress(GOOD)[:-9], packed=True)
@example(content=gzip.compress(GOOD)[:-1] + b"x", packed=True)
@example(content=b"\x1f\x8b\x08\x00", packed=True)
@example(content=b"", packed=True)
def test_any_bytes_are_a_trace_or_refused(file: Path, content: bytes, packed: bool) -> None:
    """Garbage, cut and spoilt archives, lines without end and deep nesting."""
    path = file.with_suffix(".bin.gz" if packed else ".bin")
    path.write_bytes(content)
    one_line_or_none(lambda: check_file(path))
    if not packed:
        one_line_or_none(lambda: list(read_trace(path)))


# The command line


@FUZZ
@given(text=st.text(max_size=12) | st.from_regex(r"[0-9]{1,5}[/,:@][0-9a-z\[\]]{1,5}"))
@example(text="9" * 5000)
@example(text="9/1/" + "9" * 5000)
@example(text="999999/1/1000000")
@example(text="\u0663\u0663")
@example(text="http://u:p@h:1")
def test_any_text_of_an_option_is_read_or_refused(text: str) -> None:
    """The small languages of the options: shapes, lists of sizes, addresses, keys, times."""
    for parse in (
        lambda: parse_spec(text), lambda: whole_numbers("--requests", text),
        lambda: Address.of(text), lambda: Keys.of(text, None), lambda: seconds_of(text),
    ):  # fmt: skip
        one_line_or_none(parse)


@FUZZ
@given(content=st.binary(max_size=40) | JSON.map(lambda v: json.dumps({"turns": v}).encode()))
@example(content=b"[" * 100_000)
def test_any_file_of_prompts_is_read_or_refused(file: Path, content: bytes) -> None:
    """Lines of JSON with turns, or a line that names the one that is not."""
    file.write_bytes(content)
    one_line_or_none(lambda: first_turns(file))


COMMANDS = (
    ("status",), ("pin",), ("pin", "plain"), ("serve",), ("trace", "check"), ("bench", "plain"),
    ("bench", "switch"), ("bench", "graphs"), ("bench", "recovery"), ("bench", "acceptance"),
    ("model", "check"), ("model", "explain"), ("model", "sequences"), (),
)  # fmt: skip
OPTIONS = st.sampled_from(
    ["--url", "--for", "--api-key", "--json", "--requests", "--spec", "--model", "--gaps", "--most",
     "--blocks", "--iterations", "--server-arg", "--spec-fsm-disable-above", "--spec-fsm-config",
     "--timeout", "--longest", "--bounds", "--limit", "--profile", "--cycles", "--strategy"]
)  # fmt: skip
ARGUMENTS = st.lists(
    st.one_of(
        OPTIONS, st.text(max_size=8), st.integers().map(str),
        st.sampled_from(["[/red]", "-1", "nan", "1e400", "9" * 5000, "/dev/null", "--", "-", ""]),
    ),
    max_size=5,
)  # fmt: skip


class Reached(SpecFsmError):
    """A command got as far as its work: everything was parsed."""


@settings(FUZZ, max_examples=60)
@given(command=st.sampled_from(COMMANDS), arguments=ARGUMENTS)
def test_any_command_line_is_parsed_or_refused(
    command: tuple[str, ...], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 0 or 2, or an error of ours, which `main` prints as one line; never another."""
    stop_before_work(monkeypatch)
    result = CliRunner().invoke(cli.app, [*command, *arguments])
    if result.exception is None or isinstance(result.exception, SystemExit):
        assert result.exit_code in (0, 2), result.output
    else:
        assert isinstance(result.exception, SpecFsmError), repr(result.exception)
        assert str(result.exception).isprintable(), repr(result.exception)


def stop_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long or writes files is where a run ends."""
    from spec_fsm_model import cli as model_cli
    from spec_fsm_model import fault_cli
    from spec_fsm_sglang import client
    from spec_fsm_sglang.bench import acceptance, arms
    from spec_fsm_sglang.bench import cli as bench_cli

    def reached(*_: object, **__: object) -> None:
        raise Reached("parsed")

    for module, name in (
        (serve, "run"), (model_cli, "check"), (fault_cli, "lines"), (bench_cli, "pair_of"),
        (arms, "pair_of"), (acceptance, "_task"), (acceptance, "_run"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, reached)
    monkeypatch.setattr(client.Client, "_send", reached)
    for name in [name for name in os.environ if name.startswith("SPEC_FSM_API")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "plain", "--blocks", "100000000"),
        ("bench", "plain", "--requests", "100000000"),
        ("bench", "switch", "--cycles", "100000000"),
        ("bench", "switch", "--spec", "100000/1/100001"),
        ("bench", "graphs", "--requests", "100000000"),
        ("bench", "recovery", "--gaps", "100000000"),
        ("bench", "acceptance", "--max-new-tokens", "100000000"),
        ("model", "check", "--most", "1" + "0" * 30),
        ("model", "prove", "--timeout", "1" + "0" * 30),
        ("model", "sequences", "--out", "/dev/null", "--longest", "1" + "0" * 30),
        ("status", "--timeout", "1e9"),
        ("pin", "plain", "--for", "400d"),
        ("serve", "--spec-fsm-disable-above", "100000000"),
    ],
    ids=" ".join,
)
def test_every_number_of_an_option_has_an_upper_bound(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused before any work, with the accepted range."""
    stop_before_work(monkeypatch)
    result = CliRunner().invoke(cli.app, arguments)
    if isinstance(result.exception, SpecFsmError):
        assert not isinstance(result.exception, Reached)
        assert "accepted" in str(result.exception)
    else:
        assert result.exit_code == 2, result.output
        assert "less than or equal to" in " ".join(result.output.split("│")), result.output
