"""Large zeroed tensors on a CPU that cost nothing until they are written.

What lives here: `zeros`. What does not: tensors on other devices (torch's own zeros do).
"""

from __future__ import annotations

import math

import numpy as np
import torch

__all__ = ["zeros"]

_LINE = 64
"""Bytes of a cache line: a vector load that crosses one costs two."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed CPU tensor that begins on a cache line.

    The memory is the system's own zero pages, so gigabytes are there at once and take room only
    as they are used; `torch.zeros` writes every byte.
    """
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + _LINE, dtype=np.uint8)
    start = -room.ctypes.data % _LINE
    return torch.from_numpy(room[start : start + size]).view(dtype).view(shape)
