"""Sets of tokens as packed bits, the form the grammar engine writes them in.

What lives here: making such masks, and taking the other tokens out of logits. What does not: what
a grammar allows (`constrained.py`) and the draw (`sampler.py`).

Bit `i % 32` of the int32 word `i // 32` is token i. Inside of a string nearly all tokens are
allowed, by the same mask for every token and in every stream; elsewhere few are. So a mask is
turned into the shorter list of the two once, and kept.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

__all__ = ["allows", "everything_but", "pack", "restrict", "unpack"]

_KEPT = 64
"""Lists kept; one has at most half of the vocabulary's tokens, of 8 bytes each."""


def pack(allowed: np.ndarray) -> np.ndarray:
    """The mask of a bool array [size], int32 [ceil(size / 32)]."""
    bits = np.zeros(-(-len(allowed) // 32) * 32, dtype=np.bool_)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").view(np.int32)


def unpack(mask: np.ndarray, size: int) -> np.ndarray:
    """The first `size` tokens of a mask, bool [size]."""
    bits = np.unpackbits(mask.view(np.uint8), count=size, bitorder="little")
    return bits.view(np.bool_)


def allows(mask: np.ndarray, token: int) -> bool:
    """Whether a token is in the mask."""
    return bool(int(mask[token >> 5]) >> (token & 31) & 1)


@functools.lru_cache(maxsize=_KEPT)
def everything_but(banned: frozenset[int], size: int) -> np.ndarray:
    """The mask of all tokens below `size` but a few. Not to be changed."""
    allowed = np.ones(size, dtype=np.bool_)
    # A caller's stop ids may be those of another model.
    allowed[[token for token in banned if 0 <= token < size]] = False
    mask = pack(allowed)
    mask.setflags(write=False)
    return mask


def restrict(row: torch.Tensor, mask: np.ndarray) -> None:
    """Leave in a row of logits [size] only the tokens of the mask: the others become -inf."""
    if row.device.type != "cpu":
        barred = torch.from_numpy(~unpack(mask, len(row)))
        row.masked_fill_(barred.to(row.device), -torch.inf)
        return
    values = row.numpy()
    few, tokens = _shorter_list(mask.tobytes(), len(values))
    if few:
        kept = values[tokens]
        values.fill(-np.inf)
        values[tokens] = kept
    else:
        values[tokens] = -np.inf


@functools.lru_cache(maxsize=_KEPT)
def _shorter_list(mask: bytes, size: int) -> tuple[bool, np.ndarray]:
    """Whether fewer tokens are in the mask than not, and those few (else the others)."""
    allowed = unpack(np.frombuffer(mask, dtype=np.int32), size)
    few = 2 * np.count_nonzero(allowed) < size
    return bool(few), np.flatnonzero(allowed if few else ~allowed)
