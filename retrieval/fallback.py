"""What answers a search when its server can't.

What lives here: the rule, and the marked answer. What does not: the circuit breaker, which makes
a dead server fail fast (`elastic/breaker.py`), and asking in the first place (`elastic/server.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from phloem.errors import RetrievalError
from phloem.retrieval.base import Hits, Query, Retriever

__all__ = ["Fallback", "answer_instead"]

Fallback: TypeAlias = Retriever | Literal["empty"] | None
"""Another retriever (the embedded index), "empty" for no hits with a mark, or None to raise."""


async def answer_instead(fallback: Fallback, query: Query, error: RetrievalError) -> Hits:
    """The hits of `fallback` for a `query` that failed with `error`; `Hits.fallback` says why.

    Only failures that may pass (`error.retryable`: timeout, unreachable, partial) fall back. A
    missing index, a wrong field or a refused key is a mistake, which a fallback would hide: it
    is raised, as everything is without a fallback.
    """
    if fallback is None or not error.retryable:
        raise error
    why = f"{type(error).__name__}: {error.message}"
    if fallback == "empty":
        return Hits(partial=True, causes=(why,), source="empty", fallback=why)
    return replace(await fallback.search(query), fallback=why)
