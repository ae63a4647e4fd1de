"""What is the same whoever answers: fusion, limits, and the shipped fake."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from phloem.errors import IndexNotFound, RetrievalError, RetrievalTimeout
from phloem.retrieval import Document, Hit, Hits, Query, Retriever
from phloem.retrieval.documents import MAX_HITS, MAX_WORDS, fingerprint, plain_text
from phloem.retrieval.pipeline import boosted_fields, fuse, run_search, window
from phloem.retrieval.testing import FakeRetriever


def ranking(*ids: str) -> list[Hit]:
    return [Hit(id_, id_, 1.0) for id_ in ids]


def test_fusion_sums_reciprocal_ranks() -> None:
    """A document in both rankings beats better ranks in one; ties are in order of id."""
    fused = fuse([ranking("a", "b", "c"), ranking("d", "b", "a")], 10)
    assert [hit.id for hit in fused] == ["a", "b", "d", "c"]
    assert fused[0].score == pytest.approx(1 / 61 + 1 / 63)
    assert fused[1].score == pytest.approx(2 / 62)
    assert fused[2].score == pytest.approx(1 / 61)
    assert [hit.id for hit in fuse([ranking("z", "y"), ranking("y", "z")], 1)] == ["y"]


def test_fusion_keeps_highlights_of_either_ranking() -> None:
    """Highlights come from the ranking by words."""
    marked = [Hit("a", "x", 1.0, highlights=("<em>x</em>",))]
    assert fuse([ranking("a"), marked], 1)[0].highlights == ("<em>x</em>",)


def test_a_fused_search_asks_for_no_more_than_servers_give() -> None:
    """The rankings of a hybrid search for many hits stay within what one search may give."""
    assert window(3) == 50
    assert window(MAX_HITS) == window(6_000) == MAX_HITS


def test_boosts() -> None:
    """Fields default to text and title, and carry their boosts."""
    assert boosted_fields(()) == [("text", 1.0), ("title", 1.0)]
    assert boosted_fields(("title^2.5", "kind")) == [("title", 2.5), ("kind", 1.0)]
    with pytest.raises(RetrievalError, match="not a boost"):
        boosted_fields(("title^much",))


def test_long_texts_are_cut_to_words_that_servers_take() -> None:
    """The first words count; lone surrogates become question marks."""
    assert plain_text("a\n b\ud800") == "a b?"
    assert len(plain_text("word " * 10_000).split()) == MAX_WORDS


async def test_reranking_counts_into_the_timeout() -> None:
    """A reranker that takes too long is a RetrievalTimeout."""

    class Slow:
        name = "slow"
        pool = 20

        def __init__(self) -> None:
            self.asked: list[int] = []

        def rerank(self, _: str, hits: Sequence[Hit]) -> Sequence[Hit]:
            self.asked.append(len(hits))

            time.sleep(0.5)
            return hits

    async def answer(query: Query) -> Hits:
        return Hits(tuple(ranking(*"abcdefgh"))[: query.k])

    slow = Slow()
    with pytest.raises(RetrievalTimeout):
        await run_search(Query("x", k=2, rerank=slow), answer, timeout=0.1, source="s")
    hits = await run_search(Query("x", k=2, rerank=slow), answer, timeout=5, source="s")
    assert len(hits) == 2
    assert slow.asked == [8, 8]


async def test_a_slow_answer_is_a_timeout_that_names_everything() -> None:
    """Source, index and seconds are in the message and in the details."""

    async def never(_: Query) -> Hits:
        await asyncio.sleep(30)
        raise AssertionError

    query = Query("x", index="docs", timeout=0.05)
    with pytest.raises(RetrievalTimeout, match=r"the store.*'docs'.*0\.05 s") as caught:
        await run_search(query, never, timeout=10, source="the store")
    assert caught.value.details["index"] == "docs"


def test_fingerprints_follow_content_only() -> None:
    """Text, title, metadata and own vector change it; the id and the order of keys don't."""
    doc = Document("a", "t", "title", {"x": 1, "y": [1, 2]})
    assert fingerprint(doc) == fingerprint(Document("b", "t", "title", {"y": [1, 2], "x": 1}))
    others = [
        Document("a", "u", "title", doc.meta),
        Document("a", "t", None, doc.meta),
        Document("a", "t", "title", {"x": 2}),
        Document("a", "t", "title", doc.meta, vector=[1.0]),
    ]
    assert len({fingerprint(other) for other in [doc, *others]}) == 5


async def test_the_fake_keeps_the_contract() -> None:
    """The shipped fake searches words, filters, counts its queries and fails on demand."""
    fake = FakeRetriever(
        [Document("a", "cat and dog", meta={"n": 1}), Document("b", "cat", meta={"n": 2})]
    )
    assert isinstance(fake, Retriever)
    assert [hit.id for hit in await fake.search(Query("a cat and a dog"))] == ["a", "b"]
    assert [hit.id for hit in await fake.search(Query("cat", filter={"n": 2}))] == ["b"]
    with pytest.raises(IndexNotFound):
        await fake.search(Query("cat", index="other"))
    fake.failures = [RetrievalTimeout("on demand")]
    with pytest.raises(RetrievalTimeout, match="on demand"):
        await fake.search(Query("cat"))
    assert len(await fake.search(Query("cat"))) == 2
    assert len(fake.queries) == 5


def test_importing_retrieval_is_light() -> None:
    """Neither a client nor an index nor torch is loaded before it is used."""
    heavy = ["elasticsearch", "opensearchpy", "tantivy", "torch", "numpy", "pydantic", "pypdf"]
    code = f"import sys, phloem.retrieval; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_names_are_attribute_errors() -> None:
    """The lazy names don't hide a typo."""
    module: Any = sys.modules["phloem.retrieval"]
    with pytest.raises(AttributeError, match="Retreiver"):
        _ = module.Retreiver
