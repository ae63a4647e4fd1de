"""Server-sent events that arrive in time, whatever stands in between.

What lives here: the response class and its timing. What does not: what the events say.

* The first event is waited for a moment before the status goes out, so that an early error
  (too long, queue full) is a real 4xx or 5xx. After that moment the headers go out with a
  comment line, so a proxy sees life.
* Silence is filled with comment lines (`: wait`), never inside an event.
* A reader that takes nothing for `send_timeout_s` is cut off; one that goes away ends the
  source within one step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence

import structlog
from fastapi.sse import format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phloem.errors import PhloemError
from phloem.server.error_map import status_of
from phloem.server.http.disconnect import disconnected
from phloem.server.http.replies import error_reply
from phloem.server.settings import Settings

__all__ = ["HEADERS", "EventStream", "event"]

log = structlog.get_logger("phloem.server")

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    # nginx and its kind must not collect the stream.
    "x-accel-buffering": "no",
}

_WAIT = format_sse_event(comment="wait")


def event(data: str, *, name: str | None = None, id: str | None = None) -> bytes:  # noqa: A002
    """One event on the wire."""
    return format_sse_event(data_str=data, event=name, id=id)


class EventStream(Response):
    """Sends what `source` yields (whole events as bytes).

    An exception of `source` before its first event becomes a plain error reply; a later one
    becomes the events that `on_error` makes of it, and the end of the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        settings: Settings,
        on_error: Callable[[Exception], Sequence[bytes]],
    ) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._source = source
        self._settings = settings
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the source ends or the client goes away, whichever is first."""
        sending = asyncio.ensure_future(self._send_all(scope, receive, send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        timing = self._settings
        started = False
        try:
            items = _paced(self._source, timing.early_headers_s, timing.heartbeat_s)
            async with contextlib.aclosing(items):
                async for item in items:
                    if not started:
                        await self._start(send)
                        started = True
                    await self._body(send, item or _WAIT)
        except _SlowReaderError:
            log.warning("slow_reader_cut_off", path=scope["path"], after_s=timing.send_timeout_s)
            return
        except Exception as error:
            # Any error of the source becomes a reply; one of ours is a bug and is logged too.
            if status_of(error) == 500 and not isinstance(error, PhloemError):
                log.error("stream_failed", path=scope["path"], exc_info=error)
            if not started:
                await error_reply(error)(scope, receive, send)
                return
            for item in self._on_error(error):
                await self._body(send, item)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _body(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._settings.send_timeout_s):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise _SlowReaderError from None


class _SlowReaderError(Exception):
    """The client has taken nothing for too long."""


async def _paced(
    source: AsyncGenerator[bytes, None], first_s: float, then_s: float
) -> AsyncGenerator[bytes | None, None]:
    """The items of `source`, and None each time it has been silent for that long."""
    coming = asyncio.ensure_future(anext(source))
    limit = first_s
    try:
        while True:
            await asyncio.wait({coming}, timeout=limit)
            limit = then_s
            if not coming.done():
                yield None
                continue
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            yield item
            coming = asyncio.ensure_future(anext(source))
    finally:
        coming.cancel()
        await asyncio.wait({coming})
        await source.aclose()
