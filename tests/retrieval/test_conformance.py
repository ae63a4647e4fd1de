"""What every store promises: one suite for the embedded index, Elasticsearch and OpenSearch."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phloem.errors import FieldNotFound, IndexNotFound, InvalidQuery, RetrievalError
from phloem.retrieval import (
    And,
    Document,
    EmbeddingReranker,
    Exists,
    Hits,
    Index,
    Not,
    Or,
    Query,
    Range,
    Retriever,
    Term,
    Terms,
)
from phloem.retrieval.admin import Store
from phloem.retrieval.filters import matches, parse_filter
from phloem.retrieval.pipeline import fuse

ANIMALS = [
    Document("cat", "The cat sat on the mat.", "Cats", {"legs": 4, "lang": "en"}),
    Document("dog", "A dog ran after the cat and barked.", "Dogs", {"legs": 4, "lang": "en"}),
    Document("vogel", "Der Vogel fliegt über das Haus.", "Vögel", {"legs": 2, "lang": "de"}),
    Document("snake", "A snake has no legs at all.", None, {"legs": 0, "lang": "en"}),
]


def ids(hits: Hits) -> list[str]:
    return [hit.id for hit in hits]


def test_a_store_is_both_a_retriever_and_an_index(store: Store) -> None:
    """Every store satisfies both protocols."""
    assert isinstance(store, Retriever)
    assert isinstance(store, Index)


async def test_documents_come_back_as_they_were_added(store: Store, index: str) -> None:
    """A hit carries id, text, title and metadata of its document, and the index's name."""
    meta = {"tags": ["a b", "ü"], "n": 1.5, "deep": {"er": True}, "none": None}
    doc = Document("päge/1 #2", "Refunds take ten days — naïve 日本 🎉 <b>&amp;</b>", "Title", meta)
    report = await store.add([doc], index=index)
    assert (report.added, report.failed) == (1, ())
    (hit,) = await store.search(Query("refunds", index=index))
    assert (hit.id, hit.text, hit.title, hit.index) == (doc.id, doc.text, "Title", index)
    assert hit.meta == meta
    assert hit.score > 0


async def test_hits_survive_json(store: Store, index: str) -> None:
    """Hits written as JSON and read back are equal."""
    await store.add(ANIMALS, index=index)
    hits = await store.search(Query("cat", index=index, highlight=True))
    assert Hits.from_json(json.loads(json.dumps(hits.to_json()))) == hits


async def test_best_match_first_and_no_more_than_k(store: Store, index: str) -> None:
    """Hits are ordered by score and cut at k."""
    await store.add(ANIMALS, index=index)
    hits = await store.search(Query("cat", index=index))
    assert ids(hits) == ["cat", "dog"]
    assert hits[0].score > hits[1].score
    assert ids(await store.search(Query("cat", index=index, k=1))) == ["cat"]


QUERIES = [
    "Acme n/a Ltd",
    "path:/etc/x",
    "what is (x OR",
    'C++ "unclosed',
    "foo AND",
    "price <= 5 && y || z",
    "naïve 日本 🎉",
    "a" * 5_000,
    "title:dogs",
    "lang:en",
    '{"match_all": {}}',
    "cat~2 d?g b*",
    "\ud800 lone surrogate",
    "nul \x00 byte",
    "word " * 2_000,
]


async def test_query_text_is_data(store: Store, index: str) -> None:
    """No text is an error, and none matches more than the documents that share a word."""
    docs = [Document("x", "zebra crossing"), Document("y", "unrelated matter")]
    await store.add(docs, index=index)
    for text in QUERIES:
        assert ids(await store.search(Query(text, index=index))) == [], text
        assert ids(await store.search(Query(f"zebra {text}"[:10_000], index=index))) == ["x"], text


async def test_text_without_words_finds_nothing(store: Store, index: str) -> None:
    """Punctuation alone is no wildcard."""
    await store.add(ANIMALS, index=index)
    for text in ("*", "\\", "?", "...", "-", "!!"):
        assert ids(await store.search(Query(text, index=index))) == [], text


