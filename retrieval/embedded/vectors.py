"""The flat matrix of an index's vectors: appended to by the writer, mapped by readers.

What lives here: the file. What does not: which document has which row (the field `row` of
`schema.py`). Rows are synced before the commit that refers to them, so every row a document
names is whole; rows that no document names (replaced, deleted, or left by a crash) are dead
weight until the index is rebuilt.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from phloem.retrieval.embed.protocol import Matrix

__all__ = ["VectorWriter", "read_rows"]

_NAME = "vectors.f32"


class VectorWriter:
    """Appends rows of `dims` float32 to a generation's matrix. Needs the writer's lock."""

    def __init__(self, generation: Path, dims: int) -> None:
        self._file = (generation / _NAME).open("ab")
        self._row_bytes = 4 * dims
        # A process that died while writing may have left part of a row.
        self.rows = self._file.tell() // self._row_bytes
        self._file.truncate(self.rows * self._row_bytes)

    def append(self, vectors: Matrix) -> int:
        """Write `vectors` [n, dims]; returns the row number of the first."""
        first = self.rows
        self._file.write(np.ascontiguousarray(vectors, dtype=np.float32).tobytes())
        self.rows += len(vectors)
        return first

    def sync(self) -> None:
        """Make all rows written so far durable."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def read_rows(generation: Path, dims: int) -> Matrix:
    """The matrix as it is now, [rows, dims], mapped from the file and not copied; `dims` is 0 where
    there is none."""
    path = generation / _NAME
    rows = path.stat().st_size // (4 * dims) if dims and path.exists() else 0
    if rows == 0:
        return np.zeros((0, dims), dtype=np.float32)
    return np.memmap(path, dtype=np.float32, mode="r", shape=(rows, dims))
