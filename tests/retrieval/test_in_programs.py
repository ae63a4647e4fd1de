"""Retrieval as a step of a program: what the program says reaches the store, and errors come back
with their place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import phloem as ph
from phloem.errors import FieldNotFound, IndexNotFound, RetrievalUnavailable, where_of
from phloem.programs import registry
from phloem.programs.events import Retrieved
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval import (
    Document,
    ElasticsearchRetriever,
    EmbeddedIndex,
    EmbeddingReranker,
    Range,
    Term,
)
from phloem.retrieval.base import Hit, Hits, Query, traceparent
from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.elasticsearch_client import ElasticsearchTransport
from phloem.retrieval.elastic.server import ServerRetriever
from phloem.retrieval.testing import FakeRetriever
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.tiny import tiny_model
from phloem.server.http.metrics import Metrics


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

    state = program.run(backend=ScriptedBackend())
    assert state.value == "only part: 1 of 2 shards failed"
    (event,) = [event for event in state.events if isinstance(event, Retrieved)]
    assert (event.partial, event.causes) == (True, ("1 of 2 shards failed",))
    metrics = Metrics(lambda: 0, lambda: 0, lambda: None, lambda: None)
    metrics.count_retrievals(state.events)
    assert b'phloem_retrievals_total{outcome="partial"} 1.0' in metrics.expose("")[0]
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


class CountingTransport(ElasticsearchTransport):
    """The official client, with a note of every request that goes out."""

    def __init__(self, address: Address, sent: list[tuple[str, Mapping[str, str]]]) -> None:
        super().__init__(address)
        self._sent = sent

    async def request(self, method: str, path: str, **more: Any) -> Any:
        self._sent.append((path, more["headers"]))
        return await super().request(method, path, **more)


@pytest.fixture
def counted(server_url: str, index: str) -> Iterator[Any]:
    """A retriever of the test server with three documents, and the requests it makes."""
    sent: list[tuple[str, Mapping[str, str]]] = []
    retriever = ServerRetriever(
        Address.parse(server_url), lambda address: CountingTransport(address, sent)
    )
    docs = [Document(name, f"all about {name}") for name in ("ants", "bees", "cats")]
    asyncio.run(retriever.add(docs, index=index))
    sent.clear()
    yield retriever, sent
    asyncio.run(retriever.drop(index))
    asyncio.run(retriever.aclose())


def test_a_fork_s_retrievals_are_one_request(counted: Any, index: str) -> None:
    """What the branches of a fork, or a `parallel()` block, retrieve goes out as one `_msearch`;
    each gets its own hits or its own error. One retrieval alone is a plain `_search`."""
    retriever, sent = counted

    @ph.function
    def forked(s: Any) -> Any:
        forks = s.fork(3)
        for branch, topic in zip(forks, ("ants", "bees", "cats"), strict=True):
            docs = ph.retrieve(topic, index=index, k=1)
            branch += ph.user(ph.passages(docs))
            branch += ph.assistant(ph.gen("answer"))
        forks.join()
        return [branch.messages()[-2]["content"] for branch in forks]

    value = forked.run(backend=ScriptedBackend(["x"] * 3), retriever=retriever).value
    assert value == [f"[1] all about {topic}" for topic in ("ants", "bees", "cats")]
    assert [path for path, _ in sent] == ["/_msearch"]
    sent.clear()

    @ph.function
    def parallel(s: Any) -> Any:
        with ph.parallel():
            good = ph.retrieve("bees", index=index)
            wrong = ph.retrieve("bees", index=f"{index}-nowhere")
            slow = ph.retrieve("cats", index=index, timeout=20)
            try:
                wrong = len(wrong)
            except IndexNotFound as error:
                wrong = error.details["index"]
        return good[0].id, wrong, slow[0].id

    value = parallel.run(backend=ScriptedBackend(), retriever=retriever).value
    assert value == ("bees", f"{index}-nowhere", "cats")
    assert [path for path, _ in sent] == ["/_msearch"]
    sent.clear()

    @ph.function
    def alone(s: Any) -> Any:
        return ph.retrieve("bees", index=index)[0].id

    assert alone.run(backend=ScriptedBackend(), retriever=retriever).value == "bees"
    assert [path for path, _ in sent] == [f"/{index}/_search"]


def test_the_runs_of_a_batch_search_together(counted: Any, index: str) -> None:
    """Runs of a batch that retrieve at the same time share requests."""
    retriever, sent = counted

    @ph.function
    def program(s: Any, topic: str) -> Any:
        return ph.retrieve(topic, index=index)[0].id

    topics = ["ants", "bees", "cats"] * 4
    settings = {"backend": ScriptedBackend(), "retriever": retriever, "num_threads": 12}
    states = program.run_batch([{"topic": topic} for topic in topics], **settings)
    assert [state.value for state in states] == topics
    assert len(sent) <= len(topics)


def test_requests_carry_the_run_s_trace(counted: Any, index: str) -> None:
    """A run's searches are sent its W3C trace context: the caller's if there is one."""
    retriever, sent = counted

    @ph.function
    def program(s: Any) -> Any:
        with ph.parallel():
            ph.retrieve("bees", index=index)

    settings = {"backend": ScriptedBackend(), "retriever": retriever}
    state = program.run(**settings)
    other = program.run(**settings)
    given = f"00-{'1' * 32}-{'2' * 16}-01"
    token = traceparent.set(given)
    joined = program.run(**settings)
    traceparent.reset(token)
    headers = [header["traceparent"] for _, header in sent]
    assert [header.split("-")[1] for header in headers] == [
        state.trace_id,
        other.trace_id,
        joined.trace_id,
    ]
    assert headers[2] == given
    assert state.trace_id != other.trace_id
    assert headers[0].split("-")[0::3] == ["00", "01"]


def test_stable_passages_are_found_in_the_prefix_cache() -> None:
    """Of a prompt with the same documents in another order of scores, stable passages are reused
    whole, and passages by score are not."""
    docs = [Document(f"d{n}", f"Document {n} says that number {n} is fine.") for n in range(4)]

    class Ranking(FakeRetriever):
        """Ranks by the digits of the query."""

        async def search(self, query: Query) -> Hits:
            self.queries.append(query)
            ranked = [docs[int(digit)] for digit in query.text]
            return Hits(tuple(Hit(d.id, d.text, 1 / n) for n, d in enumerate(ranked, 1)))

    @ph.function
    def program(s: Any, ranking: str, order: str) -> None:
        found = ph.retrieve(ranking)
        s += ph.user(ph.passages(found, order=order)) + ph.assistant(ph.gen("a", max_tokens=1))

    def computed(order: str) -> int:
        """Prompt tokens computed for the second of two rankings of the same documents."""
        backend = EmbeddedBackend(tiny_model())
        settings = {"backend": backend, "retriever": Ranking()}
        program.run("0123", order, **settings)
        usage = program.run("3210", order, **settings).usage
        asyncio.run(backend.aclose())
        return usage.prompt - usage.reused

    assert computed("stable") <= 1
    assert computed("score") > 100
