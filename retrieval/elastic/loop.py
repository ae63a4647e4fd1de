"""One background event loop for all network clients of this process.

What lives here: the loop and the hop onto it. What does not: clients. A client's connections
belong to the loop that opened them, but programs run in many loops (each `run()` may bring its
own, and close it): here they all share one pool of connections, which none of them can break.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from phloem.errors import PhloemError

__all__ = ["Outcome", "close", "close_at_exit", "on_network_loop", "start_on_network_loop"]

T = TypeVar("T")
_CLOSING_S = 2.0


class Closable(Protocol):
    """What holds connections on the network loop."""

    async def close(self) -> None:
        """Close them."""
        ...


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid = 0
_open: set[Closable] = set()


def _network_loop() -> asyncio.AbstractEventLoop:
    """The loop, started at the first call in this process (a forked child starts its own)."""
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            _open.clear()  # what a forked child inherits is its parent's to close
            threading.Thread(
                target=_loop.run_forever, name="phloem-retrieval-net", daemon=True
            ).start()
        return _loop


def close_at_exit(resource: Closable) -> None:
    """Close `resource` when the process ends, unless `close` is called before."""
    _open.add(resource)


async def close(resource: Closable) -> None:
    """Close `resource` now."""
    _open.discard(resource)
    await on_network_loop(resource.close())


@atexit.register
def _close_all() -> None:
    """Connections that are still open would be reported as leaks when the interpreter ends."""
    if _loop is None or _pid != os.getpid() or not _open:
        return

    async def closing() -> None:
        await asyncio.gather(*(one.close() for one in _open), return_exceptions=True)

    done = asyncio.run_coroutine_threadsafe(closing(), _loop)
    # A server that does not let go must not keep the process alive.
    with contextlib.suppress(TimeoutError):
        done.result(_CLOSING_S)


Outcome: TypeAlias = tuple[T, None] | tuple[None, PhloemError]
"""What became of a piece of work: its value, or its error."""


def start_on_network_loop(work: Coroutine[Any, Any, T]) -> asyncio.Future[Outcome[T]]:
    """Run `work` over there; the future belongs to the running loop, and cancels `work`.

    The error is a value and not raised by the future: when a caller goes away in the same moment
    in which `work` fails, nobody is left to retrieve it, and asyncio would log it as lost.
    """
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_outcome(work), _network_loop()))


async def on_network_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, run over there."""
    value, error = await start_on_network_loop(work)
    if error is not None:
        raise error
    return cast("T", value)


async def _outcome(work: Coroutine[Any, Any, T]) -> Outcome[T]:
    try:
        return await work, None
    except PhloemError as error:
        return None, error
