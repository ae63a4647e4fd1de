"""Work that ends with its client.

What lives here: noticing that a client has gone, and running a coroutine until then. What
does not: streams, which have more to watch (`sse.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from phloem.errors import Cancelled

__all__ = ["disconnected", "while_connected"]

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, which is cancelled when the client disconnects.

    The body must have been read: the only message left to come is the disconnect. Raises
    `Cancelled` then, for a reply that nobody reads.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Cancelled("the client went away")
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone away. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
