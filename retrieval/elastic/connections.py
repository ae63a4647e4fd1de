"""One client for each event loop, closed with its loop.

What lives here: keeping, finding and closing them. What does not: clients. A client's connections
belong to the loop that opened them, and programs run in several loops (`asyncio.run` makes a new
one each time, the executor keeps one for all runs): a search uses the client of the loop it is
in, so no call changes threads, and a loop that ends takes its connections with it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

__all__ = ["Connections"]

_CLOSING_S = 2.0


class Closable(Protocol):
    """What holds connections of one event loop."""

    async def close(self) -> None:
        """Close them."""
        ...


C = TypeVar("C", bound=Closable)


class Connections(Generic[C]):
    """The clients that `make` makes, by event loop. Safe to use from several threads."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._clients: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[C, None]]] = {}
        _everything.add(self)

    async def get(self) -> C:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            for old in [other for other in list(self._clients) if other.is_closed()]:
                self._clients.pop(old, None)  # closed without a farewell: nothing to be done
            # A loop that is shut down closes its asynchronous generators (PEP 525): this one is
            # how the client hears of it.
            keeper = self._keep(loop)
            self._clients[loop] = (await anext(keeper), keeper)
        return self._clients[loop][0]

    async def aclose(self) -> None:
        """Close the clients of all loops."""
        here = asyncio.get_running_loop()
        for loop, (_, keeper) in list(self._clients.items()):
            if loop is here:
                await keeper.aclose()
            elif loop.is_running():
                await asyncio.wrap_future(_close_elsewhere(keeper, loop))

    def close_at_exit(self) -> None:
        """Close the clients of loops that other threads run. The process is about to end."""
        for loop, (_, keeper) in list(self._clients.items()):
            if loop.is_running():
                # A server that does not let go must not keep the process alive.
                with contextlib.suppress(TimeoutError):
                    _close_elsewhere(keeper, loop).result(_CLOSING_S)

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[C, None]:
        client = self._make()
        try:
            yield client
        finally:
            self._clients.pop(loop, None)
            await client.close()


def _close_elsewhere(
    keeper: AsyncGenerator[C, None], loop: asyncio.AbstractEventLoop
) -> concurrent.futures.Future[None]:
    async def close() -> None:
        await keeper.aclose()

    return asyncio.run_coroutine_threadsafe(close(), loop)


_everything: WeakSet[Connections[Any]] = WeakSet()


@atexit.register
def _close_everything() -> None:
    """Connections that are still open would be reported as leaks when the interpreter ends."""
    for connections in list(_everything):
        connections.close_at_exit()
