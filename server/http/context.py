"""Around every request: its id, its trace, its line in the log, its count, its last-resort 500.

What lives here: the outermost ASGI middleware. What does not: who may call
(`gatekeeper.py`) and errors that have a meaning (`replies.py`). ASGI itself, not Starlette's
base class, because that one buffers streams and hides disconnects.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time

import structlog
from opentelemetry.trace import get_current_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phloem.server.error_map import error_object
from phloem.server.http.metrics import Metrics
from phloem.server.http.replies import error_reply, json_reply, stopping
from phloem.server.http.trace_context import TraceContext, current_trace

__all__ = ["RequestContext"]

log = structlog.get_logger("phloem.server")

_ID = re.compile(r"[\w.:-]{1,128}")


def _exported() -> TraceContext | None:
    """The request's span, where OpenTelemetry is set up: FastAPI has begun one by then."""
    span = get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return TraceContext(f"{span.trace_id:032x}", f"{span.span_id:016x}", None)


class RequestContext:
    """Adds `x-request-id` and `traceparent` to every response, and writes the access log.

    The log names method, path, status, bytes and time; never a query, a header or a body.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        trace = _exported() or TraceContext.receive(headers.get("traceparent"))
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(12)
        scope.setdefault("state", {})["arrived"] = started = time.monotonic()
        scope["state"]["caller"] = None
        status = 0
        size = 0

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                added = MutableHeaders(scope=message)
                added["x-request-id"] = request_id
                added["traceparent"] = trace.header
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        token = current_trace.set(trace)
        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            # The server stops. A stream has told so itself.
            if status == 0:
                await error_reply(stopping())(scope, receive, sending)
            else:
                raise
        except Exception as error:
            log.error("request_failed", trace_id=trace.trace_id, exc_info=error)
            if status == 0:
                await json_reply(500, error_object(error))(scope, receive, sending)
        finally:
            current_trace.reset(token)
            self._metrics.http.labels(f"{status // 100}xx" if status >= 100 else "5xx").inc()
            log.info(
                "request",
                method=scope["method"],
                path=scope["path"],
                status=status,
                bytes=size,
                ms=round(1000 * (time.monotonic() - started), 1),
                trace_id=trace.trace_id,
                request_id=request_id,
                caller=scope["state"]["caller"],
            )
