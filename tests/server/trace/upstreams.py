"""A server whose every answer is a pure function of the request, down to the byte.

What lives here: `Scripted`. It speaks raw HTTP/1.1 on a thread of its own, so that tests can ask
for what no web framework sends: odd chunk borders, trailers, interim responses, broken answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import h11


class Scripted:
    """`seen` holds the bytes that came, connection by connection; `gone` counts clients that
    went away before their answer was whole."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.gone = 0
        self.url = ""
        self.secrets: list[str] = []
        """What `mirror` tells besides: secrets that it has from somewhere else."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.seen)
        self.seen.append(b"")
        received = bytearray()
        parser = h11.Connection(h11.SERVER)
        try:
            while True:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(65536)
                    received += data
                    parser.receive_data(data)
                elif isinstance(event, h11.Request):
                    request, parts = event, []
                elif isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    left = parser.trailing_data[0]
                    if not await self.answer(request, b"".join(parts), reader, writer):
                        return
                    parser = h11.Connection(h11.SERVER)
                    if left:
                        parser.receive_data(left)
                else:
                    return
        except (h11.RemoteProtocolError, ConnectionError):
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        finally:
            self.seen[number] = bytes(received)
            writer.close()

    async def answer(
        self,
        request: h11.Request,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection goes on. The path names the kind and a seed: /KIND/SEED."""
        _, kind, seed = request.target.decode().split("/")[:3]
        chance = random.Random(seed)
        if kind == "echo":
            reply = f"{len(body)}:".encode() + body
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(reply)}\r\nX-Odd:  a  b \r\n\r\n"
            writer.write(head.encode() + reply)
        elif kind == "error":
            status = chance.choice([400, 404, 429, 500, 503])
            reply = b'{"error": {"message": "no", "code": "nope"}}'
            head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(reply)}\r\n\r\n".encode() + reply)
        elif kind == "empty":
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif kind == "interim":
            writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        elif kind == "close":
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + chance.randbytes(chance.randint(0, 3000)))
            await writer.drain()
            return False
        elif kind == "broken":
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal")
            await writer.drain()
            return False
        elif kind == "mirror":
            await self._mirror(request, body, writer)
        elif kind == "endless":
            await self._endless(reader, writer)
            return False
        else:
            await self._chunked(chance, writer)
        await writer.drain()
        return (b"connection", b"close") not in request.headers

    async def _chunked(self, chance: random.Random, writer: asyncio.StreamWriter) -> None:
        """A stream of events with chunk borders anywhere, an extension, and a trailer."""
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n"
        )
        events = b"".join(
            b'data: {"choices":[{"index":0,"delta":{"content":"w%d "}}]}\n\n' % number
            for number in range(chance.randint(1, 20))
        )
        while events:
            size = chance.randint(1, 40)
            piece, events = events[:size], events[size:]
            extension = b";a=b" if chance.random() < 0.1 else b""
            writer.write(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece))
            await asyncio.sleep(0)
        writer.write(b"0\r\nx-sum: 12\r\n\r\n")

    async def _mirror(
        self, request: h11.Request, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        """Everything that came, told again as an error, as text, and in pieces of a stream."""
        told = [request.target.decode(), *(value.decode() for _, value in request.headers)]
        text = " ".join([*told, body.decode(), *self.secrets])
        if request.target.endswith(b"/stream"):
            pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
            deltas = [{"choices": [{"index": 0, "delta": {"content": one}}]} for one in pieces]
            reply = "".join(f"data: {json.dumps(one)}\n\n" for one in deltas).encode()
            head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        else:
            error = {"message": f"bad key: {text}", "code": "invalid_api_key", "details": told}
            reply = json.dumps({"error": error}).encode()
            head = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\n"
            head += f"set-cookie: s={self.secrets[0]}\r\nx-told: {self.secrets[0]}\r\n"
        writer.write(f"{head}content-length: {len(reply)}\r\n\r\n".encode() + reply)

    async def _endless(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Events until the client goes away."""
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        leaving = asyncio.ensure_future(reader.read(1))
        while not leaving.done():
            writer.write(b"3\r\nabc\r\n")
            await asyncio.wait({leaving}, timeout=0.005)
        self.gone += 1


@contextmanager
def scripted() -> Iterator[Scripted]:
    """A running one."""
    upstream = Scripted()
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Server:
        server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
        upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    server = loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield upstream
    finally:

        async def end() -> None:
            server.close()
            tasks = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
