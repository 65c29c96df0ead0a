"""The real HTTP server while everything goes wrong at once: nothing is lost, and it ends cleanly.

Three servers on the tiny pair, one after the other. The mode is pinned to and fro every few
hundred milliseconds; clients leave, cancel and send rubbish; rebuilds fail; SIGTERM and a fatal
error strike in the middle of a switch (`chaos_site/` aims them). Every request that was accepted
ends with the model's own greedy tokens, computed without any server, or with an error that says
what happened.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch

from chaos_site import spec_fsm_chaos as chaos
from spec_fsm_sglang import client
from spec_fsm_sglang.demo.server import Server, running, tail
from spec_fsm_sglang.reference import first_difference
from spec_fsm_sglang.tiny import TinyPair, write_pair

TESTS = Path(__file__).resolve().parent
POOL, CONTEXT, CHUNK = 4000, 1024, 48
SLICED = "flush_every = 0\nslice_tokens = 12\nstash_width = 200\nstash_share = 5\n"
"""The whole gap is rebuilt after the switch, in several slices."""
LONG, GAP = 240, 30
"""Tokens of a request that outlives a switch, and plain ones before it: far within the stash."""
EXIT_S = 40.0
"""SGLang looks every 5 s whether it shall stop, and every 5 s whether all requests are done."""


class Requests:
    """Sends requests to one server and keeps what became of each."""

    def __init__(self, server: Server, seed: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits)
        self.random = random.Random(seed)
        self.finished: list[tuple[list[int], list[int], int]] = []
        self.cut: list[tuple[list[int], list[int]]] = []
        self.refused: list[tuple[str, int, str]] = []
        self.left = 0

    def body(self, **changes: Any) -> dict[str, Any]:
        """A greedy request of random length."""
        prompt = [self.random.randrange(3, 500) for _ in range(self.random.randrange(3, 70))]
        sampling = {"temperature": 0, "ignore_eos": True,
                    "max_new_tokens": self.random.choice([1, 2, 7, 20, 40])}  # fmt: skip
        return {"input_ids": prompt, "sampling_params": sampling, **changes}

    def ended(self, body: dict[str, Any], reply: dict[str, Any]) -> None:
        """An answer: complete, or cut short by an abort that the answer owns up to."""
        reason = reply["meta_info"]["finish_reason"]
        if reason["type"] == "abort":
            self.cut.append((body["input_ids"], reply["output_ids"]))
        else:
            tokens = body["sampling_params"]["max_new_tokens"]
            self.finished.append((body["input_ids"], reply["output_ids"], tokens))

    async def waits(self, **changes: Any) -> None:
        """A client that waits for its answer."""
        body = self.body(**changes)
        reply = await self.http.post("/generate", json=body)
        assert reply.status_code == 200, reply.text
        self.ended(body, reply.json())

    async def pieces(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """What a client that streams reads, piece by piece."""
        async with self.http.stream("POST", "/generate", json={**body, "stream": True}) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield line.removeprefix("data: ")

    async def streams(self, leave_after: int | None = None) -> None:
        """A client that reads piece by piece, and may hang up after some pieces."""
        body, last, read = self.body(), "", 0
        async with aclosing(self.pieces(body)) as pieces:
            async for piece in pieces:
                last, read = piece, read + 1
                if read == leave_after:
                    self.left += 1
                    return
        self.ended(body, json.loads(last))

    async def gives_up(self, after: float) -> None:
        """A client that closes its connection before the answer."""
        with suppress(httpx.TimeoutException):
            await self.http.post("/generate", json=self.body(), timeout=after)
        self.left += 1

    def long(self) -> dict[str, Any]:
        """A request that is still running when it is cancelled."""
        body = self.body(rid=f"cancelled-{self.random.random()}")
        body["sampling_params"]["max_new_tokens"] = 200
        return body

    async def cancel(self, body: dict[str, Any]) -> None:
        """Has the request aborted; its client still waits."""
        reply = await self.http.post("/abort_request", json={"rid": body["rid"]})
        reply.raise_for_status()

    async def cancels(self, after: float) -> None:
        """A client that has its request aborted, and still reads the answer."""
        body = self.long()
        waiting = asyncio.create_task(self.http.post("/generate", json=body))
        await asyncio.sleep(after)
        await self.cancel(body)
        reply = await waiting
        if reply.status_code == 200:
            self.ended(body, reply.json())
        else:
            # Aborted while it waited for its turn.
            self.refused.append(("cancelled", reply.status_code, reply.text))

    async def cancels_midway(self) -> None:
        """A client that has its request aborted at its first tokens: an answer cut short."""
        body, last = self.long(), ""
        async for piece in self.pieces(body):
            if not last:
                await self.cancel(body)
            last = piece
        self.ended(body, json.loads(last))

    async def is_refused(self, what: str, content: bytes) -> None:
        """A request that cannot be served; the answer is kept."""
        headers = {"Content-Type": "application/json"}
        reply = await self.http.post("/generate", content=content, headers=headers)
        self.refused.append((what, reply.status_code, reply.text))

    def nonsense(self) -> list[Coroutine[Any, Any, None]]:
        """One of each request that no server should accept."""
        far = [5] * (CONTEXT + 100)
        bodies = {
            "oversized": self.body(input_ids=far),
            "sampling": {**self.body(), "sampling_params": {"top_p": 7}},
            "type": self.body(input_ids="five"),
            "empty": self.body(input_ids=[]),
            "nothing": {},
        }
        texts = {what: json.dumps(body).encode() for what, body in bodies.items()}
        texts |= {"json": b'{"input_ids": [5, 6', "bytes": b"\xff\xfe\x00"}
        return [self.is_refused(what, text) for what, text in texts.items()]

    def check(self, pair: TinyPair) -> None:
        """Complete answers are the model's own greedy ones; cut ones are the start of those."""
        # One row a forward: a second thread only waits for the core the server is using.
        torch.set_num_threads(1)
        for prompt, output, tokens in self.finished:
            assert len(output) == tokens
            assert first_difference(pair.target, prompt, output) is None
        for prompt, output in self.cut:
            assert first_difference(pair.target, prompt, output) is None
        for what, status, text in self.refused:
            assert 400 <= status < 500, (what, status, text)
            assert "error" in text or "message" in text, (what, text)


