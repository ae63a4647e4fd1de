"""The connections to model servers that one event loop holds.

What lives here: `Connections`, one for each request that runs, kept a while for the next one. What
does not: requests and their errors (`http.py`).

httpx's own pool looks through all its connections whenever a request begins or ends: with 40 of
them that takes five times as long as the request itself. So each connection is a pool of one here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable

import httpx

__all__ = ["RETRIES", "Connections"]

RETRIES = 2
"""Of a connection that can't be made."""


class Connections(httpx.AsyncBaseTransport):
    """`idle_s`: how long a connection is kept for the next request."""

    def __init__(self, idle_s: float) -> None:
        self._limits = httpx.Limits(max_connections=1, keepalive_expiry=idle_s)
        self._ssl = httpx.create_ssl_context()
        self._idle_s = idle_s
        self._busy: set[httpx.AsyncHTTPTransport] = set()
        self._idle: deque[tuple[float, httpx.AsyncHTTPTransport]] = deque()
        """With the time since when; the last one is used next, so the first is idle for longest."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `AsyncBaseTransport`."""
        await self._close_old()
        one = self._idle.pop()[1] if self._idle else self._new()
        self._busy.add(one)
        try:
            response = await one.handle_async_request(request)
        except BaseException:
            self._busy.discard(one)  # It has no connection any more.
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Stream(response.stream, lambda: self._rest(one))
        return response

    async def aclose(self) -> None:
        """See `AsyncBaseTransport`. Those in use are closed too."""
        for one in [*self._busy, *(one for _, one in self._idle)]:
            await one.aclose()
        self._busy.clear()
        self._idle.clear()

    def _new(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._ssl, limits=self._limits, retries=RETRIES)

    def _rest(self, one: httpx.AsyncHTTPTransport) -> None:
        if one in self._busy:
            self._busy.discard(one)
            self._idle.append((time.monotonic(), one))

    async def _close_old(self) -> None:
        while self._idle and time.monotonic() - self._idle[0][0] > self._idle_s:
            await self._idle.popleft()[1].aclose()


class _Stream(httpx.AsyncByteStream):
    """A response's bytes; `closed` is called once they are closed."""

    def __init__(self, stream: httpx.AsyncByteStream, closed: Callable[[], None]) -> None:
        self._stream = stream
        self._closed = closed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        """See `AsyncByteStream`."""
        await self._stream.aclose()
        self._closed()
