"""Messages about weights and memory on the real scheduler; run by `live.run(script=...)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from live_scenarios import Live, main, scenario


class Messages:
    """Sends a message and says what came of it."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.answers: list[Any] = []
        sender = live.scheduler.ipc_channels.send_to_tokenizer
        receive = sender.send_output

        def send_output(message: Any, recv_obj: Any = None) -> None:
            self.answers.append(message)
            receive(message, recv_obj)

        sender.send_output = send_output

    def tell(self, message: Any) -> tuple[bool, int]:
        """Whether the answer says success, and how many rows are lost after it."""
        self.answers.clear()
        self.live.engine.send(message)
        self.live.step()
        answer = next(a for a in self.answers if hasattr(a, "success"))
        return answer.success, self.live.fsm.lifecycle.lost

    def rows(self, gap: int = 6) -> None:
        """Three rows in PLAIN, `gap` steps behind; those before them have ended."""
        self.live.fsm.pin(1)
        self.live.finish()
        for _ in range(3):
            self.live.submit(80)
        self.live.step(4)
        self.live.fsm.pin(2)
        self.live.step(gap)

    def back(self) -> str:
        """The mode some steps after speculation was asked for."""
        self.live.fsm.pin(1)
        self.live.step(8)
        return str(self.live.modes[-1])


def serialized(folder: Path, name: str) -> list[bytes]:
    """One tensor of a model, as a message carries it."""
    from safetensors.torch import load_file
    from sglang.srt.utils import MultiprocessingSerializer

    tensor = load_file(folder / "model.safetensors")[name]
    return [MultiprocessingSerializer.serialize([(name, tensor)])]


@scenario
def weights(live: Live) -> dict[str, Any]:
    """Every way of new weights, with rows that are behind: answer, and rows lost by it."""
    from sglang.srt.managers import io_struct as io

    told = Messages(live)
    target, draft = live.scheduler.tp_worker.model_runner, live.worker.draft_worker.draft_runner
    one = {"model_path": str(live.pair.target), "load_format": "auto", "flush_cache": False}
    disk: Callable[..., Any] = lambda **kw: io.UpdateWeightFromDiskReqInput(**one | kw)  # noqa: E731
    norm = serialized(live.pair.target, "model.norm.weight")
    fc = serialized(live.pair.eagle3, "fc.weight")
    tensor = io.UpdateWeightsFromTensorReqInput
    found: dict[str, Any] = {}
    told.rows()
    found["no such folder"] = told.tell(disk(model_path="/no/such/folder"))
    found["no such format"] = told.tell(disk(load_format=None))
    target.model._derived_weight_cache_error = "derived weights"
    found["refused by the target"] = told.tell(disk())
    found["outside a session"] = told.tell(tensor(serialized_named_tensors=norm))
    told.tell(io.BeginWeightUpdateReqInput(selector="draft"))
    group = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[64]]}
    found["not received"] = told.tell(
        io.UpdateWeightsFromDistributedReqInput(**group, group_name="none", flush_cache=False)
    )
    found["the draft alone"] = told.tell(
        tensor(serialized_named_tensors=fc, selector="draft", flush_cache=False)
    )
    found["end of the draft alone"] = told.tell(io.EndWeightUpdateReqInput())
    found["mode after these"] = told.back()
    del target.model._derived_weight_cache_error
    told.rows()
    told.tell(io.BeginWeightUpdateReqInput(selector="target"))
    found["from a tensor"] = told.tell(
        tensor(serialized_named_tensors=norm, selector="target", flush_cache=False)
    )
    told.rows()
    found["end of a session"] = told.tell(io.EndWeightUpdateReqInput())
    found["mode after it"] = told.back()
    told.rows()
    draft.model._derived_weight_cache_error = "derived weights"
    found["target written, draft refused"] = told.tell(disk())
    live.worker.weight_update_runners = lambda: []
    told.rows()
    found["flush refused"] = told.tell(disk(flush_cache=True))
    told.rows()
    found["from disk"] = told.tell(disk())
    live.fsm.pin(0)
    live.finish()
    found["flushed"] = told.tell(disk(flush_cache=True))
    return found | live.result()


@scenario
def memory(live: Live) -> dict[str, Any]:
    """Memory is released and resumed in either mode, tag by tag; the server serves on."""
    import torch
    from sglang.srt.managers import io_struct as io

    # SGLang waits for the device of the torch build, which a host without one cannot.
    torch.cuda.synchronize = lambda *_: None
    for pin in (2, 1):
        for tags in (["kv_cache"], ["weights"], ["cuda_graph"], None):
            live.fsm.pin(pin)
            for _ in range(2):
                live.submit(24)
            live.step(9)
            live.fsm.pin(3 - pin)
            live.finish()
            live.engine.send(io.ReleaseMemoryOccupationReqInput(tags=tags))
            live.step()
            live.engine.send(io.ResumeMemoryOccupationReqInput(tags=tags))
            live.step()
    return live.result()


if __name__ == "__main__":
    main()
