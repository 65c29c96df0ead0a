"""The tiny pair under the real scheduler and worker: it accepts partly, and changes no output.

SGLang allows one scheduler a process, so each configuration runs in a process of its own. Its
outputs are compared with the target's own greedy path, found by a plain forward.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from spec_fsm_sglang import reference
from spec_fsm_sglang.tiny import Recipe, TinyPair, write_pair

CHAIN = {"steps": 3, "topk": 1, "num_draft_tokens": 4}
TREE = {"steps": 2, "topk": 4, "num_draft_tokens": 16}

RUN = """
import json, sys
from pathlib import Path
from spec_fsm_sglang.inprocess import Engine

job = json.loads(sys.argv[1])
paths = {name: Path(path) for name, path in job["paths"].items()}
engine = Engine(**paths, **job["options"])
rids = [engine.submit(ids, max_new_tokens=job["max_new_tokens"]) for ids in job["prompts"]]
in_flight = 0
while not engine.idle:
    engine.step()
    in_flight = max(in_flight, len(getattr(engine.scheduler, "result_queue", ())))
outputs = [engine.outputs[rid] for rid in rids]
print(json.dumps({
    "ids": [output.output_ids for output in outputs],
    "reasons": [output.finished_reason["type"] for output in outputs],
    "histogram": [output.meta["spec_correct_drafts_histogram"] for output in outputs],
    "retracted": sum(output.meta["retraction_counts"] for output in outputs),
    "in_flight": in_flight,
}))
engine.close()
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """One pair for every test of this module."""
    return write_pair(tmp_path_factory.mktemp("pair"))


def prompts(count: int = 12) -> list[list[int]]:
    """Random prompts of 4 to 70 tokens, past the special ids 0 and 1."""
    random = torch.Generator().manual_seed(5)
    lengths = [4 + 6 * i for i in range(count)]
    return [torch.randint(2, 512, (n,), generator=random).tolist() for n in lengths]


def run(model: Path, draft: Path, options: dict[str, Any], max_new_tokens: int) -> dict[str, Any]:
    """What an engine in a fresh process answers to `prompts()`."""
    job = {
        "paths": {"model": str(model), "draft": str(draft)},
        "options": options,
        "prompts": prompts(),
        "max_new_tokens": max_new_tokens,
    }
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(job)],
        env=env, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        pytest.param("EAGLE3", TREE | {"overlap": True}, id="eagle3-tree-overlap"),
        pytest.param(
            "EAGLE3",
            CHAIN | {"overlap": True, "page_size": 16, "chunked_prefill_size": 32},
            id="eagle3-chain-overlap-page16-chunked",
        ),
        pytest.param("EAGLE3", CHAIN | {"overlap": False}, id="eagle3-chain"),
        pytest.param("EAGLE", TREE | {"overlap": False}, id="eagle-tree"),
        pytest.param("EAGLE", CHAIN | {"overlap": True}, id="eagle-chain-overlap"),
        pytest.param(
            "EAGLE3", TREE | {"overlap": True, "max_total_tokens": 800}, id="eagle3-tree-retraction"
        ),
    ],
)
def test_outputs_are_the_greedy_path_and_every_accept_length_occurs(
    pair: TinyPair, algorithm: str, options: dict[str, Any]
) -> None:
    """Speculation gives the tokens of plain greedy decoding and accepts 1, 2, ... and s + 1."""
    draft = pair.eagle3 if algorithm == "EAGLE3" else pair.eagle
    got = run(pair.target, draft, options | {"algorithm": algorithm}, max_new_tokens=40)
    for prompt, ids in zip(prompts(), got["ids"], strict=True):
        assert len(ids) == 40
        assert reference.first_difference(pair.target, prompt, ids) is None
    assert set(got["reasons"]) == {"length"}
    accepted = [sum(column) for column in zip(*got["histogram"], strict=True)]
    assert len(accepted) == options["steps"] + 1
    assert min(accepted) > 0, accepted
    assert got["in_flight"] == (1 if options["overlap"] else 0)
    assert (got["retracted"] > 0) == ("max_total_tokens" in options)


def test_outputs_depend_on_the_context(pair: TinyPair) -> None:
    """Another token early in the prompt changes most outputs, so wrong KV would show."""
    asked = prompts()
    changed = [[*p[:1], 2 + (p[1] + 1) % 500, *p[2:]] for p in asked]
    plain = reference.greedy(pair.target, asked, 40)
    moved = reference.greedy(pair.target, changed, 40)
    differ = sum(a != b for a, b in zip(plain, moved, strict=True))
    assert differ > len(asked) // 2, differ
    assert len({token for ids in plain for token in ids}) > 100


def test_reference_finds_a_wrong_token(pair: TinyPair) -> None:
    """A changed token is found at its place, with the token expected there and its margin."""
    prompt = prompts()[3]
    ids = reference.greedy(pair.target, [prompt], 20)[0]
    assert reference.first_difference(pair.target, prompt, ids) is None
    wrong = [*ids[:7], (ids[7] + 1) % 512, *ids[8:]]
    found = reference.first_difference(pair.target, prompt, wrong)
    assert found is not None
    assert (found.index, found.expected, found.got) == (7, ids[7], wrong[7])
    assert found.margin > 0


def test_a_recipe_always_gives_the_same_pair(pair: TinyPair, tmp_path: Path) -> None:
    """Equal recipes give equal files, another seed other weights."""
    again, other = write_pair(tmp_path / "a"), write_pair(tmp_path / "b", Recipe(seed=1))
    for name in ("target", "eagle3", "eagle"):
        first, second, third = (
            (getattr(p, name) / "model.safetensors").read_bytes() for p in (pair, again, other)
        )
        assert first == second
        assert first != third


def test_draft_vocabulary_maps_are_consistent(pair: TinyPair) -> None:
    """d2t holds the offset of each draft id, t2d marks the same target ids, both in order."""
    weights = load_file(pair.eagle3 / "model.safetensors")
    hot = weights["d2t"] + torch.arange(len(weights["d2t"]))
    assert len(hot) == Recipe().draft_vocab_size < Recipe().vocab_size
    assert torch.equal(hot, weights["t2d"].nonzero().flatten())
    target = load_file(pair.target / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], target["lm_head.weight"][hot])
