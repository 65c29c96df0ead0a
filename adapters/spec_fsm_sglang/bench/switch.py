"""What a switch costs: steps until it takes effect, time between tokens around it, GPU time.

One server under a load that neither joins nor leaves, so that nothing but the switch stands out.
Each cycle decodes plainly for a gap, speculates again for a while, and stops again; both pins are
set at a boundary and every iteration is timed. The first cycle is a fresh server's first switch.
"""

from __future__ import annotations

import gc
import resource
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from spec_fsm_sglang.bench.arms import Bench, Say, keeping, spec_fsm_server, started
from spec_fsm_sglang.bench.load import ClosedLoop, Load
from spec_fsm_sglang.bench.plain import percentile
from spec_fsm_sglang.rehearsal import TOKENS, batch_sizes

if TYPE_CHECKING:
    from spec_fsm_sglang.bench.arm import Arm
    from spec_fsm_sglang.inprocess import Engine

SPEC_STEPS = 24
_REBUILDS = ("_flush", "_seed_ahead", "_reseed")
_DOES = {"PLAIN": "PLAIN", "SPEC": "SPECULATE", "": ""}
WINDOW = 3
"""Iterations after the pin whose outputs count as around the switch, beside the pin's own."""


class Output(msgspec.Struct, frozen=True, array_like=True):
    """A decode result that reached the host: what launch it is of, and where it lies.

    ms: since the one before. action: PLAIN or SPECULATE. pin: the mode last asked for. since:
    iterations since then, 0 for the pin's own. cycle: which one. tokens: it has for a request.
    """

    ms: float
    action: str
    pin: str
    since: int
    cycle: int
    tokens: float = 1.0


class Cycles(msgspec.Struct, frozen=True):
    """What an arm measured.

    outputs: all, in order. late: most launches, after any pin to PLAIN, that still speculated.
    rebuild_ms: GPU time of the flushes and seeds of each switch on.
    """

    outputs: list[Output]
    late: int
    rebuild_ms: list[float]


@dataclass(frozen=True)
class Setup:
    """sizes: requests at a time. gaps: plain tokens before speculation resumes. cycles: of each.

    flips: switches of the memory run, 0 for none. profile: steps to profile in each mode and in
    SGLang's own EAGLE, 0 for none.
    """

    bench: Bench
    sizes: list[int]
    gaps: list[int]
    cycles: int
    prompt_len: int
    flips: int = 0
    profile: int = 0


LONGEST: Final = 6
CYCLES_A_LOAD: Final = 12
"""More of them are shared out among loads, one after the other: a request's KV grows with each."""
EAGLE: Final = "SGLang EAGLE"


def measure(setup: Setup, say: Say) -> dict[str, Any]:
    """Every size and gap, with the default flush and with the whole gap rebuilt at once.

    The servers have rehearsed their switches, as `spec-fsm serve` has before it is ready. Stopped
    before the end, it returns the rows it has. Raises Stopped if there is none.
    """
    widest = max(setup.gaps) + 16
    with tempfile.TemporaryDirectory() as name:
        servers = {
            "flush": spec_fsm_server(setup.bench),
            "at once": spec_fsm_server(setup.bench, flush_every=0, stash_width=widest),
        }
        if setup.profile:
            servers[EAGLE] = setup.bench.engine(draft=True), {}
        found: list[dict[str, Any]] = []
        memory = profiles = status = None
        logs = setup.bench.logs or Path(name)
        with keeping(found, say), started(servers, logs, say) as arms:
            eagle = arms.pop(EAGLE, None)
            for key, arm in arms.items():
                say(f"rehearsing switches: {key}")
                arm.call("rehearse")
            for size in setup.sizes:
                for gap in setup.gaps:
                    for key, arm in arms.items():
                        say(f"{size} requests, gap {gap}: {key}")
                        cycles = _cycles(setup, arm, size, gap)
                        row = {"requests": size, "gap": gap, "rebuild": key}
                        found.append(row | figures(cycles, gap))
            if setup.flips:
                say(f"{setup.flips} switches")
                load = Load(min(8, max(setup.sizes)), 4, 16, 64, setup.bench.pair.vocab)
                memory = arms["flush"].call("flip", load=load, iterations=setup.flips)
            profiles = _profiles(setup, arms["flush"], eagle, say) if eagle else None
            status = arms["flush"].call("status")
    return {
        "complete": status is not None,
        "results": found,
        "memory": memory,
        "profiles": profiles,
        "status": status,
    }


def output_len(cycles: int, gap: int, num_draft_tokens: int) -> int:
    """Tokens of a request that does not end within the cycles of one load."""
    return min(cycles, CYCLES_A_LOAD) * (gap + SPEC_STEPS * num_draft_tokens) + 64


