"""What a search does when its server does not answer.

What lives here: the wrapper. What does not: the circuit breaker, which makes a dead server fail
fast (`elastic/breaker.py`).
"""

from __future__ import annotations

from typing import Literal

from phloem.errors import RetrievalError
from phloem.retrieval.base import Hits, Query, Retriever

__all__ = ["FallbackRetriever"]


class FallbackRetriever:
    """Asks `primary`; if that can't answer now, `fallback` does.

    `fallback` is another retriever (the embedded index), or "empty": no hits, with `partial`
    set. Either way `Hits.fallback` says why. Only failures that may pass (`error.retryable`:
    timeout, unreachable, partial) fall back; a missing index, a wrong field or a refused key is
    a mistake, which a fallback would hide.
    """

    def __init__(self, primary: Retriever, fallback: Retriever | Literal["empty"]) -> None:
        self.primary = primary
        self.fallback = fallback

    async def search(self, query: Query) -> Hits:
        """See `base.Retriever.search`."""
        try:
            return await self.primary.search(query)
        except RetrievalError as error:
            if not error.retryable:
                raise
            why = f"{type(error).__name__}: {error.message}"
        if isinstance(self.fallback, str):
            return Hits(partial=True, causes=(why,), source="empty", fallback=why)
        found = await self.fallback.search(query)
        return Hits(found.hits, found.took_ms, found.partial, found.causes, found.source, why)

    async def aclose(self) -> None:
        """Close both."""
        await self.primary.aclose()
        if not isinstance(self.fallback, str):
            await self.fallback.aclose()
