"""How the start of a server ends that was to be on and cannot be: one line, and an exit code."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import sglang.srt.utils
from sglang.srt import runtime_context

from spec_fsm_sglang import in_force, running_cap, start
from spec_fsm_sglang.start import LATE, REFUSED, UNDECIDED

COMMANDS = ("/bin/sglang", "/bin/spec-fsm")


class Ended(BaseException):
    """What `os._exit` and `os.execve` are replaced by."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would have ended this process, in order."""
    told: list[Any] = []

    def end(*how: Any) -> None:
        told.append(how)
        raise Ended

    monkeypatch.setattr(os, "_exit", lambda code: end("exit", code))
    monkeypatch.setattr(os, "execve", lambda *how: end("execve", *how))
    monkeypatch.setattr(
        sglang.srt.utils, "kill_process_tree", lambda pid, **how: told.append(("kill", pid, how))
    )
    monkeypatch.setattr(sys, "argv", ["/bin/sglang", "serve"])
    monkeypatch.delenv("SPEC_FSM_CONFIG", raising=False)
    return told


def kill() -> tuple[str, int, dict[str, bool]]:
    """The children of this process, and not itself."""
    return "kill", os.getpid(), {"include_parent": False}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_ends_its_children_and_itself(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """With or without a configuration that says `exit`."""
    monkeypatch.setattr(sys, "argv", [command])
    for config in (None, '{"disable_above": 3}'):
        if config is not None:
            monkeypatch.setenv("SPEC_FSM_CONFIG", config)
        ends.clear()
        with pytest.raises(Ended):
            start.end_start()
        assert ends == [kill(), ("exit", REFUSED)]


def test_a_module_is_a_command_too(ends: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m sglang.launch_server` is known by its module; a program of somebody's is none,
    and gets SystemExit, whatever is configured."""
    monkeypatch.setattr(sys, "argv", ["/bin/program.py"])
    monkeypatch.setenv("SPEC_FSM_CONFIG", '{"disable_above": 3, "late_refusal": "restart"}')
    main: Any = SimpleNamespace(__spec__=SimpleNamespace(name="sglang.launch_server"))
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(Ended):
        start.end_start()
    ends.clear()
    for spec in (SimpleNamespace(name="program"), None):
        main.__spec__ = spec
        with pytest.raises(SystemExit) as caught:
            start.end_start()
        assert caught.value.code == REFUSED
    assert ends == []


def test_a_restart_is_the_same_command_without_the_plugin(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interpreter's own arguments, our flags after them, and the environment as it was when
    the plugin was loaded, without its configuration."""
    monkeypatch.setenv("SPEC_FSM_CONFIG", '{"disable_above": 3, "late_refusal": "restart"}')
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "sglang.launch_server", "--port", "1"])
    monkeypatch.setattr(start, "RESTART_FLAGS", ["--off"])
    monkeypatch.setattr(start, "_environment", {"PATH": "/bin"})
    with pytest.raises(Ended):
        start.end_start()
    command = [sys.executable, "-m", "sglang.launch_server", "--port", "1", "--off"]
    assert ends == [kill(), ("execve", sys.executable, command, {"PATH": "/bin"})]
    assert capsys.readouterr().err == "spec-fsm: starting again without the plugin\n"


@pytest.mark.parametrize("role", ["tokenizer", "scheduler", None])
def test_a_refusal_ends_the_process_that_starts_the_others(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    role: str | None,
) -> None:  # fmt: skip
    """A scheduler only tells it, by its exit code."""
    monkeypatch.setattr(runtime_context, "publish_role", lambda: role)
    with pytest.raises((Ended, SystemExit)) as caught:
        start.refuse_late("no such thing")
    assert capsys.readouterr().err == "spec-fsm: refused at start: no such thing\n"
    if role == "tokenizer":
        assert ends == [kill(), ("exit", REFUSED)]
    else:
        assert isinstance(caught.value, SystemExit)
        assert (caught.value.code, ends) == (LATE, [])


def waited(infos: list[dict[str, Any]] | Exception, *exit_codes: int | None) -> Any:
    """What the wait for schedulers of these exit codes comes to."""

    def original(readers: list[Any], procs: list[Any]) -> list[dict[str, Any]]:
        assert readers == ["reader"]
        if isinstance(infos, Exception):
            raise infos
        return infos

    procs = [SimpleNamespace(exitcode=code) for code in exit_codes]
    return start.wait_for_schedulers(original, ["reader"], procs)


def test_a_scheduler_that_refused_ends_the_start_and_one_that_died_raises(ends: list[Any]) -> None:
    """SGLang's own error stays where no scheduler refused."""
    with pytest.raises(Ended):
        waited(RuntimeError("died"), None, LATE)
    ends.clear()
    with pytest.raises(RuntimeError, match="died"):
        waited(RuntimeError("died"), None, 1)
    assert ends == []


def test_a_scheduler_without_the_plugin_ends_the_start(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or none: but one answer for several replicas says nothing of the others. What a
    scheduler told for this is no part of the answer."""
    monkeypatch.setattr(runtime_context, "publish_role", lambda: "tokenizer")
    assert waited([{"a": 1, "spec_fsm": True}, {"spec_fsm": True}], None, None) == [{"a": 1}, {}]
    assert waited([{"a": 1}], None, None) == [{"a": 1}]
    assert ends == []
    with pytest.raises(Ended):
        waited([{"spec_fsm": True}, {}], None, None)
    assert ends[-1] == ("exit", REFUSED)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ready_scheduler_tells_its_cap_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: int
) -> None:
    """The first rank says it; each tells that it is on; one without our worker says nothing."""
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: SimpleNamespace(tp_rank=rank))
    worker = SimpleNamespace(spec_fsm=SimpleNamespace(disable_above=3))
    scheduler = SimpleNamespace(model_worker=worker, max_running_requests=8)
    assert start.init_info({"a": 1}, scheduler) == {"a": 1, "spec_fsm": True}
    line = "spec-fsm: speculation stops above 3 of at most 8 requests\n"
    assert capsys.readouterr().err == (line if rank == 0 else "")
    worker.spec_fsm = None  # type: ignore[assignment]
    assert start.init_info({"a": 1}, scheduler) == {"a": 1}
    assert start.init_info({"a": 1}, SimpleNamespace(model_worker=None)) == {"a": 1}


def test_a_threshold_the_cap_never_reaches_is_refused(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a scheduler that is ready knows the cap."""
    monkeypatch.setattr(runtime_context, "publish_role", lambda: "scheduler")
    worker = SimpleNamespace(spec_fsm=SimpleNamespace(disable_above=3))
    assert running_cap.problem(3, 3) is not None
    with pytest.raises(SystemExit) as caught:
        start.init_info({}, SimpleNamespace(model_worker=worker, max_running_requests=3))
    assert caught.value.code == LATE


@pytest.mark.parametrize("refusal", [None, "too old", "undecided"])
@pytest.mark.parametrize("role", ["scheduler", "tokenizer", "detokenizer"])
def test_hooks_are_put_where_the_server_is_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, role: str,
    refusal: str | None,
) -> None:  # fmt: skip
    """In processes of the two roles that have hooks; where nobody decided, the server is off and
    that is said once."""
    put: list[Any] = []
    monkeypatch.setattr(in_force, "put", put.extend)
    monkeypatch.setattr(in_force, "missing", lambda hooks: None)
    monkeypatch.delenv("SPEC_FSM_STRICT", raising=False)
    server_args = SimpleNamespace(tokenizer_worker_num=2)
    if refusal != "undecided":
        server_args._spec_fsm_refusal = refusal  # type: ignore[attr-defined]
    for _ in range(2):
        start.published(None, None, server_args, role=role)
    on = refusal is None and role != "detokenizer"
    assert put == (2 * list(start.hooks_of(role)) if on else [])
    assert caplog.text.count(UNDECIDED) == (refusal == "undecided")
    assert start.refusal_of(server_args) == (UNDECIDED if refusal == "undecided" else refusal)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\nsecond"), "ValueError: first"),
        (KeyError(), "KeyError: "),
        (ValueError("\n\n"), "ValueError: "),
        (ValueError("\n kept\n"), "ValueError: kept"),
    ],
)
def test_a_hook_that_cannot_be_put_in_force_ends_the_start(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    error: Exception, line: str,
) -> None:  # fmt: skip
    """With the first line of what is wrong; and so does one that is not in force afterwards."""

    def fail(_hooks: Any) -> None:
        raise error

    monkeypatch.setattr(runtime_context, "publish_role", lambda: "scheduler")
    monkeypatch.setattr(in_force, "put", fail)
    on = SimpleNamespace(_spec_fsm_refusal=None, tokenizer_worker_num=1)
    refused = "spec-fsm: refused at start:"
    with pytest.raises(SystemExit):
        start.published(None, None, on, role="scheduler")
    told = capsys.readouterr().err
    assert told == f"{refused} a hook cannot be put in force: {line}\n"
    monkeypatch.setattr(in_force, "put", lambda _hooks: None)
    monkeypatch.setattr(in_force, "missing", lambda _hooks: "gone")
    with pytest.raises(SystemExit):
        start.published(None, None, on, role="scheduler")
    assert capsys.readouterr().err == f"{refused} gone\n"


@pytest.mark.parametrize("refusal", [None, "too old"])
def test_the_worker_is_ours_on_a_server_that_is_on(
    monkeypatch: pytest.MonkeyPatch, refusal: str | None
) -> None:
    """Another one than SGLang's own is refused there, and left alone where the plugin is off."""
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

    from spec_fsm_sglang.worker import SpecFsmEagleWorker

    monkeypatch.setattr(runtime_context, "publish_role", lambda: "scheduler")
    server_args = SimpleNamespace(_spec_fsm_refusal=refusal)

    class Other:
        """A worker of a platform's."""

    def chosen(worker: type) -> Any:
        return start.create_worker(lambda *_: worker, "EAGLE", server_args)

    assert chosen(EAGLEWorkerV2) is (SpecFsmEagleWorker if refusal is None else EAGLEWorkerV2)
    if refusal is None:
        with pytest.raises(SystemExit):
            chosen(Other)
    else:
        assert chosen(Other) is Other
