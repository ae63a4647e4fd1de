"""What `phloem index ...` does, as plain functions.

What lives here: the commands' work. What does not: how their results look (`server/cli`), and
ingestion itself (`ingest/pipeline.py`). Each takes the store to work on: an object, the URL of an
Elasticsearch server, or None for the default one (`defaults.default_retriever`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from phloem.errors import IndexNotFound
from phloem.retrieval.base import Document, Hits, IndexInfo, Query
from phloem.retrieval.defaults import default_retriever
from phloem.retrieval.elastic.server import ServerRetriever
from phloem.retrieval.embed.known import DEFAULT, embedder_named
from phloem.retrieval.embedded.index import EmbeddedIndex
from phloem.retrieval.ingest.chunks import Chunking
from phloem.retrieval.ingest.pipeline import (
    Callback,
    IngestReport,
    add_files,
    rebuild_from_files,
)

__all__ = [
    "IndexDetails",
    "Store",
    "add",
    "check",
    "create",
    "delete",
    "drop",
    "list_indexes",
    "rebuild",
    "search",
    "show",
]

Store: TypeAlias = ServerRetriever | EmbeddedIndex
"""What both searches and stores."""

Where: TypeAlias = Store | str | None
"""A store, the URL of an Elasticsearch server, or None for the default."""


@dataclass(frozen=True, slots=True)
class IndexDetails:
    """An index, where it is, and some of its documents."""

    info: IndexInfo
    source: str
    sample: tuple[Document, ...]


async def add(
    paths: Iterable[Path | str],
    *,
    index: str = "default",
    embed: bool = False,
    chunking: Chunking | None = None,
    progress: Callback | None = None,
    store: Where = None,
) -> IngestReport:
    """Add files and folders; see `ingest.pipeline.add_files`. With `embed` a new index keeps
    vectors of the default embedding model."""
    async with _opened(store, embed=embed) as opened:
        return await add_files(opened, paths, index=index, chunking=chunking, progress=progress)


async def create(index: str, *, model: type | None = None, store: Where = None) -> None:
    """Make an empty index; `model` is a pydantic model of the documents' metadata."""
    async with _opened(store) as opened:
        await opened.create(index, model=model)


async def rebuild(
    paths: Iterable[Path | str],
    *,
    index: str = "default",
    embed: bool = False,
    chunking: Chunking | None = None,
    progress: Callback | None = None,
    store: Where = None,
) -> IngestReport:
    """Replace an index by what the files hold; see `ingest.pipeline.rebuild_from_files`."""
    async with _opened(store, embed=embed) as opened:
        return await rebuild_from_files(
            opened, paths, index=index, chunking=chunking, progress=progress
        )


async def search(query: Query, *, store: Where = None) -> Hits:
    """The hits of `query`."""
    async with _opened(store) as opened:
        return await opened.search(query)


async def list_indexes(*, store: Where = None) -> list[IndexInfo]:
    """All indexes, by name."""
    async with _opened(store) as opened:
        return await opened.indexes()


async def show(index: str, *, sample: int = 3, store: Where = None) -> IndexDetails:
    """One index and its first `sample` documents by id. Raises `IndexNotFound`."""
    async with _opened(store) as opened:
        found = [info for info in await opened.indexes() if info.name == index]
        if not found:
            raise IndexNotFound(
                f"no index {index!r} in {opened.source}",
                hint="phloem index list shows those there are",
                index=index,
            )
        ids = await opened.ids(index=index)
        documents = await opened.get(ids[:sample], index=index)
        info = replace(found[0], documents=len(ids))
        return IndexDetails(info, opened.source, tuple(documents))


async def delete(ids: Iterable[str], *, index: str = "default", store: Where = None) -> int:
    """Remove documents by id; returns how many existed."""
    async with _opened(store) as opened:
        return await opened.delete(ids, index=index)


async def drop(index: str, *, store: Where = None) -> None:
    """Remove a whole index. Raises `IndexNotFound`."""
    async with _opened(store) as opened:
        await opened.drop(index)


async def check(*, store: Where = None) -> str:
    """Who would answer searches, as one line. Raises the error that a search would meet."""
    async with _opened(store) as opened:
        if isinstance(opened, EmbeddedIndex):
            return opened.source
        info = await opened.check()
        return f"{info.product} {info.version} at {opened.source}"


@asynccontextmanager
async def _opened(store: Where, *, embed: bool = False) -> AsyncIterator[Store]:
    """`store`, or the one that its URL names or the default one, which are closed afterwards."""
    if store is not None and not isinstance(store, str):
        yield store
        return
    environment = {**os.environ, "PHLOEM_ES_URL": store} if store else None
    made = default_retriever(environment, embedder=embedder_named(DEFAULT) if embed else None)
    try:
        yield made
    finally:
        await made.aclose()