async def test_empty_text_is_refused(store: Store, index: str) -> None:
    """An empty query is the asker's error and never everything."""
    await store.add(ANIMALS, index=index)
    nothing: list[Any] = ["", "  \n", None]
    for text in nothing:
        with pytest.raises(InvalidQuery, match="empty"):
            await store.search(Query(text, index=index))


async def test_zero_hits_missing_index_and_missing_field_differ(store: Store, index: str) -> None:
    """Nothing found is an empty answer; an unknown index or field is an error that names it."""
    await store.add(ANIMALS, index=index)
    assert len(await store.search(Query("zebra", index=index))) == 0
    assert len(await store.search(Query("cat", index=index, filter={"lang": "fr"}))) == 0
    with pytest.raises(IndexNotFound, match=f"{index}-none"):
        await store.search(Query("cat", index=f"{index}-none"))
    with pytest.raises(FieldNotFound, match="'language'"):
        await store.search(Query("cat", index=index, filter={"language": "en"}))
    with pytest.raises(FieldNotFound, match="'author'"):
        await store.search(Query("cat", index=index, fields=("author",)))


async def test_an_empty_index_has_no_hits(store: Store, index: str) -> None:
    """An index without documents answers, whatever the filter."""
    await store.create(index)
    assert await store.count(index=index) == 0
    assert len(await store.search(Query("cat", index=index))) == 0
    assert len(await store.search(Query("cat", index=index, filter={"lang": "en"}))) == 0


META = [
    {"lang": "en", "year": 2020, "tags": ["a", "b"], "open": True, "day": "2024-01-05"},
    {"lang": "de", "year": 2021.5, "tags": ["b"], "open": False, "day": "2024-02-01"},
    {"lang": "EN", "year": -3, "tags": [], "day": "2023-12-31"},
    {"lang": "en-GB", "year": 10**12, "open": True, "deep": {"er": {"n": 1}}},
    {"tags": ["a b", "c"], "year": [1, 2022]},
    {},
]
FILTERS: list[Any] = [
    {"lang": "en"},
    {"lang": ["en", "de"]},
    {"lang": []},
    {"year": 2020},
    {"year": {"gte": 2020, "lt": 2022}},
    {"year": {"gt": -3}},
    {"year": {"lte": -3}},
    {"day": {"gte": "2024-01-01", "lte": "2024-01-31"}},
    {"open": True},
    {"open": False},
    {"tags": "a"},
    {"tags": "a b"},
    {"deep.er.n": 1},
    {"lang": "en", "open": True},
    {"or": [{"lang": "de"}, {"tags": "c"}]},
    {"or": []},
    {"and": []},
    {"not": {"lang": "en"}},
    {"exists": {"field": "open"}},
    {"not": {"exists": {"field": "tags"}}},
    Term("lang", "EN"),
    ~Exists("lang"),
    Terms("year", (2020, 2022)) & ~Term("open", True),
    Range("year", gt=2021, lte=2022) | Term("lang", "en-GB"),
    And((Or((Term("lang", "de"), Exists("deep.er"))), Not(Term("open", False)))),
]


async def test_filters_mean_what_their_definition_says(store: Store, index: str) -> None:
    """Each filter selects the documents that `filters.matches` selects."""
    docs = [Document(str(n), "same text", meta=meta) for n, meta in enumerate(META)]
    assert (await store.add(docs, index=index)).failed == ()
    for filter_ in FILTERS:
        expected = [doc.id for doc in docs if matches(parse_filter(filter_), doc.meta)]
        assert await store.ids(index=index, filter=filter_) == expected, filter_
        hits = await store.search(Query("same", index=index, filter=filter_, k=10))
        assert sorted(ids(hits)) == expected, filter_