def _cycles(setup: Setup, arm: Arm, size: int, gap: int) -> Cycles:
    """All cycles of one size and gap, numbered through."""
    found = Cycles([], 0, [])
    for done in range(0, setup.cycles, CYCLES_A_LOAD):
        cycles = min(CYCLES_A_LOAD, setup.cycles - done)
        # Nothing else is running then.
        tokens = output_len(cycles, gap, setup.bench.shape.num_draft_tokens)
        load = Load(size, 1, setup.prompt_len, tokens, setup.bench.pair.vocab)
        reply = arm.call("switch", load=load, gap=gap, iterations=cycles)
        new = msgspec.convert(reply, Cycles)
        outputs = [msgspec.structs.replace(o, cycle=o.cycle + done) for o in new.outputs]
        found = Cycles(
            found.outputs + outputs, max(found.late, new.late), found.rebuild_ms + new.rebuild_ms
        )
    return found


def _profiles(setup: Setup, ours: Arm, eagle: Arm, say: Say) -> dict[str, Any]:
    """Kernels and waits of the host per iteration: SGLang's EAGLE, each mode, and switching."""
    size, steps = max(setup.sizes), setup.profile
    load = Load(size, 1, setup.prompt_len, 8 * steps, setup.bench.pair.vocab)
    found = {}
    for name, arm, pin in ((EAGLE, eagle, 0), ("SPEC", ours, 1), ("PLAIN", ours, 2)):
        say(f"profiling {name}")
        if arm is ours:
            arm.call("pin", pin=pin)
        arm.call("load", load=load)
        arm.run(steps)
        found[name] = arm.call("profile", iterations=steps)
        arm.call("end")
    say("profiling switches")
    found["switching"] = ours.call("profile_flips", load=load, iterations=steps)
    for profile in found.values():
        del profile["timeline"]
    return found


def figures(cycles: Cycles, gap: int) -> dict[str, Any]:
    """Launches until each switch took effect, times between outputs in ms, GPU time of going on.

    window_p99: of the outputs around switches, the first one included; window_ratio: to plain_p99,
    that of steady PLAIN; first_max: the longest wait of the first cycle's windows.
    window_per_token_p99 and its ratio: the same where a wait is shared by the tokens it brought,
    which is what `sglang.bench_serving` calls inter-token latency.
    rebuild_per_256: GPU time of switching on, in plain steps, per 256 tokens of gap.
    longest: the longest waits around switches, as the fields of `Output`.
    """
    steady = [o for o in cycles.outputs if o.since > WINDOW + 2 and o.action == _DOES[o.pin]]
    plain = sorted(o.ms for o in steady if o.pin == "PLAIN")
    spec = sorted(o.ms for o in steady if o.pin == "SPEC")
    # Before the first pin nothing is switched: the server has just been brought to PLAIN.
    around = [o for o in cycles.outputs if o.since <= WINDOW and o.pin]
    window_p99 = percentile(sorted(o.ms for o in around), 0.99)
    shared = sorted(o.ms / o.tokens for o in around for _ in range(round(o.tokens)))
    per_token = percentile(shared, 0.99)
    plain_p99 = percentile(plain, 0.99)
    step = statistics.median(plain)
    rebuild = statistics.median(cycles.rebuild_ms) if cycles.rebuild_ms else 0.0
    return {
        "off_delay_launches": cycles.late,
        "plain_step_ms": round(step, 4),
        "plain_p99_ms": round(plain_p99, 4),
        "spec_round_ms": round(statistics.median(spec), 4) if spec else None,
        "window_p99_ms": round(window_p99, 4),
        "window_ratio": round(window_p99 / plain_p99, 4),
        "window_per_token_p99_ms": round(per_token, 4),
        "per_token_ratio": round(per_token / plain_p99, 4),
        "first_max_ms": round(max(o.ms for o in around if o.cycle == 0), 4),
        "rebuild_gpu_ms": round(rebuild, 4),
        "rebuild_per_256": round(rebuild / step / max(1.0, gap / 256), 4),
        "longest": msgspec.to_builtins(sorted(around, reverse=True, key=_ms)[:LONGEST]),
    }


def _ms(output: Output) -> float:
    return output.ms


# In an arm's process


def rehearse(engine: Engine) -> None:
    """What `rehearsal.rehearse` does through the server: switch once with 1, 2, 4, … requests."""
    controller = engine.scheduler.model_worker.spec_fsm
    for size in batch_sizes(controller.disable_above):
        cycle(engine, Load(size, 1, 4, TOKENS, vocab=100), gap=4, cycles=1)
    controller.pin(0)


def cycle(engine: Engine, load: Load, gap: int, cycles: int) -> Cycles:
    """Switch off and on `cycles` times under `load`, timing every output."""
    controller = engine.scheduler.model_worker.spec_fsm
    controller.pin(2)
    loop = ClosedLoop(engine, load)
    while controller.lifecycle.rows < load.requests or controller.lifecycle.mode.name != "PLAIN":
        engine.step()
    watch = _Watch(engine, gap, cycles)
    engine.run_freely(watch.boundary)
    watch.remove()
    loop.end()
    return Cycles(watch.outputs, max(watch.late.values(), default=0), watch.rebuild_ms())


