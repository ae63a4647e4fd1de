"""Mappings out of pydantic models, and OpenSearch's own dialect."""

from __future__ import annotations

import asyncio
import sys
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from phloem.errors import ConfigError, IndexLocked, IndexNotFound, RetrievalError
from phloem.retrieval import (
    Document,
    ElasticsearchRetriever,
    FullText,
    OpenSearchRetriever,
    Query,
    Term,
)
from phloem.retrieval.elastic.bodies import FieldMap, knn_body
from phloem.retrieval.elastic.mapping import index_mapping, model_properties


class Kind(Enum):
    A = "a"
    B = "b"


class Author(BaseModel):
    name: str
    born: date | None = None


class Meta(BaseModel):
    lang: Literal["en", "de"]
    year: int
    price: Annotated[float, Field(gt=0)] = 1.0
    public: bool = True
    tags: list[str] = []
    sizes: tuple[int, ...] = ()
    at: datetime | None = None
    kind: Kind = Kind.A
    abstract: Annotated[str, FullText()] = ""
    note: Annotated[str | None, FullText] = None
    authors: list[Author] = []
    extra: dict[str, Any] = {}
    renamed: Annotated[int, Field(alias="other")] = 0


def test_a_model_s_types_become_field_types() -> None:
    """Every supported annotation has its counterpart."""
    kinds = {name: found["type"] for name, found in model_properties(Meta).items()}
    assert kinds == {
        "lang": "keyword", "year": "long", "price": "double", "public": "boolean",
        "tags": "keyword", "sizes": "long", "at": "date", "kind": "keyword",
        "abstract": "text", "note": "text", "authors": "object", "extra": "object",
        "other": "long",
    }  # fmt: skip
    assert model_properties(Meta)["authors"]["properties"] == {
        "name": {"type": "keyword"},
        "born": {"type": "date"},
    }


def test_types_without_a_counterpart_are_named() -> None:
    """A union of types, and a class that is none, are refused with the field's name."""

    class Mixed(BaseModel):
        value: int | str

    class Odd(BaseModel, arbitrary_types_allowed=True):
        value: complex

    for model in (Mixed, Odd):
        with pytest.raises(RetrievalError, match=f"{model.__name__}.value"):
            model_properties(model)
    with pytest.raises(RetrievalError, match="not a pydantic model"):
        model_properties(int)


async def test_an_index_made_from_a_model_on_a_server(server_url: str, index: str) -> None:
    """Dates compare as dates, full text is matched by words, and wrong types are refused."""
    server = ElasticsearchRetriever(server_url)
    try:
        await server.create(index, model=Meta)
        docs = [
            Document("a", "x", meta={"at": "2024-01-05T10:00:00Z", "abstract": "whales sing"}),
            Document("b", "x", meta={"at": "2024-03-01T10:00:00Z", "abstract": "birds sing"}),
        ]
        assert (await server.add(docs, index=index)).failed == ()
        later = {"at": {"gt": "2024-02-01"}}
        assert await server.ids(index=index, filter=later) == ["b"]
        hits = await server.search(Query("the whales", index=index, fields=("abstract",)))
        assert [hit.id for hit in hits] == ["a"]
        report = await server.add([Document("c", "x", meta={"year": "soon"})], index=index)
        assert report.added == 0
        assert report.failed[0][0] == "c"
    finally:
        await server.drop(index)
        await server.aclose()


async def test_indexes_of_others_are_not_removed(server_url: str, index: str) -> None:
    """An alias of an index phloem did not make is searched, but neither dropped nor rebuilt; a
    plain index of the name is rebuilt in place."""
    server = ElasticsearchRetriever(server_url)
    foreign = f"{index}-theirs"
    call = server._caller.call
    try:
        body = {"aliases": {index: {}}, "mappings": {"_meta": {"owner": "them"}}}
        await call("PUT", f"/{foreign}", index=foreign, seconds=10, body=body)
        await server.add([Document("a", "their words")], index=index)
        assert len(await server.search(Query("words", index=index))) == 1
        for work in (server.drop(index), server.rebuild([Document("b", "x")], index=index)):
            with pytest.raises(RetrievalError, match=f"alias of {foreign}"):
                await work
        await server.add([Document("v", "x", vector=[1.0, 2.0])], index=foreign)
        mapping = await call("GET", f"/{foreign}/_mapping", index=foreign, seconds=10)
        assert mapping[foreign]["mappings"]["_meta"]["owner"] == "them"
        await server.rebuild([Document("b", "new words")], index=foreign)
        assert await server.ids(index=foreign) == ["b"]
    finally:
        await server.drop(foreign)
        await server.aclose()


