"""Sends the workload to a server over HTTP and keeps what came back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from spec_fsm.errors import SpecFsmError
from spec_fsm_sglang.demo.compare import Reference, margins
from spec_fsm_sglang.demo.workload import Job, Phase

REQUEST_S = 600.0


class RequestFailed(SpecFsmError):
    """A request ended with an error instead of an output."""


@dataclass(frozen=True)
class Answer:
    """One finished request. Times are of `time.monotonic_ns`, as in the trace."""

    job: Job
    output_ids: tuple[int, ...]
    text: str
    started_ns: int
    finished_ns: int
    meta: Mapping[str, Any]


@dataclass
class Course:
    """What happened while the workload ran.

    `phases`: name and start of each; `load`: (time, requests in flight), one entry a change.
    """

    answers: list[Answer] = field(default_factory=list)
    phases: list[tuple[str, int]] = field(default_factory=list)
    load: list[tuple[int, int]] = field(default_factory=list)
    ended_ns: int = 0


@dataclass
class Driver:
    """Runs phases against the server at `url`; `prompts` has the token ids of each request.

    `progress` is called with the course and the number in flight whenever one starts or ends.
    """

    url: str
    prompts: Mapping[str, Sequence[int]]
    progress: Callable[[Course, int], None]

    def run(self, phases: Sequence[Phase]) -> Course:
        """Sends every job of every phase; raises RequestFailed as soon as one fails."""
        return asyncio.run(self._run(phases))

    def references(self, jobs: Sequence[Job], concurrency: int) -> dict[str, Reference]:
        """Greedy outputs of a server without speculation, with the margin at each position."""
        return asyncio.run(self._references(jobs, concurrency))

    async def _run(self, phases: Sequence[Phase]) -> Course:
        course = Course()
        in_flight: set[asyncio.Task[Answer]] = set()
        async with httpx.AsyncClient(base_url=self.url, timeout=REQUEST_S) as client:
            for phase in phases:
                first = True
                for job in phase.jobs:
                    await self._wait_below(phase.concurrency, in_flight, course)
                    if first:
                        course.phases.append((phase.name, time.monotonic_ns()))
                        first = False
                    answer = self._stream(client, job, time.monotonic_ns())
                    in_flight.add(asyncio.create_task(answer))
                    self._note(course, len(in_flight))
            await self._wait_below(1, in_flight, course)
        course.ended_ns = time.monotonic_ns()
        return course

    async def _wait_below(
        self, limit: int, in_flight: set[asyncio.Task[Answer]], course: Course
    ) -> None:
        while len(in_flight) >= limit:
            done, _ = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                in_flight.discard(task)
                course.answers.append(task.result())
            self._note(course, len(in_flight))

    def _note(self, course: Course, in_flight: int) -> None:
        course.load.append((time.monotonic_ns(), in_flight))
        self.progress(course, in_flight)

    def _body(self, job: Job, **more: object) -> dict[str, object]:
        sampling: dict[str, object] = {"temperature": 0.0, "max_new_tokens": job.max_new_tokens}
        if job.regex is not None:
            sampling["regex"] = job.regex
        prompt = list(self.prompts[job.rid])
        return {"rid": job.rid, "input_ids": prompt, "sampling_params": sampling, **more}

    async def _stream(self, client: httpx.AsyncClient, job: Job, started: int) -> Answer:
        last = None
        async with client.stream("POST", "/generate", json=self._body(job, stream=True)) as reply:
            if reply.status_code != 200:
                body = (await reply.aread()).decode(errors="replace")
                raise RequestFailed(f"{job.rid}: {reply.status_code} {body}")
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
        if last is None or _aborted(last):
            raise RequestFailed(f"{job.rid}: {last}")
        return Answer(
            job, tuple(last["output_ids"]), last["text"], started, time.monotonic_ns(),
            last["meta_info"],
        )

    async def _references(self, jobs: Sequence[Job], concurrency: int) -> dict[str, Reference]:
        gate = asyncio.Semaphore(concurrency)
        found: dict[str, Reference] = {}

        async def one(client: httpx.AsyncClient, job: Job) -> None:
            async with gate:
                body = self._body(job, return_logprob=True, top_logprobs_num=2)
                reply = await client.post("/generate", json=body)
            if reply.status_code != 200 or _aborted(reply.json()):
                raise RequestFailed(f"{job.rid}: {reply.status_code} {reply.text}")
            output = reply.json()
            found[job.rid] = Reference(
                tuple(output["output_ids"]), margins(output["meta_info"]["output_top_logprobs"])
            )
            self.progress(Course(), len(found))

        async with httpx.AsyncClient(base_url=self.url, timeout=REQUEST_S) as client:
            await asyncio.gather(*(one(client, job) for job in jobs))
        return found


def _aborted(output: Mapping[str, Any]) -> bool:
    if "error" in output or "meta_info" not in output:
        return True
    return bool(output["meta_info"]["finish_reason"]["type"] == "abort")


__all__ = ["Answer", "Course", "Driver", "RequestFailed"]
