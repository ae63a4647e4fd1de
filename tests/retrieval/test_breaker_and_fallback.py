"""A dead cluster costs one timeout, and what answers in its place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from phloem.errors import (
    ConfigError,
    IndexNotFound,
    RetrievalRefused,
    RetrievalTimeout,
    RetrievalUnavailable,
)
from phloem.retrieval import (
    Document,
    ElasticsearchRetriever,
    EmbeddedIndex,
    Query,
)
from phloem.retrieval.defaults import default_retriever
from phloem.retrieval.elastic.breaker import Breaker
from phloem.retrieval.testing import FakeRetriever


class Cluster:
    """A server's health, a clock, and how often it was probed."""

    def __init__(self) -> None:
        self.alive = False
        self.now = 0.0
        self.probes = 0
        self.breaker = Breaker(self.probe, clock=lambda: self.now)

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(0)
        if not self.alive:
            raise RetrievalUnavailable("still dead")

    def fail(self) -> None:
        self.breaker.failed(RetrievalTimeout("no answer"))

    async def admitted(self) -> bool:
        try:
            await self.breaker.admit()
        except RetrievalUnavailable:
            return False
        return True


async def test_a_healthy_server_is_never_probed() -> None:
    """Without failures every call is admitted at once."""
    cluster = Cluster()
    assert await cluster.admitted()
    assert cluster.breaker.remaining_s == 0
    assert cluster.probes == 0


async def test_one_failure_is_followed_by_a_probe_not_a_verdict() -> None:
    """After a failure the next call is admitted if the server shows a sign of life."""
    cluster = Cluster()
    cluster.alive = True
    cluster.fail()
    assert await cluster.admitted()
    assert cluster.probes == 1
    assert await cluster.admitted()
    assert cluster.probes == 1


async def test_many_callers_share_one_probe() -> None:
    """Calls that come while the server is probed wait for the same probe."""
    cluster = Cluster()
    cluster.fail()
    verdicts = await asyncio.gather(*(cluster.admitted() for _ in range(50)))
    assert verdicts == [False] * 50
    assert cluster.probes == 1


async def test_pauses_grow_while_the_server_stays_dead() -> None:
    """Within a pause nothing is asked; pauses double from one second up to thirty."""
    cluster = Cluster()
    cluster.fail()
    pauses = []
    for _ in range(8):
        before = cluster.probes
        assert not await cluster.admitted()
        assert cluster.probes == before + 1
        start = cluster.now
        while not await cluster.admitted() and cluster.probes == before + 1:
            cluster.now += 0.5
        pauses.append(cluster.now - start - 0.0)
        cluster.now += 100
    assert pauses == [1, 4, 16, 30, 30, 30, 30, 30]


async def test_a_recovered_server_is_used_again() -> None:
    """After the pause a probe that succeeds admits, and the next pause is short again."""
    cluster = Cluster()
    cluster.fail()
    assert not await cluster.admitted()
    cluster.alive = True
    assert not await cluster.admitted()
    cluster.now = 1.0
    assert await cluster.admitted()
    cluster.alive = False
    cluster.fail()
    assert not await cluster.admitted()
    cluster.now += 1.0
    cluster.alive = True
    assert await cluster.admitted()


async def test_a_cancelled_caller_does_not_cancel_the_probe() -> None:
    """Others that wait for the probe still get its verdict."""
    cluster = Cluster()
    cluster.alive = True
    cluster.fail()
    first = asyncio.create_task(cluster.admitted())
    second = asyncio.create_task(cluster.admitted())
    await asyncio.sleep(0)
    first.cancel()
    assert await second


async def test_a_probe_that_dies_with_its_loop_frees_the_others() -> None:
    """A caller in another thread's loop waits for the probe, not for ever if that is cancelled."""
    cluster = Cluster()
    started = threading.Event()

    async def never() -> None:
        started.set()
        await asyncio.sleep(60)

    cluster.breaker = Breaker(never)
    cluster.fail()

    def other_thread() -> None:
        async def give_up() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(cluster.breaker.admit(), 0.2)

        asyncio.run(give_up())

    prober = threading.Thread(target=other_thread)
    prober.start()
    await asyncio.to_thread(started.wait)
    with pytest.raises(RetrievalUnavailable, match="no answer"):
        await asyncio.wait_for(cluster.breaker.admit(), 30)
    prober.join()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., ElasticsearchRetriever]]:
    made = []

    def open_one(url: str, **options: Any) -> ElasticsearchRetriever:
        made.append(ElasticsearchRetriever(url, **options))
        return made[-1]

    yield open_one
    for retriever in made:
        await retriever.aclose()


async def test_a_dead_cluster_costs_one_timeout_not_one_per_run(
    connect: Any, scripted: Any
) -> None:
    """Of 30 searches on a silent server one waits for its timeout, the others are told at once."""

    async def silent(*_: Any) -> None:
        await asyncio.sleep(30)

    server = scripted(silent)
    retriever = connect(server.url, timeout=0.3)
    with pytest.raises(RetrievalTimeout):
        await retriever.search(Query("x"))
    refused = []
    for _ in range(29):
        with pytest.raises((RetrievalUnavailable, RetrievalTimeout)) as caught:
            await retriever.search(Query("x"))
        refused.append(caught.value)
    assert len(server.searches()) == 1
    assert sum(error.details.get("kind") == "circuit-open" for error in refused) >= 28
    assert "failed" in str(refused[-1])


