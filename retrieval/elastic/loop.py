"""One background event loop for all network clients of this process.

What lives here: the loop and the hop onto it. What does not: clients. A client's connections
belong to the loop that opened them, but programs run in many loops (each `run()` may bring its
own, and close it): here they all share one pool of connections, which none of them can break.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["on_network_loop", "start_on_network_loop"]

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid = 0


def _network_loop() -> asyncio.AbstractEventLoop:
    """The loop, started at the first call in this process (a forked child starts its own)."""
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(
                target=_loop.run_forever, name="phloem-retrieval-net", daemon=True
            ).start()
        return _loop


def start_on_network_loop(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run `work` over there; the future belongs to the running loop, and cancels `work`."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _network_loop()))


async def on_network_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, run over there."""
    return await start_on_network_loop(work)
