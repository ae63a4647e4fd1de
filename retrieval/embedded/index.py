"""The embedded index as a `Retriever` and an `Index`: a folder, no server.

What lives here: the async face over the threads that read and write. What does not: how
(`search.py`, `writer.py`). Searches run in reader threads; writes, one at a time, in one
thread, under a lock that other processes respect. A commit costs a few milliseconds whatever
its size, so add many documents at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import tantivy

from phloem.errors import RetrievalError
from phloem.retrieval.base import AddReport, Document, Hits, IndexInfo, Query
from phloem.retrieval.documents import id_list
from phloem.retrieval.embed.known import embedder_named
from phloem.retrieval.embed.protocol import Embedder, Matrix, check_embedder, unit_vector
from phloem.retrieval.embedded.facts import filter_query
from phloem.retrieval.embedded.layout import Layout, Settings, read_settings
from phloem.retrieval.embedded.lock import writer_lock
from phloem.retrieval.embedded.reader import Reader, Snapshot
from phloem.retrieval.embedded.schema import to_document, value_of
from phloem.retrieval.embedded.search import find
from phloem.retrieval.embedded.writer import GenerationWriter, create_files
from phloem.retrieval.filters import Filter, parse_filter
from phloem.retrieval.pipeline import run_search

__all__ = ["EmbeddedIndex"]

T = TypeVar("T")


class EmbeddedIndex:
    """Indexes under the folder `root`.

    `embedder` makes the vectors of documents that are added; without one, an index that was
    filled with a known embedder still uses that. `timeout` is a search's default, in seconds.
    A writer waits `lock_wait` seconds for another one, then raises `IndexLocked`.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        embedder: Embedder | None = None,
        timeout: float = 10.0,
        lock_wait: float = 10.0,
    ) -> None:
        self.root = Path(root)
        self.source = f"the embedded index in {self.root}"
        self._embedder = embedder
        self._timeout = timeout
        self._lock_wait = lock_wait
        self._readers: dict[str, Reader] = {}
        self._reading: ThreadPoolExecutor | None = None
        self._writing: ThreadPoolExecutor | None = None

    async def search(self, query: Query) -> Hits:
        """See `base.Retriever.search`."""
        return await run_search(query, self._answer, timeout=self._timeout, source=self.source)

    async def aclose(self) -> None:
        """Release threads and open files; the next call opens them again."""
        for pool in (self._reading, self._writing):
            if pool is not None:
                await asyncio.to_thread(pool.shutdown)
        self._reading = self._writing = None
        self._readers.clear()

    async def create(self, index: str, *, model: type | None = None) -> None:  # noqa: ARG002
        """See `base.Index.create`. Types are read off the values, not `model`."""
        await self._write(self._create, Layout(self.root, index))

    async def add(self, docs: Iterable[Document], *, index: str = "default") -> AddReport:
        """See `base.Index.add`."""
        return await self._write(self._add, Layout(self.root, index), docs)

    async def rebuild(
        self,
        docs: Iterable[Document],
        *,
        index: str = "default",
        model: type | None = None,  # noqa: ARG002
    ) -> AddReport:
        """See `base.Index.rebuild`. Types are read off the values, not `model`."""
        return await self._write(self._rebuild, Layout(self.root, index), docs)

    async def delete(self, ids: Iterable[str], *, index: str = "default") -> int:
        """See `base.Index.delete`."""
        wanted = id_list(ids)
        await self.count(index=index)  # taking the lock would make a missing index's folder
        return await self._write(self._delete, Layout(self.root, index), wanted)

    async def drop(self, index: str) -> None:
        """See `base.Index.drop`."""
        await self.count(index=index)
        await self._write(self._drop, Layout(self.root, index))

    async def count(self, *, index: str = "default") -> int:
        """See `base.Index.count`."""
        return await self._read(index, lambda snapshot: snapshot.searcher.num_docs)

    async def get(self, ids: Iterable[str], *, index: str = "default") -> list[Document]:
        """See `base.Index.get`."""
        wanted = id_list(ids)
        found = await self._read(index, lambda snapshot: snapshot.by_ids(wanted))
        return [to_document(found[id_]) for id_ in wanted if id_ in found]

    async def fingerprints(self, ids: Iterable[str], *, index: str = "default") -> dict[str, str]:
        """See `base.Index.fingerprints`."""
        wanted = id_list(ids)
        found = await self._read(index, lambda snapshot: snapshot.by_ids(wanted))
        return {id_: value_of(doc, "fingerprint") for id_, doc in found.items()}

    async def ids(
        self,
        *,
        index: str = "default",
        filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002
    ) -> list[str]:
        """See `base.Index.ids`."""
        wanted = parse_filter(filter)

        def listed(snapshot: Snapshot) -> list[str]:
            query = (
                filter_query(wanted, snapshot.schema, snapshot.searcher)
                if wanted is not None
                else tantivy.Query.all_query()
            )
            found = snapshot.addresses(query)
            return sorted(value_of(snapshot.searcher.doc(address), "id") for address in found)

        return await self._read(index, listed)

    async def indexes(self) -> list[IndexInfo]:
        """See `base.Index.indexes`."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        names = [folder.name for folder in folders if (folder / "current").exists()]
        return [await self._read(name, _info) for name in names]

    # Below: what runs in the threads.

    async def _answer(self, query: Query) -> Hits:
        def answer(snapshot: Snapshot) -> Hits:
            return Hits(find(snapshot, query, lambda text: self._vector(query, text, snapshot)))

        return await self._read(query.index, answer)

    def _vector(self, query: Query, text: str, snapshot: Snapshot) -> Matrix:
        if query.vector is not None:
            return unit_vector(query.vector)
        kept = snapshot.settings.embedder
        embedder = self._embedder or embedder_named(kept, snapshot.name)
        check_embedder(embedder.name, kept, index=snapshot.name)
        vector: Matrix = embedder.embed([text])[0]
        return vector

    async def _read(self, index: str, work: Callable[[Snapshot], T]) -> T:
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers.setdefault(index, Reader(Layout(self.root, index)))
        if self._reading is None:
            self._reading = ThreadPoolExecutor(2, thread_name_prefix="phloem-index-read")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, lambda: work(reader.snapshot()))

    async def _write(self, work: Callable[..., T], layout: Layout, *args: Any) -> T:
        if self._writing is None:
            self._writing = ThreadPoolExecutor(1, thread_name_prefix="phloem-index-write")

        def locked() -> T:
            with writer_lock(layout.lock, index=layout.name, wait=self._lock_wait):
                return work(layout, *args)

        return await asyncio.get_running_loop().run_in_executor(self._writing, locked)

    def _create(self, layout: Layout) -> None:
        if layout.exists():
            raise RetrievalError(f"index {layout.name!r} exists already", index=layout.name)
        layout.switch_to(self._new_generation(layout))

    def _new_generation(self, layout: Layout, embedder: str | None = None) -> Path:
        generation = layout.new_generation(Settings(embedder=embedder))
        create_files(generation)
        return generation

    def _add(self, layout: Layout, docs: Iterable[Document]) -> AddReport:
        if not layout.exists():
            layout.switch_to(self._new_generation(layout))
        return self._fill(layout, layout.current(), docs)

    def _rebuild(self, layout: Layout, docs: Iterable[Document]) -> AddReport:
        # A store without an embedder goes on with the one that the index was filled with.
        kept = None
        if self._embedder is None and layout.exists():
            kept = read_settings(layout.current()).embedder
        generation = self._new_generation(layout, kept)
        report = self._fill(layout, generation, docs)
        if not report.failed:
            layout.switch_to(generation)
        return report

    def _fill(self, layout: Layout, generation: Path, docs: Iterable[Document]) -> AddReport:
        with closing(GenerationWriter(layout.name, generation, self._embedder)) as writer:
            report = writer.add(docs)
            writer.commit()
        return report

    def _delete(self, layout: Layout, ids: list[str]) -> int:
        existing = Reader(layout).snapshot().by_ids(ids)
        with closing(GenerationWriter(layout.name, layout.current(), None)) as writer:
            writer.delete(existing)
            writer.commit()
        return len(existing)

    def _drop(self, layout: Layout) -> None:
        self._readers.pop(layout.name, None)
        layout.remove()


def _info(snapshot: Snapshot) -> IndexInfo:
    size = sum(file.stat().st_size for file in snapshot.generation.iterdir())
    settings = read_settings(snapshot.generation)
    return IndexInfo(
        snapshot.name, snapshot.searcher.num_docs, size, settings.dims, settings.embedder
    )