async def test_filters_do_not_change_scores(store: Store, index: str) -> None:
    """A hit scores the same with and without a filter that admits it."""
    await store.add(ANIMALS, index=index)
    plain = await store.search(Query("cat", index=index))
    filtered = await store.search(Query("cat", index=index, filter={"lang": "en", "legs": 4}))
    assert [(h.id, h.score) for h in filtered] == [(h.id, h.score) for h in plain]


async def test_fields_choose_and_weigh_what_is_matched(store: Store, index: str) -> None:
    """`fields` limits matching to those named; a boost changes the order; metadata match whole."""
    docs = [
        Document("in-title", "nothing of note in here", "whale", {"kind": "sea mammal"}),
        Document("in-text", "a whale sang to a whale", "song", {"kind": "song"}),
    ]
    await store.add(docs, index=index)
    only_title = await store.search(Query("whale", index=index, fields=("title",)))
    assert ids(only_title) == ["in-title"]
    boosted = await store.search(Query("whale", index=index, fields=("text^20", "title")))
    assert ids(boosted) == ["in-text", "in-title"]
    kind = await store.search(Query("sea mammal", index=index, fields=("kind",)))
    assert ids(kind) == ["in-title"]


async def test_min_score_cuts_the_tail(store: Store, index: str) -> None:
    """Hits below `min_score` are left out."""
    await store.add(ANIMALS, index=index)
    first, second = await store.search(Query("cat", index=index))
    bar = (first.score + second.score) / 2
    assert ids(await store.search(Query("cat", index=index, min_score=bar))) == [first.id]


async def test_highlights_mark_the_words_that_matched(store: Store, index: str) -> None:
    """A highlight is a fragment of the text with the matching words in <em>."""
    docs = [Document("a", "Grüße & <b>bold</b>: the café's Refund policy is naïve.")]
    await store.add(docs, index=index)
    (hit,) = await store.search(Query("refund naïve", index=index, highlight=True))
    (fragment,) = hit.highlights
    assert "<em>Refund</em>" in fragment
    assert "<em>naïve</em>" in fragment
    assert fragment.replace("<em>", "").replace("</em>", "") in docs[0].text


async def test_reranking_sees_a_pool_and_keeps_k(store: Store, index: str, embedder: Any) -> None:
    """A reranker orders `pool` candidates; `k` of them are returned with its scores."""
    docs = [Document(f"d{n}", "cat " * 5 + "filler " * n) for n in range(6)]
    docs.append(Document("alike", "cat mat"))
    await store.add(docs, index=index)
    reranker = EmbeddingReranker(embedder, pool=10)
    hits = await store.search(Query("cat mat", index=index, k=2, rerank=reranker))
    assert hits[0].id == "alike"
    assert hits[0].score == pytest.approx(1.0, abs=1e-5)
    assert len(hits) == 2


async def test_knn_is_the_exact_nearest_neighbours(
    open_store: Callable[..., Store], index: str, embedder: Any
) -> None:
    """Nearest vectors by cosine, scored (1 + cosine) / 2, within the filter."""
    store = open_store(embedder=embedder)
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((40, embedder.dims)).astype(np.float32)
    docs = [
        Document(f"v{n:02}", "x", meta={"even": n % 2 == 0}, vector=row.tolist())
        for n, row in enumerate(vectors)
    ]
    await store.add(docs, index=index)
    wanted = rng.standard_normal(embedder.dims)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ (wanted / np.linalg.norm(wanted))
    query = Query("any", index=index, mode="knn", k=5, vector=wanted.tolist())
    hits = await store.search(query)
    order = np.argsort(-cosines)
    assert ids(hits) == [f"v{n:02}" for n in order[:5]]
    np.testing.assert_allclose([hit.score for hit in hits], (1 + cosines[order[:5]]) / 2, atol=1e-3)
    even = Query("any", index=index, mode="knn", k=5, vector=wanted.tolist(), filter={"even": True})
    assert ids(await store.search(even)) == [f"v{n:02}" for n in order if n % 2 == 0][:5]


