"""A decoder with random weights in the shape of a real one, for a machine that has no model.

What lives here: `random_model`. What does not: what is measured with it (`gpu_check.py`). The
tokenizer is the tiny one: ids beyond it are never sampled, but every row of the head is computed.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from phloem.runtime.model.config import DecoderConfig
from phloem.runtime.model.linear import Dense
from phloem.runtime.model.llama import LayerWeights, LlamaDecoder
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tiny import tiny_model

__all__ = ["SHAPES", "random_model"]

SHAPES = {
    "llama-3-8b": DecoderConfig(
        family="llama", vocab_size=128_256, hidden_size=4096, mlp_size=14_336, layers=32, heads=32,
        kv_heads=8, head_dim=128, max_positions=8192, rope_theta=500_000.0, tied_head=False,
    ),
    "tiny": DecoderConfig(
        family="llama", vocab_size=512, hidden_size=256, mlp_size=512, layers=2, heads=8,
        kv_heads=2, head_dim=32, max_positions=4096, tied_head=False,
    ),
}  # fmt: skip


def random_model(
    shape: str, device: str, dtype: torch.dtype, *, layers: int | None = None, seed: int = 0
) -> LoadedModel:
    """The shape's weights drawn on the CPU if `layers` cuts it short (so that two devices get the
    same ones), else on the device; norms are ones."""
    config = SHAPES[shape]
    if layers is not None:
        config = dataclasses.replace(config, layers=layers)
    drawn_on = "cpu" if layers is not None else device
    generator = torch.Generator(drawn_on).manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        # Drawn in the wanted type: 8 billion float32 values would not leave room for themselves.
        kind = torch.float32 if layers is not None else dtype
        values = torch.randn(outputs, inputs, generator=generator, device=drawn_on, dtype=kind)
        return values.div_(math.sqrt(inputs)).to(device, dtype)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, device=device, dtype=dtype)

    hidden, mlp = config.hidden_size, config.mlp_size
    projected = (config.heads + 2 * config.kv_heads) * config.head_dim
    stack = [
        LayerWeights(
            attention_norm=ones(hidden),
            qkv=Dense(matrix(projected, hidden)),
            output=Dense(matrix(hidden, config.heads * config.head_dim)),
            mlp_norm=ones(hidden),
            gate_up=Dense(matrix(2 * mlp, hidden)),
            down=Dense(matrix(hidden, mlp)),
        )
        for _ in range(config.layers)
    ]
    embedding = matrix(config.vocab_size, hidden) * math.sqrt(hidden)
    head = Dense(matrix(config.vocab_size, hidden))
    decoder = LlamaDecoder(config, embedding, stack, ones(hidden), head)
    text = tiny_model()
    return LoadedModel(
        name=f"random-{shape}",
        fingerprint=f"random-{shape}-{config.layers}-{seed}-{dtype}",
        config=config,
        decoder=decoder,
        tokenizer=text.tokenizer,
        dtype=str(dtype).removeprefix("torch."),
        eos_ids=text.eos_ids,
        chat_format=text.chat_format,
    )
