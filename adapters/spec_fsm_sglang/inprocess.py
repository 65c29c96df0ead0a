"""The real SGLang scheduler and EAGLE worker in one process, one iteration at a time. For tests.

    from pathlib import Path
    from spec_fsm_sglang.inprocess import Engine
    from spec_fsm_sglang.tiny import write_pair

    pair = write_pair(Path("/tmp/pair"))
    engine = Engine(model=pair.target, draft=pair.eagle3, steps=2, topk=4, num_draft_tokens=16)
    rid = engine.submit([5, 6, 7], max_new_tokens=20)
    engine.step()                       # one iteration of the real event loop
    engine.run_until_idle()
    print(engine.outputs[rid].output_ids, engine.outputs[rid].meta["spec_verify_ct"])
    engine.close()

`draft=None` is a plain server. Between two steps the engine stands at a boundary: the last result
was processed (with overlap: the one before it, and one is in flight) and no batch is chosen yet,
so `engine.scheduler` can be read and changed. SGLang allows one scheduler a process, so use one
process a configuration.
"""

from __future__ import annotations

import contextvars
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from spec_fsm_sglang.cpu_ops import server as cpu_server


@dataclass
class Output:
    """What the scheduler has sent for one request so far."""

    output_ids: list[int] = field(default_factory=list)
    finished_reason: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the last message for this request carried a finish reason."""
        return self.finished_reason is not None


class EngineClosed(BaseException):
    """Ends the loop's thread; a BaseException, so that no handler of SGLang's keeps it alive."""


class Engine:
    """Runs SGLang's own event loop in a thread that stops before each iteration.

    Raises whatever the loop raised, from the call that drove it (`step`, `run_until_idle`).
    """

    def __init__(  # noqa: PLR0913 - one keyword for each thing the tests vary
        self,
        *,
        model: Path,
        draft: Path | None,
        steps: int = 2,
        topk: int = 4,
        num_draft_tokens: int = 16,
        page_size: int = 1,
        overlap: bool = True,
        algorithm: str = "EAGLE3",
        max_running_requests: int = 64,
        max_total_tokens: int = 65536,
        chunked_prefill_size: int | None = None,
        device: str = "cpu",
        **server_args: Any,
    ) -> None:
        """Builds the scheduler (about 3 s); `server_args` are further fields of `ServerArgs`.

        On the CPU the reference operators stand in; on another `device` SGLang chooses its own.
        """
        args: dict[str, Any] = {
            "model_path": str(model),
            "skip_tokenizer_init": True,
            **(cpu_server.as_fields() if device == "cpu" else {"device": device}),
            "dtype": "float32",
            "page_size": page_size,
            "disable_overlap_schedule": not overlap,
            "max_running_requests": max_running_requests,
            "max_total_tokens": max_total_tokens,
            "chunked_prefill_size": chunked_prefill_size if chunked_prefill_size else -1,
            "mem_fraction_static": 0.3,
            "random_seed": 0,
            "log_level": "error",
        }
        if draft is not None:
            args |= {
                "speculative_algorithm": algorithm,
                "speculative_draft_model_path": str(draft),
                "speculative_num_steps": steps,
                "speculative_eagle_topk": topk,
                "speculative_num_draft_tokens": num_draft_tokens,
            }
        self.outputs: dict[str, Output] = {}
        self._numbers = count()
        self._inbox: list[Any] = []
        self._at_boundary: Callable[[], bool] | None = None
        self.scheduler: Any = _build_scheduler(args | server_args, overlap=overlap)
        self._capture_outputs()
        self._loop = _SteppedLoop(self.scheduler.run_event_loop)
        self.scheduler.ingest_requests = self._ingest
        self._loop.start()

    def submit(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        rid: str | None = None,
        sampling: dict[str, Any] | None = None,
        **req_fields: Any,
    ) -> str:
        """Queues a request for the next iteration and returns its id.

        Greedy and past end-of-sequence tokens unless `sampling` (fields of `SamplingParams`)
        says otherwise; `req_fields` are fields of `TokenizedGenerateReqInput`.
        """
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        rid = rid if rid is not None else f"r{next(self._numbers)}"
        chosen = {"temperature": 0.0, "ignore_eos": True} | (sampling or {})
        params = SamplingParams(max_new_tokens=max_new_tokens, **chosen)
        params.normalize(getattr(self.scheduler, "tokenizer", None))
        params.verify(self.scheduler.model_config.vocab_size)
        fields: dict[str, Any] = {
            "input_text": None,
            "input_embeds": None,
            "mm_inputs": None,
            "token_type_ids": None,
            "return_logprob": False,
            "logprob_start_len": -1,
            "top_logprobs_num": 0,
            "token_ids_logprob": None,
            "stream": False,
        }
        request = TokenizedGenerateReqInput(
            rid=rid, input_ids=array("q", input_ids), sampling_params=params, **fields | req_fields
        )
        self.outputs[rid] = Output()
        self._inbox.append(request)
        return rid

    def abort(self, rid: str) -> None:
        """Queues the abort of a request for the next iteration."""
        from sglang.srt.managers.io_struct import AbortReq

        self._inbox.append(AbortReq(rid=rid))

    def send(self, message: Any) -> None:
        """Queues any other message the scheduler dispatches (`FlushCacheReqInput`, ...)."""
        self._inbox.append(message)

    def step(self) -> None:
        """Takes in what was queued and runs exactly one iteration of the scheduler's loop."""
        self._loop.step()

    def run_freely(self, at_boundary: Callable[[], bool]) -> None:
        """Runs the loop without handing control back at each boundary, for measurements.

        `at_boundary` is called in the loop's thread where `step` would stop; it may submit
        requests and read the scheduler, and returns False to end the run.
        """
        self._at_boundary = at_boundary
        self._loop.step()

    def run_until_idle(self, max_steps: int = 10_000) -> None:
        """Steps until every request has finished and nothing is in flight.

        Raises TimeoutError after `max_steps` iterations.
        """
        for _ in range(max_steps):
            self.step()
            if self.idle:
                return
        waiting = [rid for rid, output in self.outputs.items() if not output.finished]
        raise TimeoutError(f"not idle after {max_steps} steps; unfinished: {waiting}")

    @property
    def idle(self) -> bool:
        """Whether no request is queued, running or in flight."""
        return not self._inbox and bool(self.scheduler.is_fully_idle())

    def close(self) -> None:
        """Ends the loop's thread. The process can hold no second engine."""
        self._loop.close()

    def _ingest(self, stop_at_pause: bool = False) -> list[Any]:
        if self._at_boundary is None or not self._at_boundary():
            self._at_boundary = None
            self._loop.wait_for_step()
        requests, self._inbox = self._inbox, []
        # As SGLang's own `ingest_requests`: what this rank's clock decides comes with them.
        requests.extend(self.scheduler._poll_timeout_aborts())
        self.scheduler.process_input_requests(requests)
        return requests

    def _capture_outputs(self) -> None:
        channels = self.scheduler.ipc_channels
        for sender in (channels.send_to_tokenizer, channels.send_to_detokenizer):
            sender.send_output = self._receive

    def _receive(self, message: Any, recv_obj: Any = None) -> None:
        """Stands where the socket to the tokenizer process stood."""
        name = type(message).__name__
        if name == "BatchTokenIDOutput":
            for i, rid in enumerate(message.rids):
                self._receive_one(self.outputs.setdefault(rid, Output()), message, i)
        elif name == "AbortReq":
            output = self.outputs.setdefault(message.rid, Output())
            output.finished_reason = message.finished_reason or {"type": "abort"}

    @staticmethod
    def _receive_one(output: Output, message: Any, i: int) -> None:
        output.finished_reason = message.finished_reasons[i]
        if message.output_ids is not None:
            output.output_ids.extend(message.output_ids[i])
        for name in message.__struct_fields__:
            values = getattr(message, name)
            if isinstance(values, list) and len(values) == len(message.rids):
                _keep(output.meta, name, values[i])


