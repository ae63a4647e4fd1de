"""Calls to a server: within a total time, retried where that can help, many searches as one.

What lives here: timeouts, retries and the joining of simultaneous searches into one
`_msearch`. What does not: what is asked (`bodies.py`) and what an answer means.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote
from weakref import WeakKeyDictionary

from phloem.errors import PhloemError, RetrievalError, RetrievalUnavailable
from phloem.retrieval.base import traceparent
from phloem.retrieval.elastic.address import Address
from phloem.retrieval.elastic.connections import Connections
from phloem.retrieval.elastic.failures import BUSY, failure_of
from phloem.retrieval.elastic.transport import Reply, Transport, not_json, timed_out

__all__ = ["Caller"]

_BACKOFF_S = 0.05
_MAX_SEARCHES_PER_CALL = 64


@dataclass
class _Search:
    index: str
    body: Mapping[str, Any]
    timeout: float
    reply: asyncio.Future[Reply]
    trace: str | None = field(default_factory=traceparent.get)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    index: str
    seconds: float
    body: Any
    params: Mapping[str, Any]
    trace: str | None


class Caller:
    """Sends requests through transports, which it opens at need and after `aclose` again."""

    def __init__(
        self, address: Address, open_transport: Callable[[Address], Transport], *, retries: int
    ) -> None:
        self.address = address
        self._connections = Connections(lambda: open_transport(address))
        self._retries = retries
        self._sending: set[asyncio.Task[list[Reply]]] = set()
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Search]] = (
            WeakKeyDictionary()
        )

    async def call(
        self,
        method: str,
        path: str,
        *,
        index: str,
        seconds: float,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        """The body of a successful answer within `seconds` in total.

        Raises the error that the answer means (`failures.failure_of`).
        """
        reply = await self.reply(
            method, path, index=index, seconds=seconds, body=body, params=params
        )
        failure = failure_of(reply, self.address, index)
        if failure is not None:
            raise failure
        return reply.body

    async def reply(
        self,
        method: str,
        path: str,
        *,
        index: str,
        seconds: float,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
    ) -> Reply:
        """The answer, whatever its status, within `seconds` in total."""
        request = _Request(method, path, index, seconds, body, params or {}, traceparent.get())
        return await self._send(request)

    async def search(self, index: str, body: Mapping[str, Any], *, seconds: float) -> Reply:
        """The answer to one search. Searches made in the same turn of the caller's event loop
        (the branches of a fork) travel together."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.setdefault(loop, [])
        if not waiting:
            loop.call_soon(self._flush, loop)
        one = _Search(index, body, seconds, loop.create_future())
        waiting.append(one)
        return await one.reply

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connections.aclose()

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting.pop(loop)
        for start in range(0, len(waiting), _MAX_SEARCHES_PER_CALL):
            batch = waiting[start : start + _MAX_SEARCHES_PER_CALL]
            sending = loop.create_task(self._send_searches(batch))
            self._sending.add(sending)  # the loop itself keeps no task alive
            sending.add_done_callback(self._sending.discard)
            sending.add_done_callback(partial(_deliver, batch))
            for one in batch:
                one.reply.add_done_callback(partial(_cancel_unwanted, batch, sending))

    async def _send_searches(self, batch: Sequence[_Search]) -> list[Reply]:
        first = batch[0]
        seconds = max(one.timeout for one in batch)
        if len(batch) == 1:
            path = f"/{quote(first.index, safe=',*')}/_search"
            request = _Request("POST", path, first.index, seconds, first.body, {}, first.trace)
            return [await self._send(request)]
        began = time.monotonic()
        try:
            replies = await self._send_together(batch, seconds)
        except RetrievalError as error:
            if error.details.get("status") != 400:
                raise
            # A server refuses them all for one that it can't read: alone each hears its own.
            alone = (self._send_searches([one]) for one in batch)
            return [found[0] for found in await asyncio.gather(*alone)]
        # A search that the server was too busy for is tried again as it would be alone.
        busy = [place for place, reply in enumerate(replies) if reply.status in BUSY]
        left = seconds - (time.monotonic() - began) - _BACKOFF_S
        if self._retries and busy and left > 0:
            await asyncio.sleep(_BACKOFF_S)
            again = [self._send_searches([replace(batch[place], timeout=left)]) for place in busy]
            for place, tried in zip(busy, await asyncio.gather(*again), strict=True):
                replies[place] = tried[0]
        return replies

    async def _send_together(self, batch: Sequence[_Search], seconds: float) -> list[Reply]:
        """Several searches as one `_msearch`. Its trace is that of the first."""
        lines: list[Any] = []
        for one in batch:
            lines += [{"index": one.index}, one.body]
        named = ", ".join(sorted({one.index for one in batch}))
        request = _Request("POST", "/_msearch", named, seconds, lines, {}, batch[0].trace)
        reply = await self._send(request)
        failure = failure_of(reply, self.address, named)
        if failure is not None:
            raise failure
        answers = reply.body.get("responses") if isinstance(reply.body, Mapping) else None
        if (
            not isinstance(answers, list)
            or len(answers) != len(batch)
            or not all(isinstance(answer, Mapping) for answer in answers)
        ):
            raise not_json(self.address, reply.status, reply.body)
        return [Reply(answer.get("status", 200), answer) for answer in answers]

    async def _send(self, request: _Request) -> Reply:
        """One request, with retries that all fit into its time."""
        deadline = time.monotonic() + request.seconds
        try:
            async with asyncio.timeout(request.seconds):
                transport = await self._connections.get()
                for attempt in range(self._retries + 1):
                    last = attempt == self._retries
                    pause = _BACKOFF_S * 2**attempt * (1 + random.random())
                    last = last or time.monotonic() + pause >= deadline
                    try:
                        reply = await transport.request(
                            request.method,
                            request.path,
                            params=request.params,
                            body=request.body,
                            headers={"traceparent": request.trace} if request.trace else {},
                        )
                        if last or reply.status not in BUSY:
                            return reply
                    except RetrievalUnavailable as error:
                        if last or error.details.get("kind") == "tls":
                            raise
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise timed_out(self.address, request.index, request.seconds) from None
        raise AssertionError("unreachable: the last attempt returns or raises")


def _deliver(batch: Sequence[_Search], done: asyncio.Task[list[Reply]]) -> None:
    """Hand each search its reply, or all of them the error."""
    error = None if done.cancelled() else done.exception()
    for place, one in enumerate(batch):
        if one.reply.done():
            continue
        if done.cancelled():
            one.reply.cancel()
        elif error is None:
            one.reply.set_result(done.result()[place])
        elif isinstance(error, PhloemError):
            # A copy each: every waiter may attach its own place to it.
            one.reply.set_exception(type(error)(error.message, hint=error.hint, **error.details))
        else:
            one.reply.set_exception(error)


def _cancel_unwanted(
    batch: Sequence[_Search],
    sending: asyncio.Task[list[Reply]],
    _: asyncio.Future[Reply],
) -> None:
    """Stop a request that nobody waits for any more."""
    if all(one.reply.cancelled() for one in batch):
        sending.cancel()
