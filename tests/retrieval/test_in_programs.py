"""Retrieval as a step of a program: what the program says reaches the store, and errors come back
with their place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import phloem as ph
from phloem.errors import FieldNotFound, RetrievalUnavailable, where_of
from phloem.programs import registry
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval import (
    Document,
    ElasticsearchRetriever,
    EmbeddedIndex,
    EmbeddingReranker,
    Range,
    Term,
)


@pytest.fixture
def use() -> Iterator[Any]:
    """Makes a retriever the default of programs, for one test."""

    def set_default(retriever: Any) -> None:
        registry.set_default("retriever", retriever)

    yield set_default
    registry.reset("retriever")


def test_every_option_reaches_the_index(use: Any, tmp_path: Path, embedder: Any) -> None:
    """Mode, typed filter, fields, k, highlights and reranking of a program act on its index."""
    index = EmbeddedIndex(tmp_path, embedder=embedder)
    docs = [
        Document("old", "cats sleep", meta={"year": 2001}),
        Document("new", "cats sleep a lot and eat", meta={"year": 2021}),
        Document("best", "cats sleep a lot", meta={"year": 2022}),
    ]
    asyncio.run(index.add(docs, index="pets"))
    use(index)

    @ph.function
    def program(s: Any) -> Any:
        found = ph.retrieve(
            "docs",
            "cats sleep a lot",
            index="pets",
            mode="hybrid",
            k=2,
            filter=Range("year", gte=2010) & ~Term("year", 1999),
            fields=["text"],
            highlight=True,
            rerank=EmbeddingReranker(embedder),
        )
        return [(hit.id, bool(hit.highlights)) for hit in found]

    assert program.run(backend=ScriptedBackend()).value == [("best", True), ("new", True)]
    asyncio.run(index.aclose())


def test_a_partial_search_can_be_branched_on(use: Any, scripted: Any, es: Any) -> None:
    """With allow_partial a program sees that hits are partial and decides for itself."""
    shards = {"total": 2, "successful": 1, "failed": 1}
    server = scripted(es.reply(es.found(es.hit(), _shards=shards)))
    retriever = ElasticsearchRetriever(server.url)
    use(retriever)

    @ph.function
    def program(s: Any) -> Any:
        found = ph.retrieve("docs", "x", allow_partial=True)
        if found.partial:
            return f"only part: {found.causes[0]}"
        return "all"

    assert program.run(backend=ScriptedBackend()).value == "only part: 1 of 2 shards failed"
    asyncio.run(retriever.aclose())


def test_errors_carry_the_place_in_the_program(use: Any, tmp_path: Path) -> None:
    """A missing field and an unreachable server raise in run() with program and line."""
    index = EmbeddedIndex(tmp_path)
    asyncio.run(index.add([Document("a", "x", meta={"n": 1})]))

    @ph.function
    def program(s: Any) -> Any:
        return ph.retrieve("docs", "x", filter={"m": 1})

    for retriever, error in (
        (index, FieldNotFound),
        (ElasticsearchRetriever("http://127.0.0.1:1", retries=0), RetrievalUnavailable),
    ):
        use(retriever)
        with pytest.raises(error) as caught:
            program.run(backend=ScriptedBackend())
        where = where_of(caught.value)
        assert where is not None
        assert where.program == "program"
        assert where.line is not None
        asyncio.run(retriever.aclose())
