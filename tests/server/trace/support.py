"""A trace proxy in this process for tests, and raw connections through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from phloem.server.trace.options import Options, SinkSpec, parse_upstream
from phloem.server.trace.proxy import TraceProxy
from phloem.server.trace.reader import TraceFilter, TraceReader
from phloem.server.trace.record import RunTrace


@contextmanager
def proxying(upstream: str, *sinks: SinkSpec, **settings: Any) -> Iterator[str]:
    """The address of a proxy in front of `upstream`; when it is left everything is kept."""
    started, stop = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    async def main() -> None:
        options = Options(upstream=parse_upstream(upstream), sinks=sinks, port=0, **settings)
        async with TraceProxy(options) as proxy:
            found["proxy"] = proxy
            started.set()
            await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            uvloop.run(main())
        except BaseException as error:
            found["error"] = error
            started.set()
            raise

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        assert "error" not in found, found["error"]
        yield f"http://127.0.0.1:{found['proxy'].port}"
    finally:
        stop.set()
        thread.join()


def jsonl(folder: Path) -> SinkSpec:
    """A sink that writes into a folder."""
    return SinkSpec("jsonl", str(folder))


def everything(reader: TraceReader) -> list[RunTrace]:
    """All traces, oldest first."""
    found = [reader.get(one.id) for one in reader.list(TraceFilter(), limit=1000).items]
    return sorted(found, key=lambda run: run.started)


def until(ready: Callable[[], Any], seconds: float = 20) -> Any:
    """Wait until `ready()` is true, and return it."""
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def address(url: str) -> tuple[str, int]:
    """Host and port of an address."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def send(url: str, request: bytes, cut_after: int | None = None) -> bytes:
    """All bytes that come back for `request`; with `cut_after` the client goes away once it has
    that many."""
    with socket.create_connection(address(url), timeout=30) as connection:
        connection.sendall(request)
        return receive(connection, cut_after)


def receive(connection: socket.socket, limit: int | None = None) -> bytes:
    """Bytes until the other end closes, or `limit` of them."""
    came = bytearray()
    while limit is None or len(came) < limit:
        data = connection.recv(65536 if limit is None else limit - len(came))
        if not data:
            break
        came += data
    return bytes(came)


def receive_until_reset(connection: socket.socket, limit: int | None) -> bytes:
    """The same from a server that may reset a connection after its answer."""
    came = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while (limit is None or len(came) < limit) and (data := connection.recv(4096)):
            came += data
    return bytes(came[:limit])