async def test_an_index_embeds_texts_and_queries(
    open_store: Callable[..., Store], index: str, embedder: Any
) -> None:
    """With an embedder, documents are embedded when added and the query when searched."""
    store = open_store(embedder=embedder)
    await store.add(ANIMALS, index=index)
    assert embedder.texts == [f"{d.title}\n{d.text}" if d.title else d.text for d in ANIMALS]
    hits = await store.search(Query("A snake has no legs at all.", index=index, mode="knn", k=1))
    assert ids(hits) == ["snake"]
    (info,) = [info for info in await store.indexes() if info.name == index]
    assert (info.dims, info.embedder, info.documents) == (embedder.dims, "words", 4)


async def test_hybrid_is_the_fusion_of_both_rankings(
    open_store: Callable[..., Store], index: str, embedder: Any
) -> None:
    """Hybrid hits are the reciprocal rank fusion of the two rankings, fused anywhere."""
    store = open_store(embedder=embedder)
    words = ["cat", "dog", "mat", "bird", "tree", "house"]
    docs = [
        Document(f"d{n:02}", " ".join(words[(n * k) % 6] for k in range(1, 2 + n % 5)))
        for n in range(30)
    ]
    await store.add([*docs, *ANIMALS], index=index)
    query = Query("cat on a mat", index=index, k=50)
    by_words = await store.search(Query(query.text, index=index, k=100))
    by_vector = await store.search(Query(query.text, index=index, k=100, mode="knn"))
    expected = fuse([by_words.hits, by_vector.hits], 8)
    for options in ({"fuse_on_server": True}, {"fuse_on_server": False}):
        other = open_store(embedder=embedder, **options)
        hits = await other.search(Query(query.text, index=index, k=8, mode="hybrid"))
        scores = [hit.score for hit in hits]
        np.testing.assert_allclose(scores, [hit.score for hit in expected], rtol=1e-5)
        certain = [hit for hit in expected if hit.score > expected[-1].score]
        assert {hit.id for hit in certain} <= set(ids(hits))


async def test_wrong_dimensions_are_an_error_with_both_numbers(
    open_store: Callable[..., Store], index: str, make_embedder: Any
) -> None:
    """A query's, a document's and an embedder's wrong dimensions are named beside the index's."""
    store = open_store(embedder=make_embedder(8))
    await store.add(ANIMALS, index=index)
    query = Query("cat", index=index, mode="knn", vector=[1.0, 2.0, 3.0])
    with pytest.raises(RetrievalError, match=r"3 dimensions.* 8") as caught:
        await store.search(query)
    assert (caught.value.details["given"], caught.value.details["wanted"]) == (3, 8)
    report = await store.add([Document("v", "x", vector=[1.0, 2.0])], index=index)
    assert report.added == 0
    assert "2 dimensions" in report.failed[0][1]
    assert " 8" in report.failed[0][1]
    for other in (open_store(embedder=make_embedder(16)),):
        with pytest.raises(RetrievalError, match=r"16 dimensions.* 8"):
            await other.add(ANIMALS, index=index)
        with pytest.raises(RetrievalError, match=r"16 dimensions.* 8"):
            await other.search(Query("cat", index=index, mode="hybrid"))
    with pytest.raises(RetrievalError, match="'words', not with 'others'"):
        await open_store(embedder=make_embedder(8, "others")).search(
            Query("cat", index=index, mode="knn")
        )


async def test_vectors_may_begin_with_any_document(store: Store, index: str) -> None:
    """An index keeps vectors from the first document that brings one, however late."""
    plain = [Document(f"p{n:03}", "plain") for n in range(300)]
    await store.add([*plain, Document("v", "x", vector=[1.0, 0.0])], index=index)
    await store.add([Document("w", "x", vector=[0.0, 1.0])], index=index)
    hits = await store.search(Query("x", index=index, mode="knn", vector=[0.1, 1.0], k=5))
    assert ids(hits) == ["w", "v"]


