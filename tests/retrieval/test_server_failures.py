"""Every way a search server can fail, each a retrieval error that says what to do."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from phloem.errors import (
    IncompatibleServer,
    IndexNotFound,
    PartialResults,
    RetrievalError,
    RetrievalRefused,
    RetrievalTimeout,
    RetrievalUnavailable,
)
from phloem.retrieval import (
    Document,
    ElasticsearchRetriever,
    FieldMap,
    OpenSearchRetriever,
    Query,
)

KINDS = {"elasticsearch": ElasticsearchRetriever, "opensearch": OpenSearchRetriever}


@pytest.fixture(params=list(KINDS))
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Makes retrievers of one kind; all are closed after."""
    made = []

    def open_one(url: str, **options: Any) -> Any:
        made.append(KINDS[request.param](url, **options))
        return made[-1]

    yield open_one
    for retriever in made:
        await retriever.aclose()


@pytest.fixture
async def elastic() -> AsyncIterator[Callable[..., ElasticsearchRetriever]]:
    """Makes Elasticsearch retrievers; all are closed after."""
    made = []

    def open_one(url: str, **options: Any) -> ElasticsearchRetriever:
        made.append(ElasticsearchRetriever(url, **options))
        return made[-1]

    yield open_one
    for retriever in made:
        await retriever.aclose()


