"""Answers of servers that are incomplete, or no answers: none is taken for a whole one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from phloem.errors import IncompatibleServer, PartialResults
from phloem.retrieval import Document, ElasticsearchRetriever

MADE = {"docs-000001": {"mappings": {}, "settings": {}}}


@pytest.fixture
async def connect(scripted: Any) -> AsyncIterator[Callable[..., Any]]:
    """Makes a retriever for a server with the given answer."""
    made = []

    def start(answer: Any) -> tuple[ElasticsearchRetriever, Any]:
        server = scripted(answer)
        made.append(ElasticsearchRetriever(server.url))
        return made[-1], server

    yield start
    for retriever in made:
        await retriever.aclose()


async def test_what_is_too_large_is_sent_in_parts(connect: Any, es: Any) -> None:
    """A request answered 413 is halved; the one document that is too large alone is named."""
    sent: list[list[str]] = []

    async def answer(request: Any, _: Any) -> bytes:
        if not request.path.endswith("/_bulk"):
            return es.reply(MADE if "_mapping" in request.path else {**es.info, **MADE})
        names = [line["index"]["_id"] for line in request.lines[::2]]
        if len(names) > 2 or "huge" in names:
            return es.reply({"error": "Request Entity Too Large"}, status=413)
        sent.append(names)
        return es.reply({"items": [{"index": {"_id": n, "status": 201}} for n in names]})

    retriever, _ = connect(answer)
    names = ["a", "b", "huge", "c", "d"]
    report = await retriever.add([Document(name, "x") for name in names], index="docs")
    assert sorted(name for part in sent for name in part) == ["a", "b", "c", "d"]
    assert report.added == 4
    ((name, why),) = report.failed
    assert name == "huge"
    assert "413" in why


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.add([Document("a", "x")], index="docs"),
        lambda store: store.count(index="docs"),
        lambda store: store.get(["a"], index="docs"),
        lambda store: store.ids(index="docs"),
        lambda store: store.delete(["a"], index="docs"),
    ],
    ids=["add", "count", "get", "ids", "delete"],
)
async def test_json_that_is_no_answer(connect: Any, es: Any, call: Any) -> None:
    """Well-formed JSON without what was asked for is an error that names the address."""

    async def answer(request: Any, _: Any) -> bytes:
        known = request.path == "/" or "_settings" in request.path or "_mapping" in request.path
        return es.reply({**(es.info if request.path == "/" else MADE)} if known else {"ok": True})

    retriever, server = connect(answer)
    with pytest.raises(IncompatibleServer, match="answered without") as caught:
        await call(retriever)
    assert server.url.removeprefix("http://") in caught.value.message
    assert caught.value.hint


async def test_a_list_of_some_ids_is_no_list(connect: Any, es: Any) -> None:
    """Ids and counts that a failed shard is missing from are an error, and the scroll is let go."""
    shards = {"_shards": {"total": 3, "successful": 2, "failed": 1}}

    async def answer(request: Any, _: Any) -> bytes:
        if "_count" in request.path:
            return es.reply({"count": 2, **shards})
        if "scroll" in request.path and request.method == "POST":
            hits = [{"_id": "a"}] if "docs" in request.path else []
            return es.reply({"_scroll_id": "s1", "hits": {"hits": hits}, **shards})
        return es.reply(es.info if request.path == "/" else MADE)

    retriever, server = connect(answer)
    with pytest.raises(PartialResults, match="1 of 3 shards failed"):
        await retriever.count(index="docs")
    with pytest.raises(PartialResults, match="listed only part of index 'docs'"):
        await retriever.ids(index="docs")
    assert [r.method for r in server.requests][-1] == "DELETE"
