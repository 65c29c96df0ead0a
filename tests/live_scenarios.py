"""What happens on the real scheduler: one function a scenario, run by `live.run` in a process.

    python live_scenarios.py SCENARIO CONFIG_JSON RESULT_FILE
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spec_fsm_sglang import cpu_ops
from spec_fsm_sglang.config import Config

SCENARIOS: dict[str, Callable[[Live], dict[str, Any]]] = {}


def scenario(function: Callable[[Live], dict[str, Any]]) -> Callable[[Live], dict[str, Any]]:
    """Makes `function` a scenario under its own name."""
    SCENARIOS[function.__name__] = function
    return function


class Live:
    """One engine on the tiny pair, with what the scenarios have in common."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.params = config.pop("params", {})
        fsm = config.pop("fsm")
        if fsm is not None:
            os.environ.update(Config.of(fsm).to_env())
        cpu_ops.enable()
        from spec_fsm_sglang.inprocess import Engine
        from spec_fsm_sglang.tiny import write_pair

        self.pair = write_pair(Path(tempfile.mkdtemp()) / "pair")
        if config.pop("tokenizer", False):
            write_tokenizer(self.pair.target)
            config |= {"skip_tokenizer_init": False, "grammar_backend": "xgrammar"}
        drafts = {"eagle3": self.pair.eagle3, "eagle": self.pair.eagle, None: None}
        kind = config.pop("draft", "eagle3")
        if kind is not None:
            config["algorithm"] = kind.upper()
        self.engine = Engine(model=self.pair.target, draft=drafts[kind], **config)
        self.scheduler = self.engine.scheduler
        self.worker = self.scheduler.model_worker
        self.fsm = getattr(self.worker, "spec_fsm", None)
        self.random = random.Random(self.params.get("seed", 1))
        self.modes: list[str] = []
        self.prompts: dict[str, list[int]] = {}

    def prompt(self, low: int = 4, high: int = 20) -> list[int]:
        """Random tokens, from `low` up to `high` of them."""
        return [self.random.randrange(3, 500) for _ in range(self.random.randrange(low, high))]

    def submit(self, max_new_tokens: int, prompt: list[int] | None = None, **kw: Any) -> str:
        """Queues a request of the engine, and remembers its prompt."""
        prompt = self.prompt() if prompt is None else prompt
        rid = self.engine.submit(prompt, max_new_tokens=max_new_tokens, **kw)
        self.prompts[rid] = prompt
        return rid

    def step(self, times: int = 1) -> None:
        """Iterations of the scheduler, noting the mode after each."""
        for _ in range(times):
            self.engine.step()
            if self.fsm is not None:
                self.modes.append(self.fsm.lifecycle.mode.name)

    def finish(self, most: int = 3000) -> None:
        """Steps until nothing runs."""
        for _ in range(most):
            if self.engine.idle:
                return
            self.step()
        raise TimeoutError(f"not idle after {most} steps")

    def reload_target(self) -> None:
        """Load the target's weights again, and no draft's, from its folder."""
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        target = self.scheduler.tp_worker.weight_update_runners()
        updater = type(self.scheduler.weight_updater)
        updater._select_runners = lambda _self, selector="all": target
        path = str(self.pair.target)
        self.engine.send(
            UpdateWeightFromDiskReqInput(model_path=path, load_format="auto", flush_cache=False)
        )

    def watch_rounds(self) -> list[int]:
        """The first row's accept length in every speculative round from now on, as it comes."""
        rounds: list[int] = []
        settled = self.fsm.settled

        def record(batch: Any, result: Any) -> None:
            if result.spec_fsm_action.name != "PLAIN":
                rounds.append(int(result.accept_lens[0]))
            settled(batch, result)

        self.fsm.settled = record
        return rounds

    def beside_twin(self, rid: str, rounds: list[int]) -> dict[str, list[int]]:
        """The watched `rounds` of `rid` from now on, and of a request prefilled to where it is."""
        rounds.clear()
        (req,) = self.scheduler.running_batch.reqs
        while not rounds:
            self.step()
        start = len(req.origin_input_ids) + len(req.output_ids) - rounds[0] - 1
        self.finish()
        resumed = list(rounds)
        rounds.clear()
        text = self.prompts[rid] + self.engine.outputs[rid].output_ids
        self.submit(len(text) - start, text[:start], rid="prefilled")
        self.finish()
        return {"resumed": resumed, "prefilled": rounds}

    def result(self) -> dict[str, Any]:
        """Outputs, how each differs from the model's own greedy path, status, writers reached."""
        from spec_fsm_sglang.ownership import STRICT
        from spec_fsm_sglang.reference import first_difference

        outputs = {rid: list(out.output_ids) for rid, out in self.engine.outputs.items()}
        different = {}
        for rid, output in outputs.items():
            found = first_difference(self.pair.target, self.prompts[rid], output)
            if found is not None:
                different[rid] = [found.index, found.expected, found.got, found.margin]
        histogram: list[int] = []
        for out in self.engine.outputs.values():
            for accepted, count in enumerate(out.meta.get("spec_correct_drafts_histogram") or []):
                histogram += [0] * (accepted + 1 - len(histogram))
                histogram[accepted] += count
        return {
            "worker": type(self.worker).__name__,
            "modes": self.modes,
            "outputs": outputs,
            "different": different,
            "finished": {rid: out.finished_reason for rid, out in self.engine.outputs.items()},
            "verify_rounds": {
                rid: out.meta.get("spec_verify_ct") for rid, out in self.engine.outputs.items()
            },
            "histogram": histogram,
            "status": None if self.fsm is None else self.fsm.status(),
            "details": [] if self.fsm is None else self.fsm.lifecycle.checks.details,
            "writers": sorted({f"{file}|{function}" for file, function, _field in STRICT.writes}),
        }


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer over the tiny vocabulary: 256 bytes, then unused names, then eos."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(alphabet)}
    vocab |= {f"<unused{i}>": i for i in range(len(vocab), 511)} | {"<eos>": 511}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)


