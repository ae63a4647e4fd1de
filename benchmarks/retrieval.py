"""What a retrieval costs: embedded over 20,000 documents, and a server against its bare client.

Usage: python benchmarks/retrieval.py [--documents N] [--searches N] [--url URL]

Without --url a test server is started (noida-db) with 100 documents, since only the difference
between phloem's call and the client's own counts there: calls of both alternate, and the medians
are compared. Trust the ratios within one run.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import elasticsearch
import numpy as np

from phloem.retrieval import Document, ElasticsearchRetriever, EmbeddedIndex, Query

DIMS = 384
VOCABULARY = 5_000
K = 10


def corpus(size: int, *, vectors: bool) -> Iterator[Document]:
    """Documents of 60 words with Zipf's frequencies, and random vectors [384]."""
    rng = np.random.default_rng(0)
    for number in range(size):
        words = rng.zipf(1.3, 60) % VOCABULARY
        yield Document(
            f"d{number}",
            " ".join(f"w{word}" for word in words),
            meta={"year": int(2000 + number % 25)},
            vector=rng.standard_normal(DIMS).tolist() if vectors else None,
        )


def texts(count: int) -> list[str]:
    """Queries of four words, of which two are rare."""
    rng = np.random.default_rng(1)
    return [
        f"w{rng.integers(20)} w{rng.integers(200)} w{rng.integers(2_000)} w{rng.integers(2_000)}"
        for _ in range(count)
    ]


async def milliseconds(calls: list[Callable[[], Awaitable[object]]]) -> list[float]:
    """The time of each call, made one after another."""
    taken = []
    for call in calls:
        began = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def report(what: str, taken: list[float]) -> None:
    """Print the median and the 99th percentile."""
    p99 = sorted(taken)[int(len(taken) * 0.99)]
    print(f"{what:<44} p50 {statistics.median(taken):7.3f} ms   p99 {p99:7.3f} ms")


async def embedded(documents: int, searches: int) -> None:
    """Every mode over `documents` documents."""
    with tempfile.TemporaryDirectory() as folder:
        index = EmbeddedIndex(folder)
        began = time.perf_counter()
        await index.add(corpus(documents, vectors=True))
        seconds = time.perf_counter() - began
        print(
            f"{documents} documents added in {seconds:.1f} s ({documents / seconds:.0f} a second)"
        )
        vector = np.random.default_rng(2).standard_normal(DIMS).tolist()
        kinds = {
            "embedded, words": Query("x", k=K),
            "embedded, words, range filter": Query("x", k=K, filter={"year": {"gte": 2012}}),
            "embedded, vectors (exact)": Query("x", k=K, mode="knn", vector=vector),
            "embedded, hybrid": Query("x", k=K, mode="hybrid", vector=vector),
        }
        for what, query in kinds.items():
            await index.search(query)
            calls = [partial(index.search, replace(query, text=t)) for t in texts(searches)]
            report(f"{what}, {K} of {documents}", await milliseconds(calls))
        await index.aclose()


@contextmanager
def test_server() -> Iterator[str]:
    """A noida-db process, for as long as the block runs."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        program = Path(sysconfig.get_path("scripts")) / "noida-db"
        place = ("--data-dir", folder)
        up = (program, "up", *place, "--only", "elasticsearch", "--elasticsearch-port", str(port))
        subprocess.run(up, check=True, capture_output=True)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            subprocess.run((program, "down", *place), check=True, capture_output=True)


async def overhead(url: str, searches: int) -> None:
    """A search through phloem against the same request through the client."""
    retriever = ElasticsearchRetriever(url)
    client = elasticsearch.AsyncElasticsearch(url)
    index = "phloem-benchmark"
    await retriever.rebuild(corpus(100, vectors=False), index=index)
    clauses = {"type": "best_fields", "tie_breaker": 0.3, "fields": ["text", "title"]}
    ours: list[float] = []
    bare: list[float] = []
    for turn, text in enumerate(texts(searches)):
        match = {"multi_match": {"query": text, **clauses}}
        pair = [
            (bare, partial(client.search, index=index, query=match, size=K)),
            (ours, partial(retriever.search, Query(text, index=index, k=K))),
        ]
        for taken, call in pair if turn % 2 else reversed(pair):
            taken.extend(await milliseconds([call]))
    report("the client alone", bare)
    report("the same through phloem", ours)
    print(f"overhead {statistics.median(ours) - statistics.median(bare):.3f} ms at the median")
    await retriever.drop(index)
    await client.close()
    await retriever.aclose()


def main() -> None:
    """Both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--searches", type=int, default=300)
    parser.add_argument("--url", help="an Elasticsearch server to compare on")
    given = parser.parse_args()
    asyncio.run(embedded(given.documents, given.searches))
    if given.url:
        asyncio.run(overhead(given.url, given.searches))
        return
    with test_server() as url:
        asyncio.run(overhead(url, given.searches))


if __name__ == "__main__":
    main()
