"""`load_model`: from a name or a path to a `LoadedModel`.

What lives here: the order of things. What does not: finding and fetching models (`store.py`),
and each format (`gguf.py`, `weights.py`, `tokenizer.py`, `chat.py`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from phloem.errors import ConfigError, ModelError, Unsupported
from phloem.programs.protocol import ChatFormat
from phloem.runtime.model.chat import chat_format
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.gguf_tokenizer import tokenizer_json_from_gguf
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.tokenizer import Tokenizer
from phloem.runtime.model.weights import GgufWeights, SafetensorsWeights, Weights, build_decoder

__all__ = ["load_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(
    name_or_path: str = DEFAULT_MODEL, device: str = "auto", dtype: str = "auto"
) -> LoadedModel:
    """Load a model by its name in the store, or from a GGUF file or a safetensors folder.

    `device` is "auto" (cuda where there is one), "cpu" or "cuda[:n]"; `dtype` "auto" or
    "float32", "bfloat16". Raises `ModelNotFound`, `ModelError` and `ConfigError`.
    """
    path = model_path(name_or_path)
    name = path.stem if Path(name_or_path).exists() else name_or_path
    on = _device(device)
    held = _dtype(dtype, on)
    source = _from_gguf(path) if path.is_file() else _from_folder(path)
    weights, tokenizer, template, bos = source
    chat, problem = _chat(template, name, tokenizer, bos)
    return LoadedModel(
        name=name,
        fingerprint=_fingerprint(path),
        config=weights.config,
        decoder=build_decoder(weights, DTYPES[held], on),
        tokenizer=tokenizer,
        dtype=held,
        eos_ids=tokenizer.eos_ids,
        chat_format=chat,
        chat_problem=problem,
    )


def _device(asked: str) -> torch.device:
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise ConfigError(
            f"unknown device {asked!r}", hint='use "auto", "cpu" or "cuda"'
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"no CUDA device for {asked!r}", hint='use device="cpu"')
    return device


def _dtype(asked: str, device: torch.device) -> str:
    if asked == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if asked not in DTYPES:
        raise ConfigError(f"unknown dtype {asked!r}", hint=f"use auto, {', '.join(DTYPES)}")
    return asked


Source = tuple[Weights, Tokenizer, str | None, str]


def _from_gguf(path: Path) -> Source:
    file = GgufFile(path)
    weights = GgufWeights(file)
    meta = file.meta
    eos = {
        meta[key]
        for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
        if key in meta
    }
    tokenizer = Tokenizer(tokenizer_json_from_gguf(meta), eos)
    bos = meta["tokenizer.ggml.tokens"][meta.get("tokenizer.ggml.bos_token_id", 0)]
    return weights, tokenizer, meta.get("tokenizer.chat_template"), bos


def _from_folder(folder: Path) -> Source:
    weights = SafetensorsWeights(folder)
    config = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json", required=False)
    settings = _json(folder / "tokenizer_config.json", required=False)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = eos if isinstance(eos, list) else [eos] if eos is not None else []
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.exists():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            hint="save the model's fast tokenizer there (tokenizer.save_pretrained)",
        )
    tokenizer = Tokenizer(tokenizer_file.read_text(), ids)
    template = settings.get("chat_template")
    template_file = folder / "chat_template.jinja"
    if template_file.exists():
        template = template_file.read_text()
    bos = settings.get("bos_token") or ""
    return weights, tokenizer, template, bos["content"] if isinstance(bos, dict) else bos


def _json(path: Path, *, required: bool = True) -> dict[str, Any]:
    if not path.exists() and not required:
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} can't be read: {error}", hint="the download may be broken: pull it again"
        ) from error


def _chat(
    template: str | None, name: str, tokenizer: Tokenizer, bos: str
) -> tuple[ChatFormat | None, str]:
    if not template:
        return None, "the model has no chat template"
    try:
        return chat_format(template, name, tokenizer.specials, bos), ""
    except Unsupported as error:
        return None, error.message


def _fingerprint(path: Path) -> str:
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