@scenario
def cycle(live: Live) -> dict[str, Any]:
    """Load 2, 10, 2, 10, 2: off and on twice, with requests that live across every switch."""
    long = live.params.get("long", 150)
    for _ in range(2):
        live.submit(long)
    live.step(8)
    for burst in range(2):
        for i in range(8):
            live.submit(20 + 3 * i)
        live.step(70 if burst == 0 else 1)
        live.submit(long)
    live.finish()
    return live.result()


@scenario
def pinned(live: Live) -> dict[str, Any]:
    """The requests of `params`, all at once, under the configuration's pin; with their meta."""
    for i, request in enumerate(live.params["requests"]):
        random.seed(i)
        live.submit(rid=f"q{i}", **request)
    live.finish()
    keep = ("output_token_logprobs_val", "output_token_logprobs_idx", "output_top_logprobs_val",
            "output_top_logprobs_idx", "output_token_ids_logprobs_val", "output_hidden_states")
    result = live.result()
    result["meta"] = {
        rid: {name: out.meta[name] for name in keep if out.meta.get(name) is not None}
        for rid, out in live.engine.outputs.items()
    }
    return result


@scenario
def churn(live: Live) -> dict[str, Any]:
    """Random arrivals, aborts and pins; a small pool that retracts, prompts that are chunked."""
    alive: list[str] = []
    aborted: list[str] = []
    for _ in range(live.params.get("events", 120)):
        roll = live.random.random()
        if roll < 0.45 and len(alive) < 14:
            alive.append(live.submit(live.random.choice([1, 2, 5, 20, 60]), live.prompt(3, 60)))
        elif roll < 0.52 and alive:
            rid = alive.pop(live.random.randrange(len(alive)))
            live.engine.abort(rid)
            aborted.append(rid)
        elif roll < 0.60 and live.fsm is not None:
            live.fsm.pin(live.random.randrange(3))
        elif roll < 0.62:
            # More than the pool holds to their end, all at once.
            alive += [live.submit(60, live.prompt(10, 40)) for _ in range(8)]
        live.step(live.random.randrange(1, 4))
        alive = [rid for rid in alive if not live.engine.outputs[rid].finished]
    if live.fsm is not None:
        live.fsm.pin(0)
    live.finish()
    result = live.result()
    result["aborted"] = aborted
    outputs = live.engine.outputs.values()
    result["retracted"] = sum(output.meta.get("retraction_counts", 0) for output in outputs)
    result["pool_free"] = live.scheduler.token_to_kv_pool_allocator.available_size()
    result["pool_cached"] = live.scheduler.tree_cache.evictable_size()
    result["pool"] = live.scheduler.max_total_num_tokens
    return result


@scenario
def overflow(live: Live) -> dict[str, Any]:
    """Two requests outgrow their stash while plain, a third does not; then speculation is due."""
    live.fsm.pin(2)
    old = [live.submit(80) for _ in range(2)]
    live.step(30)
    young = live.submit(60)
    live.step(5)
    lost = live.fsm.lifecycle.lost
    live.fsm.pin(1)
    live.step(8)
    waiting = live.modes[-1]
    live.finish()
    return live.result() | {"lost": lost, "soon": waiting, "old": old, "young": young}