async def test_a_cluster_that_came_back_is_used_at_once(
    connect: Any, scripted: Any, es: Any
) -> None:
    """One failed search does not make the next one fail if the server answers again."""
    healthy = False

    async def answer(request: Any, _: Any) -> bytes:
        if not healthy:
            return es.reply({"error": {"reason": "starting"}}, 503)
        return es.reply(es.found(es.hit()) if "_search" in request.path else es.info)

    retriever = connect(scripted(answer).url, retries=0)
    with pytest.raises(RetrievalUnavailable, match="starting"):
        await retriever.search(Query("x"))
    healthy = True
    assert len(await retriever.search(Query("x"))) == 1


async def test_mistakes_do_not_open_the_circuit(connect: Any, scripted: Any, es: Any) -> None:
    """A refused key or a missing index says nothing about the server's health."""
    server = scripted(es.reply({"error": {"type": "security_exception"}}, 401))
    retriever = connect(server.url)
    for _ in range(3):
        with pytest.raises(RetrievalRefused):
            await retriever.search(Query("x"))
    assert len(server.requests) == 3


DEAD = "http://127.0.0.1:1"


async def test_the_embedded_index_answers_for_a_dead_server(connect: Any, tmp_path: Any) -> None:
    """With a fallback index its hits come back, marked with the reason."""
    spare = EmbeddedIndex(tmp_path)
    await spare.add([Document("a", "spare words")])
    retriever = connect(DEAD, retries=0, fallback=spare)
    for _ in range(3):
        hits = await retriever.search(Query("spare"))
        assert [hit.id for hit in hits] == ["a"]
        assert hits.fallback is not None
        assert hits.fallback.startswith("RetrievalUnavailable: ")
        assert not hits.partial
    assert "embedded" in hits.source


async def test_an_empty_fallback_is_marked(connect: Any) -> None:
    """With "empty" there are no hits, and the program can see that nobody answered."""
    hits = await connect(DEAD, retries=0, fallback="empty").search(Query("x"))
    assert (len(hits), hits.partial, hits.source) == (0, True, "empty")
    assert "can't reach" in hits.causes[0]
    assert hits.fallback == hits.causes[0]


async def test_partial_results_fall_back_too(connect: Any, scripted: Any, es: Any) -> None:
    """A search that failed in part is answered by the fallback unless partial hits are allowed."""
    shards = {"total": 2, "successful": 1, "failed": 1}
    server = scripted(es.reply(es.found(es.hit(), _shards=shards)))
    spare = FakeRetriever([Document("spare", "words")])
    retriever = connect(server.url, fallback=spare)
    hits = await retriever.search(Query("words"))
    assert [hit.id for hit in hits] == ["spare"]
    assert hits.fallback.startswith("PartialResults")
    allowed = await retriever.search(Query("words", allow_partial=True))
    assert (allowed[0].id, allowed.partial, allowed.fallback) == ("1", True, None)


async def test_a_server_that_answers_is_not_marked(connect: Any, scripted: Any, es: Any) -> None:
    """Without a failure the fallback is not asked."""
    spare = FakeRetriever()
    retriever = connect(scripted(es.reply(es.found(es.hit()))).url, fallback=spare)
    hits = await retriever.search(Query("words"))
    assert (len(hits), hits.fallback) == (1, None)
    assert spare.queries == []


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (404, "index_not_found_exception", IndexNotFound),
        (401, "security_exception", RetrievalRefused),
    ],
)
async def test_mistakes_do_not_fall_back(
    connect: Any, scripted: Any, es: Any, status: int, kind: str, error: type[Exception]
) -> None:
    """A missing index or a refused key is raised, not hidden by the fallback."""
    server = scripted(es.reply({"error": {"root_cause": [{"type": kind}]}}, status))
    with pytest.raises(error):
        await connect(server.url, fallback="empty").search(Query("x"))


def test_the_fallback_from_the_environment(tmp_path: Any) -> None:
    """PHLOEM_RETRIEVAL_FALLBACK is "embedded", "empty" or nothing; other words are refused."""
    base = {"PHLOEM_ES_URL": DEAD, "PHLOEM_INDEX_DIR": str(tmp_path)}
    for named, hits in (("embedded", IndexNotFound), ("empty", 0), ("", RetrievalUnavailable)):
        retriever = default_retriever({**base, "PHLOEM_RETRIEVAL_FALLBACK": named})

        async def search(store: Any = retriever) -> int:
            try:
                return len(await store.search(Query("x", index="none")))
            finally:
                await store.aclose()

        if isinstance(hits, int):
            assert asyncio.run(search()) == hits
        else:
            with pytest.raises(hits):
                asyncio.run(search())
    with pytest.raises(ConfigError, match="FALLBACK is 'other'"):
        default_retriever({**base, "PHLOEM_RETRIEVAL_FALLBACK": "other"})
