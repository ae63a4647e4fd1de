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
from phloem.retrieval.filters import Terms
from phloem.retrieval.ingest.chunks import CHUNK, Chunking, chunks_of
from phloem.retrieval.ingest.readers import SourceFile, find_files, read_file
from phloem.retrieval.ingest.sources import UnreadableSource

__all__ = ["IngestReport", "Progress", "add_files", "rebuild_from_files"]

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an ingestion is. `bytes_done` of `bytes_total` have been read."""

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

    `progress` is called in the event loop after every file and batch. A file or record that
    can't be read, and a document that is refused, are in the report and stop nothing. If the
    index itself fails, its `RetrievalError` is raised; what was stored stays, and the same call
    goes on from there.
    """
    files = await asyncio.to_thread(find_files, paths)
    run = _Run(store, index, chunking or Chunking(), progress, files)
    await run.add_all(files)
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
            for doc, _ in run.documents(file):
                if isinstance(doc, UnreadableSource):
                    raise doc
                if (why := run.claimed(doc.id, file)) is not None:
                    raise UnreadableSource(f"{file.path}: document {doc.id!r}: {why}")
                yield doc
            loop.call_soon_threadsafe(run.finish, file)

    stored = await store.rebuild(documents(), index=index)
    run.state = replace(run.state, added=stored.added, failed=len(stored.failed))
    run.report()
    return IngestReport(run.state, stored.failed)


class _Run:
    """One ingestion under way.

    Documents of several files travel in one batch; the files that end in a batch are settled
    (what they no longer have is removed) when it is stored.
    """

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
        self._pending: dict[str, Document] = {}
        self._owners: dict[str, str] = {}
        self._ids: dict[str, set[str]] = {}
        self._ended: list[str] = []
        self._index_is_new = False

    def documents(self, file: SourceFile) -> Iterator[tuple[Document | UnreadableSource, int]]:
        """The chunks of `file`, or what is wrong with a record, and the bytes read so far."""
        for source in read_file(file):
            if isinstance(source, UnreadableSource):
                yield source, 0
                continue
            for doc in chunks_of(source, self._chunking):
                yield doc, source.read_bytes

    def claimed(self, id_: str, file: SourceFile) -> str | None:
        """Note that `file` has a document `id_`; why it can't, if another document has the id."""
        owner = self._owners.setdefault(id_, file.name)
        if owner != file.name or id_ in self._ids.get(file.name, ()):
            return f"another document of {owner} has the same id"
        self._ids.setdefault(file.name, set()).add(id_)
        return None

    async def add_all(self, files: list[SourceFile]) -> None:
        """Store what is new in `files`, and remove what they no longer have."""
        for file in files:
            try:
                await self._add(file)
            except UnreadableSource as error:
                self._fail(file.name, str(error))
            else:
                self._ended.append(file.name)
            self.finish(file)
        await self._flush()

    async def _add(self, file: SourceFile) -> None:
        batches = in_batches(self.documents(file), _BATCH)
        while batch := await asyncio.to_thread(lambda: next(batches, None)):
            for doc, read in batch:
                if isinstance(doc, UnreadableSource):
                    self._fail(doc.message.partition(": ")[0], str(doc))
                elif (why := self.claimed(doc.id, file)) is not None:
                    self._fail(doc.id, why)
                else:
                    self._pending[doc.id] = doc
                    self.state = replace(
                        self.state, file=file.name, bytes_done=self.bytes_before + read
                    )
            if len(self._pending) >= _BATCH:
                await self._flush()

    async def _flush(self) -> None:
        """Store the pending documents that are new, and settle the files that have ended."""
        docs, self._pending = self._pending, {}
        known = await self._fingerprints(docs)
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
        ended, self._ended = self._ended, []
        if ended and not self._index_is_new:
            await self._remove_stale(ended)
        self.report()

    async def _fingerprints(self, ids: Iterable[str]) -> dict[str, str]:
        if self._index_is_new:
            return {}
        try:
            return await self._store.fingerprints(ids, index=self._index)
        except IndexNotFound:
            self._index_is_new = True
            return {}

    async def _stored(self, docs: list[Document]) -> AddReport:
        try:
            return await self._store.add(docs, index=self._index)
        except RetrievalError as error:
            error.add_note(
                f"{self.state.added} documents were stored before that and stay; the same call"
                " goes on from there"
            )
            raise

    async def _remove_stale(self, ended: list[str]) -> None:
        """Remove documents that came from the files `ended` and are no longer in them."""
        of_files = Terms(f"{CHUNK}.source", tuple(ended))
        there = await self._store.ids(index=self._index, filter=of_files)
        kept = set().union(*(self._ids.get(name, ()) for name in ended))
        stale = [id_ for id_ in there if id_ not in kept]
        if stale:
            removed = await self._store.delete(stale, index=self._index)
            self.state = replace(self.state, removed=self.state.removed + removed)

    def finish(self, file: SourceFile) -> None:
        """The file has been read, whatever became of it."""
        self.bytes_before += file.bytes
        self.state = replace(
            self.state,
            file=file.name,
            files_done=self.state.files_done + 1,
            bytes_done=self.bytes_before,
        )
        self.report()

    def report(self) -> None:
        """Tell the caller how far this is."""
        self.state = replace(self.state, seconds=time.monotonic() - self._began)
        if self._progress is not None:
            self._progress(self.state)

    def _fail(self, what: str, why: str) -> None:
        self.failed.append((what, why))
        self.state = replace(self.state, failed=self.state.failed + 1)