@scenario
def draft_kv(live: Live) -> dict[str, Any]:
    """Draft KV and seed of rows after a gap, against those of the model run over the whole text.

    The worst absolute difference over K, V of every covered position and over `hidden_states`.
    Writes are warmed amid the gap, and padded from there on: on a GPU before there are requests.
    """
    import draft_kv_reference

    for i in range(3):
        live.submit(400, live.prompt(5, 30), rid=f"q{i}")
    live.step(6)
    live.fsm.pin(2)
    live.step(live.params["gap"])
    live.worker._cold_entries = 40
    live.worker._warm()
    live.fsm.pin(1)
    worst = 0.0
    compared = 0
    while live.fsm.lifecycle.mode.name != "SPEC":
        live.step()
    for _ in range(6):
        live.step()
        difference, positions = draft_kv_reference.worst_difference(live)
        worst, compared = max(worst, difference), compared + positions
    return {"worst": worst, "compared": compared, **live.result()}


@scenario
def same_rounds(live: Live) -> dict[str, Any]:
    """Accept lengths after a gap, and those of a request prefilled up to the same position.

    Both rows stand at the same position with the same text, so every round must be the same.
    """
    rounds = live.watch_rounds()
    live.submit(300, live.prompt(10, 11), rid="resumed")
    live.step(4)
    live.fsm.pin(2)
    live.step(live.params["gap"])
    live.fsm.pin(1)
    return live.beside_twin("resumed", rounds) | live.result()


@scenario
def prefix_cache(live: Live) -> dict[str, Any]:
    """A request that ends in PLAIN, then one that continues it: what the cache gave, and its KV."""
    import draft_kv_reference

    live.fsm.pin(2)
    first = live.submit(live.params.get("tokens", 30), live.prompt(10, 11))
    live.finish()
    inserted = live.scheduler.tree_cache.evictable_size()
    text = live.prompts[first] + live.engine.outputs[first].output_ids
    live.fsm.pin(1)
    live.submit(40, text + live.prompt(4, 5), rid="second")
    live.step(3)
    (req,) = live.scheduler.running_batch.reqs
    hit = req.kv.cache_protected_len
    difference, compared = draft_kv_reference.worst_difference(live)
    live.finish()
    return {"prompt": len(live.prompts[first]), "inserted": inserted, "hit": hit,
            "worst": difference, "compared": compared, **live.result()}


@scenario
def naive_patch(live: Live) -> dict[str, Any]:
    """The original crash and its first two repairs, each put into the worker; who stops them."""
    import naive_patches

    for _ in range(2):
        live.submit(60)
    live.step(6)
    launched = naive_patches.apply(live, live.params["patch"])
    error = ""
    try:
        for _ in range(8):
            live.submit(30)
        live.step(12)
    except Exception as found:
        error = f"{type(found).__name__}: {found}"
    return {"error": error, "launched_after_patch": launched.count}


@scenario
def reseed_failure(live: Live) -> dict[str, Any]:
    """A rebuild that raises: the batch goes on in PLAIN and comes back after the back-off."""
    from spec_fsm_sglang import rebuild

    for _ in range(3):
        live.submit(200)
    live.fsm.pin(2)
    live.step(20)
    seed = rebuild.seed
    failures = live.params.get("failures", 2)

    def broken(*args: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("no memory for the rebuild")
        seed(*args)

    rebuild.seed = broken
    live.fsm.pin(0)
    live.finish()
    return live.result() | {"mistakes": mistakes(live.worker)}


def mistakes(worker: Any) -> dict[str, list[str]]:
    """What a rebuild and a flush raise, and what caused it, when their code asks for nothing."""
    from spec_fsm import SpecFsmError

    def asks(*_: Any) -> None:
        worker.no_such_attribute()

    worker._flush = asks
    attempts = {
        "rebuild": lambda: worker._tried(asks),
        "flush": lambda: worker._flush_or_retry(worker.spec_fsm, None, None, None),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except SpecFsmError as error:
            found[name] = [type(error).__name__, type(error.__cause__).__name__]
    return found


def main() -> None:
    """Runs one scenario and writes its result."""
    name, config, target = sys.argv[1:]
    live = Live(json.loads(config))
    try:
        result = SCENARIOS[name](live)
    finally:
        live.engine.close()
    Path(target).write_text(json.dumps(result), encoding="utf-8")
    if live.fsm is not None:
        live.fsm.lifecycle.close()
    # The scheduler leaves threads behind that would keep the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
