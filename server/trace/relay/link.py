"""One client's connection and its own connection to the upstream, tied together.

What lives here: `Link`: bytes pass both ways as they come, ends and resets too. What does not:
what the bytes mean. The relay ties connections, not requests: keep-alive, pipelining, chunk
borders, trailers, interim responses and upgrades are the upstream's own, and it sees a client go
away at once.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable

from phloem.server.trace.frames import Kind
from phloem.server.trace.relay.requests import RequestFraming, Upstream
from phloem.server.trace.relay.side import Side
from phloem.server.trace.relay.tap import Tap

__all__ = ["Link"]

CONNECT_S = 10.0
LINGER_S = 30.0
"""How long a client may still send after the upstream has ended."""


class Link:
    """The pair of connections. `over` is called once, when one of them is closed (the other is
    then being closed too)."""

    def __init__(
        self,
        number: int,
        upstream: Upstream,
        tls: ssl.SSLContext | None,
        tap: Tap,
        over: Callable[[Link], None],
    ) -> None:
        self._number = number
        self._upstream = upstream
        self._tls = tls
        self._tap = tap
        self._over: Callable[[Link], None] | None = over
        self._framing = RequestFraming()
        self._held: list[bytes] | None = []
        """What the client sent before the upstream was connected; None from then on."""
        self._refusal: bytes | None = None
        """The answer to a request if the upstream can't be connected."""
        self._timers: list[asyncio.Task[None] | asyncio.TimerHandle] = []
        self.client = Side(self._opened, self._client_sent, self._client_ended, self._client_lost)
        self._server = Side(
            self._connected, self._server_sent, self._server_ended, self._server_lost
        )
        self.client.other, self._server.other = self._server, self.client

    def abort(self) -> None:
        """Cut both connections."""
        self.client.abort()
        self._server.abort()

    def _tell(self, kind: Kind, payload: bytes = b"") -> None:
        self._tap.tell(kind, self._number, payload)

    # --- connecting

    def _opened(self) -> None:
        self._tell(Kind.OPEN, self.client.peer().encode())
        self._timers.append(asyncio.ensure_future(self._connect()))

    async def _connect(self) -> None:
        started = time.monotonic()
        to = self._upstream
        name = to.host if to.tls else None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(
                    lambda: self._server, to.host, to.port, ssl=self._tls, server_hostname=name
                )
        except (OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            self._tell(Kind.UNREACHABLE, reason.encode())
            self._refusal = _refusal(to, reason)
            if self._held:
                self._refuse()
        else:
            took = 1000 * (time.monotonic() - started)
            self._tell(Kind.CONNECTED, f"{took:.3f}".encode())

    def _connected(self) -> None:
        if self._over is None:  # the client left in this moment
            self._server.abort()
            return
        self._server.write(b"".join(self._held or ()))
        self._held = None
        if self.client.ended:
            self._server.end()
        self.client.resume()

    # --- traffic

    def _client_sent(self, data: bytes) -> None:
        passed = []
        for is_head, part in self._framing.split(data):
            self._tell(Kind.HEAD if is_head else Kind.REQUEST, part)
            passed.append(self._upstream.rewrite(part) if is_head else part)
        # In one piece, as it came: a server that answers before it has read a body and closes
        # would cut its own answer off if the body arrived later.
        data = b"".join(passed)
        if self._held is None:
            self._server.write(data)
            return
        self._held.append(data)
        # The rest waits in the client's socket.
        self.client.pause()
        if self._refusal is not None:
            self._refuse()

    def _refuse(self) -> None:
        assert self._refusal is not None
        self.client.write(self._refusal)
        self.client.close()

    def _server_sent(self, data: bytes) -> None:
        self.client.write(data)
        self._tell(Kind.RESPONSE, data)

    # --- ends

    def _client_ended(self) -> None:
        self._tell(Kind.CLIENT_GONE)
        if self._server.ended or self._refusal is not None:
            self.client.close()
        self._server.end()

    def _server_ended(self) -> None:
        self._tell(Kind.UPSTREAM_GONE)
        if self.client.ended:
            self._server.close()
            return
        self.client.end()
        self._timers.append(asyncio.get_running_loop().call_later(LINGER_S, self.abort))

    def _client_lost(self, error: Exception | None) -> None:
        self._lost(Kind.CLIENT_GONE, self._server, error)

    def _server_lost(self, error: Exception | None) -> None:
        self._lost(Kind.UPSTREAM_GONE, self.client, error)

    def _lost(self, gone: Kind, other: Side, error: Exception | None) -> None:
        if self._over is None:
            return
        over, self._over = self._over, None
        for timer in self._timers:
            timer.cancel()
        self._tell(gone)
        self._tell(Kind.CLOSED)
        if error is None:
            other.close()
        else:
            other.reset()
        over(self)


def _refusal(upstream: Upstream, reason: str) -> bytes:
    """A whole response, with an error as OpenAI's API has it."""
    message = f"the upstream {upstream.url} can't be reached: {reason}"
    error = {"message": message, "type": "upstream_error", "param": None, "code": "unreachable"}
    content = json.dumps({"error": error}).encode()
    head = (
        "HTTP/1.1 502 Bad Gateway",
        "content-type: application/json",
        f"content-length: {len(content)}",
        "connection: close",
    )
    return "\r\n".join([*head, "", ""]).encode() + content
