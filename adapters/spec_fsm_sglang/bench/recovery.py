"""Does acceptance come back? The rounds after a gap, against the same rounds without one.

A prompt is decoded plainly for a gap of tokens, then speculation resumes; its rounds are compared
with those of a request whose prompt is the same text up to the same position. There the draft
model's prefill wrote the draft KV of every position, which is what an always-on draft would have.
Rounds are paired by request; the ratio of pooled accept lengths says what the gap cost.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from spec_fsm_sglang.bench.arms import Bench, Say, keeping, spec_fsm_server, started

if TYPE_CHECKING:
    from spec_fsm_sglang.inprocess import Engine

FIRST: Final = 8
"""Rounds after the switch that are judged apart."""
STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "flush": {},
    "at once": {"flush_every": 0},
    "cold": {"strategy": "cold", "flush_every": 0},
}
"""Name -> keys of the configuration: the default, no flush before the switch, no rebuild at all."""


class Pair(msgspec.Struct, frozen=True):
    """One request. ours, always_on: accept lengths of its rounds after the gap, in order.

    gap: plain tokens decoded. equal: whether both runs put out the same tokens. ours_same,
    always_on_same: leading rounds that lie within the text that both have in common.
    kv_error, kv_scale: largest difference between the draft KV of both at the switch, and the
    largest entry; kv_relative: norm of the difference over the norm.
    """

    gap: int
    ours: list[int]
    always_on: list[int]
    equal: bool
    ours_same: int
    always_on_same: int
    kv_error: float
    kv_scale: float
    kv_relative: float


@dataclass(frozen=True)
class Setup:
    """gaps: plain tokens. sizes: requests at a time -> repetitions. later: rounds after FIRST.

    benches: one a spec, by its name. strategies: names of `STRATEGIES`.
    """

    benches: dict[str, Bench]
    gaps: list[int]
    sizes: dict[int, int]
    strategies: list[str]
    prompts: list[list[int]]
    later: int = 16


def measure(setup: Setup, say: Say) -> dict[str, Any]:
    """All cells; `worst_first_rounds_ratio` is the smallest over specs and rebuilding strategies.

    Each result pools one spec, strategy and gap over all sizes; `pooled` one spec and strategy.
    Stopped before the end, it pools the cells it has. Raises Stopped if there is none.
    """
    cells: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        servers = {
            f"{spec} {strategy}": spec_fsm_server(
                bench, stash_width=max(32, max(setup.gaps) + 8), **STRATEGIES[strategy]
            )
            for spec, bench in setup.benches.items()
            for strategy in setup.strategies
        }
        logs = next(iter(setup.benches.values())).logs or Path(name)
        complete = False
        with keeping(cells, say), started(servers, logs, say) as arms:
            for gap in setup.gaps:
                for size, times in setup.sizes.items():
                    say(f"gaps of {gap} tokens, {size} requests")
                    for arm in arms.values():
                        prompts = _draw(setup.prompts, size * times, seed=gap + size)
                        arm.send(
                            "recover", prompts=prompts, requests=size, gap=gap,
                            rounds=FIRST + setup.later,
                        )  # fmt: skip
                    for key, arm in arms.items():
                        spec, strategy = key.split(" ", 1)
                        pairs = msgspec.convert(arm.receive(), list[Pair])
                        cells.append(
                            {"spec": spec, "strategy": strategy, "gap": gap, "pairs": pairs}
                        )
            complete = True
    return {"complete": complete, **_results(cells)}


def _draw(prompts: Sequence[list[int]], count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [list(draw.choice(prompts)) for _ in range(count)]


def _results(cells: list[dict[str, Any]]) -> dict[str, Any]:
    by_gap: dict[tuple[str, str, int], list[Pair]] = defaultdict(list)
    pooled: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for cell in cells:
        by_gap[cell["spec"], cell["strategy"], cell["gap"]] += cell["pairs"]
        pooled[cell["spec"], cell["strategy"]] += cell["pairs"]
    rebuilt = [figures(pairs) for key, pairs in pooled.items() if key[1] != "cold"]
    return {
        "worst_first_rounds_ratio": _least(rebuilt, "first_ratio"),
        "worst_first_rounds_lower_bound": _least(rebuilt, "first_lower_bound"),
        "worst_later_ratio": _least(rebuilt, "later_ratio"),
        "worst_same_text_ratio": _least(
            [row for row in rebuilt if row["same_text_rounds"]], "same_text_ratio"
        ),
        "pooled": [
            {"spec": spec, "strategy": strategy, **figures(pairs)}
            for (spec, strategy), pairs in pooled.items()
        ],
        "results": [
            {"spec": spec, "strategy": strategy, "gap": gap, **figures(pairs)}
            for (spec, strategy, gap), pairs in by_gap.items()
        ],
    }


def _least(rows: list[dict[str, Any]], name: str) -> float | None:
    return min((row[name] for row in rows), default=None)


def figures(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accept lengths of both runs and their ratio, in the first rounds and later.

    later: after the first FIRST rounds. same_text: those of them before the texts part, if they do:
    in bf16 a step of another batch shape rounds otherwise, and from there on nothing is paired.
    lower bounds: 95 %, by resampling requests. curve: mean accept length by round, ours and
    always on. kv_error: largest difference of draft KV; kv_relative: of norms, the worst request.
    """
    first = [(pair.ours[:FIRST], pair.always_on[:FIRST]) for pair in pairs]
    later = [(pair.ours[FIRST:], pair.always_on[FIRST:]) for pair in pairs]
    same = [
        (p.ours[FIRST : max(FIRST, p.ours_same)], p.always_on[FIRST : max(FIRST, p.always_on_same)])
        for p in pairs
    ]
    return {
        "requests": len(pairs),
        "first_rounds": sum(len(ours) for ours, _ in first),
        "first_accept_length": round(_mean(ours for ours, _ in first), 4),
        "always_on_first_accept_length": round(_mean(other for _, other in first), 4),
        "first_ratio": round(_ratio(first), 4),
        "first_lower_bound": round(_lower_bound(first), 4),
        "later_rounds": sum(len(ours) for ours, _ in later),
        "later_ratio": round(_ratio(later), 4),
        "later_lower_bound": round(_lower_bound(later), 4),
        "same_text_rounds": sum(len(ours) for ours, _ in same),
        "same_text_ratio": round(_ratio(same), 4),
        "same_text_lower_bound": round(_lower_bound(same), 4),
        "curve": [
            [_column([pair.ours for pair in pairs], i), _column([p.always_on for p in pairs], i)]
            for i in range(max(len(pair.ours) for pair in pairs))
        ],
        "outputs_equal": sum(pair.equal for pair in pairs),
        "kv_error": max(pair.kv_error for pair in pairs),
        "kv_scale": max(pair.kv_scale for pair in pairs),
        "kv_relative": round(max(pair.kv_relative for pair in pairs), 6),
    }


