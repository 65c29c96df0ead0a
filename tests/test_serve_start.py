"""What `spec-fsm serve` refuses before a model is loaded, besides what the command line tells."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from spec_fsm.errors import ConfigError
from spec_fsm_sglang import running_cap, serve, stash_size
from spec_fsm_sglang.config import Config


def cfg(port: int, *, reuse: bool = False) -> SimpleNamespace:
    """Resolved arguments, as far as they are asked for."""
    return SimpleNamespace(
        host="127.0.0.1", port=port, enable_http_worker_reuseport=reuse, max_running_requests=None
    )


def test_a_port_in_use_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang would bind it after loading its models; a free one, or one to share, is no problem."""
    monkeypatch.setattr(serve, "_cfg", lambda arguments: arguments)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve.port_problem(cfg(port)) == f"--port is {port}: it is in use on 127.0.0.1"
        assert serve.port_problem(cfg(port, reuse=True)) is None
    assert serve.port_problem(cfg(port)) is None


@pytest.mark.parametrize(
    ("module", "check"),
    [(running_cap, "problem"), (stash_size, "early_problem"), (serve, "port_problem")],
)
def test_every_check_of_the_settings_is_asked(
    module: object, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever one of them says ends the start: none is left out."""
    monkeypatch.setattr(serve, "_cfg", lambda arguments: arguments)
    for other, name in ((running_cap, "problem"), (stash_size, "early_problem")):
        monkeypatch.setattr(other, name, lambda *_: None)
    monkeypatch.setattr(serve, "port_problem", lambda *_: None)
    serve.check_settings(Config(disable_above=3), cfg(1))
    monkeypatch.setattr(module, check, lambda *_: "it does not fit")
    with pytest.raises(ConfigError, match="it does not fit"):
        serve.check_settings(Config(disable_above=3), cfg(1))
