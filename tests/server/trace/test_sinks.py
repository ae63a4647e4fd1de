"""Sinks that stand still, are full, or are gone: traffic goes on, and nothing is there twice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from phloem.errors import ConfigError
from phloem.server.trace.options import SinkSpec, parse_sink, parse_upstream
from phloem.server.trace.record import Exchange, RunTrace, TraceError, to_json
from phloem.server.trace.sinks.base import Document, Sink
from phloem.server.trace.sinks.elastic import ElasticSink
from phloem.server.trace.sinks.jsonl import JsonlSink
from phloem.server.trace.sinks.otlp import OtlpSink
from phloem.server.trace.sinks.spool import Spool
from tests.retrieval.conftest import TestServer
from tests.server.trace.support import jsonl, proxying, send, until
from tests.server.trace.test_transparency import request
from tests.server.trace.upstreams import Scripted, scripted


def document(number: int, **more: Any) -> Document:
    one = Exchange(
        id=f"e{number}", group=f"g{number // 3}", group_kind="trace", started=1796050947.0 + number,
        method="POST", path="/v1/chat", status=200, **more,
    )  # fmt: skip
    return {"document": "exchange", **to_json(one)}


class Stuck(Sink):
    """A sink that keeps nothing until it is let go."""

    name = "stuck"

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.go = threading.Event()
        self.got: list[str] = []

    def keep(self, batch: Sequence[Document]) -> None:
        self.go.wait()
        self.got += [one["id"] for one in batch]


def test_a_full_queue_drops_the_oldest_and_counts_them() -> None:
    """A sink that stands still never makes its caller wait; the newest documents stay."""
    sink = Stuck(room=5)
    sink.start()
    sink.put(document(0))
    until(lambda: not sink._waiting)
    for number in range(1, 11):
        sink.put(document(number))
    assert sink.dropped == 5
    sink.go.set()
    assert sink.close(10)
    assert sink.got == ["e0", *(f"e{number}" for number in range(6, 11))]


def test_a_sink_that_raises_is_counted_and_goes_on() -> None:
    """What a sink raises is told; the next batch is tried again."""

    class Broken(Stuck):
        def keep(self, batch: Sequence[Document]) -> None:
            super().keep(batch)
            if self.got == ["e0"]:
                raise OSError("disk full")

    sink = Broken(room=5)
    sink.go.set()
    sink.start()
    sink.put(document(0))
    until(lambda: sink.failed == 1)
    sink.put(document(1))
    assert sink.close(10)
    assert (sink.kept, sink.failed) == (1, 1)


def test_jsonl_files_are_rotated(tmp_path: Path) -> None:
    """A file that is full is followed by another; of too many the oldest goes."""
    sink = JsonlSink(tmp_path, max_file=2000, max_files=3)
    sink.start()
    for number in range(20):
        sink.put(document(number))
    assert sink.close(10)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 3
    ids = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert ids == [f"e{number}" for number in range(20 - len(ids), 20)]


def test_the_spool_survives_and_is_bounded(tmp_path: Path) -> None:
    """Documents come back in order after a crash, also those of a segment that was open; over
    its bound the oldest segment goes and is counted; two processes can't share one."""
    spool = Spool(tmp_path)
    spool.add([document(0), document(1)])
    with pytest.raises(ConfigError, match="another proxy"):
        Spool(tmp_path)
    assert spool._file is not None
    spool._file.close()
    spool._lock_file.close()  # what a crash leaves: an open segment, and no lock
    later = Spool(tmp_path, segment=1, max_size=4000)
    segment = later.oldest()
    assert segment is not None
    assert [one["id"] for one in later.read(segment)] == ["e0", "e1"]
    for number in range(2, 9):
        later.add([document(number)])
    assert later.dropped > 0
    left = [one["id"] for path in sorted(tmp_path.glob("*.jsonl")) for one in later.read(path)]
    assert left == [f"e{number}" for number in range(later.dropped, 9)]
    later.close()