class _Watch:
    """Sets the pins at boundaries and notes what is launched and when results come."""

    def __init__(self, engine: Engine, gap: int, cycles: int) -> None:
        self.outputs: list[Output] = []
        self.late: Counter[int] = Counter()
        self._worker = engine.scheduler.model_worker
        self._controller = self._worker.spec_fsm
        self._left, self._gap = cycles, gap
        self._cycle = self._since = self._in_mode = 0
        self._asked = ""  # nothing yet: the server was brought to PLAIN
        self._then = 0.0
        self._rebuilds: list[list[Any]] = [[]]
        self._launched, self._settled = self._controller.launched, self._controller.settled
        self._methods = {name: getattr(self._worker, name) for name in _REBUILDS}
        self._controller.launched, self._controller.settled = self._note, self._read
        for name, method in self._methods.items():
            setattr(self._worker, name, self._timed(method))

    def remove(self) -> None:
        """Stop watching."""
        self._controller.launched, self._controller.settled = self._launched, self._settled
        for name, method in self._methods.items():
            setattr(self._worker, name, method)

    def _note(self, batch: Any, plan: Any, result: Any) -> None:
        if self._asked == "PLAIN" and plan.action.name != "PLAIN":
            self.late[self._cycle] += 1
        self._launched(batch, plan, result)

    def _read(self, batch: Any, result: Any) -> None:
        now = time.perf_counter()
        action = getattr(result, "spec_fsm_action", None)
        if action is not None and self._then:
            does = "PLAIN" if action.name == "PLAIN" else "SPECULATE"
            where = (self._asked, self._since, self._cycle)
            tokens = float(result.accept_lens.float().mean())
            self.outputs.append(Output((now - self._then) * 1000, does, *where, tokens))
        self._then = now
        self._settled(batch, result)

    def _timed(self, call: Any) -> Any:
        import torch

        if not torch.cuda.is_available():
            return call

        def timed(*args: Any) -> Any:
            # Inside a reseed the flush is part of it.
            if self._asked != "SPEC" or (self._rebuilds[-1] and self._rebuilds[-1][-1][1] is None):
                return call(*args)
            start, end = (_event() for _ in range(2))
            start.record()
            self._rebuilds[-1].append([start, None])
            found = call(*args)
            end.record()
            self._rebuilds[-1][-1][1] = end
            return found

        return timed

    def rebuild_ms(self) -> list[float]:
        """GPU time of each switch on, in ms; empty without a GPU."""
        import torch

        if not torch.cuda.is_available():
            return []
        torch.cuda.synchronize()
        spans = [[start.elapsed_time(end) for start, end in events] for events in self._rebuilds]
        return [sum(span) for span in spans if span]

    def boundary(self) -> bool:
        """At every boundary: count, and set the next pin when it is time."""
        self._since += 1
        wanted = self._asked or "PLAIN"
        reached = self._controller.lifecycle.mode.name == wanted
        self._in_mode = self._in_mode + 1 if reached else 0
        enough = self._gap if wanted == "PLAIN" else SPEC_STEPS
        if self._in_mode >= enough:
            if wanted == "SPEC":
                self._cycle += 1
                self._left -= 1
                self._rebuilds.append([])
                if not self._left:
                    return False
            self._asked = "SPEC" if wanted == "PLAIN" else "PLAIN"
            self._controller.pin(1 if self._asked == "SPEC" else 2)
            self._since = self._in_mode = 0
        return True


def _event() -> Any:
    import torch

    make: Any = torch.cuda.Event
    return make(enable_timing=True)


def flip(engine: Engine, load: Load, flips: int) -> dict[str, Any]:
    """Switch `flips` times as fast as it goes; memory before and after, in bytes."""
    import torch

    controller = engine.scheduler.model_worker.spec_fsm
    loop = ClosedLoop(engine, load)
    done, target, iterations = 0, 0, 0
    before: dict[str, int] = {}

    def memory() -> dict[str, int]:
        gc.collect()
        found = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
        if torch.cuda.is_available():
            found["device"] = torch.cuda.memory_allocated()
            found["device_reserved"] = torch.cuda.memory_reserved()
        return found

    def boundary() -> bool:
        nonlocal done, target, before, iterations
        iterations += 1
        loop.replace(loop.ended())
        if controller.lifecycle.mode.name == ("PLAIN" if target == 2 else "SPEC"):
            done += 1
            target = 2 if target != 2 else 1
            controller.pin(target)
            if done == max(1, flips // 10):
                before = memory()  # by now everything that is allocated once has been
        return done < flips

    controller.pin(1)
    engine.run_freely(boundary)
    after = memory()
    loop.end()
    return {
        "switches": done,
        "iterations": iterations,
        "before": before,
        "after": after,
        "growth": {name: after[name] - before[name] for name in after},
        "status": controller.status(),
    }


__all__ = [
    "EAGLE",
    "Cycles",
    "Output",
    "Setup",
    "cycle",
    "figures",
    "flip",
    "measure",
    "output_len",
    "rehearse",
]
