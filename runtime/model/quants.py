"""The block formats of ggml: raw blocks to float32.

What lives here: one function a format, in numpy, by the layouts of ggml's `ggml-common.h`. A
block holds `values` weights of one row in `bytes` bytes. What does not: the container
(`gguf.py`) and arithmetic on quantised weights (`linear.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["BF16", "F16", "F32", "FORMATS", "Q4_0", "Q4_1", "Q8_0", "dequantize", "split_4_bit"]

F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16 = 0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30

FORMATS = {
    F32: (1, 4), F16: (1, 2), BF16: (1, 2),
    Q4_0: (32, 18), Q4_1: (32, 20), Q5_0: (32, 22), Q5_1: (32, 24), Q8_0: (32, 34),
    Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210),
}  # fmt: skip
"""ggml type -> (weights in a block, bytes of a block)."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]


def dequantize(blocks: Bytes, kind: int) -> Floats:
    """`blocks` [n, bytes of a block] of ggml type `kind` -> float32 [n * values of a block]."""
    return DEQUANTIZERS[kind](blocks).reshape(-1)


def split_4_bit(blocks: Bytes, kind: int) -> tuple[Bytes, Halves, Halves]:
    """Q4_0 and Q4_1 as stored: q 0..15 [n, 32], scale and minimum [n, 1].

    weight = q * scale + minimum; Q4_0's minimum is -8 * scale, which float16 holds exactly.
    """
    scale = blocks[:, 0:2].copy().view(np.float16)
    if kind == Q4_0:
        return _nibbles(blocks[:, 2:]), scale, scale * np.float16(-8)
    return _nibbles(blocks[:, 4:]), scale, blocks[:, 2:4].copy().view(np.float16)


def _half(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, 16] -> [n, 32]: all low halves, then all high halves."""
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _fifth_bits(raw: Bytes) -> Bytes:
    """32 bits, little-endian, to a 0 or 16 for each of 32 values."""
    return np.unpackbits(raw, axis=1, bitorder="little") * np.uint8(16)


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float32).copy()


def _bf16(blocks: Bytes) -> Floats:
    high = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32) << 16
    return high.view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return (_nibbles(blocks[:, 2:]).astype(np.float32) - 8) * _half(blocks[:, :2])


def _q4_1(blocks: Bytes) -> Floats:
    return _nibbles(blocks[:, 4:]) * _half(blocks[:, 0:2]) + _half(blocks[:, 2:4])


def _q5_0(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (q.astype(np.float32) - 16) * _half(blocks[:, :2])


def _q5_1(blocks: Bytes) -> Floats:
    q = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return q.astype(np.float32) * _half(blocks[:, :2]) + _half(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> Floats:
    q = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    return q * _half(blocks[:, :2])


def _six_bit_scales(raw: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes of a K block: eight 6-bit scales and eight 6-bit minimums, [n, 8] each."""
    low, middle, high = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate((low & 63, (high & 15) | ((low >> 6) << 4)), axis=1)
    minimums = np.concatenate((middle & 63, (high >> 4) | ((middle >> 6) << 4)), axis=1)
    return scales, minimums


def _q4_k(blocks: Bytes, high_bits: Bytes | None = None, data: int = 16) -> Floats:
    """Eight groups of 32; groups 2i and 2i + 1 are the low and high halves of 32 bytes."""
    n = len(blocks)
    scales, minimums = _six_bit_scales(blocks[:, 4:16])
    packed = blocks[:, data:].reshape(n, 4, 1, 32)
    q = np.concatenate((packed & 15, packed >> 4), axis=2).reshape(n, 8, 32)
    if high_bits is not None:
        q |= high_bits
    scale = (_half(blocks[:, 0:2]) * scales)[:, :, None]
    minimum = (_half(blocks[:, 2:4]) * minimums)[:, :, None]
    return scale * q.astype(np.float32) - minimum


def _q5_k(blocks: Bytes) -> Floats:
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = (((blocks[:, 16:48].reshape(-1, 1, 32) >> shifts) & 1) << 4).astype(np.uint8)
    return _q4_k(blocks, fifth, 48)


def _q6_k(blocks: Bytes) -> Floats:
    """Sixteen groups of 16; low nibbles and 2-bit tops in two halves of 128 values."""
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 64)
    low = np.concatenate((low & 15, low >> 4), axis=2).reshape(n, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    top = (blocks[:, 128:192].reshape(n, 2, 1, 32) >> shifts) & 3
    q = (low | (top << 4)).reshape(n, 16, 16).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    return (_half(blocks[:, 208:210]) * scales)[:, :, None] * q


DEQUANTIZERS: dict[int, Callable[[Bytes], Floats]] = {
    F32: _f32, F16: _half, BF16: _bf16,
    Q4_0: _q4_0, Q4_1: _q4_1, Q5_0: _q5_0, Q5_1: _q5_1, Q8_0: _q8_0,
    Q4_K: _q4_k, Q5_K: _q5_k, Q6_K: _q6_k,
}  # fmt: skip
