"""`load_model`: from a name or a path to a `LoadedModel`.

What lives here: the order of things, and which weight format "auto" means. What does not:
finding and fetching models (`store.py`), their tokenizer and chat format (`text.py`), and each
format of weights (`gguf.py`, `weights.py`, `convert.py`).

The converted weights of a GGUF file are cached, so a second start maps them into memory and
goes. Safetensors folders are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch
from safetensors.torch import load_file, save_file

from phloem.errors import ConfigError
from phloem.runtime.model.batch import Decoder
from phloem.runtime.model.cache import CacheEntry, content_hash
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.convert import Held, Tensors, assemble, convert
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.quants import Q4_0, Q4_1
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.text import load_model_text
from phloem.runtime.model.weights import GgufWeights, SafetensorsWeights, Weights
from phloem.runtime.native.decoder import native_decoder

__all__ = ["load_model"]


def load_model(
    name_or_path: str | Path = DEFAULT_MODEL, device: str = "auto", dtype: str = "auto"
) -> LoadedModel:
    """Load a model by its name in the store, or from a GGUF file or a safetensors folder.

    `device` is "auto" (CUDA where there is one), "cpu" or "cuda[:n]". `dtype` is "auto" (the
    fastest here: the file's own 4 bits on a CPU, else bfloat16 where the hardware has it),
    "float32" (exact), "bfloat16", "int8" or "int4".

    Raises `ModelNotFound`, `ModelError` for a model that can't be used, and `ConfigError` for
    a device or dtype that can't.
    """
    on = _device(device)
    text = load_model_text(name_or_path)
    path = model_path(str(name_or_path))
    source = _open_gguf(path) if path.is_file() else _open_folder(path)
    held = _held(dtype, on, source)
    return LoadedModel(
        name=text.name,
        tokenizer=text.tokenizer,
        eos_ids=text.eos_ids,
        chat_format=text.chat_format,
        chat_problem=text.chat_problem,
        bos=text.bos,
        fingerprint=source.fingerprint,
        config=source.weights.config,
        decoder=_decoder(source.weights.config, source.tensors(held), on),
        dtype=held,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """A model's weights, opened. `tensors` converts them, or takes them from a cache."""

    fingerprint: str
    weights: Weights
    four_bit: bool
    tensors: Callable[[Held], Tensors]


def _open_gguf(path: Path) -> _Source:
    file = GgufFile(path)
    weights = GgufWeights(file)
    fingerprint = content_hash(path)
    cache = CacheEntry(fingerprint)

    def tensors(held: Held) -> Tensors:
        return load_file(
            cache.file(f"{held}.safetensors", lambda to: save_file(convert(weights, held), to))
        )

    return _Source(
        fingerprint=fingerprint,
        weights=weights,
        four_bit=any(tensor.kind in {Q4_0, Q4_1} for tensor in file.tensors.values()),
        tensors=tensors,
    )


def _open_folder(folder: Path) -> _Source:
    weights = SafetensorsWeights(folder)
    return _Source(
        fingerprint=content_hash(folder),
        weights=weights,
        four_bit=False,
        tensors=lambda held: convert(weights, held),
    )


def _decoder(config: DecoderConfig, tensors: Tensors, device: torch.device) -> Decoder:
    """In compiled code where that can be, else in torch."""
    compiled = device.type == "cpu" and config.family != "gemma3"
    native = native_decoder(config, tensors) if compiled else None
    return native or assemble(config, tensors, device)


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
        raise ConfigError(f"there is no CUDA device for {asked!r}", hint='use device="cpu"')
    return device


def _held(asked: str, device: torch.device, source: _Source) -> Held:
    """Choose for "auto", and refuse what this device or these weights can't do."""
    on_cpu = device.type == "cpu"
    if asked == "auto":
        if on_cpu and source.four_bit:
            return "int4"
        return "bfloat16" if not on_cpu or _fast_bfloat16() else "float32"
    if asked not in get_args(Held):
        choices = ", ".join(["auto", *get_args(Held)])
        raise ConfigError(f"unknown dtype {asked!r}", hint=f"use one of {choices}")
    if asked in {"int8", "int4"} and not on_cpu:
        raise ConfigError(f"dtype {asked!r} works on a CPU only", hint='use dtype="bfloat16"')
    if asked == "int4" and not source.four_bit:
        raise ConfigError(
            "these weights are not stored in 4 bits", hint='use dtype="int8" or "auto"'
        )
    return cast("Held", asked)


def _fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
