"""Connections to model servers: how many, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from phloem.runtime.remote.connections import Connections

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass
class Door:
    """A server that counts its connections, and answers once `together` requests have come."""

    together: int = 1
    url: str = ""
    made: int = 0
    left: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released for each connection that the client has closed."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.made += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.waiting.append(writer)
                self.asked.set()
                if len(self.waiting) == self.together:
                    for each in self.waiting:
                        each.write(ANSWER)
                    self.waiting.clear()
        except asyncio.IncompleteReadError:
            self.left.release()
        finally:
            writer.close()


@asynccontextmanager
async def opened(door: Door, idle_s: float) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server, which sees all connections closed at the end."""
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    door.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with httpx.AsyncClient(transport=Connections(idle_s)) as client:
        yield client
    for _ in range(door.made):
        await door.left.acquire()
    server.close()
    await server.wait_closed()


async def test_each_request_at_once_has_a_connection_and_later_ones_use_them_again() -> None:
    """Five at once take five, the next five the same; one after the other takes one."""
    door = Door(together=5)
    async with opened(door, idle_s=60) as client:
        for _ in range(2):
            await asyncio.gather(*(client.get(door.url) for _ in range(5)))
        assert door.made == 5
        door.together = 1
        for _ in range(3):
            await client.get(door.url)
        assert door.made == 5


async def test_an_idle_connection_is_closed() -> None:
    """What was idle for too long is not used again, and closed with the next request."""
    door = Door()
    async with opened(door, idle_s=0) as client:
        await client.get(door.url)
        await client.get(door.url)
        assert door.made == 2
        await door.left.acquire()
        door.left.release()


async def test_a_connection_that_breaks_or_is_left_is_not_used_again() -> None:
    """After a cancelled request, an answer that was not read, and a refused connection the next
    request works, on a connection of its own."""
    door = Door(together=2)
    async with opened(door, idle_s=60) as client:
        given_up = asyncio.create_task(client.get(door.url))
        await door.asked.wait()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        door.waiting.clear()
        door.together = 1
        async with client.stream("GET", door.url):
            pass
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
        assert (await client.get(door.url)).text == "ok"
        assert door.made == 3
