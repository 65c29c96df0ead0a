"""Traces of the real scheduler and worker on the tiny pair, with every kind of line.

    python tests/traces/make.py [NAME...]  # all of them or some, in place of those here

Each is a random history that prefers what it has not done yet in the present mode.  Together they
must hold every kind of line that a proved trace can (`tamper.every_kind`), or the command fails.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import msgspec  # noqa: E402

from live import CHAIN, TREE  # noqa: E402
from spec_fsm.modes import Mode  # noqa: E402

FSM = {"disable_above": 4, "enable_at": 3, "dwell": 1, "checks": True}
SMALL = {"max_total_tokens": 700, "chunked_prefill_size": 16}
RUNS: dict[str, dict[str, Any]] = {
    "tree-overlap": {"fsm": {**FSM, "flush_every": 4}, "end": "SPEC", **TREE, "overlap": True},
    "tree": {"fsm": {**FSM, "flush_every": 0, "slice_tokens": 6}, "end": "PLAIN", **TREE,
             "overlap": False},
    "chain-overlap": {"fsm": {**FSM, "flush_every": 0, "slice_tokens": 6, "strategy": "extend"},
                      "end": "DRAINING", **CHAIN, "overlap": True},
    "chain": {"fsm": {**FSM, "flush_every": 3, "strategy": "extend", "stash_width": 12},
              "end": "RESEEDING", **CHAIN, "overlap": False},
    "lost-overlap": {"fsm": {**FSM, "flush_every": 0, "stash_width": 8, "slice_tokens": 6,
                             "lost_rows": "rerun"}, "end": "SPEC", **TREE, "overlap": True},
}
STEPS = 200
"""Iterations of a history."""


class History:
    """A random history of one engine."""

    def __init__(self, live: Any, end: str) -> None:
        self.live, self.end, self.random = live, end, live.random
        self.lifecycle = live.fsm.lifecycle
        self.alive: list[str] = []
        self.done: dict[tuple[str, str], int] = {}
        self.failing = 0
        self.mode = "SPEC"
        self._break_seeds()

    def _break_seeds(self) -> None:
        """A rebuild that fails when it is told to."""
        from spec_fsm_sglang import rebuild

        seed = rebuild.seed

        def broken(*args: Any) -> None:
            if self.failing:
                self.failing -= 1
                raise RuntimeError("no memory for the rebuild")
            seed(*args)

        rebuild.seed = broken

    def act(self) -> None:
        """One act, rather one that this mode has seen less of."""
        acts = [self.short, self.long, self.abort, self.crowd, self.weights, self.fail,
                *[self.plain, self.spec, self.auto] * 2, *[self.nothing] * 12]
        mode = self.lifecycle.mode.name
        came, self.mode = self.mode, mode
        if mode == "SPEC" and came == "RESEEDING":
            # A plain result is in flight yet, under overlap.
            acts = [self.plain]
        elif mode == "DRAINING":
            acts = [self.crowd, self.nothing, self.weights, self.abort, self.short]
        few = self.random.choices(acts, k=3)
        act = min(few, key=lambda a: self.done.get((mode, a.__name__), 0))
        self.done[mode, act.__name__] = self.done.get((mode, act.__name__), 0) + 1
        act()

    def nothing(self) -> None:
        """Only the iteration."""

    def short(self) -> None:
        """A request that ends with its prefill, or soon after."""
        self._submit(self.random.choice((1, 2, 5)), 3, 60)

    def long(self) -> None:
        """A request that lives across modes."""
        self._submit(self.random.randrange(20, 60), 3, 40)

    def crowd(self) -> None:
        """More than speculation pays for, and than the pool holds."""
        for _ in range(6):
            self._submit(self.random.randrange(10, 50), 10, 60)

    def _submit(self, tokens: int, low: int, high: int) -> None:
        if len(self.alive) < 14:
            self.alive.append(self.live.submit(tokens, self.live.prompt(low, high)))

    def abort(self) -> None:
        """The newest or any request is ended by its client."""
        if self.alive:
            at = self.random.choice((-1, self.random.randrange(len(self.alive))))
            self.live.engine.abort(self.alive.pop(at))

    def plain(self) -> None:
        """Pin PLAIN."""
        self.live.fsm.pin(2)

    def spec(self) -> None:
        """Pin SPEC."""
        self.live.fsm.pin(1)

    def auto(self) -> None:
        """Release the pin."""
        self.live.fsm.pin(0)

    def weights(self) -> None:
        """The target's weights, and no draft's, are loaded again."""
        self.live.reload_target()

    def fail(self) -> None:
        """The next rebuild fails."""
        self.failing = 1

    def flush(self) -> None:
        """The prefix cache is emptied, which SGLang does when it is idle."""
        from sglang.srt.managers.io_struct import FlushCacheReqInput

        self.live.engine.send(FlushCacheReqInput())
        self.live.step()

    def step(self) -> None:
        """One iteration."""
        self.live.step()
        outputs = self.live.engine.outputs
        self.alive = [rid for rid in self.alive if not outputs[rid].finished]

    def finish(self) -> None:
        """Let every request end, and empty the cache."""
        for _ in range(3000):
            if self.live.engine.idle:
                break
            self.step()
        self.flush()

    def play(self) -> None:
        """The whole history."""
        for n in range(STEPS):
            self.act()
            self.step()
            if n % 70 == 69:
                self.finish()
        self.lifecycle.observe("history", steps=STEPS)
        self.crowded_in_spec()
        for mode in ("DRAINING", "RESEEDING", "PLAIN", "SPEC", self.end):
            self.idle_in(mode)
        self.flush()

    def crowded_in_spec(self) -> None:
        """More than the pool holds while SPEC is pinned: requests are retracted there, too."""
        self.failing = 0
        self.spec()
        self._until("SPEC")
        self.crowd()
        self.crowd()
        self.finish()

    def idle_in(self, mode: str) -> None:
        """Come to stand idle in a mode, pin it anew there, and empty the cache."""
        for _ in range(40):
            self.failing = 0
            self.spec()
            self.long()
            self._until("SPEC")
            if mode != "SPEC":
                self.plain()
                if mode != "DRAINING":
                    self._until("PLAIN")
            if mode == "RESEEDING":
                self.finish()
                self.spec()
                self._submit(1, 3, 8)
                self.step()
            if mode == "DRAINING":
                for rid in self.alive:
                    self.live.engine.abort(rid)
                self._submit(1, 3, 8)
                self.step()
            self.finish()
            if self.lifecycle.mode is Mode[mode]:
                break
        self.auto()
        self.flush()

    def _until(self, mode: str) -> None:
        for _ in range(200):
            if self.lifecycle.mode is Mode[mode]:
                return
            if not self.alive:
                self.long()
            self.step()


def play(name: str, target: Path) -> None:
    """Make one trace, in this process."""
    from live_scenarios import Live

    config = {**SMALL, **RUNS[name]}
    end = config.pop("end")
    config["fsm"] = {**config["fsm"], "trace": str(target)}
    config["params"] = {"seed": len(name)}
    live = Live(config)
    try:
        History(live, end).play()
    finally:
        live.engine.close()
        live.fsm.lifecycle.close()


def two_in_flight() -> list[dict[str, Any]]:
    """An engine with two results in flight, which SGLang has not: a plain one while it drains."""
    from spec_fsm_model.trace_check import lines_of
    from trace_histories import history

    target = HERE / "two-in-flight.ndjson.gz"
    encode = msgspec.json.Encoder().encode
    lines = b"".join(encode(line) + b"\n" for line in history(2, 30))
    target.write_bytes(gzip.compress(lines, 9, mtime=0))
    return lines_of(target)


def make(names: list[str]) -> int:
    """Make the traces named, or all, and look at all; returns the exit code."""
    from spec_fsm_model.explore import Verdict
    from spec_fsm_model.tamper import every_kind, kind_of
    from spec_fsm_model.trace_check import check_file, lines_of

    missing, wrong, size = set(every_kind()), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name in RUNS:
            target = Path(folder, f"{name}.ndjson")
            packed = HERE / f"{name}.ndjson.gz"
            if name in names or not names:
                command = [sys.executable, __file__, "--into", name, str(target)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                # Without name and time, so that the same history makes the same file.
                packed.write_bytes(gzip.compress(target.read_bytes(), 9, mtime=0))
            found = check_file(packed)
            wrong += found.verdict is not Verdict.PROVED
            missing -= {kind_of(line) for line in lines_of(packed)}
            size += packed.stat().st_size
            verdict = found.verdict.name.lower()
            print(f"{name}: {verdict}, {found.lines} lines, {packed.stat().st_size} bytes")
            if found.text:
                print(f"  line {found.bad_line}: {found.text}; expected {found.expected}")
                print(f"  {json.dumps(found.line)}")
    missing -= {kind_of(line) for line in two_in_flight()}
    for kind in sorted(missing):
        print(f"no trace holds: {kind}")
    print(f"{size} bytes together")
    return int(bool(missing or wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--into"]:
        play(sys.argv[2], Path(sys.argv[3]))
        sys.stdout.flush()
        import os

        # The scheduler leaves threads behind that would keep the process.
        os._exit(0)
    sys.exit(make(sys.argv[1:]))
