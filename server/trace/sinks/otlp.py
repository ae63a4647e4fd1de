"""Traces as OpenTelemetry spans: one for each exchange, one for each run and each of its steps.

What lives here: `OtlpSink`. What does not: the exporter's own settings: the address, headers and
the rest are OpenTelemetry's variables (`OTEL_EXPORTER_OTLP_...`), or the address that the option
names. Needs the extra `otel`.

Attributes follow the conventions for HTTP and for generative AI
(https://opentelemetry.io/docs/specs/semconv/). Texts are not sent, only names and numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags

from phloem.errors import ConfigError
from phloem.server.http.trace_context import TraceContext
from phloem.server.trace.record import RunTrace, exchange_from_json, run_from_json
from phloem.server.trace.sinks.base import Document, Sink
from phloem.server.trace.steps import steps_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["OtlpSink"]


class OtlpSink(Sink):
    """Sends spans to `endpoint` (None: as the environment says), or through `exporter`.

    Raises `ConfigError` if the extra is not installed.
    """

    name = "otlp"

    def __init__(self, endpoint: str | None = None, exporter: SpanExporter | None = None) -> None:
        super().__init__()
        try:
            sdk = importlib.import_module("opentelemetry.sdk.trace")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            if exporter is None:
                name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
                exporter = importlib.import_module(name).OTLPSpanExporter(endpoint=endpoint)
        except ImportError as error:
            raise ConfigError(
                f"the sink otlp needs OpenTelemetry: {error}", hint="pip install 'phloem[otel]'"
            ) from error
        resource = resources.Resource.create({"service.name": "phloem-trace-proxy"})
        self._provider = sdk.TracerProvider(resource=resource)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer: trace.Tracer = self._provider.get_tracer("phloem.trace")

    def keep(self, batch: Sequence[Document]) -> None:
        """Hand spans to the exporter, which has its own queue."""
        for document in batch:
            plain = {name: value for name, value in document.items() if name != "document"}
            if document["document"] == "exchange":
                self._exchange(plain)
            else:
                self._run(run_from_json(plain))

    def finish(self) -> None:
        """Send what waits."""
        self._provider.shutdown()

    def _exchange(self, plain: Mapping[str, Any]) -> None:
        one = exchange_from_json(plain)
        usage = one.usage or {}
        attributes = {
            "http.request.method": one.method,
            "http.response.status_code": one.status,
            "url.path": one.path.partition("?")[0],
            "server.address": one.upstream,
            "gen_ai.request.model": one.model,
            "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
            "gen_ai.response.finish_reasons": one.finish_reason,
            "phloem.group": one.group,
            "phloem.run": one.run,
            "phloem.first_byte_ms": one.timing.first_byte_ms,
        }
        header = next((value for name, value in one.request_headers if name == "traceparent"), None)
        parent = TraceContext.receive(header).parent_id
        span = self._tracer.start_span(
            f"{one.method} {one.path.partition('?')[0]}",
            context=_context(one.trace_id or one.id, parent),
            kind=SpanKind.CLIENT,
            attributes={name: value for name, value in attributes.items() if value is not None},
            start_time=int(one.started * 1e9),
        )
        if one.outcome == "failed":
            span.set_status(StatusCode.ERROR, one.errors[-1].type if one.errors else None)
        span.end(int((one.started + one.timing.total_ms / 1000) * 1e9))

    def _run(self, run: RunTrace) -> None:
        root = self._tracer.start_span(
            f"run {run.program}",
            context=_context(run.trace_id, None),
            attributes={"phloem.run": run.id, "phloem.program": run.program or ""},
            start_time=int(run.started * 1e9),
        )
        inside = trace.set_span_in_context(root)
        for step in steps_of(run):
            attributes = {
                "phloem.node": step.node,
                "phloem.path": step.path,
                "code.file.path": step.file,
                "code.line.number": step.line,
                "phloem.index": step.index,
            }
            span = self._tracer.start_span(
                f"{step.kind} {step.name or ''}".rstrip(),
                context=inside,
                attributes={name: value for name, value in attributes.items() if value is not None},
                start_time=_at(run, step.started_ms),
            )
            if step.error is not None:
                span.set_status(StatusCode.ERROR, step.error[0])
            span.end(_at(run, step.ended_ms or step.started_ms))
        if run.error is not None:
            root.set_status(StatusCode.ERROR, run.error.type)
        root.end(int((run.finished or run.started) * 1e9))


def _at(run: RunTrace, ms: float) -> int:
    return int((run.started + ms / 1000) * 1e9)


def _context(trace_id: str | None, parent: str | None) -> Any:
    """The trace that a span belongs to, below the caller's span where one is named."""
    if trace_id is None:
        return None
    found = SpanContext(
        trace_id=int(trace_id, 16),
        span_id=int(parent or trace_id[:16], 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(NonRecordingSpan(found))
