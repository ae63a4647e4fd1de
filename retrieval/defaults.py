"""The retriever of a program that names none, from the environment.

What lives here: the choice. What does not: the retrievers.

    PHLOEM_ES_URL      an Elasticsearch cluster (see `elastic/address.py` for credentials)
    PHLOEM_INDEX_DIR   else: the folder of the embedded indexes
                       (by default: `phloem/indexes` in the user's data folder)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from phloem.retrieval.elastic.address import from_environment
from phloem.retrieval.elastic.server import ServerRetriever
from phloem.retrieval.embed.protocol import Embedder
from phloem.retrieval.embedded.index import EmbeddedIndex
from phloem.retrieval.lazy import load

__all__ = ["default_retriever", "index_folder"]


def default_retriever(
    environment: Mapping[str, str] | None = None, *, embedder: Embedder | None = None
) -> ServerRetriever | EmbeddedIndex:
    """Elasticsearch if PHLOEM_ES_URL is set, else the embedded index. Nothing is contacted.

    `embedder` makes the vectors of documents that are added. Raises `ConfigError` for an
    address that is none.
    """
    settings = os.environ if environment is None else environment
    address = from_environment(settings)
    if address is None:
        return EmbeddedIndex(index_folder(settings), embedder=embedder)
    retriever = load("phloem.retrieval.elastic.elasticsearch:ElasticsearchRetriever")
    made: ServerRetriever = retriever(address, embedder=embedder)
    return made


def index_folder(environment: Mapping[str, str]) -> Path:
    """Where the embedded indexes are."""
    if named := environment.get("PHLOEM_INDEX_DIR"):
        return Path(named).expanduser()
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "phloem" / "indexes"
