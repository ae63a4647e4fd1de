"""Queries to passages: Elasticsearch and the embedded index.

What lives here: the public names, resolved at first use so that importing the package loads no
client, index or model. What does not: code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phloem.retrieval.base import AddReport, Document, Hit, Hits, Index, IndexInfo, Query, Retriever
from phloem.retrieval.lazy import load

if TYPE_CHECKING:
    from phloem.retrieval.defaults import default_retriever
    from phloem.retrieval.elastic.elasticsearch import ElasticsearchRetriever
    from phloem.retrieval.embedded.index import EmbeddedIndex

__all__ = [
    "AddReport",
    "Document",
    "ElasticsearchRetriever",
    "EmbeddedIndex",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "Query",
    "Retriever",
    "default_retriever",
]

_LAZY = {
    "ElasticsearchRetriever": "phloem.retrieval.elastic.elasticsearch",
    "EmbeddedIndex": "phloem.retrieval.embedded.index",
    "default_retriever": "phloem.retrieval.defaults",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(f"{_LAZY[name]}:{name}")
