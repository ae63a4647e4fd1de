"""What one search sees: an unchanging view of an index at its last commit.

What lives here: opening, and noticing that a writer, in this process or another, has committed.
What does not: queries (`search.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import tantivy
from numpy.typing import NDArray

from phloem.errors import RetrievalError
from phloem.retrieval.embed.protocol import Matrix
from phloem.retrieval.embedded.layout import Layout, Settings, read_settings
from phloem.retrieval.embedded.schema import NO_ROW, register
from phloem.retrieval.embedded.vectors import read_rows

__all__ = ["Reader", "Snapshot"]

_ATTEMPTS = 5


@dataclass(frozen=True)
class Snapshot:
    """One commit of one generation, whose files stay readable though a rebuild removes them.

    `name` is the index's name, `matrix` all rows of vectors, float32 [rows, dims].
    """

    name: str
    generation: Path
    matrix: Matrix
    settings: Settings
    schema: tantivy.Schema
    searcher: tantivy.Searcher

    def addresses(self, query: tantivy.Query) -> list[tantivy.DocAddress]:
        """Where all documents that match `query` lie."""
        limit = max(1, self.searcher.num_docs)
        found = self.searcher.search(query, limit=limit, count=False)
        return [address for _, address in found.hits]

    def rows(self, addresses: list[tantivy.DocAddress]) -> NDArray[np.int64]:
        """The row in the matrix of each document, [n]; `NO_ROW` for one without a vector."""
        values = self.searcher.fast_field_values("row", addresses) if addresses else []
        return np.asarray(values, dtype=np.int64)

    @cached_property
    def vectors(self) -> tuple[list[tantivy.DocAddress], NDArray[np.int64], Matrix]:
        """The documents that have a vector, their rows [n], and their vectors [n, dims]."""
        everything = self.addresses(tantivy.Query.all_query())
        rows = self.rows(everything)
        having = np.flatnonzero(rows != NO_ROW)
        order = having[np.argsort(rows[having])]
        rows = rows[order]
        # Where no row is dead the mapped file serves as it is; else the live rows are copied.
        whole = np.array_equal(rows, np.arange(len(rows)))
        matrix = self.matrix[: len(rows)] if whole else self.matrix[rows]
        return [everything[place] for place in order], rows, matrix

    def by_ids(self, ids: Iterable[str]) -> dict[str, tantivy.Document]:
        """The stored documents of those `ids` that exist."""
        found = {}
        for id_ in ids:
            query = tantivy.Query.term_query(self.schema, "id", id_, "basic")
            for _, address in self.searcher.search(query, limit=1, count=False).hits:
                found[id_] = self.searcher.doc(address)
        return found


class Reader:
    """Snapshots of one index, a new one only when something was committed. Thread-safe."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._seen: tuple[object, ...] | None = None
        self._snapshot: Snapshot | None = None
        self._index: tantivy.Index | None = None

    def snapshot(self) -> Snapshot:
        """The index at its last commit. Raises `IndexNotFound`."""
        with self._lock:
            for attempt in range(_ATTEMPTS):
                generation = self._layout.current()
                try:
                    return self._refreshed(generation)
                except (ValueError, FileNotFoundError) as error:
                    # A rebuild may have removed this generation while it was being opened.
                    if generation == self._layout.current() and attempt == _ATTEMPTS - 1:
                        raise RetrievalError(
                            f"index {self._layout.name!r} can't be read: {error}",
                            hint=f"rebuild it, or remove {self._layout.folder}",
                            index=self._layout.name,
                        ) from error
        raise AssertionError("unreachable")

    def _refreshed(self, generation: Path) -> Snapshot:
        seen = (generation, _stamp(generation / "meta.json"), _stamp(generation / "settings.json"))
        if self._snapshot is not None and seen == self._seen:
            return self._snapshot
        if self._index is None or self._snapshot is None or generation != self._snapshot.generation:
            self._index = register(tantivy.Index.open(str(generation)))
            self._index.config_reader(reload_policy="manual")
        self._index.reload()
        # In this order: the vectors that a commit refers to were written before it.
        searcher = self._index.searcher()
        settings = read_settings(generation)
        matrix = read_rows(generation, settings.dims or 0)
        self._snapshot = Snapshot(
            self._layout.name, generation, matrix, settings, self._index.schema, searcher
        )
        self._seen = seen
        return self._snapshot


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
