"""The two sources of weights, GGUF files and safetensors folders, under one set of names.

What lives here: `GgufWeights` and `SafetensorsWeights`, which both speak Hugging Face's tensor
names and row order. What does not: the containers themselves (`gguf.py`, the safetensors
library), and how a decoder holds the tensors (`convert.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from phloem.errors import ModelError
from phloem.runtime.model.config import DecoderConfig, config_from_gguf, config_from_huggingface
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.linear import GROUP, Blocks4
from phloem.runtime.model.quants import Q4_0, Q4_1, split_4_bit

__all__ = ["GgufWeights", "SafetensorsWeights", "Weights", "read_json"]


class Weights(Protocol):
    """Tensors of one model by Hugging Face's names ("model.norm.weight")."""

    config: DecoderConfig

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in floating point. Raises `ModelError` if it is missing."""
        ...

    def blocks4(self, name: str) -> Blocks4 | None:
        """The matrix as 4-bit blocks, if that is how it is stored."""
        ...


class SafetensorsWeights:
    """A folder with `config.json` and `model.safetensors` (or shards and their index)."""

    def __init__(self, folder: Path) -> None:
        self.config = config_from_huggingface(read_json(folder / "config.json"))
        self._folder = folder
        self._files: dict[str, str] = {}
        index = folder / "model.safetensors.index.json"
        try:
            if index.exists():
                self._files = dict(read_json(index)["weight_map"])
            else:
                for path in sorted(folder.glob("*.safetensors")):
                    with safe_open(path, framework="pt") as file:
                        self._files.update(dict.fromkeys(file.keys(), path.name))
        except (SafetensorError, ValueError, KeyError) as error:
            raise _unreadable(folder, error) from error

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, in the type it is stored in."""
        if name not in self._files:
            raise _missing(self._folder, name)
        path = self._folder / self._files[name]
        try:
            with safe_open(path, framework="pt") as file:
                values: torch.Tensor = file.get_tensor(name)
                return values
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error) from error

    def blocks4(self, name: str) -> Blocks4 | None:  # noqa: ARG002 - the protocol's
        """None: these files hold floating point."""
        return None


GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
"""Where Gemma 3's spelling differs: a layer has four norms."""

GGUF_NAMES = {
    "rope_freqs": "rope_freqs",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufWeights:
    """A GGUF file, dequantised to float32 as it is read."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.config = config_from_gguf(file.meta, frozenset(file.tensors))

    def __contains__(self, name: str) -> bool:
        return self._stored(name) in self.file.tensors

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in float32, rows in Hugging Face's order."""
        if name not in self:
            raise _missing(self.file.path, name)
        values = self._rows_in_order(name, self.file.floats(self._stored(name)))
        if self.config.family == "gemma3" and name.endswith("norm.weight"):
            return values - 1  # converters add the one that Hugging Face's Gemma adds as it runs
        return values

    def blocks4(self, name: str) -> Blocks4 | None:
        """The matrix as 4-bit blocks if it is stored as Q4_0 or Q4_1."""
        stored = self.file.tensors.get(self._stored(name))
        if stored is None or stored.kind not in {Q4_0, Q4_1}:
            return None
        outputs, inputs = stored.shape
        q, scale, minimum = split_4_bit(self.file.blocks(stored.name), stored.kind)
        groups = (outputs, inputs // GROUP)
        return Blocks4.pack(
            self._rows_in_order(name, torch.from_numpy(q).view(outputs, inputs)),
            self._rows_in_order(name, torch.from_numpy(scale).view(groups)),
            self._rows_in_order(name, torch.from_numpy(minimum).view(groups)),
        )

    def _stored(self, name: str) -> str:
        return gguf_name(name, GEMMA_NAMES if self.config.family == "gemma3" else {})

    def _rows_in_order(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Undo the row order of Q and K in files of architecture "llama".

        llama.cpp rotates pairs (2i, 2i + 1), Hugging Face (i, i + head_dim / 2); converters
        permute the rows of each head. Whole rows move, so blocks stay intact.
        """
        heads = {".q_proj.": self.config.heads, ".k_proj.": self.config.kv_heads}
        for part, count in heads.items():
            if self.config.family == "llama" and part in name:
                pairs = values.view(count, -1, 2, *values.shape[1:])
                return pairs.transpose(1, 2).reshape(values.shape)
        return values


def gguf_name(name: str, special: Mapping[str, str]) -> str:
    """Hugging Face's tensor name in GGUF's spelling, where `special` has none of its own."""
    stem, _, kind = name.rpartition(".")
    layer = ""
    if stem.startswith("model.layers."):
        number, _, stem = stem.removeprefix("model.layers.").partition(".")
        layer = f"blk.{number}."
    return f"{layer}{special.get(stem) or GGUF_NAMES[stem]}.{kind}"


def read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """A JSON object from a file; `default` if there is no such file. Raises `ModelError`."""
    if default is not None and not path.exists():
        return default
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path} can't be read: {error}", hint="the download may be broken: pull it again"
        ) from error


def _missing(source: Path, name: str) -> ModelError:
    return ModelError(
        f"{source} lacks the tensor {name}", hint="the download may be incomplete: pull it again"
    )


def _unreadable(source: Path, error: Exception) -> ModelError:
    return ModelError(
        f"{source} can't be read: {error}", hint="the download may be broken: pull it again"
    )