Rounds = tuple[list[int], list[int]]


def _mean(rounds: Iterable[Sequence[int]]) -> float:
    values = [value for row in rounds for value in row]
    return sum(values) / len(values) if values else 0.0


def _column(rows: Sequence[Sequence[int]], index: int) -> float:
    return round(_mean([row[index : index + 1] for row in rows]), 3)


def _ratio(pairs: Sequence[Rounds]) -> float:
    base = _mean(other for _, other in pairs)
    return _mean(ours for ours, _ in pairs) / base if base else 1.0


def _lower_bound(pairs: Sequence[Rounds], times: int = 1000) -> float:
    """The 5th percentile of the ratio over `times` resamplings of the requests."""
    draw = random.Random(0)
    found = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(times))
    return found[times // 20]


# In an arm's process


def recover(
    engine: Engine, prompts: Sequence[list[int]], requests: int, gap: int, rounds: int
) -> list[Pair]:
    """Runs every prompt through a gap and again without one, `requests` at a time."""
    recorder = _Recorder(engine)
    found: list[Pair] = []
    for start in range(0, len(prompts), requests):
        found += _batch(engine, recorder, prompts[start : start + requests], gap, rounds)
    recorder.remove()
    return found


class _Recorder:
    """Accept lengths and plain tokens of every request, read where results are processed."""

    def __init__(self, engine: Engine) -> None:
        self.rounds: dict[str, list[int]] = defaultdict(list)
        self.plain: dict[str, int] = defaultdict(int)
        self._controller = engine.scheduler.model_worker.spec_fsm
        self._settled = self._controller.settled
        self._controller.settled = self._note

    def _note(self, batch: Any, result: Any) -> None:
        action = getattr(result, "spec_fsm_action", None)
        for req, accepted in zip(batch.reqs, result.accept_lens.tolist(), strict=True):
            if req.finished() or req.is_retracted:
                continue
            if action is not None and action.name == "PLAIN":
                self.plain[req.rid] += 1
            else:
                self.rounds[req.rid].append(accepted)
        self._settled(batch, result)

    def remove(self) -> None:
        """Stop recording."""
        self._controller.settled = self._settled


def _batch(
    engine: Engine, recorder: _Recorder, prompts: Sequence[list[int]], gap: int, rounds: int
) -> list[Pair]:
    from sglang.srt.managers.io_struct import FlushCacheReqInput

    controller = engine.scheduler.model_worker.spec_fsm
    longest = (rounds + 2) * (engine.scheduler.model_worker.speculative_num_steps + 1)
    controller.pin(2)
    rids = [engine.submit(prompt, max_new_tokens=gap + longest) for prompt in prompts]
    while min(recorder.plain[rid] for rid in rids) < gap - 1:
        engine.step()
    controller.pin(1)
    kv = _at_first_round(engine, recorder, rids)
    engine.run_until_idle()
    outputs = {rid: engine.outputs.pop(rid).output_ids for rid in rids}
    # A cached prefix would hand our own KV to the comparison.
    engine.send(FlushCacheReqInput())
    engine.step()
    twins, texts = {}, {}
    for rid, prompt in zip(rids, prompts, strict=True):
        done = recorder.plain[rid]
        # The prefill puts out the token after them, as the gap's last step did.
        texts[rid] = text = [*prompt, *outputs[rid][:done]]
        twins[rid] = engine.submit(text, max_new_tokens=gap + longest - done)
    other_kv = _at_first_round(engine, recorder, list(twins.values()))
    engine.run_until_idle()
    pairs = []
    for rid, twin in twins.items():
        rest = outputs[rid][recorder.plain[rid] :]
        other = engine.outputs.pop(twin).output_ids
        common = _common(rest, other)
        # Draft KV of a position takes the token after it: the last one is only comparable where
        # both chose the same, which in bf16 is a matter of rounding now and then.
        alike = len(texts[rid]) if common else len(texts[rid]) - 1
        error, scale, relative = _difference(kv[rid], other_kv[twin], alike)
        pairs.append(
            Pair(
                gap=recorder.plain[rid],
                ours=recorder.rounds[rid][:rounds],
                always_on=recorder.rounds[twin][:rounds],
                equal=other == rest,
                ours_same=_rounds_within(recorder.rounds[rid][:rounds], common),
                always_on_same=_rounds_within(recorder.rounds[twin][:rounds], common),
                kv_error=error,
                kv_scale=scale,
                kv_relative=relative,
            )
        )
    engine.send(FlushCacheReqInput())
    engine.step()
    return pairs


def _common(ours: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    alike = (a == b for a, b in zip(ours, other, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, alike))


def _rounds_within(accepted: Sequence[int], tokens: int) -> int:
    """How many of the rounds put out nothing beyond the first `tokens` tokens.

    The first token is not a round's: the prefill, or the gap's last step, put it out.
    """
    ends = itertools.accumulate(accepted, initial=1)
    return sum(end <= tokens for end in itertools.islice(ends, 1, None))


def _at_first_round(engine: Engine, recorder: _Recorder, rids: Sequence[str]) -> dict[str, Any]:
    """Step until every request's first round was settled; the draft KV below it, on the host."""
    before: dict[str, int] = {}
    while not all(recorder.rounds[rid] for rid in rids):
        for req in engine.scheduler.running_batch.reqs:
            if not recorder.rounds[req.rid]:
                before[req.rid] = int(req.kv.kv_committed_len)
        engine.step()
    return {rid: draft_kv(engine, rid, before[rid]) for rid in rids}


def draft_kv(engine: Engine, rid: str, length: int) -> Any:
    """K and V of the draft model at the first `length` positions: `[2, layers, length, ...]`."""
    import torch

    worker = engine.scheduler.model_worker.draft_worker
    pool = worker.draft_runner.token_to_kv_pool
    req = next(r for r in engine.scheduler.running_batch.reqs if r.rid == rid)
    slots = worker.req_to_token_pool.req_to_token[req.kv.req_pool_idx, :length].to(torch.int64)
    layers = range(pool.layer_num)
    return torch.stack(
        [
            torch.stack([pool.get_key_buffer(i)[slots] for i in layers]),
            torch.stack([pool.get_value_buffer(i)[slots] for i in layers]),
        ]
    ).to("cpu", torch.float32)


def _difference(ours: Any, other: Any, most: int) -> tuple[float, float, float]:
    length = min(ours.shape[2], other.shape[2], most)
    ours, other = ours[:, :, :length], other[:, :, :length]
    gap = ours - other
    return float(gap.abs().max()), float(other.abs().max()), float(gap.norm() / other.norm())


__all__ = ["FIRST", "STRATEGIES", "Pair", "Setup", "figures", "measure", "recover"]
