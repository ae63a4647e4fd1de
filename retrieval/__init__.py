"""Queries to passages: Elasticsearch and the embedded index.

What lives here: the public names, resolved at first use so that importing the package loads no
client, index or model. What does not: code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phloem.retrieval.base import (
    AddReport,
    Document,
    Hit,
    Hits,
    Index,
    IndexInfo,
    Query,
    Reranker,
    Retriever,
)
from phloem.retrieval.filters import And, Exists, Filter, Not, Or, Range, Term, Terms
from phloem.retrieval.lazy import load

if TYPE_CHECKING:
    from phloem.retrieval.defaults import default_retriever
    from phloem.retrieval.elastic.bodies import FieldMap
    from phloem.retrieval.elastic.elasticsearch import ElasticsearchRetriever
    from phloem.retrieval.elastic.mapping import FullText
    from phloem.retrieval.elastic.opensearch import OpenSearchRetriever
    from phloem.retrieval.embedded.index import EmbeddedIndex
    from phloem.retrieval.rerank import EmbeddingReranker

__all__ = [
    "AddReport",
    "And",
    "Document",
    "ElasticsearchRetriever",
    "EmbeddedIndex",
    "EmbeddingReranker",
    "Exists",
    "FieldMap",
    "Filter",
    "FullText",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "Not",
    "OpenSearchRetriever",
    "Or",
    "Query",
    "Range",
    "Reranker",
    "Retriever",
    "Term",
    "Terms",
    "default_retriever",
]

_LAZY = {
    "ElasticsearchRetriever": "phloem.retrieval.elastic.elasticsearch",
    "EmbeddedIndex": "phloem.retrieval.embedded.index",
    "EmbeddingReranker": "phloem.retrieval.rerank",
    "FieldMap": "phloem.retrieval.elastic.bodies",
    "FullText": "phloem.retrieval.elastic.mapping",
    "OpenSearchRetriever": "phloem.retrieval.elastic.opensearch",
    "default_retriever": "phloem.retrieval.defaults",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(f"{_LAZY[name]}:{name}")
