"""From converted tensors to the packed weights of the native decoder.

What lives here: `PackedModel`, which owns the packed memory and the structures that point into
it. What does not: where converted tensors come from (`model/convert.py`, which also names them)
and the layout itself (`csrc/pack.cpp`).
"""

from __future__ import annotations

import torch

from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.convert import Tensors
from phloem.runtime.model.memory import Arena
from phloem.runtime.model.rope import Rope
from phloem.runtime.native.abi import BF16, BLOCK, Q4, Q8, Layer, Library, Matrix, ModelConfig

__all__ = ["PackedModel", "quantize_blocks", "unsupported"]

MAX_HEAD_DIM, MAX_GROUP = 256, 48
"""Limits of `csrc/attention.h`: size of a head, and query heads that share a KV head."""


def unsupported(config: DecoderConfig, tensors: Tensors) -> str | None:
    """Why the native decoder can't run this model, or None if it can."""
    if config.family == "gemma3":
        return "the kernels lack Gemma 3's norms, gates and layers of two kinds"
    if tensors["embedding"].dtype != torch.bfloat16:
        return f"the weights are held in {tensors['embedding'].dtype}"
    sizes = {
        "hidden_size": config.hidden_size,
        "mlp_size": config.mlp_size,
        "heads * head_dim": config.heads * config.head_dim,
    }
    for name, size in sizes.items():
        if size % BLOCK:
            return f"{name} is {size}, not a multiple of {BLOCK}"
    if config.head_dim % 16 or config.head_dim > MAX_HEAD_DIM:
        return f"head_dim is {config.head_dim}, not a multiple of 16 up to {MAX_HEAD_DIM}"
    if config.heads // config.kv_heads > MAX_GROUP:
        return f"more than {MAX_GROUP} query heads share a KV head"
    return None


def quantize_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to 8 bits, one scale per `BLOCK` inputs: weight is about q * scale.

    `weight` [outputs, inputs] -> int8 [outputs, inputs], float32 [outputs, inputs / BLOCK].
    """
    blocks = weight.float().view(weight.shape[0], -1, BLOCK)
    scale = blocks.abs().amax(dim=-1) / 127
    q = (blocks / scale.clamp_min(1e-30)[..., None]).round()
    return q.to(torch.int8).view(weight.shape), scale


class PackedModel:
    """`config` and `layers` for `Library.decoder_new`; valid as long as this object lives."""

    def __init__(self, library: Library, config: DecoderConfig, tensors: Tensors) -> None:
        self._library = library
        self._tensors = tensors
        self._arena = Arena()
        self._owned: list[torch.Tensor] = []
        quantized = any(name.endswith((".q4", ".q8")) for name in tensors)
        rope = Rope(config, tensors.get("rope_factors"))
        embedding = self._embedding(quantized)
        self.config = ModelConfig(
            layers=config.layers,
            hidden=config.hidden_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate=config.mlp_size,
            vocab=config.vocab_size,
            rotary_dim=config.head_dim,
            norm_epsilon=config.norm_eps,
            rope_factor=rope.scale,
            attention_scale=config.head_dim**-0.5,
            window=config.window or 0,
            inverse_frequencies=self._floats(rope.inverse_frequencies),
            final_norm=self._floats(tensors["final_norm"]),
            embedding=embedding,
            head=embedding if config.tied_head else self._matrix("head"),
        )
        self.layers = (Layer * config.layers)(
            *(self._layer(f"layers.{number}") for number in range(config.layers))
        )
        # The packed copies are all that is needed from here on.
        self._tensors = {}

    def _layer(self, at: str) -> Layer:
        return Layer(
            attention_norm=self._floats(self._tensors[f"{at}.attention_norm"]),
            mlp_norm=self._floats(self._tensors[f"{at}.mlp_norm"]),
            query_norm=self._floats(self._tensors.get(f"{at}.q_norm")),
            key_norm=self._floats(self._tensors.get(f"{at}.k_norm")),
            qkv=self._matrix(f"{at}.qkv"),
            output=self._matrix(f"{at}.output"),
            gate_up=self._matrix(f"{at}.gate_up"),
            down=self._matrix(f"{at}.down"),
        )

    def _embedding(self, quantized: bool) -> Matrix:
        """The embedding, in blocks of 8 bits where the other matrices are quantised too.

        It is also the output head of most small models, and then half of what a step reads.
        """
        if "embedding.q8" in self._tensors:
            q, scale = self._tensors["embedding.q8"], self._tensors["embedding.scale"]
            return self._q8(q, scale.float(), None)
        weight = self._tensors["embedding"]
        return self._q8(*quantize_blocks(weight), None) if quantized else self._bf16(weight, None)

    def _matrix(self, name: str) -> Matrix:
        tensors = self._tensors
        bias = tensors.get(f"{name}.bias")
        if f"{name}.q4" in tensors:
            scale, minimum = tensors[f"{name}.scale"], tensors[f"{name}.minimum"]
            return self._q4(tensors[f"{name}.q4"], scale, minimum, bias)
        if f"{name}.q8" in tensors:
            q, scale = tensors[f"{name}.q8"], tensors[f"{name}.scale"].float()
            return self._q8(q, scale[:, None].expand(-1, q.shape[1] // BLOCK), bias)
        return self._bf16(tensors[f"{name}.weight"], bias)

    def _q4(
        self,
        pairs: torch.Tensor,
        scale: torch.Tensor,
        minimum: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> Matrix:
        outputs, inputs = pairs.shape[0], pairs.shape[1] * 2
        matrix, out = self._room(Q4, outputs, inputs, bias)
        pairs, scale, minimum = pairs.contiguous(), scale.contiguous(), minimum.contiguous()
        self._library.pack_q4(
            pairs.data_ptr(), scale.data_ptr(), minimum.data_ptr(), outputs, inputs, out.data_ptr()
        )
        return matrix

    def _q8(self, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Matrix:
        matrix, out = self._room(Q8, q.shape[0], q.shape[1], bias)
        q, scale = q.contiguous(), scale.contiguous()
        self._library.pack_q8(q.data_ptr(), scale.data_ptr(), *q.shape, out.data_ptr())
        return matrix

    def _bf16(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Matrix:
        weight = weight.to(torch.bfloat16).contiguous()
        matrix, out = self._room(BF16, weight.shape[0], weight.shape[1], bias)
        self._library.pack_bf16(weight.data_ptr(), *weight.shape, out.data_ptr())
        return matrix

    def _room(
        self, kind: int, outputs: int, inputs: int, bias: torch.Tensor | None
    ) -> tuple[Matrix, torch.Tensor]:
        # Zeros, because the last group may hold fewer than 16 outputs.
        size = self._library.packed_bytes(kind, outputs, inputs)
        out = self._arena.zeros(size)
        self._owned.append(out)
        matrix = Matrix(
            format=kind,
            outputs=outputs,
            inputs=inputs,
            data=out.data_ptr(),
            bias=self._floats(bias),
        )
        return matrix, out

    def _floats(self, values: torch.Tensor | None) -> int | None:
        """The address of a float32 copy that lives as long as this object."""
        if values is None:
            return None
        copy = values.detach().to(dtype=torch.float32, copy=True).contiguous()
        self._owned.append(copy)
        return copy.data_ptr()