HOSTILE = [
    "Acme n/a Ltd",
    "what is (x OR",
    'C++ "unclosed',
    "*",
    "\\",
    "price <= 5 && y || z",
    "naïve 日本 🎉",
    "a" * 5_000,
    "\ud800",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_text_goes_out_as_the_value_of_a_match(
    connect: Any, scripted: Any, es: Any, text: str
) -> None:
    """The body is valid JSON in which the user's text only stands where a match has its words."""
    server = scripted(es.reply(es.found(es.hit())))
    assert len(await connect(server.url).search(Query(text, index="docs"))) == 1
    (request,) = server.requests
    assert request.path == "/docs/_search"
    clause = request.json["query"]["multi_match"]
    assert clause["query"] == text.encode("utf-8", "replace").decode()
    assert set(request.json) == {"query", "size", "_source", "track_total_hits"}


async def test_an_empty_query_never_leaves(connect: Any, scripted: Any, es: Any) -> None:
    """Empty text and None are refused before anything is sent."""
    server = scripted(es.reply(es.found(es.hit())))
    for text in ("", "   ", None):
        with pytest.raises(RetrievalError, match="empty"):
            await connect(server.url).search(Query(text))  # type: ignore[arg-type]
    assert server.requests == []


async def test_a_raw_query_goes_out_as_given(connect: Any, scripted: Any, es: Any) -> None:
    """The escape hatch replaces the match; the typed filter still applies."""
    server = scripted(es.reply(es.found(es.hit())))
    raw = {"query_string": {"query": "a AND b"}}
    query = Query("", index="docs", raw=raw, filter={"lang": "en"})
    await connect(server.url).search(query)
    assert server.requests[0].json["query"] == {
        "bool": {"must": [raw], "filter": [{"term": {"meta.lang": "en"}}]}
    }


async def test_another_product(elastic: Any, scripted: Any, es: Any) -> None:
    """An answer without Elasticsearch's product header is an incompatible server."""
    server = scripted(es.reply(es.found(es.hit()), product=False))
    with pytest.raises(IncompatibleServer, match="not Elasticsearch") as caught:
        await elastic(server.url).search(Query("x"))
    assert caught.value.details["kind"] == "product"
    assert "OpenSearch" in caught.value.hint


VERSION_ERROR = {
    "error": {
        "type": "media_type_header_exception",
        "reason": "Invalid media-type value on headers [Accept]",
        "caused_by": {
            "type": "status_exception",
            "reason": "Accept version must be either version 8 or 7, but found 9.",
        },
        "root_cause": [{"type": "media_type_header_exception", "reason": "Invalid"}],
    },
    "status": 400,
}

REFUSALS: list[tuple[str, int, Any, type[RetrievalError], str]] = [
    ("version", 400, VERSION_ERROR, IncompatibleServer, "another major version"),
    ("version", 406, {"error": "Content-Type not supported"}, IncompatibleServer, "major version"),
    ("auth", 401, {"error": {"type": "security_exception"}}, RetrievalRefused, "401"),
    ("auth", 403, {"error": {"type": "security_exception"}}, RetrievalRefused, "403"),
    ("index", 404, {"error": {"root_cause": [{"type": "index_not_found_exception"}]}},
     IndexNotFound, "no index 'docs'"),
    ("server", 500, {"error": {"reason": "oops"}}, RetrievalUnavailable, "oops"),
    ("server", 503, {"error": {"reason": "no master"}}, RetrievalUnavailable, "no master"),
    ("server", 429, {"error": {"reason": "queue full"}}, RetrievalUnavailable, "queue full"),
    ("request", 400, {"error": {"type": "parsing_exception", "reason": "bad"}},
     RetrievalError, "bad"),
    ("not-json", 404, b"<html>nginx</html>", IncompatibleServer, "not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "status", "body", "error", "text"), REFUSALS, ids=[f"{r[0]}-{r[1]}" for r in REFUSALS]
)
async def test_refusals_are_errors_of_their_kind(
    connect: Any, scripted: Any, es: Any, kind: str, status: int, body: Any, error: Any, text: str
) -> None:
    """Each status becomes the right class, names host and index, and is not retried for ever."""
    content_type = "text/html" if isinstance(body, bytes) else "application/json"
    reply = es.reply(body, status, content_type=content_type)

    async def answer(request: Any, _: Any) -> bytes:
        if request.path.endswith("/_count"):
            return es.reply({"count": 0})
        return reply

    server = scripted(answer)
    with pytest.raises(error, match=text) as caught:
        await connect(server.url, retries=2).search(Query("x", index="docs"))
    assert type(caught.value) is error
    assert caught.value.details["kind"] == kind
    assert caught.value.hint or kind == "request"
    assert server.url in caught.value.message
    assert len(server.searches()) == (3 if status in (429, 503) else 1)


@pytest.mark.parametrize("product", [True, False])
async def test_html_from_a_proxy(connect: Any, scripted: Any, es: Any, product: bool) -> None:
    """A 200 with HTML is an incompatible server, and never "no documents"."""
    page = es.reply(b"<html>Sign in</html>", content_type="text/html", product=product)
    with pytest.raises(IncompatibleServer, match="not JSON") as caught:
        await connect(scripted(page).url).search(Query("x"))
    assert caught.value.details["kind"] == "not-json"


async def test_json_that_is_no_search_answer(connect: Any, scripted: Any, es: Any) -> None:
    """A 200 with JSON of another service is an incompatible server."""
    with pytest.raises(IncompatibleServer):
        await connect(scripted(es.reply({"status": "ok"})).url).search(Query("x"))


async def test_nobody_listens(connect: Any) -> None:
    """A refused connection says so at once, naming the address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(RetrievalUnavailable, match=r"can't reach http://127\.0\.0\.1") as caught:
        await connect(url, retries=1).search(Query("x"))
    assert caught.value.details["kind"] == "unreachable"
    assert caught.value.retryable


async def test_check_raises_what_a_search_would(connect: Any, scripted: Any, es: Any) -> None:
    """The health check tells product and version, or fails with the same error."""
    info = await connect(scripted(es.reply(es.found())).url).check()
    assert (info.product, info.version) == ("elasticsearch", "9.0.0")

    async def refuse(*_: Any) -> bytes:
        return es.reply({"error": {"type": "security_exception"}}, 401)

    with pytest.raises(RetrievalRefused):
        await connect(scripted(refuse).url).check()


PARTIAL = [
    ({"timed_out": True, "_shards": {"total": 5, "successful": 5, "failed": 0}}, "timed out"),
    ({"_shards": {"total": 9, "successful": 4, "failed": 5}}, "5 of 9 shards failed"),
    ({"_shards": {"total": 3, "successful": 2, "failed": 0}}, "1 of 3 shards did not answer"),
    (
        {
            "_shards": {
                "total": 2,
                "successful": 1,
                "failed": 1,
                "failures": [{"shard": 0, "reason": {"type": "x", "reason": "disk gone"}}],
            }
        },
        "disk gone",
    ),
]


@pytest.mark.parametrize(("extra", "cause"), PARTIAL, ids=range(len(PARTIAL)))
async def test_partial_results_are_raised_or_marked(
    connect: Any, scripted: Any, es: Any, extra: dict[str, Any], cause: str
) -> None:
    """A search that failed in part raises with the cause, or returns marked hits if allowed."""
    server = scripted(es.reply(es.found(es.hit(), **extra)))
    with pytest.raises(PartialResults, match=cause):
        await connect(server.url).search(Query("x"))
    hits = await connect(server.url).search(Query("x", allow_partial=True))
    assert hits.partial
    assert cause in " ".join(hits.causes)
    assert len(hits) == 1


async def test_skipped_shards_are_not_missing(connect: Any, scripted: Any, es: Any) -> None:
    """Shards a server skipped, since they can't match, count as searched."""
    shards = {"total": 4, "successful": 4, "skipped": 3, "failed": 0}
    server = scripted(es.reply(es.found(es.hit(), _shards=shards)))
    assert not (await connect(server.url).search(Query("x"))).partial


async def silent(*_: Any) -> None:
    await asyncio.sleep(30)


async def dripping(_: Any, writer: asyncio.StreamWriter) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    head += b"x-elastic-product: Elasticsearch\r\ncontent-length: 1000\r\n\r\n{"
    writer.write(head)
    for _ in range(100):
        await asyncio.sleep(0.1)
        writer.write(b" ")
        await writer.drain()


@pytest.mark.parametrize("behaviour", [silent, dripping])
@pytest.mark.parametrize("retries", [0, 2])
async def test_the_timeout_holds_in_total(
    connect: Any, scripted: Any, behaviour: Any, retries: int
) -> None:
    """A silent server and one that drips its body cost the timeout once, not per retry."""
    server = scripted(behaviour)
    retriever = connect(server.url, timeout=0.3, retries=retries)
    began = time.monotonic()
    with pytest.raises(RetrievalTimeout, match=r"0\.3 s") as caught:
        await retriever.search(Query("x", index="docs"))
    assert time.monotonic() - began < 3  # the server would take 10 s and more
    assert server.url in caught.value.message
    assert "'docs'" in caught.value.message
    assert len(server.requests) == 1


async def test_a_query_s_timeout_overrides_the_default(connect: Any, scripted: Any) -> None:
    """`Query.timeout` is used in place of the retriever's."""
    retriever = connect(scripted(silent).url, timeout=30)
    with pytest.raises(RetrievalTimeout) as caught:
        await retriever.search(Query("x", timeout=0.2))
    assert caught.value.details["timeout_s"] == 0.2


async def test_a_stalled_search_delays_nobody_else(connect: Any, scripted: Any) -> None:
    """While one search waits, the event loop and other work go on."""
    retriever = connect(scripted(silent).url, timeout=0.5)
    stalled = asyncio.create_task(retriever.search(Query("x")))
    turns = 0
    while not stalled.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert turns > 20
    with pytest.raises(RetrievalTimeout):
        await stalled


async def test_busy_and_broken_connections_are_retried(
    connect: Any, scripted: Any, es: Any
) -> None:
    """A 503 and a connection closed without an answer are tried again within the time."""
    answers = iter([es.reply({}, 503), None, es.reply(es.found(es.hit()))])

    async def answer(*_: Any) -> bytes | None:
        return next(answers)

    server = scripted(answer)
    assert len(await connect(server.url, retries=2).search(Query("x"))) == 1
    assert len(server.requests) == 3


async def test_a_cancelled_search_leaves_the_store_usable(
    connect: Any, scripted: Any, es: Any
) -> None:
    """Cancelling a waiting search closes it; the next one is answered."""
    first = True

    async def answer(*_: Any) -> bytes | None:
        nonlocal first
        if first:
            first = False
            await asyncio.sleep(30)
        return es.reply(es.found(es.hit()))

    retriever = connect(scripted(answer).url)
    task = asyncio.create_task(retriever.search(Query("x")))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await retriever.search(Query("x"))) == 1


async def test_foreign_indexes_by_their_own_field_names(
    connect: Any, scripted: Any, es: Any
) -> None:
    """With a field map, other fields are matched and returned, and the rest is metadata."""
    source = {"body": "the text", "headline": "the title", "author": "ann"}
    server = scripted(es.reply(es.found({"_id": "1", "_score": 2.0, "_source": source})))
    fields = FieldMap(text="body", title="headline", meta=None)
    (hit,) = await connect(server.url, fields=fields).search(Query("x", filter={"author": "ann"}))
    assert (hit.text, hit.title, hit.meta) == ("the text", "the title", {"author": "ann"})
    clause = server.requests[0].json["query"]["bool"]
    assert clause["must"][0]["multi_match"]["fields"] == ["body", "headline"]
    assert clause["filter"] == [{"term": {"author": "ann"}}]


async def test_text_inside_objects_and_lists(connect: Any, scripted: Any, es: Any) -> None:
    """A field in an object is named with dots; a list of texts is joined."""
    source = {"page": {"body": ["first", "second"]}, "n": 1}
    server = scripted(es.reply(es.found({"_id": "1", "_score": None, "_source": source})))
    fields = FieldMap(text="page.body", meta=None)
    (hit,) = await connect(server.url, fields=fields).search(Query("x"))
    assert (hit.text, hit.title, hit.score) == ("first\nsecond", None, 0.0)


async def test_a_document_without_the_text_field(connect: Any, scripted: Any, es: Any) -> None:
    """A hit that lacks the text field is an error that lists its fields, never empty text."""
    found = es.found({"_id": "7", "_score": 1.0, "_source": {"content": "x"}})
    with pytest.raises(RetrievalError, match=r"'7'.*no text field 'text'") as caught:
        await connect(scripted(es.reply(found)).url).search(Query("x"))
    assert "content" in caught.value.hint


async def test_bulk_retries_what_was_refused_for_load(connect: Any, scripted: Any, es: Any) -> None:
    """A document answered 429 is sent again alone; one refused for good is named; none is lost."""
    sent: list[list[str]] = []

    async def answer(request: Any, _: Any) -> bytes:
        if not request.path.endswith("/_bulk"):
            mapping = {"docs-000001": {"mappings": {}, "settings": {}}}
            return es.reply(mapping if "_mapping" in request.path else {**es.info, **mapping})
        names = [line["index"]["_id"] for line in request.lines[::2]]
        sent.append(names)
        items = []
        for name in names:
            status, error = 201, None
            if name == "busy" and len(sent) < 3:
                status, error = 429, {"type": "rejected", "reason": "queue full"}
            if name == "bad":
                status, error = 400, {"type": "mapper_parsing_exception", "reason": "not a number"}
            items.append({"index": {"_id": name, "status": status, "error": error}})
        return es.reply({"errors": True, "items": items})

    retriever = connect(scripted(answer).url)
    docs = [Document(name, "x") for name in ("good", "busy", "bad")]
    report = await retriever.add(docs, index="docs")
    assert sent == [["good", "busy", "bad"], ["busy"], ["busy"]]
    assert report.added == 2
    assert report.failed == (("bad", "mapper_parsing_exception: not a number"),)
