"""The listening side of the proxy.

What lives here: `Relay`: a link for each connection, and a clean end. What does not: the
recorder's process (`server/trace/proxy.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl

from phloem.errors import ConfigError
from phloem.server.trace.relay.link import Link
from phloem.server.trace.relay.requests import Upstream
from phloem.server.trace.relay.tap import Tap

__all__ = ["Relay"]


class Relay:
    """Passes every connection on to `upstream`. `connections` counts those so far."""

    def __init__(self, upstream: Upstream, tap: Tap, tls: ssl.SSLContext | None = None) -> None:
        self._upstream = upstream
        self._tap = tap
        self._tls = (tls or ssl.create_default_context()) if upstream.tls else None
        self._numbers = itertools.count(1)
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.connections = 0

    async def listen(self, host: str, port: int, listener: socket.socket | None = None) -> int:
        """Begin to listen there, or on a socket that listens already, and return the port.
        Raises `ConfigError` if the address can't be used."""
        loop = asyncio.get_running_loop()
        try:
            if listener is not None:
                self._server = await loop.create_server(self._link, sock=listener)
            else:
                self._server = await loop.create_server(self._link, host, port, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"can't listen on {host}:{port}: {error}", hint="take another --listen"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    def _link(self) -> asyncio.BaseProtocol:
        link = Link(next(self._numbers), self._upstream, self._tls, self._tap, self._over)
        self._links.add(link)
        self._idle.clear()
        self.connections += 1
        return link.client

    def _over(self, link: Link) -> None:
        self._links.discard(link)
        if not self._links:
            self._idle.set()

    async def close(self, grace_s: float) -> None:
        """Take no more connections, let the open ones go on for at most `grace_s`, cut the
        rest."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        for link in list(self._links):
            link.abort()
        await asyncio.sleep(0)
