"""The shapes of models for `plan.py`: from a config.json, a GGUF file, or a known name.

What lives here: `read_shape` and the table of names. What does not: arithmetic. Unlike
`model/config.py` it takes models that the embedded engine can't run, if their memory follows the
formulas: attention that stores something else than keys and values, and experts, do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phloem.errors import ConfigError, ModelNotFound
from phloem.runtime.model.config import config_from_gguf
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.store import model_path
from phloem.runtime.model.weights import read_json
from phloem.runtime.plan import Shape

__all__ = ["KNOWN", "read_shape", "shape_from_config"]

KNOWN = {
    shape.name: shape
    for shape in (
        Shape("llama-3-8b", 32, 4096, 32, 8, 128, 14_336, 128_256, False, 8192),
        Shape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14_336, 128_256, False, 131_072),
        Shape("llama-3-70b", 80, 8192, 64, 8, 128, 28_672, 128_256, False, 8192),
        Shape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28_672, 128_256, False, 131_072),
        Shape("llama-2-7b", 32, 4096, 32, 32, 128, 11_008, 32_000, False, 4096),
        Shape("mistral-7b", 32, 4096, 32, 8, 128, 14_336, 32_768, False, 32_768),
        Shape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18_944, 152_064, False, 32_768),
        Shape("qwen3-8b", 36, 4096, 32, 8, 128, 12_288, 151_936, False, 40_960),
        Shape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49_152, True, 8192),
    )
}
"""From the models' own config.json files."""
_ODD = {
    "kv_lora_rank": "latent attention keeps no keys and values",
    "num_local_experts": "it has experts",
    "num_experts": "it has experts",
    "n_routed_experts": "it has experts",
}


def read_shape(model: str) -> Shape:
    """The shape of a config.json, a folder with one, a GGUF file, a model of the store, or a known
    name. Raises `ModelNotFound`, and `ConfigError` for models that the formulas don't fit."""
    known = KNOWN.get(model.lower())
    if known is not None and not Path(model).exists():
        return known
    try:
        path = model_path(model)
    except ModelNotFound as error:
        names = ", ".join(KNOWN)
        raise ModelNotFound(error.message, hint=f"give a config.json or one of {names}") from error
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFound(f"{path} has no config.json", hint="give the model's own folder")
        stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        return shape_from_config(read_json(path / "config.json", {}), path.name, stored or None)
    if path.suffix == ".json":
        return shape_from_config(read_json(path, {}), path.parent.name or path.stem, None)
    return _from_gguf(path)


def shape_from_config(data: Mapping[str, Any], name: str, stored: int | None) -> Shape:
    """From a config.json's content. `stored` is the size of the weights, where known."""
    data = data.get("text_config", data)
    for key, why in _ODD.items():
        if data.get(key):
            raise ConfigError(f"{name} can't be planned: {why}", hint="measure it on the server")
    try:
        heads, hidden = int(data["num_attention_heads"]), int(data["hidden_size"])
        shape = Shape(
            name=name,
            layers=int(data["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(data.get("num_key_value_heads") or heads),
            head_dim=int(data.get("head_dim") or hidden // heads),
            mlp=int(data["intermediate_size"]),
            vocab=int(data["vocab_size"]),
            tied=bool(data.get("tie_word_embeddings", False)),
            max_context=int(data["max_position_embeddings"]),
            weight_bytes=stored,
        )
    except KeyError as error:
        raise ConfigError(
            f"the config.json of {name} lacks {error}", hint="take the model's own config.json"
        ) from error
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(
            f"the config.json of {name} has a size that is no number: {error}",
            hint="take the model's own config.json",
        ) from error
    sizes = (shape.layers, hidden, heads, shape.kv_heads, shape.head_dim, shape.mlp, shape.vocab)
    if min(sizes) <= 0:
        raise ConfigError(
            f"the config.json of {name} has a size that is not more than 0",
            hint="take the model's own config.json",
        )
    return shape


def _from_gguf(path: Path) -> Shape:
    file = GgufFile(path)
    config = config_from_gguf(file.meta, frozenset(file.tensors))
    first = min(tensor.offset for tensor in file.tensors.values())
    return Shape(
        name=path.stem,
        layers=config.layers,
        hidden=config.hidden_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        mlp=config.mlp_size,
        vocab=config.vocab_size,
        tied=config.tied_head,
        max_context=config.max_positions,
        weight_bytes=path.stat().st_size - first,
    )