async def test_known_fields_are_not_asked_for_again(scripted: Any, es: Any) -> None:
    """An empty answer is looked into once; after that it costs no further request."""

    async def answer(request: Any, _: Any) -> bytes:
        if "_search" in request.path:
            return es.reply(es.found())
        return es.reply({"count": 3, "fields": {"text": {}, "meta.lang": {}}})

    server = scripted(answer)
    retriever = ElasticsearchRetriever(server.url)
    for _ in range(3):
        assert len(await retriever.search(Query("x", index="i", filter={"lang": "en"}))) == 0
    await retriever.aclose()
    calls = [request.path.split("/")[-1].split("?")[0] for request in server.requests]
    assert calls == ["_search", "_count", "_field_caps", "_search", "_search"]


def test_opensearch_has_its_own_vectors() -> None:
    """An OpenSearch server gets knn_vector fields and knn clauses in the query."""
    body = index_mapping(FieldMap(), "opensearch", dims=3, embedder="m")
    assert body["settings"]["index.knn"] is True
    assert body["mappings"]["properties"]["vector"]["dimension"] == 3
    query = knn_body([1.0, 0.0, 0.0], Term("lang", "en"), FieldMap(), 5, "opensearch")
    assert query["query"]["knn"]["vector"] == {
        "vector": [1.0, 0.0, 0.0],
        "k": 5,
        "filter": {"term": {"meta.lang": "en"}},
    }


async def test_a_real_opensearch_is_recognised(scripted: Any, es: Any, embedder: Any) -> None:
    """The dialect follows what the server says it is; hybrid is fused on our side."""
    sent: list[Any] = []

    async def answer(request: Any, _: Any) -> bytes:
        if "_mapping" in request.path:
            field = {"type": "knn_vector", "dimension": embedder.dims}
            meta = {"phloem": {"embedder": "words"}}
            mappings = {"_meta": meta, "properties": {"vector": field}}
            return es.reply({"i": {"mappings": mappings}}, product=False)
        if request.path == "/":
            version = {"number": "2.15.0", "distribution": "opensearch"}
            return es.reply({"cluster_name": "c", "version": version}, product=False)
        sent.extend(request.lines[1::2])
        answers = [{**es.found(es.hit(id_=id_)), "status": 200} for id_ in ("words", "both")]
        return es.reply({"responses": answers}, product=False)

    retriever = OpenSearchRetriever(scripted(answer).url, embedder=embedder)
    try:
        info = await retriever.check()
        assert (info.product, info.version) == ("opensearch", "2.15.0")
        hits = await retriever.search(Query("x", index="i", mode="hybrid"))
        assert {hit.id for hit in hits} == {"words", "both"}
        assert "multi_match" in sent[0]["query"]
        assert "knn" in sent[1]["query"]
    finally:
        await retriever.aclose()


async def test_a_server_without_fusion_is_found_out_once(
    scripted: Any, es: Any, embedder: Any
) -> None:
    """Where fusing needs a licence the server lacks, the rankings are fused here, silently."""
    tried = 0

    async def answer(request: Any, _: Any) -> bytes:
        nonlocal tried
        if "_mapping" in request.path:
            field = {"type": "dense_vector", "dims": embedder.dims}
            return es.reply({"i": {"mappings": {"properties": {"vector": field}}}})
        if request.path == "/":
            return es.reply(es.info)
        if b"rrf" in request.body:
            tried += 1
            reason = "current license is non-compliant for [Reciprocal Rank Fusion (RRF)]"
            return es.reply({"error": {"type": "security_exception", "reason": reason}}, 403)
        answers = [{**es.found(es.hit(id_=id_)), "status": 200} for id_ in "ab"]
        return es.reply({"responses": answers})

    retriever = ElasticsearchRetriever(scripted(answer).url, embedder=embedder)
    try:
        for _ in range(3):
            hits = await retriever.search(Query("x", index="i", mode="hybrid"))
            assert {hit.id for hit in hits} == {"a", "b"}
        assert tried == 1
    finally:
        await retriever.aclose()


