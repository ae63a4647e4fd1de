"""Answers a query on a server.

What lives here: the three modes, and what an empty or refused answer means. What does not:
checks, timeouts and reranking (`pipeline.py`); bodies (`bodies.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from phloem.errors import FieldNotFound, IndexNotFound, RetrievalError, RetrievalRefused
from phloem.retrieval.base import Hits, Query
from phloem.retrieval.elastic.bodies import (
    hit_of,
    hybrid_body,
    knn_body,
    raw_body,
    words_body,
)
from phloem.retrieval.elastic.cluster import Cluster
from phloem.retrieval.elastic.failures import failure_of, partial_causes
from phloem.retrieval.elastic.transport import Reply, not_json
from phloem.retrieval.embed.known import embedder_named
from phloem.retrieval.embed.protocol import Embedder, check_dims, check_embedder, unit_vector
from phloem.retrieval.filters import Filter, fields_of, parse_filter
from phloem.retrieval.pipeline import boosted_fields, fuse, window

__all__ = ["Searching"]

# How a server says that it can't fuse rankings: an unknown part of the request, or a licence.
_NO_FUSION = ("parsing_exception", "x_content_parse_exception", "security_exception")


class Searching:
    """Queries to one cluster. `fuse_on_server` is None to find out whether it can."""

    def __init__(
        self, cluster: Cluster, embedder: Embedder | None, *, fuse_on_server: bool | None
    ) -> None:
        self._cluster = cluster
        self._embedder = embedder
        self._fuse_on_server = fuse_on_server

    async def answer(self, query: Query, seconds: float) -> Hits:
        """The hits of `query`, which may take `seconds`."""
        wanted = parse_filter(query.filter)
        fields = self._cluster.fields
        if query.raw is not None:
            return await self._search(query, raw_body(query, wanted, fields, query.k), seconds)
        if query.mode == "bm25":
            body = words_body(query, wanted, fields, query.k)
            return await self._search(query, _bounded(body, query, seconds), seconds)
        vector = await self._vector(query)
        dialect = (await self._cluster.info()).product
        if query.mode == "knn":
            body = knn_body(vector, wanted, fields, query.k, dialect)
            return await self._search(query, body, seconds)
        if dialect == "elasticsearch" and self._fuse_on_server is not False and not query.highlight:
            hits = await self._fused_on_server(query, vector, wanted, seconds)
            if hits is not None:
                return hits
        size = window(query.k)
        by_words, by_vector = await asyncio.gather(
            self._search(query, words_body(query, wanted, fields, size), seconds),
            self._search(query, knn_body(vector, wanted, fields, size, dialect), seconds),
        )
        causes = tuple(dict.fromkeys(by_words.causes + by_vector.causes))
        return Hits(fuse([by_words.hits, by_vector.hits], query.k), 0.0, bool(causes), causes)

    async def _fused_on_server(
        self, query: Query, vector: list[float], wanted: Filter | None, seconds: float
    ) -> Hits | None:
        """The hits, or None if this server does not fuse."""
        body = hybrid_body(query, vector, wanted, self._cluster.fields)
        reply = await self._cluster.caller.search(query.index, body, seconds=seconds)
        failure = failure_of(reply, self._cluster.caller.address, query.index)
        if failure is not None and _cannot_fuse(failure, reply):
            self._fuse_on_server = False
            return None
        return await self._read(query, reply, failure)

    async def _search(self, query: Query, body: Mapping[str, Any], seconds: float) -> Hits:
        reply = await self._cluster.caller.search(query.index, body, seconds=seconds)
        failure = failure_of(reply, self._cluster.caller.address, query.index)
        return await self._read(query, reply, failure)

    async def _read(self, query: Query, reply: Reply, failure: RetrievalError | None) -> Hits:
        """The hits in `reply`; errors and empty answers are looked into first."""
        if failure is not None:
            if type(failure) is RetrievalError and reply.status == 400:
                await self._explain(query)
            raise failure
        found = reply.body.get("hits") if isinstance(reply.body, Mapping) else None
        listed = found.get("hits") if isinstance(found, Mapping) else None
        if not isinstance(listed, list) or not all(isinstance(hit, Mapping) for hit in listed):
            raise not_json(self._cluster.caller.address, reply.status, reply.body)
        hits = tuple(hit_of(hit, self._cluster.fields, query.index) for hit in listed)
        causes = partial_causes(reply.body)
        if not hits and not causes:
            await self._explain(query)
        return Hits(hits, 0.0, bool(causes), causes)

    async def _explain(self, query: Query) -> None:
        """Raise if the query names a field the index lacks, or a vector of the wrong size, or if
        its pattern of index names names none."""
        pattern = any(mark in query.index for mark in "*,")
        if pattern and not await self._cluster.exists(query.index):
            raise IndexNotFound(
                f"no index {query.index!r} at {self._cluster.caller.address}",
                hint="phloem index list shows those there are",
                index=query.index,
            )
        names = fields_of(parse_filter(query.filter))
        if query.mode != "knn" and query.raw is None:
            # The title is optional where it was not asked for by name.
            names |= {name for name, _ in boosted_fields(query.fields or ("text",))}
        await self._cluster.check_fields(query.index, names)
        if query.mode != "bm25":
            kept = await self._cluster.vectors(query.index, fresh=True)
            size = len(await self._vector(query))
            if kept.dims is not None:
                check_dims(size, kept.dims, what="the query's vector", index=query.index)

    async def _vector(self, query: Query) -> list[float]:
        """The query's embedding; made by the model that filled the index."""
        index = query.index
        if query.vector is not None:
            return [float(x) for x in unit_vector(query.vector)]
        kept = await self._cluster.vectors(index)
        if kept.dims is None:
            raise FieldNotFound(
                f"index {index!r} at {self._cluster.caller.address} keeps no vectors in "
                f"{self._cluster.fields.vector!r}, so it can't be searched by {query.mode}",
                hint="rebuild it with an embedder, or use mode='bm25'",
                index=index,
                field=self._cluster.fields.vector,
            )
        embedder = self._embedder or embedder_named(kept.embedder, index)
        check_embedder(embedder.name, kept.embedder, index=index)
        check_dims(embedder.dims, kept.dims, what=f"the embedder {embedder.name!r}", index=index)
        made = await asyncio.to_thread(embedder.embed, [query.text])
        return [float(x) for x in made[0]]


def _cannot_fuse(failure: RetrievalError, reply: Reply) -> bool:
    if isinstance(failure, IndexNotFound):
        return False
    kinds = repr(reply.body)
    licence = isinstance(failure, RetrievalRefused) and "license" in kinds
    return licence or (reply.status == 400 and any(kind in kinds for kind in _NO_FUSION))


def _bounded(body: dict[str, Any], query: Query, seconds: float) -> dict[str, Any]:
    """Where partial hits are welcome, the server is told to return them in time."""
    return {**body, "timeout": f"{int(seconds * 900)}ms"} if query.allow_partial else body
