"""GGUF files: metadata, tensor directory and raw blocks.

What lives here: a reader of the container (GGUF v2 and v3, little-endian), memory-mapped.
What does not: what the blocks mean (`quants.py`), tensor names and row order (`weights.py`),
and the tokenizer inside (`gguf_tokenizer.py`). Format: ggml's `docs/gguf.md`.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from phloem.errors import ModelError
from phloem.runtime.model.quants import FORMATS, dequantize

__all__ = ["GgufFile", "GgufTensor"]

# GGUF value types: struct codes by type number; 8 is a string, 9 an array.
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A directory entry. `shape` is in torch's order (outputs first); `kind` a ggml type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """An open GGUF file. Tensors are views into the mapping until they are dequantised."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.stat().st_size == 0:
            raise self._broken("it is empty")
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            self.meta, self.tensors = self._read_header()
        except (struct.error, UnicodeDecodeError, KeyError, IndexError) as error:
            raise self._broken(f"its header can't be read ({error})") from error

    def floats(self, name: str) -> torch.Tensor:
        """The tensor dequantised to float32. Raises `ModelError` for an unknown format."""
        tensor = self.tensors[name]
        values = dequantize(self.blocks(name), tensor.kind)
        return torch.from_numpy(values).view(tensor.shape)

    def blocks(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's raw blocks, uint8 [blocks, bytes of a block]."""
        tensor = self.tensors[name]
        if tensor.kind not in FORMATS:
            raise ModelError(
                f"{self.path}: tensor {name} has a format (ggml type {tensor.kind}) "
                "that the embedded engine can't read",
                hint="take a Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, Q8_0, F16 or BF16 file of the model",
            )
        values, size = FORMATS[tensor.kind]
        count = int(np.prod(tensor.shape)) // values
        end = tensor.offset + count * size
        if end > len(self._bytes):
            raise self._broken(f"tensor {name} lies beyond its end")
        raw = np.frombuffer(self._bytes, np.uint8, count * size, tensor.offset)
        return raw.reshape(count, size)

    def _read_header(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        magic, version = self._take("<4sI")
        if magic != b"GGUF":
            raise self._broken("it is not a GGUF file")
        if version not in {2, 3}:
            raise self._broken(f"GGUF version {version} is not 2 or 3")
        tensor_count, meta_count = self._take("<QQ")
        meta = {}
        for _ in range(meta_count):
            key = self._string()
            meta[key] = self._value(*self._take("<I"))
        entries = [self._entry() for _ in range(tensor_count)]
        alignment = int(meta.get("general.alignment", 32))
        data = -(-self._at // alignment) * alignment
        tensors = {
            name: GgufTensor(name, shape, kind, data + offset)
            for name, shape, kind, offset in entries
        }
        return meta, tensors

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dims,) = self._take("<I")
        shape = tuple(reversed(self._take(f"<{dims}Q")))
        kind, offset = self._take("<IQ")
        return name, shape, kind, offset

    def _take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._bytes, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _string(self) -> str:
        (length,) = self._take("<Q")
        start, self._at = self._at, self._at + length
        return self._bytes[start : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._take("<" + SCALARS[kind])[0]
        element, count = self._take("<IQ")
        if element in SCALARS:
            return list(self._take(f"<{count}{SCALARS[element]}"))
        return [self._value(element) for _ in range(count)]

    def _broken(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} can't be used: {what}",
            hint="download the file again (phloem model pull), or check the path",
        )
