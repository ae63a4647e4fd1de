"""From a source of weights to a decoder, in two steps with plain tensors between them.

What lives here: `convert` (fuse projections, cast or quantise: a dictionary of tensors that can
be stored) and `assemble` (the dictionary to a `LlamaDecoder`). What does not: reading sources
(`weights.py`) and storing the dictionary (`load.py`).

A linear layer NAME is stored as NAME.weight, or NAME.q4, .scale and .minimum, or NAME.q8 and
.scale; with NAME.bias where it has one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch

from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.gemma import Gemma3Decoder
from phloem.runtime.model.linear import Blocks4, Dense, Int4, Int8, Linear
from phloem.runtime.model.llama import LayerWeights, LlamaDecoder
from phloem.runtime.model.weights import Weights

__all__ = ["Held", "Tensors", "assemble", "convert"]

Held: TypeAlias = Literal["float32", "bfloat16", "int8", "int4"]
"""How a decoder holds its matrices. With int8 and int4 everything else is bfloat16, and so is
a matrix that can't be held so (int4 is never quantised anew: it is what the file holds)."""

Tensors: TypeAlias = dict[str, torch.Tensor]


def convert(weights: Weights, held: Held) -> Tensors:
    """Read all of `weights` into decoder-ready tensors on the CPU."""
    return _Converter(weights, held).convert()


class _Converter:
    def __init__(self, weights: Weights, held: Held) -> None:
        self._weights = weights
        self._held = held
        self._gemma = weights.config.family == "gemma3"
        self._dtype = torch.float32 if held == "float32" else torch.bfloat16
        self._out: Tensors = {}

    def convert(self) -> Tensors:
        config = self._weights.config
        self._copy("embedding", "model.embed_tokens.weight")
        self._norm("final_norm", "model.norm.weight")
        if not config.tied_head:
            self._dense("head", ["lm_head"])
        if "rope_freqs.weight" in self._weights:
            self._out["rope_factors"] = self._weights.tensor("rope_freqs.weight").float()
        for number in range(config.layers):
            self._layer(f"layers.{number}", f"model.layers.{number}")
        return self._out

    def _layer(self, to: str, at: str) -> None:
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        self._norm(f"{to}.attention_norm", f"{at}.input_layernorm.weight")
        if self._gemma:
            self._norm(f"{to}.attention_post_norm", f"{at}.post_attention_layernorm.weight")
            self._norm(f"{to}.mlp_norm", f"{at}.pre_feedforward_layernorm.weight")
            self._norm(f"{to}.mlp_post_norm", f"{at}.post_feedforward_layernorm.weight")
        else:
            self._norm(f"{to}.mlp_norm", f"{at}.post_attention_layernorm.weight")
        if self._weights.config.qk_norm:
            self._norm(f"{to}.q_norm", f"{attention}.q_norm.weight")
            self._norm(f"{to}.k_norm", f"{attention}.k_norm.weight")
        self._linear(f"{to}.qkv", [f"{attention}.{part}_proj" for part in "qkv"])
        self._linear(f"{to}.output", [f"{attention}.o_proj"])
        self._linear(f"{to}.gate_up", [f"{mlp}.gate_proj", f"{mlp}.up_proj"])
        self._linear(f"{to}.down", [f"{mlp}.down_proj"])

    def _norm(self, to: str, name: str) -> None:
        if self._gemma:  # its norms multiply by one more than the weight, in float32
            self._out[to] = self._weights.tensor(name).float() + 1
        else:
            self._copy(to, name)

    def _copy(self, to: str, name: str) -> None:
        self._out[to] = self._weights.tensor(name).to(self._dtype)

    def _linear(self, to: str, names: list[str]) -> None:
        if self._held == "int4" and self._int4(to, names):
            return
        self._dense(to, names)
        if self._held == "int8":
            q, scale = Int8.quantize(self._out.pop(f"{to}.weight"))
            self._out |= {f"{to}.q8": q, f"{to}.scale": scale}

    def _dense(self, to: str, names: list[str]) -> None:
        tensors = [self._weights.tensor(f"{name}.weight") for name in names]
        self._out[f"{to}.weight"] = torch.cat(tensors).to(self._dtype)
        self._bias(to, names)

    def _int4(self, to: str, names: list[str]) -> bool:
        found = [self._weights.blocks4(f"{name}.weight") for name in names]
        blocks = [b for b in found if b is not None]
        if len(blocks) < len(names):
            return False
        packed = torch.cat([b.packed for b in blocks])
        if not Int4.fits(packed.shape[0], packed.shape[1] * 2):
            return False
        self._out[f"{to}.q4"] = packed
        self._out[f"{to}.scale"] = torch.cat([b.scale for b in blocks])
        self._out[f"{to}.minimum"] = torch.cat([b.minimum for b in blocks])
        self._bias(to, names)
        return True

    def _bias(self, to: str, names: list[str]) -> None:
        if f"{names[0]}.bias" in self._weights:
            biases = [self._weights.tensor(f"{name}.bias") for name in names]
            self._out[f"{to}.bias"] = torch.cat(biases).to(self._dtype)


def assemble(config: DecoderConfig, tensors: Tensors, device: torch.device) -> LlamaDecoder:
    """The decoder over converted `tensors`, which it keeps (moved to `device`)."""
    tensors = {name: tensor.to(device) for name, tensor in tensors.items()}

    def linear(name: str) -> Linear:
        bias = tensors.get(f"{name}.bias")
        if f"{name}.q4" in tensors:
            packed, scale = tensors[f"{name}.q4"], tensors[f"{name}.scale"]
            return Int4(Blocks4(packed, scale, tensors[f"{name}.minimum"]), bias)
        if f"{name}.q8" in tensors:
            return Int8(tensors[f"{name}.q8"], tensors[f"{name}.scale"], bias)
        return Dense(tensors[f"{name}.weight"], bias)

    def layer(at: str) -> LayerWeights:
        return LayerWeights(
            attention_norm=tensors[f"{at}.attention_norm"],
            qkv=linear(f"{at}.qkv"),
            output=linear(f"{at}.output"),
            mlp_norm=tensors[f"{at}.mlp_norm"],
            gate_up=linear(f"{at}.gate_up"),
            down=linear(f"{at}.down"),
            q_norm=tensors.get(f"{at}.q_norm"),
            k_norm=tensors.get(f"{at}.k_norm"),
            attention_post_norm=tensors.get(f"{at}.attention_post_norm"),
            mlp_post_norm=tensors.get(f"{at}.mlp_post_norm"),
        )

    embedding = tensors["embedding"]
    kind = Gemma3Decoder if config.family == "gemma3" else LlamaDecoder
    return kind(
        config,
        embedding,
        [layer(f"layers.{number}") for number in range(config.layers)],
        tensors["final_norm"],
        Dense(embedding) if config.tied_head else linear("head"),
        tensors.get("rope_factors"),
    )
