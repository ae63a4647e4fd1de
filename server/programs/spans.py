"""A run as OpenTelemetry spans, made from its events when it is over.

What lives here: the run's span and one for each step, and the context that what a run calls
(a search server) continues. What does not: exporting; whoever installs the extra `otel` and
configures the SDK (by `OTEL_*` variables) gets the spans, everybody else pays nothing.

The spans belong to the trace of the request that started the run: the run's span is a child of
the caller's span where the request named one. Names and attributes follow the conventions for
generative AI where they exist (https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from opentelemetry import context, trace
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
)

from phloem.programs.events import Event, Retrieved, StepFailed, StepFinished, StepStarted
from phloem.programs.executor.run import Run
from phloem.retrieval.base import traceparent
from phloem.server.http.trace_context import TraceContext

__all__ = ["RunSpan"]


class RunSpan:
    """The span of one run. `TraceContext` None: the run was resumed, its request is long gone;
    the trace goes on all the same."""

    def __init__(self, run: Run, request: TraceContext | None) -> None:
        self._run = run
        self._tracer = trace.get_tracer("phloem")
        self._began_ns = time.time_ns()
        parent = (request.parent_id or request.span_id) if request else None
        found = SpanContext(
            trace_id=int(run.trace_id, 16),
            span_id=int(parent or run.trace_id[:16], 16),
            is_remote=True,
            trace_flags=TraceFlags(TraceFlags.SAMPLED),
        )
        self._span = self._tracer.start_span(
            f"run {run.program}",
            context=trace.set_span_in_context(NonRecordingSpan(found)),
            kind=SpanKind.SERVER,
            attributes={"phloem.run": run.id, "phloem.program": run.program},
            start_time=self._began_ns,
        )
        self._context = trace.set_span_in_context(self._span)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Tasks that are started inside continue this span, and send it on to search servers and
        model servers."""
        token = context.attach(self._context)
        span = trace.get_current_span().get_span_context()
        header = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
        said = traceparent.set(header)
        try:
            yield
        finally:
            traceparent.reset(said)
            context.detach(token)

    def end(self, error: BaseException | None) -> None:
        """Add the steps' spans and close."""
        open_steps: dict[tuple[str, str | None, str | None], StepStarted] = {}
        for event in self._run.feed.events:
            if isinstance(event, StepStarted):
                open_steps[event.path, event.node, event.name] = event
            elif isinstance(event, StepFinished | StepFailed | Retrieved):
                begun = open_steps.pop((event.path, event.node, event.name), None)
                self._step(begun or event, event)
        _fail(self._span, error)
        self._span.end()

    def _step(self, begun: Event, ended: StepFinished | StepFailed | Retrieved) -> None:
        kind = "retrieve" if isinstance(ended, Retrieved) else ended.kind
        started = self._at(begun)
        if begun is ended:
            started -= int(_length_ms(ended) * 1e6)
        span = self._tracer.start_span(
            f"{kind} {ended.name or ended.node or ''}".rstrip(),
            context=self._context,
            kind=SpanKind.CLIENT if kind in {"retrieve", "tool"} else SpanKind.INTERNAL,
            attributes=_attributes(ended),
            start_time=started,
        )
        if isinstance(ended, StepFailed):
            span.set_status(StatusCode.ERROR, ended.error)
        span.end(self._at(ended))

    def _at(self, event: Event) -> int:
        return self._began_ns + int(event.at * 1e9)


def _length_ms(event: StepFinished | StepFailed | Retrieved) -> float:
    if isinstance(event, Retrieved):
        return event.took_ms
    return event.timing.total_ms if isinstance(event, StepFinished) else 0.0


def _attributes(event: StepFinished | StepFailed | Retrieved) -> dict[str, Any]:
    """Numbers and names; never text of a prompt, an output or a document."""
    found = {
        "phloem.node": event.node,
        "phloem.path": event.path,
        "code.file.path": event.file,
        "code.line.number": event.line,
    }
    if isinstance(event, StepFinished):
        found |= {
            "gen_ai.usage.input_tokens": event.usage.prompt,
            "gen_ai.usage.output_tokens": event.usage.generated,
            "phloem.tokens.reused": event.usage.reused,
            "phloem.tokens.forced": event.usage.forced,
            "gen_ai.response.finish_reasons": event.finish_reason,
        }
    elif isinstance(event, Retrieved):
        found |= {"phloem.index": event.index, "phloem.hits": len(event.hits)}
    return {name: value for name, value in found.items() if value is not None}


def _fail(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_status(StatusCode.ERROR, type(error).__name__)
