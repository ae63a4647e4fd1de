"""The retrieval seam: what a program may ask of a search, and what it gets back.

What lives here: the data (`Document`, `Query`, `Hit`, `Hits`, `AddReport`) and the two
protocols (`Retriever`, `Index`). What does not: any index. `retrieval/embedded` and
`retrieval/elastic` implement both protocols; `retrieval/testing` ships a fake.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload, runtime_checkable

__all__ = ["AddReport", "Document", "Hit", "Hits", "Index", "Mode", "Query", "Retriever"]

Mode = Literal["bm25", "knn", "hybrid"]


@dataclass(frozen=True, slots=True)
class Document:
    """One unit of retrieval: what is indexed is what comes back as a passage.

    `id` is stable: adding a document with a known id replaces it. `meta` holds JSON values.
    """

    id: str
    text: str
    title: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Query:
    """A search. `text` is data: it is matched as words and never parsed as query syntax.

    `k` is the number of hits wanted (1 or more); `timeout` is in seconds and bounds the whole
    call, retries included (None: the retriever's default). An empty `text` is refused by
    retrievers with `RetrievalError`; it never means "everything".
    """

    text: str
    index: str = "default"
    k: int = 5
    mode: Mode = "bm25"
    filter: Mapping[str, Any] | None = None
    fields: tuple[str, ...] = ()
    min_score: float | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found. `score` is the retriever's own (BM25, similarity, fused rank)."""

    id: str
    text: str
    score: float
    title: str | None = None
    index: str = "default"
    meta: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, the form that journals and HTTP replies use."""
        return {
            "id": self.id,
            "text": self.text,
            "score": self.score,
            "title": self.title,
            "index": self.index,
            "meta": dict(self.meta),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hit:
        """The inverse of `to_json`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Hits(Sequence[Hit]):
    """Hits in rank order. `partial` is true if part of the search failed: see `causes`."""

    hits: tuple[Hit, ...] = ()
    took_ms: float = 0.0
    partial: bool = False
    causes: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> Hits: ...
    def __getitem__(self, index: int | slice) -> Hit | Hits:
        if isinstance(index, slice):
            return Hits(self.hits[index], self.took_ms, self.partial, self.causes)
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, the form that journals and HTTP replies use."""
        return {
            "hits": [hit.to_json() for hit in self.hits],
            "took_ms": self.took_ms,
            "partial": self.partial,
            "causes": list(self.causes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hits:
        """The inverse of `to_json`."""
        hits = tuple(Hit.from_json(hit) for hit in data["hits"])
        return cls(hits, data["took_ms"], data["partial"], tuple(data["causes"]))


@dataclass(frozen=True, slots=True)
class AddReport:
    """What an `Index.add` did: how many documents were stored, and which failed and why."""

    added: int
    failed: tuple[tuple[str, str], ...] = ()


@runtime_checkable
class Retriever(Protocol):
    """Answers queries. Safe to share between runs and between event loops."""

    async def search(self, query: Query) -> Hits:
        """The best `query.k` hits, best first; no hits is an empty `Hits`, not an error.

        Raises the kinds of `RetrievalError`, each naming index and address.
        """
        ...

    async def aclose(self) -> None:
        """Release connections and files. A later `search` opens them again."""
        ...


@runtime_checkable
class Index(Protocol):
    """Stores documents under an index name."""

    async def add(self, docs: Iterable[Document], *, index: str = "default") -> AddReport:
        """Store `docs`, replacing those whose ids exist. Durable when it returns."""
        ...

    async def delete(self, ids: Iterable[str], *, index: str = "default") -> int:
        """Remove by id; returns how many existed."""
        ...

    async def count(self, *, index: str = "default") -> int:
        """Number of documents. Raises `IndexNotFound`."""
        ...
