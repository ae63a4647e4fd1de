"""A canned server beside a synchronous test.

What lives here: `answering`. What does not: the replies (`canned.py`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .canned import canned


@contextmanager
def answering(replies: Mapping[str, bytes]) -> Iterator[str]:
    """Serve `replies` in a thread of its own; gives the address."""
    ready = threading.Event()
    found: list[str] = []
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with canned(replies) as server:
            found.append(server.url)
            ready.set()
            await done.wait()

    def main() -> None:
        loop.run_until_complete(serve())
        loop.close()

    thread = threading.Thread(target=main)
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
