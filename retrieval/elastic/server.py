"""A search server as a `Retriever` and an `Index`, whichever client speaks to it.

What lives here: the face that puts the parts together. What does not: the parts. Make one with
`ElasticsearchRetriever` (`elasticsearch.py`) or `OpenSearchRetriever` (`opensearch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from phloem.errors import RetrievalError, RetrievalTimeout, RetrievalUnavailable
from phloem.retrieval.base import AddReport, Document, Hits, IndexInfo, Query
from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.bodies import FieldMap
from phloem.retrieval.elastic.breaker import Breaker
from phloem.retrieval.elastic.caller import Caller
from phloem.retrieval.elastic.cluster import Cluster, ServerInfo
from phloem.retrieval.elastic.indexes import Indexes
from phloem.retrieval.elastic.logs import scrub_client_logs
from phloem.retrieval.elastic.searching import Searching
from phloem.retrieval.elastic.transport import Transport
from phloem.retrieval.embed.protocol import Embedder
from phloem.retrieval.fallback import Fallback, answer_instead
from phloem.retrieval.filters import Filter, parse_filter
from phloem.retrieval.pipeline import run_search

__all__ = ["ServerRetriever"]

_PROBE_S = 1.0
_ADMIN_S = 30.0


class ServerRetriever:
    """Safe to share between threads, event loops and runs.

    `open_transport` makes the client. `timeout` (seconds) bounds a search in total, with up to
    `retries` repetitions of what failed at once. `fields` names the fields of indexes that
    phloem did not make. `embedder` makes vectors; without one, an index that was filled with a
    known embedder still uses that. `fuse_on_server` says where hybrid rankings are fused: None
    finds out, the hits are the same. `fallback` answers when the server can't (`fallback.py`).
    """

    def __init__(
        self,
        address: Address,
        open_transport: Callable[[Address], Transport],
        *,
        timeout: float = 10.0,
        retries: int = 2,
        fields: FieldMap | None = None,
        embedder: Embedder | None = None,
        fuse_on_server: bool | None = None,
        fallback: Fallback = None,
    ) -> None:
        scrub_client_logs(address)
        self.address = address
        self.source = str(address)
        self._timeout = timeout
        self._fallback = fallback
        self._caller = Caller(address, open_transport, retries=retries)
        self._cluster = Cluster(self._caller, fields or FieldMap(), _ADMIN_S)
        self._searching = Searching(self._cluster, embedder, fuse_on_server=fuse_on_server)
        self._indexes = Indexes(self._cluster, embedder)
        self._breaker = Breaker(self._probe)

    async def search(self, query: Query) -> Hits:
        """See `base.Retriever.search`."""
        try:
            return await self._guarded(query)
        except RetrievalError as error:
            return await answer_instead(self._fallback, query, error)

    @property
    def suspended_s(self) -> float:
        """For how many seconds more searches are refused, since the server failed; mostly 0."""
        return self._breaker.remaining_s

    async def check(self) -> ServerInfo:
        """Who answers at the address. Raises the error that a search would meet."""
        return await self._cluster.ask_info(self._timeout)

    async def aclose(self) -> None:
        """Close connections, the fallback's too; the next call opens them again."""
        await self._caller.aclose()
        if self._fallback is not None and self._fallback != "empty":
            await self._fallback.aclose()

    async def create(self, index: str, *, model: type | None = None) -> None:
        """See `base.Index.create`."""
        await self._indexes.create(index, model)

    async def add(self, docs: Iterable[Document], *, index: str = "default") -> AddReport:
        """See `base.Index.add`."""
        return await self._indexes.add(docs, index)

    async def rebuild(
        self, docs: Iterable[Document], *, index: str = "default", model: type | None = None
    ) -> AddReport:
        """See `base.Index.rebuild`."""
        return await self._indexes.rebuild(docs, index, model)

    async def delete(self, ids: Iterable[str], *, index: str = "default") -> int:
        """See `base.Index.delete`."""
        return await self._indexes.delete(ids, index)

    async def drop(self, index: str) -> None:
        """See `base.Index.drop`."""
        await self._indexes.drop(index)

    async def count(self, *, index: str = "default") -> int:
        """See `base.Index.count`."""
        return await self._indexes.count(index)

    async def get(self, ids: Iterable[str], *, index: str = "default") -> list[Document]:
        """See `base.Index.get`."""
        return await self._indexes.get(ids, index)

    async def fingerprints(self, ids: Iterable[str], *, index: str = "default") -> dict[str, str]:
        """See `base.Index.fingerprints`."""
        return await self._indexes.fingerprints(ids, index)

    async def ids(
        self,
        *,
        index: str = "default",
        filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002
    ) -> list[str]:
        """See `base.Index.ids`."""
        return await self._indexes.ids(index, parse_filter(filter))

    async def indexes(self) -> list[IndexInfo]:
        """See `base.Index.indexes`."""
        return await self._indexes.indexes()

    async def _guarded(self, query: Query) -> Hits:
        """The server's answer; what it says of the server's health is kept."""
        try:
            hits = await run_search(query, self._answer, timeout=self._timeout, source=self.source)
        except (RetrievalTimeout, RetrievalUnavailable) as error:
            if error.details.get("kind") != "circuit-open":
                self._breaker.failed(error)
            raise
        self._breaker.succeeded()
        return hits

    async def _answer(self, query: Query) -> Hits:
        await self._breaker.admit()
        seconds = self._timeout if query.timeout is None else query.timeout
        return await self._searching.answer(query, seconds)

    async def _probe(self) -> None:
        # Short enough for a caller that waits for it to be told within its own timeout.
        await self._cluster.ask_info(min(_PROBE_S, self._timeout / 2))
