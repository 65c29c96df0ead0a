"""One server of `truth.py`: the real engine, in a process of its own.

    python bench/gpu/truth_arm.py SETTINGS_JSON RESULT.json
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from truth_models import ADAPTERS, RANK

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.config import Config

PINS = {"AUTO": 0, "SPEC": 1, "PLAIN": 2}
COURSE = (("SPEC", 5), ("PLAIN", 9), ("SPEC", 6), ("PLAIN", 4), ("SPEC", 5), ("PLAIN", 90))
"""What is pinned for how many iterations while a wave of requests decodes."""


class Arm:
    """An engine on the tiny pair with what the measurements share."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        if settings["fsm"] is not None:
            os.environ.update(Config.of(settings["fsm"]).to_env())
        if settings["device"] == "cpu":
            cpu_ops.enable()
            without_pinned_memory()
        elif settings["engine"].get("dtype", "float32") == "float32":
            in_full_precision()
        if settings.get("old"):
            keep_lora_state()
        from spec_fsm_sglang.inprocess import Engine

        extra = dict(settings["engine"])
        if settings["adapters"]:
            extra |= adapter_arguments(Path(settings["folder"]))
        draft = None if settings["fsm"] is None else Path(settings["draft"])
        target = Path(settings["target"])
        self.engine = Engine(model=target, draft=draft, device=settings["device"], **extra)
        self.worker = self.engine.scheduler.model_worker
        self.fsm = getattr(self.worker, "spec_fsm", None)
        runner = self.engine.scheduler.tp_worker.model_runner
        refs = runner.lora_manager.lora_refs if settings["adapters"] else {}
        self.lora_ids = {ref.lora_name: key for key, ref in refs.items()}
        self.prompts: dict[str, list[int]] = {}
        self.launches: Counter[str] = Counter()
        self.modes: list[str] = []
        self.lines: list[tuple[str, str]] = []
        if self.fsm is not None:
            self._count_launches()
            self._keep_lines()

    def submit(self, rid: str, prompt: list[int], tokens: int, adapter: str | None = None) -> None:
        """Queues a request."""
        extra = {} if adapter is None else {"lora_id": self.lora_ids[adapter]}
        self.engine.submit(prompt, max_new_tokens=tokens, rid=rid, **extra)
        self.prompts[rid] = prompt

    def step(self, times: int) -> None:
        """Iterations, until nothing runs."""
        for _ in range(times):
            if self.engine.idle:
                return
            self.engine.step()
            if self.fsm is not None:
                self.modes.append(self.fsm.lifecycle.mode.name)

    def course(self) -> None:
        """Runs what was submitted to its end, under the pins of `COURSE` over and over."""
        while not self.engine.idle:
            for pin, steps in COURSE:
                if self.fsm is not None:
                    self.fsm.pin(PINS[pin])
                self.step(steps)

    def outputs(self) -> dict[str, list[int]]:
        """What was generated, by request."""
        return {rid: list(self.engine.outputs[rid].output_ids) for rid in self.prompts}

    def result(self) -> dict[str, Any]:
        """Outputs, and what shows that the modes and graphs were met."""
        switches = [f"{a} -> {b}" for a, b in zip(self.modes, self.modes[1:], strict=False)]
        found: dict[str, Any] = {"prompts": self.prompts, "outputs": self.outputs()}
        if self.fsm is not None:
            status = self.fsm.status()
            plain = getattr(self.worker.plain_graphs, "attributes", [])
            found |= {
                "launches": dict(sorted(self.launches.items())),
                "switches": dict(Counter(s for s in switches if len(set(s.split(" -> "))) == 2)),
                "violations": status["violations"],
                "exchanged": sorted(plain),
                "lines": self.lines,
            }
        return found

    def _count_launches(self) -> None:
        launched = self.fsm.launched

        def counted(batch: Any, plan: Any, result: Any) -> None:
            kind = "graph" if result.can_run_cuda_graph else "eager"
            self.launches[f"{plan.action.name} {kind}"] += 1
            launched(batch, plan, result)

        self.fsm.launched = counted

    def _keep_lines(self) -> None:
        """SGLang's decode lines and this project's lines, each with the mode of its last step."""
        fsm, lines = self.fsm, self.lines

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                text = record.getMessage()
                if text.startswith(("Decode batch", "spec-fsm")):
                    lines.append(("PLAIN" if fsm.settling_plain else "SPEC", text))

        for name in ("", "spec_fsm", "spec_fsm_sglang"):
            logger = logging.getLogger(name)
            if name == "" or not logger.propagate:
                logger.addHandler(Keep())


