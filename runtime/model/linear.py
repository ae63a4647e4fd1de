"""The kinds of linear layer: how a weight matrix is held and multiplied.

What lives here: `Linear` (the protocol), its three kinds, and `Blocks4`, a 4-bit matrix as files
hold it. What does not: reading weights from files (`weights.py`, `gguf.py`) and choosing a kind
(`convert.py`). The quantised kinds call torch's own kernels, which exist in every CPU build.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

__all__ = ["GROUP", "Blocks4", "Dense", "Int4", "Int8", "Linear"]

GROUP = 32
"""Weights that share a scale and a minimum."""

FEW_ROWS = 6
"""Up to so many rows reading the weights bounds the time, and small weights win; beyond, the
dense matrix product does (docs/performance.md has the measurement)."""


class Linear(Protocol):
    """y = x W^T + b for x [rows, inputs]; y is [rows, outputs] in x's dtype."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ...


class Dense:
    """The weight [outputs, inputs] in floating point."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Blocks4:
    """A 4-bit matrix: weight = q * scale + minimum, one scale and minimum per `GROUP` inputs.

    `packed` uint8 [outputs, inputs / 2] holds input 2i in the low half of byte i, 2i + 1 in
    the high half; `scale` and `minimum` are float16 [outputs, inputs / GROUP].
    """

    packed: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor

    @classmethod
    def pack(cls, q: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> Blocks4:
        """From integers 0..15, uint8 [outputs, inputs]."""
        return cls(q[:, 0::2] | (q[:, 1::2] << 4), scale, minimum)

    def integers(self) -> torch.Tensor:
        """The integers 0..15, uint8 [outputs, inputs]."""
        return torch.stack((self.packed & 15, self.packed >> 4), dim=-1).flatten(1)

    def dequantize(self) -> torch.Tensor:
        """The weights, float32 [outputs, inputs], exactly."""
        q = self.integers().float().view(*self.scale.shape, GROUP)
        return (q * self.scale.float()[..., None] + self.minimum.float()[..., None]).flatten(1)


class Int4:
    """4-bit weights for few rows, the same in bfloat16 for many. Takes bfloat16, on the CPU.

    The kernel computes weight = (q - 8) * scale + zero, so zero = minimum + 8 * scale; scale
    and zero are rounded to bfloat16, as the dense weights are.
    """

    def __init__(self, blocks: Blocks4, bias: torch.Tensor | None = None) -> None:
        scale, minimum = blocks.scale.float(), blocks.minimum.float()
        both = torch.stack((scale, minimum + 8 * scale), dim=-1)
        self._scale_zero = both.transpose(0, 1).contiguous().bfloat16()
        # The packed bytes depend on this CPU's instruction set: made here, never stored.
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            blocks.integers().int(), 1
        )
        self._bias = bias
        self._dense = Dense(blocks.dequantize().bfloat16(), bias)

    @staticmethod
    def fits(outputs: int, inputs: int) -> bool:
        """Whether the kernel takes a matrix of this size."""
        return outputs % 16 == 0 and inputs % GROUP == 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        if x.shape[0] > FEW_ROWS:
            return self._dense(x)
        out: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, self._packed, GROUP, self._scale_zero
        )
        return out if self._bias is None else out + self._bias


class Int8:
    """8-bit weights with a scale per output for few rows, bfloat16 for many; on the CPU."""

    def __init__(
        self, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        self._q = q
        self._scale = scale
        self._bias = bias
        self._dense = Dense((q * scale.float()[:, None]).bfloat16(), bias)

    @staticmethod
    def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round each row to -127..127 by its largest weight: int8 [outputs, inputs], scale."""
        scale = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-12).bfloat16()
        q = (weight.float() / scale.float()[:, None]).round().clamp(-127, 127)
        return q.to(torch.int8), scale

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        if x.shape[0] > FEW_ROWS:
            return self._dense(x)
        out: torch.Tensor = torch._weight_int8pack_mm(x, self._q, self._scale)
        return out if self._bias is None else out + self._bias
