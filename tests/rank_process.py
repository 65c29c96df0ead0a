"""One of two tensor-parallel ranks: the real scheduler and worker on CPU, over gloo.

    python rank_process.py RANK PORT FOLDER

Both ranks step their loops equally often. Requests, aborts and pins are given to rank 0 alone and
take SGLang's own way to rank 1: its broadcast at the head of each iteration. Before every forward
of either model the ranks compare what they are about to do (I11). Some reseeds fail on rank 1
alone. Then a law is violated on both, which recover. At the end rank 1 is made to go by a load of
its own, which that comparison has to notice, and the ranks come to a recovery at odds.

`FOLDER/rank-N.json` receives what was seen.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.config import Config

if TYPE_CHECKING:
    from fuzz.world import World

WORLD = 2
STEPS = 320
"""Iterations before rank 1 goes its own way; the script of `acts` ends some before them."""
QUIET = 50
FSM = {
    "disable_above": 4, "enable_at": 3, "dwell": 2, "flush_every": 4, "stash_width": 64,
    "slice_tokens": 12, "checks": True,
}
PINS = (0, 0, 1, 2)


def two_ranks(rank: int) -> None:
    """Readies this process for SGLang with two ranks on CPU, which it was not made for."""
    cpus = sorted(os.sched_getaffinity(0))
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = f"{cpus[0]}|{cpus[-1]}"
    cpu_ops.enable()
    from sglang.srt import runtime_context
    from sglang.srt.distributed import parallel_state
    from sglang.srt.distributed.device_communicators import pynccl

    def missing(*_: Any) -> None:
        raise OSError("NCCL has nothing to do on a CPU")

    # torch brings NCCL along on hosts that have no GPU, and SGLang uses what it finds.
    pynccl.NCCLLibrary = missing
    # Its shared-memory operators are not among the stand-ins: gloo does their work.
    parallel_state.is_shm_available = lambda *_: False
    placed = runtime_context.SpawnRanks
    runtime_context.SpawnRanks = lambda **_: placed(world_rank=rank, gpu_id=rank)


class Rank:
    """One rank's engine, and what it did."""

    def __init__(self, rank: int, port: int, folder: Path) -> None:
        two_ranks(rank)
        from sglang.srt.managers.scheduler_components import request_receiver

        from spec_fsm_sglang.inprocess import Engine
        from spec_fsm_sglang.tiny import write_pair

        class Broadcasting(Engine):
            """Takes in what SGLang's broadcast brings, at both ranks."""

            def _ingest(self, stop_at_pause: bool = False) -> list[Any]:
                self._loop.wait_for_step()
                ingest = type(self.scheduler).ingest_requests
                return list(ingest(self.scheduler, stop_at_pause))

        def pull(_receiver: Any) -> list[Any] | None:
            if rank:
                return None
            requests, self.engine._inbox = self.engine._inbox, []
            return requests

        request_receiver.SchedulerRequestReceiver._pull_raw_reqs = pull
        self.rank = rank
        self.pair = write_pair(folder / f"pair-{rank}")
        self.engine = Broadcasting(
            model=self.pair.target, draft=self.pair.eagle3, tp_size=WORLD, nccl_port=port,
            max_total_tokens=4000, chunked_prefill_size=24,
        )
        self.worker = self.engine.scheduler.model_worker
        self.fsm = self.worker.spec_fsm
        self.lifecycle = self.fsm.lifecycle
        self.prompts: dict[str, list[int]] = {}
        self.modes: list[str] = []
        self.forwards: list[list[Any]] = []
        for name, runner in (
            ("target", self.worker.target_worker.model_runner),
            ("draft", self.worker.draft_worker.draft_runner),
        ):
            runner.forward = self._compared(name, runner.forward)
        self.failed = 0
        if rank == 1:
            self._fail_reseeds()
        self.asked = 0
        self.ended: list[int] = []
        self._watch_pins()

    def _fail_reseeds(self) -> None:
        """Each third reseed of this rank, and of this one alone, raises once its work is done."""
        from itertools import count

        from spec_fsm_sglang import rebuild

        seed, calls = rebuild.seed, count(1)

        def failing(*args: Any) -> None:
            seed(*args)
            if next(calls) % 3 == 0:
                self.failed += 1
                raise MemoryError("this rank alone")

        rebuild.seed = failing

    def _watch_pins(self) -> None:
        """Note when a pin's time was over; seconds are steps, and rank 1's clock runs ahead."""
        pins = self.fsm.pins
        pins._clock = lambda: float(len(self.modes) * (1 + 4 * self.rank))
        end = pins.end

        def noted(number: int) -> bool:
            ended: bool = end(number)
            if ended:
                self.ended.append(len(self.modes))
            return ended

        pins.end = noted

    def _compared(self, model: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward`, run only if both ranks are about to run the same one in the same mode."""
        import torch.distributed as dist
        from sglang.srt.runtime_context import get_parallel

        from spec_fsm import ShapeViolation

        group = get_parallel().tp_group.cpu_group
        lifecycle = self.lifecycle

        def compared(batch: Any, *args: Any, **kwargs: Any) -> Any:
            mine = [
                lifecycle.mode.name, lifecycle.pin.name, model, batch.forward_mode.name,
                batch.batch_size, batch.input_ids.numel(),
            ]
            both: list[Any] = [None] * WORLD
            dist.all_gather_object(both, mine, group=group)
            lifecycle.checks.count("I11")
            if both[0] != both[1]:
                lifecycle._violated(
                    ShapeViolation(
                        "the ranks do not agree", mode=lifecycle.mode, invariant="I11",
                        observed=both[1], expected=both[0],
                    )
                )
            self.forwards.append(mine)
            return forward(batch, *args, **kwargs)

        return compared

    def play(self) -> None:
        """The whole script; at rank 0 what it asks for is put into the engine."""
        todo = acts(random.Random(11))
        for step in range(STEPS):
            if self.rank == 0 and step < STEPS - QUIET:
                for name, *arguments in next(todo):
                    getattr(self, name)(*arguments)
            if self.rank == 0 and step == STEPS - QUIET:
                self.pin(0)
            self.engine.step()
            self.modes.append(self.lifecycle.mode.name)

    def admit(self, prompt: list[int], tokens: int) -> None:
        """A request."""
        rid = self.engine.submit(prompt, max_new_tokens=tokens, rid=f"q{len(self.prompts):03}")
        self.prompts[rid] = prompt

    def abort(self, which: int) -> None:
        """One of the unfinished requests is given up."""
        alive = [rid for rid in self.prompts if not self.engine.outputs[rid].finished]
        if alive:
            self.engine.abort(alive[which % len(alive)])

    def pin(self, code: int) -> None:
        """What `spec-fsm pin` sends; each second one that holds a mode does so for 6 steps."""
        from sglang.srt.managers.io_struct import SetInternalStateReq

        asked = {"spec_fsm_pin": code}
        if code:
            self.asked += 1
            if self.asked % 2:
                asked["spec_fsm_pin_for"] = 6
        self.engine.send(SetInternalStateReq(server_args=asked))

    def recover(self) -> dict[str, Any]:
        """A verify of both ranks violates a law, and they recover from it."""
        from recovery_slips import SLIPS, raised

        recovery, left = self.fsm.recovery, [1]
        recovery._strict, recovery.first_hold = False, 6

        def strike() -> None:
            if left:
                left.pop()
                raise raised("ShapeViolation")

        # All it asks of a world is the worker.
        SLIPS["guard_verify"].put(cast("World", self), strike)
        before = len(self.modes)
        if self.rank == 0:
            for i in range(3):
                self.admit([40 + i, 6, 7], 30)
        for _ in range(60):
            self.engine.step()
            self.modes.append(self.lifecycle.mode.name)
        recovery._strict = True
        seen = self.result()
        return {
            "modes": self.modes[before:], "recoveries": recovery.recoveries, "left": left,
            **{key: seen[key] for key in ("outputs", "wrong", "idle", "rows")},
        }

    def at_odds(self) -> list[str]:
        """What a recovery says where ranks agree, differ in launches, and where one is alone."""
        from spec_fsm_sglang import recovery

        recovery.AGREE_SECONDS, said = 3, []
        # The third is rank 1's alone.
        for launches in (7, 7 + self.rank, 9)[: 2 + self.rank]:
            try:
                recovery.agree(launches)
                said.append("")
            except RuntimeError as error:
                said.append(str(error))
        return said

    def part(self) -> str:
        """Rank 1 sees a load of its own, and load comes: how the comparison ended it."""
        if self.rank == 1:
            decide, boundary = self.lifecycle.decide, self.lifecycle.boundary
            self.lifecycle.decide = lambda load, rows, rids: decide(min(load, 3), rows, rids)
            self.lifecycle.boundary = lambda load: boundary(min(load, 3))
        else:
            for i in range(6):
                self.admit([5 + i, 6, 7], 12)
        try:
            for _ in range(12):
                self.engine.step()
        except Exception as error:
            return str(error)
        return ""

    def result(self) -> dict[str, Any]:
        """What the test compares."""
        from spec_fsm_sglang.reference import first_difference

        outputs = {rid: list(out.output_ids) for rid, out in self.engine.outputs.items()}
        wrong = {}
        for rid, prompt in self.prompts.items():
            found = first_difference(self.pair.target, prompt, outputs[rid])
            if found is not None:
                wrong[rid] = vars(found)
        edges = {" ".join(edge): n for edge, n in self.lifecycle.transitions.items()}
        return {
            "outputs": outputs,
            "reasons": {rid: out.finished_reason for rid, out in self.engine.outputs.items()},
            "wrong": wrong,
            "edges": edges,
            "modes": list(self.modes),
            "forwards": list(self.forwards),
            "idle": self.engine.idle,
            "checks": self.lifecycle.checks.as_dict(),
            "violations": dict(self.lifecycle.checks.violations),
            "rows": self.lifecycle.rows,
            "traced": self.fsm.tracing,
            "failed": self.failed,
            "pins_ended": self.ended,
        }


def acts(draw: random.Random) -> Iterator[list[tuple[Any, ...]]]:
    """Per step what is asked of the engine: bursts, single requests, pins and aborts at random."""
    while True:
        now: list[tuple[Any, ...]] = []
        chance = draw.random()
        if chance < 0.2:
            for _ in range(draw.choice((1, 2, 6))):
                prompt = [draw.randrange(3, 500) for _ in range(draw.choice((2, 9, 30)))]
                now.append(("admit", prompt, draw.choice((1, 6, 20, 30))))
        elif chance < 0.34:
            now.append(("pin", draw.choice(PINS)))
        elif chance < 0.38:
            now.append(("abort", draw.randrange(8)))
        yield now


def main() -> None:
    """One rank."""
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    # Both ranks are told to trace, as in a server: one of them does, the other goes the quick way.
    settings = {**FSM, "trace": str(folder / "trace.ndjson")}
    os.environ.update(Config.of(settings).to_env())
    one = Rank(rank, port, folder)
    one.play()
    seen = one.result()
    if seen["traced"]:
        # What follows is wrong on purpose, and will stand in the trace.
        one.lifecycle.close()
        shutil.copy(folder / "trace.ndjson", folder / "right.ndjson")
    seen["recovered"] = one.recover()
    seen["parted"] = one.part()
    seen["violations_after"] = dict(one.lifecycle.checks.violations)
    seen["at_odds"] = one.at_odds()
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    # The scheduler leaves threads behind that would keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
