"""Runs as OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

import phloem as ph
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits, Query, traceparent
from tests.server.harness import serving

TRACE, CALLER = "1" * 32, "2" * 16


@ph.function
def forked(s: ph.State, question: str) -> list[str]:
    """Two gens in a fork and a retrieval."""
    docs = ph.retrieve("docs", question)
    s += docs[0].text
    forks = s.fork(2)
    for fork in forks:
        fork += ph.gen("said", max_tokens=3)
    forks.join()
    return s["said"]


class OneHit:
    """A retriever that always finds the same, and notes the span it was asked in."""

    def __init__(self) -> None:
        self.spans: list[int] = []
        self.sent: list[str | None] = []

    async def search(self, query: Query) -> Hits:
        self.spans.append(trace.get_current_span().get_span_context().trace_id)
        self.sent.append(traceparent.get())
        return Hits((Hit("1", "SECRET passage", 1.0),))

    async def aclose(self) -> None:
        return


@pytest.fixture(scope="module")
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans that the process exports; a provider can be set only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield exporter
    provider.shutdown()


def test_a_run_and_its_steps_are_one_trace(spans: InMemorySpanExporter) -> None:
    """The request's span is the caller's child, the run's is the request's, the steps' are the
    run's, also across threads; the search continues the trace; no span holds text."""
    retriever = OneHit()
    with serving(ScriptedBackend(["abc", "def"]), [forked]) as server:
        server.state.retriever = retriever
        server.client.post(
            "/v1/programs/forked/runs",
            json={"args": {"question": "SECRET?"}},
            headers={"traceparent": f"00-{TRACE}-{CALLER}-01"},
        )
    finished = spans.get_finished_spans()
    exported = [span for span in finished if f"{span.context.trace_id:032x}" == TRACE]
    run = next(span for span in exported if span.name == "run forked")
    request = next(span for span in exported if span.kind is SpanKind.SERVER and span is not run)
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == CALLER
    assert run.parent is not None
    assert run.parent.span_id == request.context.span_id
    assert [one for one in finished if one.instrumentation_scope.name == "phloem"] == [
        one for one in exported if one.instrumentation_scope.name == "phloem"
    ]
    steps = [span for span in exported if span.instrumentation_scope.name == "phloem"]
    steps.remove(run)
    assert sorted(span.name for span in steps) == ["gen said", "gen said", "retrieve docs"]
    assert {span.parent.span_id for span in steps if span.parent} == {run.context.span_id}
    assert {f"{one:032x}" for one in retriever.spans} == {TRACE}
    assert retriever.sent == [f"00-{TRACE}-{run.context.span_id:016x}-01"]
    assert "SECRET" not in "".join(span.to_json() for span in exported)


@pytest.mark.parametrize("header", [None, "00-zz-1-01"])
def test_without_a_good_header_a_new_trace_begins(
    spans: InMemorySpanExporter, header: str | None
) -> None:
    """A missing or malformed traceparent is no error; the run has a trace of its own."""
    spans.clear()
    with serving(ScriptedBackend(["abc", "def"]), [forked]) as server:
        server.state.retriever = OneHit()
        headers = {"traceparent": header} if header else {}
        reply = server.client.post(
            "/v1/programs/forked/runs", json={"args": {"question": "x"}}, headers=headers
        )
    assert reply.status_code == 200
    run = next(span for span in spans.get_finished_spans() if span.name == "run forked")
    assert f"{run.context.trace_id:032x}" == reply.json()["trace_id"] != TRACE
