"""A reranker that needs nothing but an embedding model.

What lives here: `EmbeddingReranker`. What does not: the protocol (`base.Reranker`), and when
reranking happens (`pipeline.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phloem.retrieval.base import Hit
from phloem.retrieval.embed.protocol import Embedder

__all__ = ["EmbeddingReranker"]


class EmbeddingReranker:
    """Orders the `pool` best hits by the cosine of their text's embedding with the query's."""

    def __init__(self, embedder: Embedder, *, pool: int = 50) -> None:
        self.name = f"cosine of {embedder.name}"
        self.pool = pool
        self._embedder = embedder

    def __repr__(self) -> str:
        return f"EmbeddingReranker({self.name!r}, pool={self.pool})"

    def rerank(self, text: str, hits: Sequence[Hit]) -> Sequence[Hit]:
        """See `base.Reranker.rerank`. Scores are (1 + cosine) / 2."""
        vectors = self._embedder.embed([text, *(hit.text for hit in hits)])
        likeness = vectors[1:] @ vectors[0]
        scored = [
            replace(hit, score=(1 + float(cosine)) / 2)
            for hit, cosine in zip(hits, likeness, strict=True)
        ]
        return sorted(scored, key=lambda hit: -hit.score)