def test_opensearch_takes_no_api_key() -> None:
    """An API key for OpenSearch is refused when the client is made, not sent in vain."""
    from phloem.retrieval.elastic.address import Address
    from phloem.retrieval.elastic.opensearch_client import OpenSearchTransport

    with pytest.raises(ConfigError, match="not an API key"):
        OpenSearchTransport(Address.parse("http://h", api_key="k"))


REBUILDER = """
import asyncio, sys, time
from phloem.retrieval import Document, ElasticsearchRetriever

def docs():
    for number in range(10_000):
        if number == 600:
            print("under way", flush=True)
        yield Document(f"d{number}", "x")
        time.sleep(0.001)

asyncio.run(ElasticsearchRetriever(sys.argv[1]).rebuild(docs(), index=sys.argv[2]))
"""


async def test_a_rebuild_that_was_killed_is_cleared_away(server_url: str, index: str) -> None:
    """While a rebuild runs another is refused, naming its process; once that was killed the next
    one goes through and removes what it left."""
    server = ElasticsearchRetriever(server_url)
    await server.add([Document("old", "x")], index=index)
    command = [sys.executable, "-c", REBUILDER, server_url, index]
    other = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert other.stdout is not None
    await other.stdout.readline()
    with pytest.raises(IndexLocked, match=f"being rebuilt by process {other.pid}"):
        await server.rebuild([Document("new", "x")], index=index)
    other.kill()
    await other.wait()
    assert await server.ids(index=index) == ["old"]
    await server.rebuild([Document("new", "x")], index=index)
    assert await server.ids(index=index) == ["new"]
    names = [info.name for info in await server.indexes() if info.name.startswith(index)]
    assert names == [index]
    await server.drop(index)
    await server.aclose()


async def test_a_rebuild_keeps_or_changes_the_field_types(server_url: str, index: str) -> None:
    """The types of a pydantic model outlive a rebuild; a rebuild with another model changes them
    without a gap."""

    class Old(BaseModel):
        day: date

    class New(BaseModel):
        day: str

    server = ElasticsearchRetriever(server_url)

    async def types() -> dict[str, str]:
        path = f"/{index}/_mapping"
        (found,) = (await server._caller.call("GET", path, index=index, seconds=10)).values()
        fields = found["mappings"]["properties"]["meta"]["properties"]
        return {name: field["type"] for name, field in fields.items()}

    await server.create(index, model=Old)
    await server.rebuild([Document("a", "x", meta={"day": "2024-05-01"})], index=index)
    assert await types() == {"day": "date"}
    wrong = await server.rebuild([Document("b", "x", meta={"day": "someday"})], index=index)
    assert [id_ for id_, _ in wrong.failed] == ["b"]
    assert await server.ids(index=index) == ["a"]
    await server.rebuild([Document("b", "x", meta={"day": "someday"})], index=index, model=New)
    assert await types() == {"day": "keyword"}
    await server.drop(index)
    await server.aclose()


async def test_a_pattern_names_indexes(server_url: str, index: str) -> None:
    """A search may name several indexes by a pattern; one that names none is a missing index."""
    server = ElasticsearchRetriever(server_url)
    await server.add([Document("a", "some words")], index=f"{index}-a")
    await server.add([Document("b", "more words")], index=f"{index}-b")
    hits = await server.search(Query("words", index=f"{index}-*"))
    assert {hit.id for hit in hits} == {"a", "b"}
    assert len(await server.search(Query("nothing", index=f"{index}-*"))) == 0
    with pytest.raises(IndexNotFound):
        await server.search(Query("words", index=f"{index}-nowhere-*"))
    for name in ("a", "b"):
        await server.drop(f"{index}-{name}")
    await server.aclose()
