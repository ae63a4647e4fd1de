"""The kinds of linear layer: how a weight matrix is held and multiplied.

What lives here: `Linear` (the protocol) and its kinds. What does not: reading weights from
files (`weights.py`, `gguf.py`) or choosing a kind (`load.py`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional

__all__ = ["Dense", "Linear"]


class Linear(Protocol):
    """y = x W^T + b for x [rows, inputs]; y is [rows, outputs] in x's dtype."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ...


class Dense:
    """The weight as it is, in the model's floating-point type; [outputs, inputs]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        return functional.linear(x, self.weight, self.bias)
