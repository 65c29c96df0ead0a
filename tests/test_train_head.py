"""The tool that trains the draft head: its rows are EAGLE's rounds, its files are SGLang's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.train_head import train
from tools.train_head.generate import Corpus, Decoder, greedy_answers
from tools.train_head.head import ChainCache, Eagle3Head, load_head, new_head, save_head
from tools.train_head.llama import Target
from tools.train_head.prompts import Exclusion, Job, jobs, seed_prompts
from tools.train_head.simulate import Sequence, Spec, sequences, simulate

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 96, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "eos_token_id": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A random Llama of seven layers, so that the three captured ones differ."""
    folder = tmp_path_factory.mktemp("target")
    (folder / "config.json").write_text(json.dumps(SIZES))
    generator = torch.Generator().manual_seed(1)
    h, f, kv = 32, 48, 16
    shapes = {"model.embed_tokens": (96, h), "model.norm": (h,)}
    for i in range(7):
        parts = {
            "self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, h), "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h),
            "mlp.down_proj": (h, f), "input_layernorm": (h,), "post_attention_layernorm": (h,),
        }  # fmt: skip
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in parts.items()}
    weights = {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.3 + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    return Target(folder, "cpu", torch.float32)


@pytest.fixture(scope="module")
def head(target: Target) -> Eagle3Head:
    """An untrained head with half the vocabulary and an uneven scale."""
    torch.manual_seed(2)
    scale = torch.rand(3 * 32) * 4 + 0.5
    return new_head(target, torch.arange(1, 96, 2), scale, 64)


@pytest.fixture(scope="module")
def answers(target: Target) -> list[Sequence]:
    """Three greedy answers of the target."""
    prompts = [[5, 6, 7], [11, 12, 13, 14], [90, 3, 1]]
    found = greedy_answers(target, prompts, 24)
    return sequences(target, found, [len(p) for p in prompts])


def one_round(head: Eagle3Head, target: Target, s: Sequence, row: int, path: list[int]) -> Tensor:
    """Logits after ``row`` and the drafts ``path``, as a plain causal pass without any cache."""
    hidden = head.fuse(s.captured[None, : row + 1])
    tokens = s.tokens[1 : row + 2].tolist()
    for draft in [*path, None]:
        embeds = target.embed[torch.tensor(tokens)][None]
        normed, out = head.step(hidden, embeds, ChainCache())
        if draft is None:
            break
        hidden = torch.cat([hidden, out[:, -1:]], dim=1)
        tokens.append(draft)
    return head.lm_head(normed[0, -1]).softmax(-1)


@torch.no_grad()
def test_greedy_answers_are_the_targets(target: Target) -> None:
    """Rows at different places, decoded together, get the argmax of a full forward pass."""
    prompts = [[5, 6, 7], [11, 12, 13, 14, 15, 16], [3]]
    for prompt, answer in zip(prompts, greedy_answers(target, prompts, 12), strict=True):
        final = target.forward(torch.tensor([answer]))[1][0]
        best = (final @ target.embed.T).argmax(-1).tolist()
        assert answer[: len(prompt)] == prompt
        assert answer[len(prompt) :] == best[len(prompt) - 1 : -1]
        assert len(answer) == len(prompt) + 12 or answer[-1] == 2


@torch.no_grad()
def test_chain_rounds_equal_a_plain_causal_pass(
    head: Eagle3Head, target: Target, answers: list[Sequence]
) -> None:
    """Drafting from every row at once finds what one round at a time finds."""
    for s in answers:
        row, counts, end = s.start - 1, [], len(s.tokens) - 2
        while row < end:
            path: list[int] = []
            for _ in range(3):
                best = int(one_round(head, target, s, row, path).argmax())
                path.append(int(head.draft_ids[best]))
            expected = s.tokens[row + 2 : row + 5].tolist()
            hits = [a == b for a, b in zip(path, [*expected, -1, -1, -1], strict=False)]
            counts.append([*hits, False].index(False))
            row += counts[-1] + 1
        assert simulate(head, target.embed, [s], Spec(3, 1, 4), 1000).counts == counts


@torch.no_grad()
def test_tree_rounds_equal_a_plain_causal_pass(
    head: Eagle3Head, target: Target, answers: list[Sequence]
) -> None:
    """The tree keeps the best nodes by probability along the path, and accepts along one path."""
    spec = Spec(2, 3, 8)
    for s in answers:
        row, counts, end = s.start - 1, [], len(s.tokens) - 2
        while row < end:
            nodes: dict[tuple[int, ...], float] = {}
            first = one_round(head, target, s, row, []).topk(3)
            for p, i in zip(*(x.tolist() for x in first), strict=True):
                child = int(head.draft_ids[i])
                nodes[(child,)] = p
                second = one_round(head, target, s, row, [child]).topk(3)
                for q, j in zip(*(x.tolist() for x in second), strict=True):
                    nodes[(child, int(head.draft_ids[j]))] = p * q
            kept = sorted(nodes, key=nodes.__getitem__, reverse=True)[: spec.num_draft_tokens - 1]
            truth = (*s.tokens[row + 2 : row + 4].tolist(), -1)
            counts.append(max([0, *(len(path) for path in kept if path == truth[: len(path)])]))
            row += counts[-1] + 1
        assert simulate(head, target.embed, [s], spec, 1000).counts == counts


def test_saved_head_is_what_sglang_reads(
    head: Eagle3Head, target: Target, answers: list[Sequence], tmp_path: Path
) -> None:
    """Names, id maps and config are EAGLE-3's; a loaded head computes the same; sums match."""
    save_head(head, tmp_path, torch.float32)
    raw = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["draft_vocab_size"] == len(raw["d2t"]) == 48
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert torch.equal(raw["d2t"] + torch.arange(48), head.draft_ids)
    assert torch.equal(raw["t2d"].nonzero().flatten(), head.draft_ids)
    assert raw["midlayer.self_attn.q_proj.weight"].shape == (32, 64)
    assert raw["midlayer.self_attn.k_proj.weight"].shape == (16, 64)
    loaded = load_head(tmp_path, target.config)
    hidden, embeds = answers[0].captured[None, :-1], target.embed[answers[0].tokens[1:]][None]
    ours = head.lm_head(head.step(head.fuse(hidden), embeds, ChainCache())[0])
    theirs = loaded.lm_head(loaded.step(loaded.fuse(hidden), embeds, ChainCache())[0])
    torch.testing.assert_close(ours, theirs)


def test_kept_out_prompts_are_recognised() -> None:
    """A kept-out prompt is caught whole, in part and in other case; other prompts are not."""
    kept = "Compose an engaging travel blog post about a recent trip to the mountains of Peru."
    exclusion = Exclusion([kept, "Why?"])
    assert exclusion.covers(kept.upper())
    assert exclusion.covers("Please compose an engaging travel blog post about a recent TRIP, now")
    assert exclusion.covers("why")
    assert not exclusion.covers("Why not? Compose an engaging travel blog post about bees.")


def test_jobs_repeat_and_leave_out_kept_prompts() -> None:
    """The same seed gives the same jobs, a kept-out seed prompt is in none, and kinds are mixed."""
    kept = seed_prompts(random.Random(7))[-1]

    def first(exclusion: Exclusion) -> list[Job]:
        return [job for job, _ in zip(jobs(7, exclusion), range(20000), strict=False)]

    everything = first(Exclusion([]))
    assert everything == first(Exclusion([]))
    assert any(f"\n{kept}<|im_end|>" in job.text for job in everything)
    assert not any(f"\n{kept}<|im_end|>" in job.text for job in first(Exclusion([kept])))
    assert {(job.invent, job.past_end, job.temperature > 0) for job in everything} == {
        (a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)
    }


def test_decoder_closes_user_turns_and_marks_failures(target: Target) -> None:
    """An invented user turn gets the header once it ends; one that never ends fails."""
    torch.manual_seed(0)
    decoder = Decoder(target, 64, 160, 8)
    decoder.header = torch.tensor([70, 71, 72])
    decoder.fill(decoder.rows, [Job("", True, 0.0, 30.0, False)] * 64, [[5, 6, 7]] * 64)
    while not bool(decoder.finished.all()):
        decoder.step()
    closed = ~decoder.failed
    assert 0 < int(closed.sum()) < 64
    for row in closed.nonzero().flatten().tolist():
        start = int(decoder.answer_start[row])
        tokens = decoder.tokens[row].tolist()
        assert tokens[start - 4 : start] == [2, 70, 71, 72]
        assert 2 not in tokens[: start - 4]
        assert int(decoder.position[row]) + 2 - start <= 8
    assert not bool((~decoder.inventing & decoder.failed).any())


def corpus_of(target: Target) -> Corpus:
    """Greedy answers of the random target, which a head can learn by heart."""
    prompts = [[a, b, 7] for a in range(10, 20) for b in range(30, 34)]
    rows = greedy_answers(target, prompts, 20)
    flat = np.array([token for row in rows for token in row], dtype=np.uint16)
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    return Corpus(flat, flat.copy(), offsets, np.full(len(rows), 3, dtype=np.int32))


def test_training_learns_and_resumes(
    target: Target, answers: list[Sequence], tmp_path: Path
) -> None:
    """The loss falls, top-1 rises at every step of the chain, and a resumed run ends the same."""
    settings = train.Settings(
        steps=120, batch_tokens=512, learning_rate=0.02, warmup=5, draft_vocab=64,
        intermediate_size=64, held_out=4, log_every=1, measure_every=120,
    )  # fmt: skip
    corpus = corpus_of(target)
    whole = train.Trainer(target, corpus, settings)
    whole.run(1e9, answers, tmp_path)
    curve = [entry for entry in whole.curves if entry["kind"] == "train"]
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    for now, then in zip(curve[-1]["top1_by_step"], curve[0]["top1_by_step"], strict=True):
        assert now > then + 0.2
    assert json.loads((tmp_path / "training.json").read_text())["steps_done"] == 120

    part = train.Trainer(target, corpus, settings)
    while part.done < 40:
        part.run(0.01, answers, tmp_path)
    part.save(tmp_path / "checkpoint.pt")
    resumed = train.Trainer(target, corpus, settings)
    resumed.resume(tmp_path / "checkpoint.pt")
    resumed.run(1e9, answers, tmp_path)
    assert resumed.done == 120
    for a, b in zip(whole.head.parameters(), resumed.head.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    other = train.Trainer(target, corpus, train.Settings(held_out=4, draft_vocab=64))
    with pytest.raises(ValueError, match="was made with"):
        other.resume(tmp_path / "checkpoint.pt")
