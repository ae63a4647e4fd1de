"""Stores documents on a server, in bulk, without losing one silently.

What lives here: the bulk loop. What does not: making indexes and switching aliases
(`indexes.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from phloem.errors import RetrievalError
from phloem.retrieval.base import AddReport, Document
from phloem.retrieval.documents import (
    documents,
    embedded_text,
    fingerprint,
    in_batches,
    problem,
)
from phloem.retrieval.elastic.bodies import FINGERPRINT, FieldMap
from phloem.retrieval.elastic.cluster import Cluster, index_path
from phloem.retrieval.elastic.failures import BUSY, failure_of, reason_of
from phloem.retrieval.elastic.transport import not_json, part
from phloem.retrieval.embed.protocol import Embedder, check_dims, unit_vector

__all__ = ["Storing"]

_BATCH = 256
_BATCH_BYTES = 5_000_000
_BULK_S = 60.0
_ATTEMPTS = 8
_TOO_LARGE = 413
_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 10.0

Action = tuple[str, dict[str, Any], dict[str, Any]]
"""A document's id, and the two lines of it in a bulk request."""


class Storing:
    """Bulk writes to one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def add(
        self,
        docs: Iterable[Document],
        *,
        index: str,
        dims: int | None,
        embedder: Embedder | None,
        keep_vectors: Callable[[int], Awaitable[None]],
    ) -> AddReport:
        """Store `docs` in the existing `index` and refresh it.

        Its vectors have `dims`; if it has none yet, `keep_vectors(dims)` is called before the
        first one is stored.
        """
        added = 0
        failed: list[tuple[str, str]] = []
        batches = in_batches(documents(docs), _BATCH)
        # The documents may come from slow files: they are read in a thread.
        while batch := await asyncio.to_thread(lambda: next(batches, None)):
            good = []
            for doc in batch:
                why = problem(doc)
                if why is None:
                    good.append(doc)
                else:
                    failed.append((str(doc.id), why))
            if dims is None:
                dims = embedder.dims if embedder else _first_dims(good)
                if dims is not None:
                    await keep_vectors(dims)
            actions = await asyncio.to_thread(self._actions, good, index, dims, embedder, failed)
            for some in _by_bytes(actions):
                lost = await self._send(some, index)
                added += len(some) - len(lost)
                failed += lost
        await self.refresh(index)
        return AddReport(added, tuple(failed))

    async def refresh(self, index: str) -> None:
        """Make everything stored visible to searches."""
        await self._cluster.caller.call(
            "POST", index_path(index, "/_refresh"), index=index, seconds=_BULK_S
        )

    def _actions(
        self,
        docs: Sequence[Document],
        index: str,
        dims: int | None,
        embedder: Embedder | None,
        failed: list[tuple[str, str]],
    ) -> list[Action]:
        """The bulk lines of `docs`. Runs in a thread: embedding takes long."""
        vectors: dict[int, list[float]] = {}
        bare = [place for place, doc in enumerate(docs) if doc.vector is None]
        if embedder is not None and bare:
            made = embedder.embed([embedded_text(docs[place]) for place in bare])
            vectors = {place: row.tolist() for place, row in zip(bare, made, strict=True)}
        actions = []
        for place, doc in enumerate(docs):
            if doc.vector is not None:
                assert dims is not None
                try:
                    vector = unit_vector(doc.vector)
                    check_dims(len(vector), dims, what="the document's vector", index=index)
                except RetrievalError as error:
                    failed.append((doc.id, error.message))
                    continue
                vectors[place] = vector.tolist()
            source = _source(doc, vectors.get(place), self._cluster.fields)
            actions.append((doc.id, {"index": {"_id": doc.id}}, source))
        return actions

    async def _send(self, actions: list[Action], index: str) -> list[tuple[str, str]]:
        """Store `actions`; those the server is too busy for are sent again, with growing
        pauses. Returns the ids that failed, each with the reason."""
        failed: list[tuple[str, str]] = []
        pending = actions
        for attempt in range(_ATTEMPTS):
            lines = [line for _, head, source in pending for line in (head, source)]
            reply = await self._cluster.caller.reply(
                "POST", index_path(index, "/_bulk"), index=index, seconds=_BULK_S, body=lines
            )
            busy: list[Action] = []
            why = ""
            if reply.status == _TOO_LARGE:
                return failed + await self._send_less(pending, index)
            if reply.status in BUSY:
                busy, why = pending, reason_of(reply.body)[1]
            else:
                failure = failure_of(reply, self._cluster.caller.address, index)
                if failure is not None:
                    raise failure
                items = part(self._cluster.caller.address, reply.body, "items")
                if len(items) != len(pending):
                    raise not_json(self._cluster.caller.address, reply.status, reply.body)
                for action, item in zip(pending, items, strict=True):
                    (result,) = item.values()
                    if result["status"] in BUSY:
                        busy.append(action)
                        why = reason_of(result)[1]
                    elif result["status"] >= 300:
                        failed.append((action[0], ": ".join(filter(None, reason_of(result)))))
            if not busy:
                return failed
            pending = busy
            await asyncio.sleep(min(_BACKOFF_S * 2**attempt, _LONGEST_BACKOFF_S))
        too_busy = f"the server was too busy, {_ATTEMPTS} times: {why or 'no reason given'}"
        return failed + [(id_, too_busy) for id_, _, _ in pending]

    async def _send_less(self, actions: list[Action], index: str) -> list[tuple[str, str]]:
        """The same in halves, where a server or a proxy takes no request as large."""
        if len(actions) == 1:
            return [
                (actions[0][0], "too large: the server takes no request of its size (HTTP 413)")
            ]
        half = len(actions) // 2
        lost = await self._send(actions[:half], index)
        return lost + await self._send(actions[half:], index)


def _first_dims(docs: Sequence[Document]) -> int | None:
    return next((len(doc.vector) for doc in docs if doc.vector is not None), None)


def _source(doc: Document, vector: list[float] | None, fields: FieldMap) -> dict[str, Any]:
    source: dict[str, Any] = {fields.text: doc.text, FINGERPRINT: fingerprint(doc)}
    if doc.title is not None:
        source[fields.title] = doc.title
    if vector is not None:
        source[fields.vector] = vector
    if fields.meta:
        source[fields.meta] = dict(doc.meta)
    else:
        source = {**doc.meta, **source}
    return source


def _by_bytes(actions: list[Action]) -> list[list[Action]]:
    """`actions` in lists of up to `_BATCH_BYTES` each (servers refuse larger requests)."""
    parts: list[list[Action]] = []
    size = _BATCH_BYTES
    for action in actions:
        length = len(json.dumps(action[2], ensure_ascii=False).encode())
        if size + length > _BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(action)
        size += length
    return parts
