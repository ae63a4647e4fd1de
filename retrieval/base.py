"""The retrieval seam: what a program may ask of a search, and what it gets back.

What lives here: the data (`Document`, `Query`, `Hit`, `Hits`, ...) and the protocols
(`Retriever`, `Index`, `Reranker`); also where sentences end. What does not: any index.
`retrieval/embedded` and `retrieval/elastic` implement both protocols; `retrieval/testing` ships a
fake.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, overload, runtime_checkable

from phloem.retrieval.filters import Filter
from phloem.retrieval.sentences import sentence_spans

__all__ = [
    "AddReport",
    "Document",
    "Filter",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "Mode",
    "Query",
    "Reranker",
    "Retriever",
    "sentence_spans",
    "traceparent",
]

Mode = Literal["bm25", "knn", "hybrid"]


traceparent: ContextVar[str | None] = ContextVar("phloem_traceparent", default=None)
"""The W3C trace context (https://www.w3.org/TR/trace-context/) of the run that searches, set by
whoever runs it; retrievers that call a server send it on."""


@dataclass(frozen=True, slots=True)
class Document:
    """One unit of retrieval: what is indexed is what comes back as a passage.

    `id` is stable: adding a document with a known id replaces it. `meta` holds JSON values and
    is what filters look at. `vector` is the text's embedding, for those who bring their own;
    without it an index that keeps vectors computes it.

    A chunk of a longer text says in `meta["chunk"]` where it comes from: "source" (the file's
    name), "number", and "start", "end" (its half-open interval of characters there).
    """

    id: str
    text: str
    title: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    vector: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A search. `text` is data: it is matched as words and never parsed as query syntax.

    An empty `text` is refused with `RetrievalError`; it never means "everything". `k` is the
    number of hits wanted (1 or more). `fields` are the fields to match, "text", "title" or keys
    of `meta`, each with an optional boost ("title^2"); none means text and title. `filter` is
    a typed filter or its JSON form. `timeout` is in seconds and bounds the whole call, retries
    and slow bodies included (None: the retriever's default). `highlight` asks for
    `Hit.highlights`. `rerank` reorders a larger set of candidates. `vector` is the query's
    embedding, for those who bring their own. `raw` is the expert's escape hatch: a query in
    the server's own language that takes the place of matching `text`. With `allow_partial`
    hits of a search that failed in part are returned, marked, instead of raised.
    """

    text: str
    index: str = "default"
    k: int = 5
    mode: Mode = "bm25"
    filter: Filter | Mapping[str, Any] | None = None
    fields: tuple[str, ...] = ()
    min_score: float | None = None
    timeout: float | None = None
    highlight: bool = False
    rerank: Reranker | None = None
    vector: Sequence[float] | None = None
    raw: Mapping[str, Any] | None = None
    allow_partial: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found. `score` is the retriever's own (BM25, similarity, fused rank).

    `highlights` are fragments of the text with the words that matched in `<em>…</em>`.
    """

    id: str
    text: str
    score: float
    title: str | None = None
    index: str = "default"
    meta: Mapping[str, Any] = field(default_factory=dict)
    highlights: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, the form that journals and HTTP replies use."""
        return {
            "id": self.id,
            "text": self.text,
            "score": self.score,
            "title": self.title,
            "index": self.index,
            "meta": dict(self.meta),
            "highlights": list(self.highlights),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hit:
        """The inverse of `to_json`."""
        return cls(**{**data, "highlights": tuple(data.get("highlights", ()))})


@dataclass(frozen=True, slots=True)
class Hits(Sequence[Hit]):
    """Hits in rank order. `partial` is true if part of the search failed: see `causes`.

    `source` names who answered, without secrets. `fallback` is None, or says why the primary
    retriever did not answer and a fallback did.
    """

    hits: tuple[Hit, ...] = ()
    took_ms: float = 0.0
    partial: bool = False
    causes: tuple[str, ...] = ()
    source: str = ""
    fallback: str | None = None

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> Hits: ...
    def __getitem__(self, index: int | slice) -> Hit | Hits:
        if isinstance(index, slice):
            return replace(self, hits=self.hits[index])
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    def __hash__(self) -> int:
        return hash(tuple(hit.id for hit in self.hits))

    def __await__(self) -> Generator[Any, None, Hits]:
        """`await retrieve(...)` in an async program is the same as without `await`."""
        yield from ()
        return self

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, the form that journals and HTTP replies use."""
        return {
            "hits": [hit.to_json() for hit in self.hits],
            "took_ms": self.took_ms,
            "partial": self.partial,
            "causes": list(self.causes),
            "source": self.source,
            "fallback": self.fallback,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Hits:
        """The inverse of `to_json`."""
        return cls(
            hits=tuple(Hit.from_json(hit) for hit in data["hits"]),
            took_ms=data["took_ms"],
            partial=data["partial"],
            causes=tuple(data["causes"]),
            source=data.get("source", ""),
            fallback=data.get("fallback"),
        )


@dataclass(frozen=True, slots=True)
class AddReport:
    """What an `Index.add` did: how many documents were stored, and which failed (id, why)."""

    added: int
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What is known of one index. `dims` is None where it keeps no vectors."""

    name: str
    documents: int
    bytes: int
    dims: int | None = None
    embedder: str | None = None


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
class Reranker(Protocol):
    """Puts candidates in a better order.

    A run's record holds its `repr`, so that has to be the same in every process.
    """

    name: str
    pool: int
    """How many candidates to fetch for reranking; the query's `k` if that is more."""

    def rerank(self, text: str, hits: Sequence[Hit]) -> Sequence[Hit]:
        """`hits` in order of relevance to `text`, best first, with new scores."""
        ...


@runtime_checkable
class Index(Protocol):
    """Stores documents under an index name.

    Every method raises `IndexNotFound` for a name that does not exist, except `add` and
    `rebuild`, which create it, and `create`.
    """

    async def create(self, index: str, *, model: type | None = None) -> None:
        """Make an empty index; `model` is a pydantic model of the documents' metadata, from
        which the field types are taken. An index of that name raises `RetrievalError`."""
        ...

    async def add(self, docs: Iterable[Document], *, index: str = "default") -> AddReport:
        """Store `docs`, replacing those whose ids exist. Durable and visible when it returns."""
        ...

    async def rebuild(
        self, docs: Iterable[Document], *, index: str = "default", model: type | None = None
    ) -> AddReport:
        """Put `docs` in place of all that `index` holds. Searches see the old documents until
        all new ones are stored, then the new ones; if any fails, the old ones stay. `model` gives
        the field types anew (see `create`); without it they are as they were. Raises `IndexLocked`
        while another rebuild of the index is under way."""
        ...

    async def delete(self, ids: Iterable[str], *, index: str = "default") -> int:
        """Remove by id; returns how many existed."""
        ...

    async def drop(self, index: str) -> None:
        """Remove the index with all it holds."""
        ...

    async def count(self, *, index: str = "default") -> int:
        """Number of documents."""
        ...

    async def get(self, ids: Iterable[str], *, index: str = "default") -> list[Document]:
        """The documents of `ids` that exist, in the order asked, without vectors."""
        ...

    async def fingerprints(self, ids: Iterable[str], *, index: str = "default") -> dict[str, str]:
        """The stored `documents.fingerprint` of each of `ids` that exists."""
        ...

    async def ids(
        self,
        *,
        index: str = "default",
        filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002
    ) -> list[str]:
        """The ids of all documents that match `filter`, sorted."""
        ...

    async def indexes(self) -> list[IndexInfo]:
        """Every index there is, by name."""
        ...
