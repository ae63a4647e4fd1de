"""A server that answers with bytes written down beforehand, for failures no real server offers.

What lives here: `Canned`. What does not: anything that computes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = bytes | Sequence[bytes] | Callable[[Any], bytes]
Replies = Mapping[str, Reply]


def reply(status: int, body: str, kind: str = "application/json", extra: str = "") -> bytes:
    """A whole HTTP/1.1 reply; `extra` is one more header."""
    data = body.encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *([extra] if extra else []), "", ""]).encode() + data


def stream(*events: str) -> bytes:
    """An event stream that is cut by the end of the connection, without its last chunk."""
    chunks = [f"data: {event}\n\n".encode() for event in events]
    framed = b"".join(f"{len(c):x}\r\n".encode() + c + b"\r\n" for c in chunks)
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode() + framed


INFO: dict[str, Reply] = {
    "/get_model_info": reply(200, json.dumps({"model_path": "tiny"})),
    "/get_server_info": reply(200, json.dumps({"version": "0.5.23", "max_req_input_len": 4000})),
    "/abort_request": reply(200, ""),
}


@dataclass
class Canned:
    """`replies` by path, or several for a path: one for each request, the last of them for all that
    follow; or a function of the request's JSON. A connection is closed after its reply. `asked`
    lists the paths, `heads` the requests' headers, `bodies` what was sent to /generate."""

    replies: Replies
    hang: bool = False
    asked: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        """Serve on a loopback port, after `stop` on the same one."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Refuse connections from now on, and close those that hang."""
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if b"content-length" in line), 0
        )
        sent = await reader.readexactly(length)
        self.asked.append(path)
        self.heads.append(head.decode())
        found = (INFO | dict(self.replies))[path]
        if path == "/generate":
            self.bodies.append(json.loads(sent))
        if callable(found):
            found = found(json.loads(sent))
        elif not isinstance(found, bytes):
            found = found[min(self.asked.count(path), len(found)) - 1]
        writer.write(found)
        await writer.drain()
        if self.hang and path not in INFO:
            await reader.read()
        writer.close()
        await writer.wait_closed()
        self._open.discard(writer)


@asynccontextmanager
async def canned(replies: Replies, *, hang: bool = False) -> AsyncIterator[Canned]:
    """Serve on a loopback port; with `hang` the connection is kept open after the reply."""
    made = Canned(replies, hang)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