def test_spans_of_exchanges_and_steps() -> None:
    """An exchange is a span in its caller's trace; a run's steps are spans below the run's."""
    exporter = InMemorySpanExporter()
    sink = OtlpSink(exporter=exporter)
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = (("traceparent", f"00-{trace}-b7ad6b7169203331-01"),)
    failed = TraceError(type="oom", message="secret text")
    one = document(1, trace_id=trace, request_headers=headers, outcome="failed", errors=(failed,))
    step = {"path": "", "node": "gen:x", "name": "x", "kind": "gen", "file": "f.py", "line": 3}
    begun = {"type": "step_started", "seq": 1, "at": 0.5, **step}
    ended = {"type": "step_failed", "seq": 2, "at": 0.75, "error": "E", "message": "m", **step}
    run = RunTrace(
        id="run_1", kind="run", started=100.0, finished=101.0, status="failed", program="p",
        trace_id=trace, events=(begun, ended),
    )  # fmt: skip
    sink.keep([one, {"document": "run", **to_json(run)}])
    sink.finish()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"POST /v1/chat", "run p", "gen x"}
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace}
    assert f"{spans['POST /v1/chat'].parent.span_id:016x}" == "b7ad6b7169203331"
    assert spans["gen x"].parent.span_id == spans["run p"].context.span_id
    assert spans["gen x"].end_time - spans["gen x"].start_time == 250_000_000
    assert spans["POST /v1/chat"].status.description == "oom"


@pytest.mark.parametrize("text", ["es:localhost", "jsonl:", "nowhere:x", "es:ftp://h"])
def test_sinks_that_do_not_exist_are_refused(text: str) -> None:
    """The error says what --to takes."""
    with pytest.raises(ConfigError) as caught:
        parse_sink(text, {})
    assert caught.value.hint


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://u:secret@h", "http://h:0"])
def test_upstreams_that_make_no_sense_are_refused(url: str) -> None:
    """The error never shows a password."""
    with pytest.raises(ConfigError) as caught:
        parse_upstream(url)
    assert "secret" not in str(caught.value)


# --- Elasticsearch


@pytest.fixture
def search(tmp_path: Path) -> Iterator[TestServer]:
    server = TestServer(tmp_path / "noida")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


def ids(server: TestServer) -> list[str]:
    """The ids of all documents, as often as they are there."""
    client = Elasticsearch(server.url)
    client.indices.refresh(index="phloem-traces-*")
    found = client.search(index="phloem-traces-*", size=10_000, source=["event.id"])
    return [hit["_source"]["event.id"] for hit in found["hits"]["hits"]]


def test_a_bulk_that_is_sent_twice_writes_nothing_twice(search: TestServer, tmp_path: Path) -> None:
    """Documents have fixed ids: a spool that is replayed after all of it had arrived adds none."""
    for _ in range(2):
        sink = ElasticSink(search.url, tmp_path / "spool")
        sink.start()
        for number in range(10):
            sink.put(document(number))
        assert sink.close(30)
        assert (sink.sent, sink.refused) == (10, 0)
    assert sorted(ids(search)) == sorted(f"e{number}" for number in range(10))


def under_load(
    search: TestServer, upstream: Scripted, folder: Path, seconds: float, *, freeze: bool
) -> None:
    """Requests go on while the server is away; none fails, and afterwards all are there once."""
    sinks = (SinkSpec("es", search.url), jsonl(folder / "jsonl"))
    over = threading.Event()
    sent = 0

    def load(first: int) -> int:
        number = first
        while not over.is_set():
            assert send(url, request("echo", number)).startswith(b"HTTP/1.1 200 OK"), number
            number += 4
            time.sleep(0.01)
        return (number - first) // 4

    settings = {"spool": folder / "spool", "drain_s": 60.0}
    with (
        proxying(upstream.url, *sinks, **settings) as url,
        ThreadPoolExecutor(4) as pool,
    ):
        loads = [pool.submit(load, first) for first in range(4)]
        time.sleep(1)
        pid = search.pid()
        os.kill(pid, signal.SIGSTOP) if freeze else search.stop()
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT) if freeze else search.start()
        time.sleep(1)
        over.set()
        sent = sum(one.result() for one in loads)
    lines = [file.read_bytes().splitlines() for file in (folder / "jsonl").glob("*.jsonl")]
    kept = [json.loads(line)["id"] for some in lines for line in some]
    assert len(kept) == len(set(kept)) == sent
    assert sorted(ids(search)) == sorted(kept)


def test_elasticsearch_down_under_load(
    search: TestServer, upstream: Scripted, tmp_path: Path
) -> None:
    """Stopped for two seconds: every request is answered, and every trace is there once."""
    under_load(search, upstream, tmp_path, 2, freeze=False)


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, True])
def test_elasticsearch_down_for_30_seconds(
    search: TestServer, upstream: Scripted, tmp_path: Path, freeze: bool
) -> None:
    """The same for 30 seconds, stopped and started, or frozen."""
    under_load(search, upstream, tmp_path, 30, freeze=freeze)
