"""The embedded index and a server rank the same documents alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from phloem.retrieval import Document, ElasticsearchRetriever, EmbeddedIndex, Query

CONSONANTS, VOWELS = "bcdfghklmnprstvz", "aeiou"


def corpus(size: int, seed: int = 11) -> list[Document]:
    """Documents of 5 to 120 words, whose frequencies follow Zipf's law."""
    rng = np.random.default_rng(seed)
    syllables = [c + v for c in CONSONANTS for v in VOWELS]
    vocabulary = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(3_000)]

    def text(words: int) -> str:
        picks = (rng.zipf(1.25, words) - 1) % len(vocabulary)
        return " ".join(vocabulary[pick] for pick in picks)

    return [
        Document(f"d{n:04}", text(int(rng.integers(5, 120))), text(3) if n % 3 else None)
        for n in range(size)
    ]


@pytest.fixture
async def both(
    tmp_path: Path, server_url: str, index: str
) -> AsyncIterator[tuple[EmbeddedIndex, ElasticsearchRetriever]]:
    stores = EmbeddedIndex(tmp_path), ElasticsearchRetriever(server_url, timeout=60)
    yield stores
    await stores[1].drop(index)
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize("queries", [10, pytest.param(50, marks=pytest.mark.slow)])
async def test_rankings_agree_on_a_thousand_documents(
    both: tuple[EmbeddedIndex, ElasticsearchRetriever], index: str, queries: int
) -> None:
    """Over all queries the ten best overlap by 0.9 and more on average; on the text alone scores
    have a fixed ratio, 1 or 2.2 (servers before Lucene 8 keep BM25's constant factor k1 + 1)."""
    docs = corpus(1_000)
    for store in both:
        assert (await store.add(docs, index=index)).added == 1_000
    rng = np.random.default_rng(3)
    overlaps: list[float] = []
    ratios: list[float] = []
    for _ in range(queries):
        words = docs[rng.integers(len(docs))].text.split()
        text = " ".join(rng.choice(words, min(len(words), int(rng.integers(2, 6)))))
        ours, theirs = [await store.search(Query(text, index=index, k=10)) for store in both]
        overlaps.append(len({h.id for h in ours} & {h.id for h in theirs}) / len(theirs))
        query = Query(text, index=index, k=10, fields=("text",))
        ours, theirs = [await store.search(query) for store in both]
        scores = {hit.id: hit.score for hit in theirs}
        ratios += [scores[hit.id] / hit.score for hit in ours if hit.id in scores]
    assert np.mean(overlaps) >= 0.9
    assert len(ratios) > 8 * queries
    np.testing.assert_allclose(ratios, 1.0 if np.mean(ratios) < 1.5 else 2.2, rtol=1e-3)
