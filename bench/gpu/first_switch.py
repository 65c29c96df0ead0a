"""A fresh server's first switches as its clients see them: time between chunks of streamed answers.

    python bench/gpu/first_switch.py OUT.json [--requests N] [--tokens N] -- SGLANG-FLAG ...

Starts `spec-fsm serve` with the flags, whose warm-up runs before it is ready, streams N answers at
once, pins PLAIN and SPEC in turn, and compares the longest wait around each pin with PLAIN's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from spec_fsm_sglang import client
from spec_fsm_sglang.bench.plain import percentile
from spec_fsm_sglang.demo.server import running

SWITCHES, STAY_S, WINDOW_S = 12, 0.8, 0.25


async def stream(url: str, seed: int, tokens: int, came: list[float]) -> None:
    """One answer; `came` gets the time of each chunk."""
    ids = [random.Random(seed).randrange(3, 400) for _ in range(64)]
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": sampling, "stream": True}
    async with (
        httpx.AsyncClient(base_url=url, timeout=600) as http,
        http.stream("POST", "/generate", json=body) as reply,
    ):
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                came.append(time.monotonic())  # noqa: PERF401 -- others read it as it grows


async def switches(url: str, tokens: int, came: list[list[float]]) -> list[tuple[str, float]]:
    """Pins PLAIN and SPEC in turn while answers stream; each pin with the time it was sent."""
    answers = [asyncio.create_task(stream(url, i, tokens, one)) for i, one in enumerate(came)]
    while not all(len(one) > 8 for one in came):
        await asyncio.wait(answers, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
        for answer in answers:
            if answer.done():
                answer.result()  # raises what it failed with
    pins = []
    for i in range(SWITCHES):
        mode = "spec" if i % 2 else "plain"
        pins.append((mode, time.monotonic()))
        await asyncio.to_thread(client.pin, url, mode)
        await asyncio.sleep(STAY_S)
    ended = any(answer.done() for answer in answers)
    for answer in answers:
        answer.cancel()
    await asyncio.gather(*answers, return_exceptions=True)
    if ended:
        raise SystemExit(f"an answer ended after {len(came[0])} chunks, before the last switch")
    return pins


def figures(came: list[list[float]], pins: list[tuple[str, float]]) -> dict[str, Any]:
    """Waits in ms: steady in each mode, and the longest of any answer around each pin."""
    waits = [(b, (b - a) * 1000) for one in came for a, b in pairwise(one)]
    steady: dict[str, list[float]] = {"plain": [], "spec": []}
    around = []
    for mode, at in pins:
        inside = [(when - at, wait) for when, wait in waits if at <= when < at + STAY_S]
        steady[mode] += [wait for since, wait in inside if since >= WINDOW_S]
        longest = max(wait for since, wait in inside if since < WINDOW_S)
        around.append({"pin": mode, "longest_ms": round(longest, 3)})
    found: dict[str, Any] = {"switches": around}
    for mode, ms in steady.items():
        ms.sort()
        found[f"{mode}_median_ms"] = round(percentile(ms, 0.5), 3)
        found[f"{mode}_p99_ms"] = round(percentile(ms, 0.99), 3)
        found[f"{mode}_max_ms"] = round(ms[-1], 3)
    return found


def main() -> None:
    """Measures, writes the file and prints it."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("out", type=Path)
    asked.add_argument("--requests", type=int, default=8)
    asked.add_argument("--tokens", type=int, default=6000, help="longest answer")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    chosen, flags = asked.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    came: list[list[float]] = [[] for _ in range(chosen.requests)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        started = time.monotonic()
        with running(flags, log) as server:
            ready = time.monotonic() - started
            print(f"ready after {ready:.0f} s", file=sys.stderr, flush=True)
            pins = asyncio.run(switches(server.url, chosen.tokens, came))
            status = client.status(server.url)
        lines = log.read_text(errors="replace").splitlines()
    rehearsed = [line.partition("spec-fsm: ")[2] for line in lines if "rehearsed" in line]
    found = {"command": sys.argv, "ready_s": round(ready, 1), "rehearsed": rehearsed}
    found |= figures(came, pins) | {"status": status}
    chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
