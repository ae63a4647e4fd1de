"""Server-sent events that arrive in time, whatever stands in between.

What lives here: the response class and its timing. What does not: what the events say.

* The first event is waited for a moment before the status goes out, so that an early error
  (too long, queue full) is a real 4xx or 5xx. After that moment, or as soon as the engine has
  accepted the work (`ACCEPTED`), the headers go out with a comment line, so a proxy sees life.
* Silence is filled with comment lines (`: wait`), never inside an event.
* A reader that takes nothing for `send_timeout_s` is cut off; one that goes away ends the
  source within one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence

import structlog
from fastapi.sse import format_sse_event
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phloem.errors import PhloemError
from phloem.server.error_map import status_of
from phloem.server.http.disconnect import disconnected
from phloem.server.http.replies import error_reply, stopping
from phloem.server.settings import Settings

__all__ = ["ACCEPTED", "HEADERS", "EventStream", "event"]

log = structlog.get_logger("phloem.server")

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    # nginx and its kind must not collect the stream.
    "x-accel-buffering": "no",
}

_WAIT = format_sse_event(comment="wait")
ACCEPTED = format_sse_event(comment="accepted")
"""For work that waits for its turn, where the API has no event that says so."""


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
        """Send until the source ends, the client goes away, or it takes nothing any more."""
        wire = _Wire(send, self.raw_headers, self._settings)
        sending = asyncio.ensure_future(self._send_all(wire, scope, receive, send))
        gone = asyncio.ensure_future(disconnected(receive))
        watching = asyncio.ensure_future(wire.watch())
        try:
            await asyncio.wait({sending, gone, watching}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif watching.done():
                watching.result()
                limit = self._settings.send_timeout_s
                log.warning("slow_reader_cut_off", path=scope["path"], after_s=limit)
        except asyncio.CancelledError:
            await _ended(sending, gone, watching)
            await self._fail(wire, stopping(), scope, receive, send)
        finally:
            await _ended(sending, gone, watching)

    async def _send_all(self, wire: _Wire, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with contextlib.aclosing(self._source) as items:
                async for item in items:
                    await wire.put(item)
        except Exception as error:
            # Any error of the source becomes a reply; one of ours is a bug and is logged too.
            if status_of(error) == 500 and not isinstance(error, PhloemError):
                log.error("stream_failed", path=scope["path"], exc_info=error)
            await self._fail(wire, error, scope, receive, send)
            return
        await wire.end()

    async def _fail(
        self, wire: _Wire, error: Exception, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """End with an error: a plain reply if nothing was sent yet, else events."""
        if wire.close_unstarted():
            await error_reply(error)(scope, receive, send)
            return
        for item in self._on_error(error):
            await wire.put(item)
        await wire.end()


async def _ended(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Wire:
    """One stream on its way out: its start, its events, and comment lines into its silence.

    Nothing here is done for each event but sending it: one task per stream sleeps, and looks
    now and then whether the stream has been silent, or its reader has taken nothing, for too long.
    """

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]], settings: Settings) -> None:
        self._send = send
        self._headers = headers
        self._settings = settings
        self._lock = asyncio.Lock()
        self._started = self._closed = False
        self._latest = time.monotonic()
        """When something was sent last; or the beginning."""
        self._sending_since: float | None = None

    async def put(self, data: bytes) -> None:
        """Send whole events, after the headers."""
        async with self._lock:
            if self._closed:
                return
            self._sending_since = time.monotonic()
            await self._start()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._sending_since = None
            self._latest = time.monotonic()

    async def end(self) -> None:
        """The last that is sent; of a source without events, all."""
        async with self._lock:
            self._closed = True
            await self._start()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self) -> None:
        if not self._started:
            self._started = True
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await self._send(start)

    def close_unstarted(self) -> bool:
        """Whether another reply can be made, since nothing of this one was sent; then nothing
        will be."""
        if self._started:
            return False
        self._closed = True
        return True

    async def watch(self) -> None:
        """Fill silence with comment lines. Returns when the reader has taken nothing for
        `send_timeout_s`."""
        settings = self._settings
        while True:
            now = time.monotonic()
            if self._sending_since is not None:
                left = self._sending_since + settings.send_timeout_s - now
                if left <= 0:
                    return
            else:
                patience = settings.heartbeat_s if self._started else settings.early_headers_s
                left = self._latest + patience - now
                if left <= 0:
                    try:
                        async with asyncio.timeout(settings.send_timeout_s):
                            await self.put(_WAIT)
                    except TimeoutError:
                        return
                    continue
            await asyncio.sleep(min(left, settings.send_timeout_s))
