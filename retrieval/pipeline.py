"""The part of a search that is the same whoever answers it.

What lives here: checks, the total timeout, `min_score`, reranking, partial results, the fields
that are matched, and reciprocal rank fusion. What does not: how an index finds candidates.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from phloem.errors import InvalidQuery, PartialResults, RetrievalTimeout
from phloem.retrieval.base import Hit, Hits, Query
from phloem.retrieval.documents import MAX_HITS, check_query

__all__ = ["RANK_CONSTANT", "TIE_BREAKER", "boosted_fields", "fuse", "run_search", "window"]

RANK_CONSTANT = 60
"""The constant of reciprocal rank fusion; 60 is the paper's and every server's default."""


TIE_BREAKER = 0.3
"""What fields other than the best matching one add to a score: a tenth to a third is the custom
for titles beside texts."""

DEFAULT_FIELDS = ("text", "title")
"""The fields that are matched where a query names none."""


async def run_search(
    query: Query,
    answer: Callable[[Query], Awaitable[Hits]],
    *,
    timeout: float,  # noqa: ASYNC109 - the default of many calls, not of this one
    source: str,
) -> Hits:
    """`answer(query)` inside the rules that `base.Query` states.

    `timeout` (seconds) is the default where the query has none; `source` names who answers.
    Raises `RetrievalTimeout` when the time is up, `PartialResults` unless allowed.
    """
    check_query(query)
    limit = timeout if query.timeout is None else query.timeout
    pool = max(query.k, query.rerank.pool) if query.rerank else query.k
    began = time.perf_counter()
    try:
        async with asyncio.timeout(limit):
            hits = await answer(replace(query, k=pool) if pool != query.k else query)
            if query.rerank:
                ordered = await asyncio.to_thread(query.rerank.rerank, query.text, hits.hits)
                hits = replace(hits, hits=tuple(ordered))
    except TimeoutError:
        raise RetrievalTimeout(
            f"no complete answer from {source} for index {query.index!r} within {limit:g} s",
            hint="raise timeout=, or check that the server is healthy",
            index=query.index,
            source=source,
            timeout_s=limit,
        ) from None
    if hits.partial and not query.allow_partial:
        raise PartialResults(
            f"{source} searched only part of index {query.index!r}: {'; '.join(hits.causes)}",
            hint="allow_partial=True returns what was found, marked as partial",
            index=query.index,
            causes=hits.causes,
        )
    kept = hits.hits
    if query.min_score is not None:
        kept = tuple(hit for hit in kept if hit.score >= query.min_score)
    took_ms = (time.perf_counter() - began) * 1000
    return replace(hits, hits=kept[: query.k], took_ms=took_ms, source=source)


def window(k: int) -> int:
    """How many hits of each ranking are fused for a result of `k`; no search gives more than
    `MAX_HITS`."""
    return min(max(50, 2 * k), MAX_HITS)


def boosted_fields(fields: Iterable[str]) -> list[tuple[str, float]]:
    """Field names with their boosts: "title^2" is ("title", 2.0). None given: text and title."""
    parsed = []
    for field in tuple(fields) or DEFAULT_FIELDS:
        name, _, boost = field.partition("^")
        try:
            factor = float(boost or 1)
        except ValueError:
            factor = math.nan
        if not (math.isfinite(factor) and factor >= 0):
            raise InvalidQuery(f"not a boost: {field!r}", hint='for example "title^2"')
        parsed.append((name, factor))
    return parsed


def fuse(rankings: Sequence[Sequence[Hit]], k: int) -> tuple[Hit, ...]:
    """The `k` best of several rankings by reciprocal rank fusion.

    The score of a document is the sum of 1 / (60 + rank) over the rankings that hold it, ranks
    from 1 (Cormack, Clarke and Büttcher, SIGIR 2009). Equal scores: by id.
    """
    scores: dict[str, float] = {}
    seen: dict[str, Hit] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, start=1):
            scores[hit.id] = scores.get(hit.id, 0.0) + 1.0 / (RANK_CONSTANT + rank)
            known = seen.setdefault(hit.id, hit)
            if hit.highlights and not known.highlights:
                seen[hit.id] = hit
    order = sorted(scores, key=lambda id_: (-scores[id_], id_))[:k]
    return tuple(replace(seen[id_], score=scores[id_]) for id_ in order)
