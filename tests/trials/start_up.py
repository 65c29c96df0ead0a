"""Real servers on the CPU, started in the ways that change processes or the order of a start.

    PYTHONPATH=tests python -m trials.start_up [NAME...]

Each trial starts one server on the tiny pair and looks at what it says and does; the last line is
`start-up: N trials, N hold`. About half a minute each on two cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from spec_fsm_sglang.cpu_ops import server as cpu_server
from spec_fsm_sglang.demo.server import _free_port, end_with_parent
from spec_fsm_sglang.tiny import write_pair

SITE = Path(__file__).resolve().parent / "late_site"
OURS = [sys.executable, "-W", "ignore", "-m", "spec_fsm_sglang.cli", "serve"]
THEIRS = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
ON = "speculation stops above 3 of at most"
OFF = "spec-fsm: off, the server runs as SGLang would: "
TRIALS: dict[str, Callable[[Path], None]] = {}


class Failed(Exception):
    """A server did not do what the trial expects."""


def trial(function: Callable[[Path], None]) -> Callable[[Path], None]:
    """Makes `function` a trial under its own name."""
    TRIALS[function.__name__] = function
    return function


def expect(holds: bool, what: object) -> None:
    """Raises Failed unless it holds."""
    if not holds:
        raise Failed(str(what)[-3000:])


def flags(folder: Path) -> list[str]:
    """SGLang's flags for a server on the tiny pair."""
    pair = write_pair(folder / "pair")
    return [
        "--model-path", str(pair.target), "--speculative-draft-model-path", str(pair.eagle3),
        "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2",
        "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16",
        "--dtype", "float32", "--skip-tokenizer-init", "--max-total-tokens", "16384",
        "--mem-fraction-static", "0.3", "--host", "127.0.0.1",
    ]  # fmt: skip


def environment(config: dict[str, Any] | None = None, **more: str) -> dict[str, str]:
    """This process's, with the stand-ins on the path as a server by environment alone wants it."""
    environ = os.environ | {"OMP_NUM_THREADS": "1"} | more
    environ.pop("SPEC_FSM_CONFIG", None)
    environ.pop("SPEC_FSM_STRICT", None)
    if config is not None:
        environ["SPEC_FSM_CONFIG"] = json.dumps(config)
    return environ


