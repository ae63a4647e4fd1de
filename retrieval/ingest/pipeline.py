"""Puts files into an index: only what changed, nothing lost silently.

What lives here: the loop over files, and its report. What does not: reading and cutting
(`readers.py`, `chunks.py`). Every stored chunk carries a fingerprint, so that adding the same
files again, or going on after an interruption, stores only what is new; chunks that a changed
file no longer has are removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from phloem.errors import IndexNotFound, RetrievalError
from phloem.retrieval.base import AddReport, Document, Index
from phloem.retrieval.documents import fingerprint, in_batches
from phloem.retrieval.filters import Term
from phloem.retrieval.ingest.chunks import CHUNK, Chunking, chunks_of
from phloem.retrieval.ingest.readers import SourceFile, find_files, read_file
from phloem.retrieval.ingest.sources import UnreadableSource

__all__ = ["IngestReport", "Progress", "add_files", "rebuild_from_files"]

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an ingestion is. `bytes_done` of `bytes_total` have been read and stored."""

    file: str = ""
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    added: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Documents looked at per second."""
        return (self.added + self.unchanged) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingestion did. `failed` names each document or file with the reason."""

    progress: Progress
    failed: tuple[tuple[str, str], ...] = ()


Callback = Callable[[Progress], None]


async def add_files(
    store: Index,
    paths: Iterable[Path | str],
    *,
    index: str,
    chunking: Chunking | None = None,
    progress: Callback | None = None,
) -> IngestReport:
    """Add the files in `paths` to `index`, which is made if it does not exist.

    `progress` is called in the event loop after every batch. A file or record that can't be
    read, and a document that is refused, are in the report and stop nothing. If the index
    itself fails, its `RetrievalError` is raised; what was stored stays, and the same call goes
    on from there.
    """
    files = await asyncio.to_thread(find_files, paths)
    run = _Run(store, index, chunking or Chunking(), progress, files)
    for file in files:
        await run.add(file)
    return IngestReport(run.state, tuple(run.failed))


async def rebuild_from_files(
    store: Index,
    paths: Iterable[Path | str],
    *,
    index: str,
    chunking: Chunking | None = None,
    progress: Callback | None = None,
) -> IngestReport:
    """Put the files in `paths` in place of all that `index` holds, without a gap for searches.

    Raises `UnreadableSource` for the first file or record that can't be read, and leaves the
    index as it was then.
    """
    files = await asyncio.to_thread(find_files, paths)
    loop = asyncio.get_running_loop()
    run = _Run(store, index, chunking or Chunking(), progress, files)

    def documents() -> Iterator[Document]:
        for file in files:
            for doc, read in run.documents(file):
                if isinstance(doc, UnreadableSource):
                    raise doc
                run.state = replace(run.state, bytes_done=run.bytes_before + read)
                yield doc
            run.finish(file)
            loop.call_soon_threadsafe(run.report)

    stored = await store.rebuild(documents(), index=index)
    run.state = replace(run.state, added=stored.added, failed=len(stored.failed))
    run.report()
    return IngestReport(run.state, stored.failed)


class _Run:
    """One ingestion under way."""

    def __init__(
        self,
        store: Index,
        index: str,
        chunking: Chunking,
        progress: Callback | None,
        files: list[SourceFile],
    ) -> None:
        self.failed: list[tuple[str, str]] = []
        self.state = Progress(files_total=len(files), bytes_total=sum(f.bytes for f in files))
        self.bytes_before = 0
        self._store = store
        self._index = index
        self._chunking = chunking
        self._progress = progress
        self._began = time.monotonic()

    def documents(self, file: SourceFile) -> Iterator[tuple[Document | UnreadableSource, int]]:
        """The chunks of `file`, or what is wrong with a record, and the bytes read so far."""
        for source in read_file(file):
            if isinstance(source, UnreadableSource):
                yield source, 0
                continue
            for doc in chunks_of(source, self._chunking):
                yield doc, source.read_bytes

    async def add(self, file: SourceFile) -> None:
        """Store what is new in `file`, and remove what it no longer has."""
        self.state = replace(self.state, file=file.name)
        ids: set[str] = set()
        was_there = False
        batches = in_batches(self.documents(file), _BATCH)
        try:
            while batch := await asyncio.to_thread(lambda: next(batches, None)):
                was_there |= await self._add_batch(batch, ids)
        except UnreadableSource as error:
            self._fail(file.name, str(error))
            return
        finally:
            self.finish(file)
            self.report()
        if was_there:
            await self._remove_stale(file, ids)

    async def _add_batch(
        self, batch: list[tuple[Document | UnreadableSource, int]], ids: set[str]
    ) -> bool:
        """Returns whether the index held any of the batch's documents before."""
        docs = {}
        for doc, read in batch:
            if isinstance(doc, UnreadableSource):
                self._fail(doc.message.partition(": ")[0], str(doc))
            elif doc.id in ids:
                self._fail(doc.id, "another document of the same file has this id")
            else:
                docs[doc.id] = doc
                ids.add(doc.id)
                self.state = replace(self.state, bytes_done=self.bytes_before + read)
        try:
            known = await self._store.fingerprints(docs, index=self._index)
        except IndexNotFound:
            known = {}
        new = [doc for doc in docs.values() if known.get(doc.id) != fingerprint(doc)]
        if new:
            report = await self._stored(new)
            self.failed += report.failed
            self.state = replace(
                self.state,
                added=self.state.added + report.added,
                failed=self.state.failed + len(report.failed),
            )
        self.state = replace(self.state, unchanged=self.state.unchanged + len(docs) - len(new))
        self.report()
        return bool(known)

    async def _stored(self, docs: list[Document]) -> AddReport:
        try:
            return await self._store.add(docs, index=self._index)
        except RetrievalError as error:
            error.add_note(
                f"{self.state.added} documents were stored before that and stay; the same call"
                " goes on from there"
            )
            raise

    async def _remove_stale(self, file: SourceFile, ids: set[str]) -> None:
        of_file = Term(f"{CHUNK}.source", file.name)
        there = await self._store.ids(index=self._index, filter=of_file)
        stale = [id_ for id_ in there if id_ not in ids]
        if stale:
            removed = await self._store.delete(stale, index=self._index)
            self.state = replace(self.state, removed=self.state.removed + removed)
            self.report()

    def finish(self, file: SourceFile) -> None:
        """The file is done, whatever became of it."""
        self.bytes_before += file.bytes
        self.state = replace(
            self.state,
            file=file.name,
            files_done=self.state.files_done + 1,
            bytes_done=self.bytes_before,
        )

    def report(self) -> None:
        """Tell the caller how far this is."""
        self.state = replace(self.state, seconds=time.monotonic() - self._began)
        if self._progress is not None:
            self._progress(self.state)

    def _fail(self, what: str, why: str) -> None:
        self.failed.append((what, why))
        self.state = replace(self.state, failed=self.state.failed + 1)
