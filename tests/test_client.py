"""The client against servers that want keys, have replicas, or answer in any way at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import SetInternalStateReqOutput

from served import Served, send
from spec_fsm import Pin
from spec_fsm.errors import ConfigError
from spec_fsm_sglang import cli, client, operator_pin
from spec_fsm_sglang.address import Address, Keys, seconds_of

API, ADMIN = "api-key-5f3a", "admin-key-77c1"


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Served]]:
    """Starts servers with so many replicas, and ends them."""
    for name in [name for name in os.environ if name.startswith("SPEC_FSM_")]:
        monkeypatch.delenv(name)
    servers: list[Served] = []

    def start(replicas: int = 1) -> Served:
        servers.append(Served(replicas))
        return servers[-1]

    yield start
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> SimpleNamespace:
    """Runs the command in this process: exit code, standard output and error."""
    monkeypatch.setattr(sys, "argv", ["spec-fsm", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    text = capsys.readouterr()
    return SimpleNamespace(code=stop.value.code, out=text.out, err=text.err)


# Keys


@pytest.mark.parametrize("api", [None, API])
@pytest.mark.parametrize("admin", [None, ADMIN])
def test_each_endpoint_gets_the_key_that_sglang_wants(
    serving: Callable[[int], Served], api: str | None, admin: str | None
) -> None:
    """Whatever keys a server has: all of them are enough, and without one it is told which."""
    server = serving(1)
    server.api, server.admin = api, admin
    asked = client.Client.of(server.url, Keys(api, admin))
    (found,) = asked.replicas()
    assert found is not None
    asked.pin("plain")
    assert server.held() == ["PLAIN"]
    # Both keys given, though the server has only one of them, or none.
    both = client.Client.of(server.url, Keys(api or "other-1", admin or "other-2"))
    both.pin("spec")
    assert len(both.replicas()) == 1
    if api or admin:
        bare = client.Client.of(server.url)
        with pytest.raises(client.ServerProblem, match="answered 401: it wants the server's --"):
            bare.pin("plain")
        assert server.held() == ["SPEC"]


def test_the_admin_key_alone_is_enough_to_pin(serving: Callable[[int], Served]) -> None:
    """A server with both keys: its status wants the other one, and a pin can do without."""
    server = serving(2)
    server.api, server.admin = API, ADMIN
    asked = client.Client.of(server.url, Keys(admin=ADMIN))
    with pytest.raises(client.ServerProblem, match="wants the server's --api-key"):
        asked.replicas()
    asked.pin("plain")
    assert server.held() == ["PLAIN", "PLAIN"]
    server.refusing = {1}
    with pytest.raises(client.ServerProblem, match="1 of its 2 replicas refused"):
        asked.pin("spec")
    assert server.held() == ["PLAIN", "PLAIN"]


def test_a_key_comes_from_option_variable_or_file(
    serving: Callable[[int], Served],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Three ways to give a key; given twice it is refused, and it is printed in none of them."""
    server = serving(1)
    server.api, server.admin = API, ADMIN
    file = tmp_path / "key"
    file.write_text(f"{ADMIN}\n")
    asked = ("pin", "plain", "--url", server.url, "--api-key", API, "--json")
    runs = [command(monkeypatch, capsys, *asked, "--admin-api-key", ADMIN)]
    runs.append(command(monkeypatch, capsys, *asked, "--admin-api-key-file", str(file)))
    monkeypatch.setenv("SPEC_FSM_ADMIN_API_KEY", ADMIN)
    runs.append(command(monkeypatch, capsys, *asked))
    assert [run.code for run in runs] == [0, 0, 0], runs
    runs.append(command(monkeypatch, capsys, *asked, "--admin-api-key-file", str(file)))
    assert "both given" in runs[-1].err
    monkeypatch.setenv("SPEC_FSM_ADMIN_API_KEY", "wrong-key-9")
    server.api = "another"
    runs.append(command(monkeypatch, capsys, *asked))
    runs.append(command(monkeypatch, capsys, *asked, "--admin-api-key", "no key\n"))
    assert [run.code for run in runs[3:]] == [2, 2, 2]
    for run in runs:
        assert len(run.err.splitlines()) == (run.code == 2)
        assert not any(key in run.out + run.err for key in (API, ADMIN, "wrong-key-9", "no key\n"))


