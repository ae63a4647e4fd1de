"""How calls reach a server: joined, traced, and over connections that end with their loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from phloem.errors import (
    RetrievalError,
    RetrievalRefused,
    RetrievalUnavailable,
)
from phloem.retrieval import (
    ElasticsearchRetriever,
    Hits,
    OpenSearchRetriever,
    Query,
)
from phloem.retrieval.base import traceparent

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


OWN_LOOP = "hits = asyncio.run(store.search(Query('x')))"
THREAD_S_LOOP = """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
hits = asyncio.run_coroutine_threadsafe(store.search(Query('x')), loop).result()
"""


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("elasticsearch", OWN_LOOP),
        ("opensearch", THREAD_S_LOOP),
        pytest.param("elasticsearch", THREAD_S_LOOP, marks=pytest.mark.slow),
        pytest.param("opensearch", OWN_LOOP, marks=pytest.mark.slow),
    ],
    ids=["elasticsearch-own", "opensearch-thread", "elasticsearch-thread", "opensearch-own"],
)
def test_a_process_ends_quietly_with_a_store_open(
    scripted: Any, es: Any, kind: str, how: str
) -> None:
    """A program that never closes its retriever ends without a word about open connections."""
    server = scripted(es.reply(es.found(es.hit())))
    code = (
        "import asyncio, sys, threading\n"
        f"from phloem.retrieval import {KINDS[kind].__name__} as Store, Query\n"
        f"store = Store(sys.argv[1])\n{how}\nprint(len(hits))\n"
    )
    command = [sys.executable, "-W", "default", "-c", code, server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


async def test_loops_in_several_threads_share_a_store(connect: Any, scripted: Any, es: Any) -> None:
    """Each loop has its own connections; closing the store closes those of running loops."""
    server = scripted(es.reply(es.found(es.hit())))
    retriever = connect(server.url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def elsewhere() -> int:
        return len(await retriever.search(Query("x")))

    assert len(await retriever.search(Query("x"))) == 1
    for _ in range(2):
        other = asyncio.run_coroutine_threadsafe(elsewhere(), loop)
        assert await asyncio.wrap_future(other) == 1
    assert await asyncio.to_thread(lambda: asyncio.run(elsewhere())) == 1
    await retriever.aclose()
    assert len(await retriever.search(Query("x"))) == 1
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_a_fork_s_searches_travel_together(connect: Any, scripted: Any, es: Any) -> None:
    """Searches of one turn of the event loop are one `_msearch`; each has its own answer."""

    async def answer(request: Any, _: Any) -> bytes:
        texts = [line["query"]["multi_match"]["query"] for line in request.lines[1::2]]
        replies = [{**es.found(es.hit(text)), "status": 200} for text in texts]
        replies[2] = {"error": {"type": "x", "reason": "shard lost"}, "status": 503}
        return es.reply({"responses": replies})

    server = scripted(answer)
    retriever = connect(server.url, retries=0)
    texts = ["a", "b", "c", "d"]
    searches = [retriever.search(Query(text, index="i")) for text in texts]
    answers = await asyncio.gather(*searches, return_exceptions=True)
    (request,) = server.requests
    assert request.path.startswith("/_msearch")
    assert [a[0].text for a in answers if isinstance(a, Hits)] == ["a", "b", "d"]
    assert isinstance(answers[2], RetrievalUnavailable)


async def test_one_malformed_search_does_not_fail_the_others(
    connect: Any, scripted: Any, es: Any
) -> None:
    """A server refuses a whole `_msearch` for one part that it can't read; then each search is
    made alone and hears its own answer."""

    async def answer(request: Any, _: Any) -> bytes:
        if b"bogus" in request.body:
            return es.reply({"error": {"type": "parsing_exception", "reason": "bogus"}}, 400)
        return es.reply(es.found(es.hit(request.path)))

    server = scripted(answer)
    retriever = connect(server.url)
    searches = [
        retriever.search(Query("good", index="a")),
        retriever.search(Query("x", index="b", raw={"bogus": {}})),
        retriever.search(Query("good", index="c")),
    ]
    first, wrong, last = await asyncio.gather(*searches, return_exceptions=True)
    assert (first[0].text, last[0].text) == ("/a/_search", "/c/_search")
    assert isinstance(wrong, RetrievalError)
    assert "bogus" in wrong.message


async def test_a_busy_part_of_a_joined_request_is_tried_again(
    connect: Any, scripted: Any, es: Any
) -> None:
    """A search that a server was too busy for is repeated as it would be alone; the rest stands."""

    async def answer(request: Any, _: Any) -> bytes:
        if "_msearch" not in request.path:
            return es.reply(es.found(es.hit("at last")))
        busy = {"error": {"type": "es_rejected_execution_exception"}, "status": 429}
        return es.reply({"responses": [{**es.found(es.hit("first")), "status": 200}, busy]})

    server = scripted(answer)
    retriever = connect(server.url, retries=1)
    searches = [retriever.search(Query(text, index="i")) for text in "ab"]
    first, second = await asyncio.gather(*searches)
    assert (first[0].text, second[0].text) == ("first", "at last")
    assert [r.path.split("?")[0] for r in server.requests] == ["/_msearch", "/i/_search"]


async def test_one_search_alone_is_a_plain_search(connect: Any, scripted: Any, es: Any) -> None:
    """Searches one after another are not joined."""
    server = scripted(es.reply(es.found(es.hit())))
    retriever = connect(server.url)
    for _ in range(3):
        await retriever.search(Query("x", index="docs"))
    assert [request.path for request in server.requests] == ["/docs/_search"] * 3


async def test_an_error_of_a_joined_request_is_each_waiter_s_own(
    connect: Any, scripted: Any, es: Any
) -> None:
    """When the shared request fails, each search raises an error object of its own."""
    server = scripted(es.reply({"error": {"type": "security_exception"}}, 401))
    retriever = connect(server.url)
    searches = (retriever.search(Query(text)) for text in "ab")
    first, second = await asyncio.gather(*searches, return_exceptions=True)
    assert isinstance(first, RetrievalRefused)
    assert isinstance(second, RetrievalRefused)
    assert first is not second


async def test_the_trace_context_is_sent_on(connect: Any, scripted: Any, es: Any) -> None:
    """A run's traceparent reaches the server; without one no header is sent."""
    server = scripted(es.reply(es.found(es.hit())))
    retriever = connect(server.url)
    await retriever.search(Query("x"))
    token = traceparent.set("00-11111111111111111111111111111111-2222222222222222-01")
    try:
        await retriever.search(Query("x"))
    finally:
        traceparent.reset(token)
    assert "traceparent" not in server.requests[0].headers
    assert server.requests[1].headers["traceparent"].startswith("00-1111")
