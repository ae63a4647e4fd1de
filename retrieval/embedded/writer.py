"""Puts documents into a generation, and takes them out, in one commit.

What lives here: the order of the writes, which is what makes a crash harmless: vectors are
synced first, then tantivy commits (it writes its files, syncs them, and renames its list of
files); only then is anything acknowledged. What does not: the lock (`lock.py`), which the
caller holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tantivy

from phloem.errors import RetrievalError
from phloem.retrieval.base import AddReport, Document
from phloem.retrieval.documents import documents, embedded_text, in_batches, problem
from phloem.retrieval.embed.known import embedder_named
from phloem.retrieval.embed.protocol import (
    Embedder,
    Matrix,
    check_dims,
    check_embedder,
    unit_vector,
)
from phloem.retrieval.embedded.layout import read_settings, write_settings
from phloem.retrieval.embedded.schema import NO_ROW, register, schema, stored_document
from phloem.retrieval.embedded.vectors import VectorWriter

__all__ = ["GenerationWriter", "create_files"]

_HEAP_BYTES = 64_000_000
_BATCH = 256


def create_files(generation: Path) -> None:
    """Make an empty tantivy index in the folder."""
    tantivy.Index(schema(), path=str(generation))


class GenerationWriter:
    """One writing session on a generation; nothing is visible before `commit`."""

    def __init__(self, name: str, generation: Path, embedder: Embedder | None) -> None:
        self._name = name
        self._generation = generation
        self._settings = read_settings(generation)
        self._embedder = embedder
        self._vectors: VectorWriter | None = None
        self._writer = register(tantivy.Index.open(str(generation))).writer(_HEAP_BYTES, 1)

    def add(self, docs: Iterable[Document]) -> AddReport:
        """Write `docs`; a document that can't be stored is reported, not raised."""
        added = 0
        failed: list[tuple[str, str]] = []
        for batch in in_batches(documents(docs), _BATCH):
            good = []
            for doc in batch:
                why = problem(doc)
                if why is None:
                    good.append(doc)
                else:
                    failed.append((str(doc.id), why))
            for doc, row in self._with_rows(good, failed):
                try:
                    stored = stored_document(doc, row)
                except (ValueError, OverflowError) as error:
                    failed.append((doc.id, str(error)))
                    continue
                self._writer.delete_documents_by_term("id", doc.id)
                self._writer.add_document(stored)
                added += 1
        return AddReport(added, tuple(failed))

    def delete(self, ids: Iterable[str]) -> None:
        """Remove by id."""
        for id_ in ids:
            self._writer.delete_documents_by_term("id", id_)

    def commit(self) -> None:
        """Make everything written so far durable and visible, all of it or nothing."""
        if self._vectors is not None:
            self._vectors.sync()
        if self._settings != read_settings(self._generation):
            write_settings(self._generation, self._settings)
        self._writer.commit()

    def close(self) -> None:
        """Drop what was not committed and release the files."""
        self._writer.rollback()
        self._writer.wait_merging_threads()
        if self._vectors is not None:
            self._vectors.close()

    def _with_rows(
        self, docs: list[Document], failed: list[tuple[str, str]]
    ) -> list[tuple[Document, int]]:
        """Each document with the row its vector was written to, or `NO_ROW`."""
        bare = [place for place, doc in enumerate(docs) if doc.vector is None]
        embedder = self._embedder_for_texts() if bare else None
        own: dict[int, Matrix] = {}
        for place, doc in enumerate(docs):
            if doc.vector is not None:
                try:
                    own[place] = self._checked(doc.vector)
                except RetrievalError as error:
                    failed.append((doc.id, error.message))
        if embedder is not None:
            made = embedder.embed([embedded_text(docs[place]) for place in bare])
            own.update(zip(bare, made, strict=True))
        rows = dict.fromkeys(bare, NO_ROW)
        if own:
            assert self._vectors is not None
            first = self._vectors.append(np.stack(list(own.values())))
            rows.update({place: first + row for row, place in enumerate(own)})
        return [(docs[place], rows[place]) for place in sorted(rows)]

    def _embedder_for_texts(self) -> Embedder | None:
        """The model this index is filled with; None if it keeps no vectors or only given ones."""
        kept = self._settings.embedder
        embedder = self._embedder or (embedder_named(kept, self._name) if kept else None)
        if embedder is not None:
            if kept is None and self._settings.dims is None:
                self._settings = replace(self._settings, embedder=embedder.name)
            self._keep_vectors(embedder.dims, f"the embedder {embedder.name!r}")
            check_embedder(embedder.name, kept, index=self._name)
        return embedder

    def _checked(self, values: Sequence[float]) -> Matrix:
        vector = unit_vector(values)
        self._keep_vectors(len(vector), "the document's vector")
        return vector

    def _keep_vectors(self, dims: int, what: str) -> None:
        """Open the matrix; the first vector of an index decides its dimensions."""
        if self._settings.dims is None:
            self._settings = replace(self._settings, dims=dims)
        assert self._settings.dims is not None
        check_dims(dims, self._settings.dims, what=what, index=self._name)
        if self._vectors is None:
            self._vectors = VectorWriter(self._generation, self._settings.dims)
