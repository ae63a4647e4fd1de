"""The retriever of a program that names none, from the environment.

What lives here: the choice. What does not: the retrievers.

    PHLOEM_ES_URL          an Elasticsearch cluster (credentials: `elastic/address.py`)
    PHLOEM_OPENSEARCH_URL  else: an OpenSearch cluster, likewise
    PHLOEM_INDEX_DIR       else: the folder of the embedded indexes
                           (by default: `phloem/indexes` in the user's data folder)
    PHLOEM_RETRIEVAL_FALLBACK
                           what answers when a server can't: "embedded" (the embedded indexes) or
                           "empty" (no hits, marked); without it the error is raised
    PHLOEM_ES_TEXT_FIELD, PHLOEM_ES_TITLE_FIELD, PHLOEM_ES_VECTOR_FIELD
                           the fields of an index that phloem did not make; its metadata are
                           then all its other fields
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from phloem.errors import ConfigError
from phloem.retrieval.elastic.address import from_environment
from phloem.retrieval.elastic.bodies import FieldMap
from phloem.retrieval.elastic.server import ServerRetriever
from phloem.retrieval.embed.protocol import Embedder
from phloem.retrieval.embedded.index import EmbeddedIndex
from phloem.retrieval.fallback import Fallback
from phloem.retrieval.lazy import load

__all__ = ["default_retriever", "index_folder"]


_SERVERS = {
    "PHLOEM_ES": "phloem.retrieval.elastic.elasticsearch:ElasticsearchRetriever",
    "PHLOEM_OPENSEARCH": "phloem.retrieval.elastic.opensearch:OpenSearchRetriever",
}


def default_retriever(
    environment: Mapping[str, str] | None = None, *, embedder: Embedder | None = None
) -> ServerRetriever | EmbeddedIndex:
    """The retriever that `environment` (by default the process's) names. Nothing is contacted.

    `embedder` makes the vectors of documents that are added. Raises `ConfigError` for a setting
    that makes no sense.
    """
    settings = os.environ if environment is None else environment
    for prefix, retriever in _SERVERS.items():
        address = from_environment(settings, prefix)
        if address is not None:
            made: ServerRetriever = load(retriever)(
                address,
                fields=_fields(settings),
                embedder=embedder,
                fallback=_fallback(settings),
            )
            return made
    return EmbeddedIndex(index_folder(settings), embedder=embedder)


def _fallback(environment: Mapping[str, str]) -> Fallback:
    named = environment.get("PHLOEM_RETRIEVAL_FALLBACK", "")
    if named == "embedded":
        return EmbeddedIndex(index_folder(environment))
    if named not in ("", "empty"):
        raise ConfigError(
            f"PHLOEM_RETRIEVAL_FALLBACK is {named!r}", hint='"embedded", "empty", or not set'
        )
    return "empty" if named else None


def _fields(environment: Mapping[str, str]) -> FieldMap | None:
    names = {
        name: environment[variable]
        for name in ("text", "title", "vector")
        if environment.get(variable := f"PHLOEM_ES_{name.upper()}_FIELD")
    }
    return FieldMap(meta=None, **names) if names else None


def index_folder(environment: Mapping[str, str]) -> Path:
    """Where the embedded indexes are."""
    if named := environment.get("PHLOEM_INDEX_DIR"):
        return Path(named).expanduser()
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "phloem" / "indexes"