_CHUNKED = ("output_token", "output_top", "output_hidden", "input_token", "input_top")


def _keep(meta: dict[str, Any], name: str, value: Any) -> None:
    """Lists that SGLang sends piece by piece are joined; of the rest the last value counts."""
    if name.startswith(_CHUNKED) and isinstance(value, list):
        meta.setdefault(name, []).extend(value)
    elif name not in ("rids", "output_ids", "finished_reasons"):
        meta[name] = value


class _SteppedLoop:
    """A thread that runs `body`, handing control back and forth at `wait_for_step`."""

    def __init__(self, body: Callable[[], None]) -> None:
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: context.run(self._guard, body), name="scheduler", daemon=True
        )
        self._go = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._error: BaseException | None = None
        self._closing = False

    def start(self) -> None:
        """Runs `body` up to its first `wait_for_step`."""
        self._thread.start()
        self._await_boundary()

    def step(self) -> None:
        """Lets `body` run from this `wait_for_step` to the next."""
        if not self._thread.is_alive():
            raise RuntimeError("the scheduler's loop has ended") from self._error
        self._go.release()
        self._await_boundary()

    def wait_for_step(self) -> None:
        """Called in the thread: hands control to the driver until the next `step`."""
        self._arrived.release()
        self._go.acquire()
        if self._closing:
            raise EngineClosed

    def close(self) -> None:
        """Ends the thread at its boundary."""
        if self._thread.is_alive():
            self._closing = True
            self._go.release()
            self._thread.join()

    def _await_boundary(self) -> None:
        self._arrived.acquire()
        if self._error is not None:
            raise self._error

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except EngineClosed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._arrived.release()


def _build_scheduler(args: dict[str, Any], *, overlap: bool) -> Any:
    if args["device"] == "cpu":
        cpu_server.prepare()
        if overlap:
            cpu_server.force_overlap()

    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs
    from sglang.srt.utils import configure_logger

    load_plugins()
    server_args = ServerArgs(**args)
    port_args = PortArgs.init_new(server_args)
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    configure_logger(server_args)
    return Scheduler(server_args, port_args)
