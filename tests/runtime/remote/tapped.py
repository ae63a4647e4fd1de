"""phloem's own server as the other end of its SGLang backend, with an ear on the wire.

What lives here: `tapped`, a real server over the tiny model whose requests are noted, and which
can be made to say wrong things of itself, to ignore constraints, or to break off. What does not:
the server (it is `phloem serve`'s), and SGLang (tests marked `sglang` run against that).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.model.loaded import LoadedModel
from phloem.runtime.model.tiny import tiny_model
from tests.server.harness import serving

CONSTRAINTS = ("regex", "json_schema", "ebnf", "structural_tag")


@dataclass
class Tap:
    """`info` overrides what /get_server_info says; `enforce=False` drops constraints; a stream is
    broken off after `cut_after` events."""

    info: dict[str, Any] = field(default_factory=dict)
    enforce: bool = True
    cut_after: int | None = None
    model: LoadedModel = field(default_factory=tiny_model)
    requests: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """`app` with this tap in front of it."""

        async def tap(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            self.asked.append(scope["path"])
            body = self._note(scope["path"], await _read(receive))
            sent = False

            async def replay() -> Message:
                nonlocal sent
                if sent:
                    return await receive()
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}

            if scope["path"] == "/get_server_info":
                send = self._rewritten(send)
            if scope["path"] == "/generate" and self.cut_after is not None:
                send = self._cut(send)
            await app(scope, replay, send)

        return tap

    def _note(self, path: str, body: bytes) -> bytes:
        if path == "/abort_request":
            self.aborted.append(json.loads(body)["rid"])
        if path != "/generate":
            return body
        asked = json.loads(body)
        self.requests.append(asked)
        if self.enforce:
            return body
        params = asked["sampling_params"]
        kept = {name: value for name, value in params.items() if name not in CONSTRAINTS}
        return json.dumps(asked | {"sampling_params": kept}).encode()

    def _rewritten(self, send: Send) -> Send:
        start: Message = {}

        async def rewrite(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body = json.dumps(json.loads(message["body"]) | self.info).encode()
            headers = [(n, v) for n, v in start["headers"] if n != b"content-length"]
            length = (b"content-length", str(len(body)).encode())
            await send(start | {"headers": [*headers, length]})
            await send({"type": "http.response.body", "body": body})

        return rewrite

    def _cut(self, send: Send) -> Send:
        left = self.cut_after or 0

        async def cut(message: Message) -> None:
            nonlocal left
            if message.get("body", b"").startswith(b"data:"):
                left -= 1
            if left < 0:
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        return cut


async def _read(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


@contextmanager
def tapped(tap: Tap | None = None) -> Iterator[Tap]:
    """A server on a loopback port with this tap on it."""
    made = tap or Tap()
    with serving(EmbeddedBackend(made.model), wrap=made.wrap) as running:
        made.url = running.url
        made.requests.clear()
        made.asked.clear()
        yield made