async def test_vectors_that_are_none_are_refused(store: Store, index: str) -> None:
    """Words, infinities, zeros, nothing and nested lists are no vector of a document or query."""
    await store.add([Document("good", "x", vector=[1.0, 0.0])], index=index)
    nan = float("nan")
    bad: list[Any] = [["a", "b"], [1e60, 1.0], [nan, 1.0], [0.0, 0.0], [], [[1.0], [2.0]]]
    docs = [Document(f"bad{n}", "x", vector=vector) for n, vector in enumerate(bad)]
    report = await store.add(docs, index=index)
    assert report.added == 0
    assert [id_ for id_, _ in report.failed] == [doc.id for doc in docs]
    for vector in bad:
        with pytest.raises(RetrievalError, match="a vector must be"):
            await store.search(Query("x", index=index, mode="knn", vector=vector))


async def test_vectors_of_an_index_without_any(store: Store, index: str) -> None:
    """Searching by vector where there are none says so, and what to do."""
    await store.add(ANIMALS, index=index)
    with pytest.raises(FieldNotFound, match="no vectors"):
        await store.search(Query("cat", index=index, mode="knn"))


async def test_a_closed_store_opens_again(store: Store, index: str) -> None:
    """After `aclose` the next call works."""
    await store.add(ANIMALS, index=index)
    await store.aclose()
    assert ids(await store.search(Query("snake", index=index))) == ["snake"]


def test_a_store_serves_one_event_loop_after_another(store: Store, index: str) -> None:
    """The same store works in every `asyncio.run`, though each closes its loop."""
    asyncio.run(store.add(ANIMALS, index=index))
    for text, expected in (("snake", "snake"), ("barked", "dog")):
        assert ids(asyncio.run(store.search(Query(text, index=index)))) == [expected]


async def test_many_searches_at_once(store: Store, index: str) -> None:
    """Simultaneous searches each get their own answer."""
    await store.add(ANIMALS, index=index)
    texts = ["snake", "vogel", "barked", "mat"] * 8
    answers = await asyncio.gather(*(store.search(Query(t, index=index)) for t in texts))
    expected = {"snake": "snake", "vogel": "vogel", "barked": "dog", "mat": "cat"}
    assert [answer[0].id for answer in answers] == [expected[text] for text in texts]


async def test_one_bad_search_among_many_fails_alone(store: Store, index: str) -> None:
    """A missing index fails its own search and no other."""
    await store.add(ANIMALS, index=index)
    good, bad = await asyncio.gather(
        store.search(Query("snake", index=index)),
        store.search(Query("snake", index=f"{index}-none")),
        return_exceptions=True,
    )
    assert isinstance(good, Hits)
    assert isinstance(bad, IndexNotFound)


@pytest.mark.parametrize("name", ["", "..", ".", "a/../b", "a/_count"])
async def test_an_index_name_is_no_path(store: Store, name: str) -> None:
    """A search can't leave its index by a name that reads as a path."""
    with pytest.raises(RetrievalError, match="not an index name"):
        await store.search(Query("cat", index=name))


@pytest.mark.parametrize(
    "bad",
    [
        {"k": 0}, {"k": True}, {"k": "3"}, {"k": 10**9},
        {"mode": "fuzzy"},
        {"timeout": 0}, {"timeout": "1"}, {"timeout": math.inf},
        {"fields": ("a^x",)}, {"fields": "text"}, {"fields": (None,)}, {"fields": ("text^nan",)},
        {"min_score": "x"}, {"min_score": math.nan},
        {"filter": {"legs": math.nan}}, {"filter": Term("legs", math.inf)},
        {"filter": Term("lang", "\ud800")}, {"filter": And((None,))},
        {"rerank": object()},
        {"raw": "x"}, {"raw": {"match": math.nan}}, {"raw": {"match_all": {}}, "mode": "knn"},
    ],
)  # fmt: skip
async def test_senseless_queries_are_refused(store: Store, index: str, bad: dict[str, Any]) -> None:
    """A wrong setting is an error, before anything is asked."""
    await store.add(ANIMALS, index=index)
    with pytest.raises(RetrievalError):
        await store.search(Query("cat", index=index, **bad))
