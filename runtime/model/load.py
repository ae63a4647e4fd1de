"""`load_model`: from a name or a path to a `LoadedModel`.

What lives here: the order of things, and which weight format "auto" means. What does not:
finding and fetching models (`store.py`), and each format (`gguf.py`, `weights.py`,
`convert.py`, `tokenizer.py`, `chat.py`).

What is derived from a GGUF file (its tokenizer.json, its converted weights) is cached, so a
second start maps it into memory and goes. Safetensors folders are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

import torch
from safetensors.torch import load_file, save_file

from phloem.errors import ConfigError, ModelError, Unsupported
from phloem.programs.protocol import ChatFormat, Special
from phloem.runtime.model.batch import Decoder
from phloem.runtime.model.cache import CacheEntry, content_hash
from phloem.runtime.model.chat import chat_format
from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.convert import Held, Tensors, assemble, convert
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.gguf_tokenizer import tokenizer_json_from_gguf
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.quants import Q4_0, Q4_1
from phloem.runtime.model.store import DEFAULT_MODEL, model_path
from phloem.runtime.model.tokenizer import Tokenizer
from phloem.runtime.model.weights import GgufWeights, SafetensorsWeights, Weights, read_json
from phloem.runtime.native.decoder import native_decoder

__all__ = ["load_model", "load_tokenizer"]


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
    path = model_path(str(name_or_path))
    source = _open(path)
    held = _held(dtype, on, source)
    name = str(name_or_path)
    if Path(name_or_path).exists():
        name = path.stem if path.is_file() else path.name
    chat, problem = _chat(source, name)
    return LoadedModel(
        name=name,
        fingerprint=source.fingerprint,
        config=source.weights.config,
        decoder=_decoder(source.weights.config, source.tensors(held), on),
        tokenizer=source.tokenizer,
        dtype=held,
        eos_ids=_ends(source, chat),
        chat_format=chat,
        chat_problem=problem,
    )


def load_tokenizer(name_or_path: str | Path = DEFAULT_MODEL) -> Tokenizer:
    """The tokenizer of a model alone, without its weights. Raises as `load_model` does."""
    return _open(model_path(str(name_or_path))).tokenizer


def _open(path: Path) -> _Source:
    return _open_gguf(path) if path.is_file() else _open_folder(path)


@dataclass(frozen=True, slots=True)
class _Source:
    """A model's files, opened. `tensors` gives the converted weights, from a cache if it can."""

    fingerprint: str
    weights: Weights
    tokenizer: Tokenizer
    eos_ids: list[int]
    template: str | None
    bos: str
    four_bit: bool
    tensors: Callable[[Held], Tensors]


def _open_gguf(path: Path) -> _Source:
    file = GgufFile(path)
    weights, meta = GgufWeights(file), file.meta
    fingerprint = content_hash(path)
    cache = CacheEntry(fingerprint)

    def write_tokenizer(target: Path) -> None:
        target.write_text(tokenizer_json_from_gguf(meta), encoding="utf-8")

    def tensors(held: Held) -> Tensors:
        return load_file(
            cache.file(f"{held}.safetensors", lambda to: save_file(convert(weights, held), to))
        )

    ids = (meta.get("tokenizer.ggml.eos_token_id"), meta.get("tokenizer.ggml.eot_token_id"))
    tokenizer_json = cache.file("tokenizer.json", write_tokenizer).read_text(encoding="utf-8")
    bos = meta.get("tokenizer.ggml.bos_token_id")
    return _Source(
        fingerprint=fingerprint,
        weights=weights,
        tokenizer=Tokenizer(tokenizer_json),
        eos_ids=[i for i in ids if i is not None],
        template=meta.get("tokenizer.chat_template"),
        bos="" if bos is None else meta["tokenizer.ggml.tokens"][bos],
        four_bit=any(tensor.kind in {Q4_0, Q4_1} for tensor in file.tensors.values()),
        tensors=tensors,
    )


def _open_folder(folder: Path) -> _Source:
    weights = SafetensorsWeights(folder)
    settings = read_json(folder / "tokenizer_config.json", {})
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.exists():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            hint="write one with transformers: AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(folder)",
        )
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text() if template_file.exists() else None
    bos = settings.get("bos_token") or ""
    return _Source(
        fingerprint=content_hash(folder),
        weights=weights,
        tokenizer=Tokenizer(tokenizer_file.read_text(encoding="utf-8")),
        eos_ids=_eos_ids(folder),
        template=template or settings.get("chat_template"),
        bos=bos["content"] if isinstance(bos, dict) else bos,
        four_bit=False,
        tensors=lambda held: convert(weights, held),
    )


def _eos_ids(folder: Path) -> list[int]:
    config = read_json(folder / "config.json")
    eos = read_json(folder / "generation_config.json", {}).get("eos_token_id")
    eos = config.get("eos_token_id") if eos is None else eos
    return eos if isinstance(eos, list) else [] if eos is None else [eos]


def _chat(source: _Source, name: str) -> tuple[ChatFormat | None, str]:
    if not source.template:
        return None, "the model has no chat template"
    try:
        return chat_format(source.template, name, source.tokenizer.specials, source.bos), ""
    except Unsupported as error:
        return None, error.message


def _ends(source: _Source, chat: ChatFormat | None) -> frozenset[int]:
    """The tokens that end a generation: the model's own, and what ends an assistant's message."""
    ends = set(source.eos_ids)
    for segment in chat.suffix["assistant"][:1] if chat else ():
        if isinstance(segment, Special):
            ends.add(source.tokenizer.specials[segment.token])
    if not ends:
        raise ModelError(
            "the model names no end-of-sequence token",
            hint="put its id into generation_config.json as eos_token_id",
        )
    return frozenset(ends)


def _decoder(config: DecoderConfig, tensors: Tensors, device: torch.device) -> Decoder:
    """In compiled code where that can be, else in torch."""
    native = native_decoder(config, tensors) if device.type == "cpu" else None
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