def without_pinned_memory() -> None:
    """SGLang's LoRA backends pin host memory, which a host without an accelerator cannot."""
    import torch

    for name in ("tensor", "zeros", "empty"):
        make = getattr(torch, name)
        unpinned = lambda *a, _make=make, pin_memory=False, **kw: _make(*a, **kw)  # noqa: E731
        setattr(torch, name, unpinned)
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]


def in_full_precision() -> None:
    """SGLang's CUDA operators for norms and activations take no float32; its own in torch do.

    Triton multiplies float32 in tf32 unless told otherwise, too coarse to compare texts by.
    """
    os.environ["TRITON_F32_DEFAULT"] = "ieee"
    from sglang.kernels.fused_op import BaseFusedOp

    BaseFusedOp._resolve_forward_method = lambda self: self.forward_native


def keep_lora_state() -> None:
    """What was wrong: PLAIN's graphs are exchanged without the LoRA state that is theirs."""
    from spec_fsm_sglang import graph_state

    graph_state._owners = lambda runner: iter((runner,))


def adapter_arguments(folder: Path) -> dict[str, Any]:
    """Fields of `ServerArgs` for both adapters."""
    from sglang.srt.lora.lora_registry import LoRARef

    paths = [
        LoRARef(lora_name=name, lora_path=str(folder / name), pinned=False) for name in ADAPTERS
    ]
    return {
        "enable_lora": True,
        "lora_paths": paths,
        "max_lora_rank": RANK,
        "max_loras_per_batch": len(ADAPTERS) + 1,
    }


def prompt_of(seed: int) -> list[int]:
    """Random tokens, five to twenty of them."""
    draw = random.Random(seed)
    return [draw.randrange(3, 500) for _ in range(draw.randrange(5, 20))]


def lora(arm: Arm) -> dict[str, Any]:
    """Waves of requests: each prompt without an adapter and with each of two, in one batch."""
    adapters = (None, *ADAPTERS) if arm.settings["adapters"] else (None,)
    for rows in arm.settings["sizes"]:
        for i in range(rows):
            adapter = adapters[i % len(adapters)]
            rid = f"{rows}-{i}-{adapter or 'none'}"
            arm.submit(rid, prompt_of(1000 * rows + i // 3), arm.settings["tokens"], adapter)
        arm.course()
    return arm.result()


def seeds(arm: Arm) -> dict[str, Any]:
    """Relay tensors of several rows after gaps, and those of twins prefilled up to there."""
    from truth_seeds import Relays

    relays = Relays(arm)
    for gap in arm.settings["gaps"]:
        for i in range(arm.settings["rows"]):
            arm.submit(f"gap{gap}-{i}", prompt_of(7 * gap + i), gap + 40)
        arm.fsm.pin(PINS["SPEC"])
        arm.step(5)
        arm.fsm.pin(PINS["PLAIN"])
        arm.step(gap)
        arm.fsm.pin(PINS["SPEC"])
        relays.made.clear()
        arm.step(1000)
        relays.twins(gap)
    return {"relays": relays.found, **arm.result()}


def recapture(arm: Arm) -> dict[str, Any]:
    """New weights with `recapture_cuda_graph`, in the middle of a wave: both sets are new."""
    from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

    target = arm.engine.scheduler.tp_worker.weight_update_runners()
    updater = type(arm.engine.scheduler.weight_updater)
    updater._select_runners = lambda _self, selector="all": target
    runner = target[0][1]
    for i in range(6):
        arm.submit(f"recapture-{i}", prompt_of(i), 60)
    arm.fsm.pin(PINS["PLAIN"])
    arm.step(8)
    before = runner.decode_cuda_graph_runner, arm.worker.plain_graphs.graphs
    arm.engine.send(
        UpdateWeightFromDiskReqInput(
            model_path=arm.settings["target"],
            load_format="auto",
            flush_cache=False,
            recapture_cuda_graph=True,
        )
    )
    arm.step(8)
    lost = arm.fsm.lifecycle.lost
    after = runner.decode_cuda_graph_runner, arm.worker.plain_graphs.graphs
    arm.course()
    for i in range(12):
        arm.submit(f"recaptured-{i}", prompt_of(50 + i), 60)
    arm.course()
    new = {
        name: one is not other
        for name, one, other in zip(("verify", "plain"), before, after, strict=True)
    }
    return {"lost": lost, "captured_again": new, **arm.result()}


def main() -> None:
    """One arm."""
    settings = json.loads(sys.argv[1])
    result = globals()[settings["measure"]](Arm(settings))
    Path(sys.argv[2]).write_text(json.dumps(result))
    # The scheduler leaves threads behind that would keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
