"""From a file's tensors to a decoder: names, row order, fusing.

What lives here: the two sources of tensors (`GgufWeights`, `SafetensorsWeights`), which speak
Hugging Face's tensor names, and `build_decoder`. What does not: the containers themselves
(`gguf.py`, the safetensors library) and the decoder (`llama.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from phloem.errors import ModelError
from phloem.runtime.model.config import DecoderConfig, config_from_gguf, config_from_huggingface
from phloem.runtime.model.gguf import GgufFile
from phloem.runtime.model.linear import Dense, Linear
from phloem.runtime.model.llama import LayerWeights, LlamaDecoder

__all__ = ["GgufWeights", "SafetensorsWeights", "Weights", "build_decoder"]


class Weights(Protocol):
    """Tensors of one model by Hugging Face's names ("model.norm.weight")."""

    config: DecoderConfig

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in floating point, as stored. Raises `ModelError` if it is missing."""
        ...


class SafetensorsWeights:
    """A folder with `config.json` and `model.safetensors` (or shards and their index)."""

    def __init__(self, folder: Path) -> None:
        self.config = config_from_huggingface(json.loads((folder / "config.json").read_text()))
        self._folder = folder
        self._files: dict[str, str] = {}
        index = folder / "model.safetensors.index.json"
        try:
            if index.exists():
                self._files = dict(json.loads(index.read_text())["weight_map"])
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


GGUF_NAMES = {
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
        return gguf_name(name) in self.file.tensors

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in float32, rows in Hugging Face's order."""
        if name not in self:
            raise _missing(self.file.path, name)
        values = self.file.floats(gguf_name(name))
        heads = self.rotated_heads(name)
        return values if heads is None else unpermute(values, heads)

    def rotated_heads(self, name: str) -> int | None:
        """Heads of a Q or K projection whose rows the file keeps interleaved, else None.

        Only files of architecture "llama" do so.
        """
        if self.config.family == "llama" and ".q_proj." in name:
            return self.config.heads
        if self.config.family == "llama" and ".k_proj." in name:
            return self.config.kv_heads
        return None


def gguf_name(name: str) -> str:
    """Hugging Face's tensor name in GGUF's spelling."""
    if name == "rope_freqs":
        return "rope_freqs.weight"
    stem, _, kind = name.rpartition(".")
    layer = ""
    if stem.startswith("model.layers."):
        number, _, stem = stem.removeprefix("model.layers.").partition(".")
        layer = f"blk.{number}."
    return f"{layer}{GGUF_NAMES[stem]}.{kind}"


def unpermute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's row order: from pairs (2i, 2i + 1) to pairs (i, i + head_dim / 2)."""
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def build_decoder(weights: Weights, dtype: torch.dtype, device: torch.device) -> LlamaDecoder:
    """Read every tensor into memory as `dtype` on `device`, fuse, and assemble the decoder."""
    config = weights.config

    def read(name: str) -> torch.Tensor:
        return weights.tensor(name).to(device=device, dtype=dtype)

    def linear(*names: str) -> Linear:
        weight = torch.cat([read(f"{name}.weight") for name in names])
        has_bias = f"{names[0]}.bias" in weights
        return Dense(weight, torch.cat([read(f"{n}.bias") for n in names]) if has_bias else None)

    def layer(number: int) -> LayerWeights:
        at = f"model.layers.{number}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        return LayerWeights(
            attention_norm=read(f"{at}.input_layernorm.weight"),
            qkv=linear(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
            output=linear(f"{attention}.o_proj"),
            mlp_norm=read(f"{at}.post_attention_layernorm.weight"),
            gate_up=linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=linear(f"{mlp}.down_proj"),
            q_norm=read(f"{attention}.q_norm.weight") if config.qk_norm else None,
            k_norm=read(f"{attention}.k_norm.weight") if config.qk_norm else None,
        )

    embedding = read("model.embed_tokens.weight")
    return LlamaDecoder(
        config,
        embedding,
        [layer(number) for number in range(config.layers)],
        read("model.norm.weight"),
        Dense(embedding) if config.tied_head else linear("lm_head"),
        weights.tensor("rope_freqs").float() if "rope_freqs" in weights else None,
    )


def _missing(source: Path, name: str) -> ModelError:
    return ModelError(
        f"{source} lacks the tensor {name}", hint="the download may be incomplete: pull it again"
    )


def _unreadable(source: Path, error: Exception) -> ModelError:
    return ModelError(
        f"{source} can't be read: {error}", hint="the download may be broken: pull it again"
    )