def test_a_key_shows_in_no_repr_and_no_error() -> None:
    """What holds a key does not print it, and a bad one is refused without naming it."""
    keys = Keys.of(API, ADMIN)
    assert API not in repr(keys)
    assert ADMIN not in repr(client.Client.of("http://x", keys))
    for bad in ("", "sp ace", "new\nline", "ümlaut", "x" * 5000):
        with pytest.raises(ConfigError) as caught:
            Keys.of(bad, None)
        assert "accepted are" in str(caught.value)
        assert not bad or bad not in str(caught.value)


def test_a_key_on_the_command_line_is_hidden_while_the_command_runs() -> None:
    """Other users read `/proc/PID/cmdline`: it holds no key once the command has begun."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        arguments = ["status", "--url", url, "--api-key", API, "--timeout", "60"]
        process = subprocess.Popen([sys.executable, "-m", "spec_fsm_sglang.cli", *arguments])
        try:
            listening.settimeout(100)
            listening.accept()[0].close()
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        finally:
            process.kill()
            process.wait()
    assert API.encode() not in shown


# Addresses


@pytest.mark.parametrize(
    "url",
    [
        "", "127.0.0.1:30000", "http://", "http:///x", "ftp://host", "unix:///run/s.sock",
        "http://[::1", "http://host:99999", "http://host:0", "http://host:x", "http://a b",
        "http://\x1b[31mred", "http://h\n", "http://ho st:80", "https://host?token=s3cret-word",
        "http://host#s3cret-word", "http://u:s3cret-word@[::1", "http://s3cret-word:@@:80@host:x",
        "http://u:s3cret-word@host:99999", "u:s3cret-word@host", "http://" + "h" * 5000, "http://\udcff",
    ],
)  # fmt: skip
def test_a_bad_address_is_one_line_without_its_password(url: str) -> None:
    """What is no address is a ConfigError that names the accepted ones, and no secret in it."""
    with pytest.raises(ConfigError) as caught:
        Address.of(url)
    message = str(caught.value)
    assert "accepted are http://HOST[:PORT]" in message
    assert "s3cret" not in message
    assert message.isprintable()
    assert len(message) < 300


def test_a_password_in_the_address_is_used_and_not_printed(
    serving: Callable[[int], Served],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """User and password go into the header; every output names the address without them."""
    server = serving(1)
    seen: list[str] = []

    def note(handler: Any) -> None:
        seen.append(handler.headers.get("Authorization"))
        send(handler, 200, json.dumps(server.info()))

    server.raw = note
    address = server.url.replace("//", "//operator:s3cret-word@")
    runs = [command(monkeypatch, capsys, "status", "--url", address)]
    assert seen == ["Basic b3BlcmF0b3I6czNjcmV0LXdvcmQ="]
    runs.append(command(monkeypatch, capsys, "status", "--url", address, "--api-key", API))
    dead = f"http://operator:s3cret-word@127.0.0.1:{closed_port()}"
    runs.append(command(monkeypatch, capsys, "pin", "auto", "--url", dead))
    assert [run.code for run in runs] == [0, 2, 2], runs
    for run in runs:
        assert "s3cret" not in run.out + run.err
        assert "operator" not in run.out + run.err


def closed_port() -> int:
    """A port at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_ipv6_address_reaches_its_server() -> None:
    """Brackets, as in every other client."""
    assert Address.of("http://[::1]:30000").url == "http://[::1]:30000"
    with pytest.raises(client.ServerProblem, match=r"no answer from http://\[::1\]:1"):
        client.status("http://[::1]:1")