class Server:
    """A started process: its address, its log and its exit code."""

    def __init__(self, folder: Path, command: list[str], environ: dict[str, str]) -> None:
        self.port, self.log = _free_port(), folder / "log"
        self.url = f"http://127.0.0.1:{self.port}"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=output, stderr=subprocess.STDOUT, env=environ, start_new_session=True,
                preexec_fn=end_with_parent,
            )  # fmt: skip

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def get(self, path: str, **kw: Any) -> Any:
        """The JSON of a GET."""
        reply = httpx.get(self.url + path, timeout=60, **kw)
        expect(reply.status_code == 200, f"{path}: {reply.status_code} {reply.text}")
        return reply.json()

    def generate(self, **kw: Any) -> dict[str, Any]:
        """The meta information of one answer of 24 tokens."""
        body = {
            "input_ids": [5, 6, 7, 11],
            "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True},
        }
        reply = httpx.post(f"{self.url}/generate", json=body, timeout=120, **kw)
        expect(reply.status_code == 200, f"generate: {reply.status_code} {reply.text}")
        meta: dict[str, Any] = reply.json()["meta_info"]
        return meta

    def state(self, **kw: Any) -> dict[str, Any]:
        """Its scheduler's internal state."""
        state: dict[str, Any] = self.get("/server_info", **kw)["internal_states"][0]
        return state

    def wait(self, most: float = 300) -> None:
        """Until it answers that it is healthy."""
        deadline = time.monotonic() + most
        while time.monotonic() < deadline:
            expect(self.process.poll() is None, f"it ended: {self.text}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=10).status_code == 200:
                    return
            time.sleep(0.5)
        raise Failed(f"no answer: {self.text[-3000:]}")

    def ended(self, most: float = 300) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(most)


@contextmanager
def started(folder: Path, command: list[str], environ: dict[str, str]) -> Iterator[Server]:
    """A server for as long as the block lasts; whatever is left of it is killed."""
    server = Server(folder, command, environ)
    try:
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def on(server: Server, **kw: Any) -> None:
    """The server is on, with a cap that is not SGLang's, and answers."""
    server.wait()
    expect(ON in server.text, server.text)
    expect(OFF not in server.text, server.text)
    meta = server.generate(**kw)
    expect(meta["completion_tokens"] == 24, meta)
    state = server.state(**kw)
    expect(state["effective_max_running_requests_per_dp"] > 48, "the cap is SGLang's")
    expect(state["spec_fsm"]["mode"] == "SPEC", state["spec_fsm"])


SERVE = [*OURS, "--spec-fsm-disable-above", "3"]


@trial
def no_warm_ups_keys_metrics_and_a_name(folder: Path) -> None:
    """Warm-ups off, both keys, metrics, another model name."""
    more = ["--skip-server-warmup", "--api-key", "user", "--admin-api-key", "admin",
            "--enable-metrics", "--served-model-name", "another"]  # fmt: skip
    with started(folder, [*SERVE, *flags(folder), *more], environment()) as server:
        key = {"headers": {"Authorization": "Bearer user"}}
        on(server, **key)
        names = [model["id"] for model in server.get("/v1/models", **key)["data"]]
        expect(names == ["another"], names)
        expect("sglang" in httpx.get(f"{server.url}/metrics", timeout=60).text, "no metrics")
        # SGLang's own call to itself may come before it listens; it says so with a traceback.
        expect("AttributeError" not in server.text, server.text)


@trial
def several_tokenizers_and_detokenizers(folder: Path) -> None:
    """Two of each; the client's accept length is corrected in the workers, too."""
    more = ["--tokenizer-worker-num", "2", "--detokenizer-worker-num", "2"]
    with started(folder, [*SERVE, *flags(folder), *more], environment()) as server:
        on(server)
        pin = {"server_args": {"spec_fsm_pin": 2}}
        reply = httpx.post(f"{server.url}/set_internal_state", json=pin, timeout=60)
        expect(reply.status_code == 200, reply.text)
        meta = server.generate()
        expect(server.state()["spec_fsm"]["mode"] == "PLAIN", "the pin did nothing")
        expect(not meta.get("spec_verify_ct"), meta)
        expect("Traceback" not in server.text, server.text)


def told(command: str, *words: str, server: Server) -> str:
    """What `spec-fsm` prints for a command about `server`, which has to succeed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "spec_fsm_sglang.cli", command, *words,
         "--url", server.url, "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    expect(done.returncode == 0, done.stdout + done.stderr)
    return done.stdout


@trial
def two_replicas(folder: Path) -> None:
    """Data parallel: the status shows both schedulers, and a pin is taken by both."""
    with started(folder, [*SERVE, *flags(folder), "--dp-size", "2"], environment()) as server:
        on(server)
        for pin, mode in (("plain", "PLAIN"), ("spec", "SPEC")):
            told("pin", pin, server=server)
            for _ in range(4):
                expect(server.generate()["completion_tokens"] == 24, "an answer is cut")
            replicas = json.loads(told("status", server=server))["replicas"]
            expect([r["replica"] for r in replicas] == [0, 1], replicas)
            expect([r["pin"] for r in replicas] == [mode, mode], replicas)
            expect([r["mode"] for r in replicas] == [mode, mode], replicas)
            expect(not any(r["violations"] for r in replicas), replicas)


def by_environment(folder: Path) -> tuple[list[str], dict[str, str]]:
    """SGLang's own command on the CPU operators."""
    cpu_server.prepare()
    environ = environment({"disable_above": 3}, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    return [*THEIRS, *cpu_server.as_flags([]), *flags(folder)], environ


@trial
def sglangs_own_command(folder: Path) -> None:
    """`python -m sglang.launch_server` with the configuration in the environment."""
    command, environ = by_environment(folder)
    with started(folder, command, environ) as server:
        on(server)


@trial
def a_refused_option(folder: Path) -> None:
    """Off: SGLang's cap, no state of ours, one line, and it speculates."""
    command, environ = by_environment(folder)
    with started(folder, [*command, "--enable-streaming-session"], environ) as server:
        server.wait()
        expect(server.text.count("spec-fsm: ") == 1, server.text)
        expect(f"{OFF}--enable-streaming-session is not supported yet" in server.text, server.text)
        state = server.state()
        expect(state["effective_max_running_requests_per_dp"] == 48, "the cap is lifted")
        expect("spec_fsm" not in state, state)
        expect(server.generate()["spec_verify_ct"] < 24, "it does not speculate")


def late(config: dict[str, Any]) -> dict[str, str]:
    """An environment in which a loaded model turns out not to be supported."""
    path = os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")])
    return environment(config, PYTHONPATH=path, SPEC_FSM_LATE="1")


@trial
def refused_late(folder: Path) -> None:
    """A scheduler that finds the model unsupported ends both ways in: one line, exit code 2."""
    for command in (SERVE, by_environment(folder / "env")[0]):
        ours = command is SERVE
        where = folder / ("ours" if ours else "theirs")
        where.mkdir()
        environ = late({"disable_above": 3})
        more = flags(where) if ours else []
        with started(where, [*command, *more], environ) as server:
            expect(server.ended() == 2, f"exit code {server.process.returncode}: {server.text}")
            expect("spec-fsm: refused at start: the trial does not" in server.text, server.text)
            expect("Traceback" not in server.text, server.text)


@trial
def refused_late_and_started_again(folder: Path) -> None:
    """With `late_refusal = "restart"` the same command serves without the plugin."""
    config = folder / "c.toml"
    config.write_text('disable_above = 3\nlate_refusal = "restart"\n')
    command = [*OURS, "--spec-fsm-config", str(config), *flags(folder)]
    with started(folder, command, late({"disable_above": 3})) as server:
        server.wait()
        expect("spec-fsm: starting again without the plugin" in server.text, server.text)
        state = server.state()
        expect(state["effective_max_running_requests_per_dp"] == 48, "the cap is lifted")
        expect("spec_fsm" not in state, state)


@trial
def a_configuration_file_of_sglangs(folder: Path) -> None:
    """A cap in SGLang's `--config` file counts: a threshold above it is one line, exit code 2."""
    file = folder / "sglang.yaml"
    file.write_text("max-running-requests: 3\n")
    command = [*SERVE, *flags(folder), "--config", str(file)]
    with started(folder, command, environment()) as server:
        expect(server.ended() == 2, server.text)
        expect("the server runs at most 3 requests at once" in server.text, server.text)


ENGINE = """
import json, sys
from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.cpu_ops import server

if __name__ == "__main__":
    server.prepare()
    import sglang

    engine = sglang.Engine(**json.loads(sys.argv[1]), **server.as_fields())
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    print(engine.generate(input_ids=[5, 6, 7], sampling_params=sampling)["meta_info"])
    state = engine.get_server_info()["internal_states"][0]
    print("mode", state["spec_fsm"]["mode"], state["effective_max_running_requests_per_dp"])
    engine.shutdown()
"""


@trial
def sglangs_engine(folder: Path) -> None:
    """`sglang.Engine` in a program, with the configuration in the environment."""
    pair = write_pair(folder / "pair")
    arguments = {
        "model_path": str(pair.target), "speculative_draft_model_path": str(pair.eagle3),
        "speculative_algorithm": "EAGLE3", "speculative_num_steps": 2, "dtype": "float32",
        "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16, "max_total_tokens": 16384,
        "skip_tokenizer_init": True, "mem_fraction_static": 0.3,
    }  # fmt: skip
    script = folder / "program.py"
    script.write_text(ENGINE)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), json.dumps(arguments)],
        env=environment({"disable_above": 3}), capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    expect("mode SPEC 2048" in done.stdout, done.stdout + done.stderr)
    expect(ON in done.stderr, done.stderr)


def main() -> None:
    """Runs the trials that are named, or all; exit code 1 if one fails."""
    names, held = sys.argv[1:] or list(TRIALS), 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                TRIALS[name](Path(folder))
            except Failed as failure:
                print(f"{name} FAILED: {failure}", flush=True)
                continue
            held += 1
            print(f"{name} holds, {time.monotonic() - began:.0f} s", flush=True)
    print(f"start-up: {len(names)} trials, {held} hold")
    sys.exit(held < len(names))


if __name__ == "__main__":
    main()