@contextmanager
def serving(
    folder: Path, pair: TinyPair, fsm: str, *more: str
) -> Iterator[tuple[Server, Path, Path]]:
    """A server on the tiny pair with overlap, strict ownership and the chaos plugin.

    Yields it, the file for orders and the log.
    """
    folder.mkdir()
    config, orders, log = folder / "spec-fsm.toml", folder / "orders", folder / "server.log"
    config.write_text(f"disable_above = 6\nenable_at = 4\ndwell = 3\nchecks = true\n{fsm}")
    flags = [
        "--model-path", str(pair.target), "--speculative-draft-model-path", str(pair.eagle3),
        "--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2",
        "--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "16",
        "--dtype", "float32", "--skip-tokenizer-init", "--max-total-tokens", str(POOL),
        "--context-length", str(CONTEXT), "--chunked-prefill-size", str(CHUNK),
        "--max-running-requests", "40", "--mem-fraction-static", "0.3",
        "--spec-fsm-cpu-overlap", "--spec-fsm-config", str(config), *more,
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(chaos.ENV_VAR, str(orders))
        patch.setenv("PYTHONPATH", str(TESTS / "chaos_site"), prepend=os.pathsep)
        with running(flags, log) as server:
            yield server, orders, log


async def flip(server: Server, seed: int, cycles: int, cycled: asyncio.Event) -> None:
    """A few random pins every few hundred milliseconds, then one whole cycle; for ever.

    A cycle holds its pins until PLAIN and then SPEC are there, however long that takes: a fast
    server is done with hundreds of requests within a few pins, and on a slow one hardly a switch
    ends between two. After `cycles` of them `cycled` is set.
    """
    chance = random.Random(seed)
    for done in itertools.count(1):
        for _ in range(4):
            mode = chance.choice(["auto", "spec", "spec", "plain", "plain"])
            await asyncio.to_thread(client.pin, server.url, mode)
            await asyncio.sleep(chance.uniform(0.15, 0.45))
        for mode in ("plain", "spec"):
            await asyncio.to_thread(client.pin, server.url, mode)
            while (await asyncio.to_thread(client.status, server.url))["mode"] != mode.upper():
                await asyncio.sleep(0.02)
        if done == cycles:
            cycled.set()


async def flipping(
    server: Server, requests: Requests, crowd: list[Coroutine[Any, Any, None]], cycles: int
) -> None:
    """Sends the whole `crowd` at once while the mode flips, and more requests up to `cycles`."""
    cycled = asyncio.Event()
    flipper = asyncio.create_task(flip(server, 3, cycles, cycled))
    try:
        await asyncio.gather(*crowd)
        while not cycled.is_set() and not flipper.done():
            await asyncio.gather(*(requests.waits() for _ in range(8)))
        assert not flipper.done(), flipper.exception()
    finally:
        flipper.cancel()
        with suppress(asyncio.CancelledError):
            await flipper


def assert_pool_is_whole(server: Server) -> None:
    """Nothing runs, no row is on the ledger, and every slot is free once the cache is emptied."""
    deadline = time.monotonic() + 20
    while (status := client.status(server.url))["rows"] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert status["rows"] == 0
    assert status["violations"] == 0
    state = client.internal_state(server.url)
    assert state["memory_usage"]["token_capacity"] == POOL
    httpx.post(f"{server.url}/flush_cache?timeout=20", timeout=60).raise_for_status()
    load = httpx.get(f"{server.url}/v1/loads", timeout=60).json()["loads"][0]
    busy = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
    assert {name: load[name] for name in busy} == dict.fromkeys(busy, 0)


def assert_ends(server: Server, processes: list[psutil.Process], code: int, log: Path) -> None:
    """The main process ends by itself with `code`, in time, and leaves no process behind."""
    assert server.process.wait(EXIT_S) == code, tail(log)
    _gone, alive = psutil.wait_procs(processes, timeout=10)
    assert not [process for process in alive if process.is_running()], alive


def family(server: Server) -> list[psutil.Process]:
    """The server's processes below its main one."""
    children: list[psutil.Process] = psutil.Process(server.process.pid).children(recursive=True)
    assert children
    return children


async def strike(
    server: Server, orders: Path, order: dict[str, Any], pins: tuple[str, str], requests: Requests
) -> None:
    """Long requests under the first pin; then the order, and the second pin brings its moment.

    No clock says when: with a gap to rebuild the moment comes as soon as the gap is there, and the
    requests are long enough for everything that is made again after it.
    """
    client.pin(server.url, pins[0])
    long = {"temperature": 0, "ignore_eos": True, "max_new_tokens": LONG}
    sent = [asyncio.create_task(requests.waits(sampling_params=long)) for _ in range(5)]
    await _until_running(requests.http, 5)
    while pins[0] == "plain":
        status = await asyncio.to_thread(client.status, server.url)
        if status["max_gap"] >= GAP:
            break
        assert not any(task.done() for task in sent), "a request ended before its gap was there"
    chaos.write(orders, {"times": 1, **order})
    await asyncio.to_thread(client.pin, server.url, pins[1])
    await asyncio.gather(*sent)


async def _until_running(http: httpx.AsyncClient, rows: int) -> None:
    for _ in range(200):
        loads = (await http.get("/v1/loads")).json()["loads"][0]
        if loads["num_running_reqs"] >= rows:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{rows} requests never ran at once")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """The tiny models, written once."""
    return write_pair(tmp_path_factory.mktemp("chaos") / "pair")


def test_200_clients_of_every_kind_while_the_mode_flips(pair: TinyPair, tmp_path: Path) -> None:
    """No answer is wrong, no refusal unclear, no slot lost; SIGTERM in DRAINING loses nothing."""
    with serving(tmp_path / "load", pair, "flush_every = 5\n") as (server, orders, log):
        requests = Requests(server, seed=1)
        chance = random.Random(2)
        crowd = [requests.waits() for _ in range(120)]
        crowd += [requests.streams() for _ in range(30)]
        crowd += [requests.streams(chance.randrange(1, 4)) for _ in range(20)]
        crowd += [requests.gives_up(chance.uniform(0.05, 4)) for _ in range(20)]
        crowd += [requests.cancels(chance.uniform(0.05, 6)) for _ in range(10)]
        crowd += [requests.cancels_midway() for _ in range(3)]
        crowd += requests.nonsense() + requests.nonsense()
        chance.shuffle(crowd)
        asyncio.run(flipping(server, requests, crowd, cycles=3))
        requests.check(pair)
        assert len(requests.finished) >= 150
        assert len(requests.refused) >= 14
        assert requests.left > 20
        assert len(requests.cut) >= 3
        status = client.status(server.url)
        assert status["switch_off_count"] >= 3
        assert status["switch_on_count"] >= 3
        assert_pool_is_whole(server)

        processes, late = family(server), Requests(server, seed=4)
        order = {"strike": "sigterm", "mode": "DRAINING"}
        asyncio.run(strike(server, orders, order, ("spec", "plain"), late))
        assert orders.with_name("orders.done").read_text() == "sigterm in DRAINING\n"
        late.check(pair)
        assert len(late.finished) == 5
        assert_ends(server, processes, 0, log)


def test_rebuilds_that_fail_and_sigterm_in_reseeding_lose_nothing(
    pair: TinyPair, tmp_path: Path
) -> None:
    """A slice is made again, a seed backs off; all come back to SPEC; then SIGTERM in RESEEDING."""
    with serving(tmp_path / "reseed", pair, SLICED) as (server, orders, log):
        for fault, times in (("flush", 1), ("seed", 2)):
            requests = Requests(server, seed=5)
            order = {"strike": fault, "mode": "RESEEDING", "times": times}
            asyncio.run(strike(server, orders, order, ("plain", "spec"), requests))
            requests.check(pair)
            assert len(requests.finished) == 5
            assert not orders.exists(), f"{fault} was not struck"
        status = client.status(server.url)
        assert status["transitions"]["RESEEDING->PLAIN"] == 2
        assert status["mode"] == "SPEC"
        assert_pool_is_whole(server)

        processes, late = family(server), Requests(server, seed=6)
        order = {"strike": "sigterm", "mode": "RESEEDING"}
        asyncio.run(strike(server, orders, order, ("plain", "spec"), late))
        late.check(pair)
        assert len(late.finished) == 5
        assert_ends(server, processes, 0, log)


def test_a_fatal_error_in_reseeding_ends_the_server_at_once_and_says_so(
    pair: TinyPair, tmp_path: Path
) -> None:
    """The target's forward raises: clients get an error within seconds, no process stays."""
    with serving(tmp_path / "fatal", pair, SLICED) as (server, orders, log):
        processes, requests = family(server), Requests(server, seed=7)
        order = {"strike": "forward", "mode": "RESEEDING"}
        started = time.monotonic()
        with pytest.raises(httpx.TransportError):
            asyncio.run(strike(server, orders, order, ("plain", "spec"), requests))
        assert time.monotonic() - started < 60
        assert_ends(server, processes, -9, log)
        assert "out of memory, says the test (forward)" in log.read_text(errors="replace")