@pytest.mark.parametrize("text", ["", "10", "0s", "-1m", "1.5h", "31d", "9999999999s", "m", "1m\n"])
def test_a_bad_time_to_live_names_the_accepted(text: str) -> None:
    """`--for` takes a whole number and a unit, up to 30 days."""
    assert [seconds_of(good) for good in ("30s", "10m", "2h", "30d")] == [30, 600, 7200, 2592000]
    with pytest.raises(ConfigError, match="accepted are times as 30s, 10m, 2h, 1d, up to 30d"):
        seconds_of(text)


# Answers


def dripping(handler: Any) -> None:
    """A header byte at a time: each read ends in time, all of them never do."""
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 20:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.05)


def huge(handler: Any) -> None:
    """More than anybody wants to read."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(40):
        handler.wfile.write(b" " * (1 << 20))


STATUS = '{"internal_states": [{"spec_fsm": %s}]}'
ANSWERS: dict[str, Callable[[Any], None]] = {
    "empty": lambda h: send(h, 200, ""),
    "html": lambda h: send(h, 200, "<html>[red]no[/red]</html>"),
    "binary": lambda h: send(h, 200, bytes(range(256))),
    "cut": lambda h: send(h, 200, '{"internal_states": [{'),
    "list": lambda h: send(h, 200, "[[]]"),
    "number": lambda h: send(h, 200, "5"),
    "null": lambda h: send(h, 200, "null"),
    "string": lambda h: send(h, 200, '"x"'),
    "no key": lambda h: send(h, 200, '{"other": []}'),
    "no replica": lambda h: send(h, 200, '{"internal_states": []}'),
    "strange replica": lambda h: send(h, 200, '{"internal_states": [5]}'),
    "strange status": lambda h: send(h, 200, STATUS % "[1]"),
    "deep": lambda h: send(h, 200, "[" * 200_000),
    "deep value": lambda h: send(h, 200, STATUS % ("{\"a\":" * 50_000)),
    "nan": lambda h: send(h, 200, STATUS % '{"a": NaN}'),
    "huge": huge,
    "redirect": lambda h: send(h, 307, "", Location="http://127.0.0.1:1/s3cret-word"),
    "moved": lambda h: send(h, 301, "", Location="ftp://[broken"),
    "unauthorized": lambda h: send(h, 401, "{}"),
    "forbidden": lambda h: send(h, 403, "{}"),
    "missing": lambda h: send(h, 404, "[bold]gone[/bold]"),
    "failing": lambda h: send(h, 500, "Traceback"),
    "no content": lambda h: send(h, 204, ""),
    "no http": lambda h: h.wfile.write(b"SSH-2.0-OpenSSH\r\n"),
    "bad length": lambda h: send(h, 200, "{}", Content_Length="many"),
    "short": lambda h: send(h, 200, "{}", Content_Length="100"),
    "closed": lambda h: h.connection.close(),
    "packed": lambda h: send(h, 200, b"\x1f\x8b" + bytes(100), Content_Encoding="gzip"),
    "silent": lambda h: time.sleep(1.0),
    "dripping": dripping,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_any_other_answer_is_one_line_and_exit_2(
    name: str,
    serving: Callable[[int], Served],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Status and pin, whatever a server sends: one printable line that names it, exit code 2."""
    server = serving(1)
    server.raw = ANSWERS[name]
    for arguments in (("status",), ("pin", "plain")):
        run = command(
            monkeypatch, capsys, *arguments, "--url", server.url, "--timeout", "0.4",
            "--api-key", API, "--json",
        )  # fmt: skip
        assert (run.code, run.out) == (2, ""), run
        (line,) = run.err.splitlines()
        assert server.url in line
        assert line.isprintable()
        assert len(line) < 600
        assert API not in line
        assert "s3cret" not in line


