"""Large zeroed tensors on a CPU that cost nothing until they are written.

What lives here: `zeros`, and `Arena` for many that are read together. What does not: tensors on
other devices (torch's own zeros do).
"""

from __future__ import annotations

import math

import numpy as np
import torch

__all__ = ["Arena", "zeros"]

_LINE = 64
"""Bytes of a cache line: a vector load that crosses one costs two."""

_SLAB = 64 << 20
"""Bytes of the pieces an arena takes. What is not handed out stays untouched and costs nothing."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed CPU tensor that begins on a cache line.

    The memory is the system's own zero pages, so gigabytes are there at once and take room only
    as they are used; `torch.zeros` writes every byte.
    """
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + _LINE, dtype=np.uint8)
    start = -room.ctypes.data % _LINE
    return torch.from_numpy(room[start : start + size]).view(dtype).view(shape)


class Arena:
    """Hands out zeroed bytes from a few large pieces of memory.

    The system backs large pieces with huge pages where it can. Arrays of a megabyte or less come
    from the heap otherwise, in pages of 4 KB: a pass over all weights then waits for tens of
    thousands of address translations.
    """

    def __init__(self) -> None:
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def zeros(self, size: int) -> torch.Tensor:
        """`size` bytes that begin on a cache line."""
        if self._used + size > self._slab.numel():
            self._slab, self._used = zeros((max(size, _SLAB),), torch.uint8), 0
        piece = self._slab[self._used : self._used + size]
        self._used += -(-size // _LINE) * _LINE
        return piece
