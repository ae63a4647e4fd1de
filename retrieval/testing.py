"""A retriever for users' tests: documents in a list, failures on demand.

What lives here: `FakeRetriever`. What does not: anything a program should run on; scoring is
the number of shared words, which no search engine uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from phloem.errors import IndexNotFound
from phloem.retrieval.base import Document, Hit, Hits, Query
from phloem.retrieval.filters import matches, parse_filter
from phloem.retrieval.pipeline import run_search

__all__ = ["FakeRetriever"]


class FakeRetriever:
    """Searches `documents` under the index name `index`; remembers every query in `queries`.

    Put exceptions into `failures`: each search raises the next one until there are none left.
    """

    def __init__(self, documents: Iterable[Document] = (), *, index: str = "default") -> None:
        self.index = index
        self.documents = list(documents)
        self.queries: list[Query] = []
        self.failures: list[Exception] = []

    async def search(self, query: Query) -> Hits:
        """See `base.Retriever.search`."""
        self.queries.append(query)
        if self.failures:
            raise self.failures.pop(0)
        return await run_search(query, self._answer, timeout=10.0, source="the fake retriever")

    async def aclose(self) -> None:
        """Nothing to close."""

    async def _answer(self, query: Query) -> Hits:
        if query.index != self.index:
            raise IndexNotFound(f"no index {query.index!r}", index=query.index)
        wanted = parse_filter(query.filter)
        asked = _words(query.text)
        hits = [
            Hit(doc.id, doc.text, float(shared), doc.title, self.index, doc.meta)
            for doc in self.documents
            if (shared := len(asked & _words(f"{doc.title or ''} {doc.text}")))
            and matches(wanted, doc.meta)
        ]
        return Hits(tuple(sorted(hits, key=lambda hit: (-hit.score, hit.id))[: query.k]))


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