def test_values_are_printed_as_they_are(
    serving: Callable[[int], Served],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No markup, no emoji code and no escape sequence of a server reaches the terminal."""
    server = serving(1)
    odd = {"mode": "[red]PLAIN[/red]", "[/]": ":smile:", "bell": "\x1b]0;x\x07", "n": {"[b]": [1]}}
    server.raw = lambda handler: send(
        handler, 200, json.dumps({"internal_states": [{"spec_fsm": odd}]})
    )
    run = command(monkeypatch, capsys, "status", "--url", server.url)
    assert run.code == 0, run
    for text in ("[red]PLAIN[/red]", "[/]", ":smile:", r"\x1b]0;x", "[b] [1]"):
        assert text in run.out
    assert "\x1b" not in run.out


# Replicas


def test_status_shows_every_replica(
    serving: Callable[[int], Served],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of them by their number; one that runs without the plugin is shown and told, exit 2."""
    server = serving(3)
    run = command(monkeypatch, capsys, "status", "--url", server.url, "--json")
    found = json.loads(run.out.splitlines()[-1])["replicas"]
    assert (run.code, [replica["replica"] for replica in found]) == (0, [0, 1, 2])
    server.pins[1] = None
    run = command(monkeypatch, capsys, "status", "--url", server.url)
    assert run.code == 2
    assert "off" in run.out
    assert "1 of the 3 replicas" in run.err
    with pytest.raises(client.ServerProblem, match="has 3 replicas, not one"):
        client.status(server.url)


@pytest.mark.parametrize("refusing", [{0}, {2}, {0, 1}, {0, 1, 2}])
def test_a_pin_is_taken_by_all_or_by_none(
    serving: Callable[[int], Served], refusing: set[int]
) -> None:
    """Where one replica refuses, the others hold what they held before, each with its time."""
    server = serving(3)
    client.pin(server.url, "plain", seconds=500)
    assert server.held() == ["PLAIN"] * 3
    server.pins[2] = operator_pin.OperatorPin(Pin.SPEC)
    server.refusing = refusing
    names = ", ".join(map(str, sorted(refusing)))
    with pytest.raises(client.ServerProblem) as caught:
        client.pin(server.url, "auto")
    assert f"{len(refusing)} of its 3 replicas refused ({names})" in str(caught.value)
    assert server.held() == ["PLAIN", "PLAIN", "SPEC"]
    first = server.pins[0]
    assert first is not None
    assert first.left is not None
    assert 490 < first.left <= 500
    server.refusing = set()
    client.pin(server.url, "auto")
    assert server.held() == ["AUTO"] * 3


def test_a_replica_without_the_plugin_is_named_and_no_other_is_pinned(
    serving: Callable[[int], Served],
) -> None:
    """A pin that one replica cannot take is not sent to the others."""
    server = serving(3)
    server.pins[1] = None
    with pytest.raises(client.ServerProblem, match=r"1 of its 3 replicas run without .*\(1\)"):
        client.pin(server.url, "plain")
    assert (server.posts, server.held()) == ([], ["AUTO", None, "AUTO"])


def test_a_time_to_live_reaches_the_server_and_its_status(
    serving: Callable[[int], Served],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--for 10m` is counted by the server; the status says what is left and what comes after."""
    server = serving(1)
    run = command(monkeypatch, capsys, "pin", "plain", "--for", "10m", "--url", server.url)
    assert (run.code, run.out) == (0, f"{server.url}: pinned plain for 10m\n")
    assert server.posts == [{"server_args": {"spec_fsm_pin": 2, "spec_fsm_pin_for": 600.0}}]
    found = client.status(server.url)
    assert 590 < found["pin_left_s"] <= 600
    assert (found["pin"], found["pin_after"]) == ("PLAIN", "AUTO")


def test_sglang_output_has_what_the_server_side_reads() -> None:
    """The answer's field in SGLang's own struct."""
    assert SetInternalStateReqOutput(updated=True).updated is True
