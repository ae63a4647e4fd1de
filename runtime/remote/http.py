"""JSON over HTTP to a model server: whole replies and event streams, every failure an error.

What lives here: `HttpClient` and how a failed reply reads. What does not: what is asked
(`runtime/sglang`, `runtime/openai`).

Only a connection that could not be made is tried again, a bounded number of times: from then on
a server may have begun to work. Proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import weakref
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import httpx

from phloem.errors import ConfigError, EngineError, EngineUnavailable, Overloaded
from phloem.retrieval.base import traceparent
from phloem.runtime.remote.connections import RETRIES, Connections
from phloem.runtime.remote.limits import Limit

__all__ = ["HttpClient"]

_SHOWN = 500
"""Characters of a failed reply that its error shows."""
_CONNECT_S = 10.0
_END_S = 1.0
"""How long a stream may stay open after its last event before its connection is given up."""
_FIELDS = (":", "event:", "id:", "retry:")
"""What lines of an event stream begin with, but for its data."""
_UNSENDABLE = re.compile(r"[^\x21-\x7e]")
_IDLE_S = 3.0
"""How long a connection is kept for the next request. Servers close theirs after 5 s as a rule: one
that is closed just as a request goes out would look like a server that died."""


Clients: TypeAlias = WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]


class HttpClient:
    """Requests to one server. May be used from several event loops.

    Failures are `EngineError` with the status and the start of the body; `EngineUnavailable`
    where no connection could be made or it broke, and for 502, a proxy's word for that;
    `Overloaded` for 429 and 503; `ConfigError` for 401, 403, an address that is none, and a key
    that no header can hold. No error shows the key, which servers like to quote.
    """

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self.url = base_url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"{base_url!r} is no http(s) address", hint="for example http://127.0.0.1:30000"
            )
        if api_key and _UNSENDABLE.search(api_key):
            raise ConfigError(
                "the API key has a character that a header can't hold",
                hint="it is letters, digits and signs; look for a line end or a space in it",
            )
        self._key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._clients: Clients = WeakKeyDictionary()
        # A program that runs from synchronous code has no good moment to close its backend.
        weakref.finalize(self, _let_go, self._clients).atexit = False

    def get(self, path: str, timeout: float) -> Any:
        """The JSON at `path`. Blocks; for the first contact only."""
        transport = httpx.HTTPTransport(retries=RETRIES)
        with httpx.Client(transport=transport, headers=self._headers, timeout=timeout) as client:
            try:
                response = client.get(self.url + path)
            except httpx.HTTPError as error:
                raise self._lost(path, error) from error
        if not response.is_success:
            raise self._refused(path, response)
        return self._parse(path, response.text)

    async def post(self, path: str, body: Any, limit: Limit) -> Any:
        """The whole JSON reply."""
        return self._parse(path, (await self._post(path, body, limit)).text)

    async def fetch(self, path: str, limit: Limit) -> Any:
        """The JSON at `path`."""
        try:
            response = await limit.wait(self._client().get(self.url + path))
        except httpx.HTTPError as error:
            raise self._lost(path, error) from error
        if not response.is_success:
            raise self._refused(path, response)
        return self._parse(path, response.text)

    async def tell(self, path: str, limit: Limit, body: Any = None) -> None:
        """A request whose reply says no more than that it was done."""
        await self._post(path, body, limit)

    async def _post(self, path: str, body: Any, limit: Limit) -> httpx.Response:
        try:
            response = await limit.wait(self._client().post(self.url + path, json=body))
        except httpx.HTTPError as error:
            raise self._lost(path, error) from error
        if not response.is_success:
            raise self._refused(path, response)
        return response

    async def stream(self, path: str, body: Any, limit: Limit) -> AsyncGenerator[Any, None]:
        """The JSON of each `data:` event up to `[DONE]`. A stream without that is an error."""
        client = self._client()
        request = client.build_request("POST", self.url + path, json=body)
        try:
            response = await limit.wait(client.send(request, stream=True))
        except httpx.HTTPError as error:
            raise self._lost(path, error) from error
        try:
            if response.status_code != httpx.codes.OK:
                await limit.wait(response.aread())
                raise self._refused(path, response)
            lines = response.aiter_lines()
            other = ""
            while (line := await limit.wait(_next(lines))) is not None:
                if not line.startswith("data:"):
                    if not line.startswith(_FIELDS) and len(other) < _SHOWN:
                        other += line
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    await _finish(lines)
                    return
                yield self._parse(path, data)
        except httpx.HTTPError as error:
            raise self._lost(path, error) from error
        finally:
            await response.aclose()
        if other:
            kind = response.headers.get("content-type", "no content type")
            raise EngineError(
                f"{self.url}{path} answered {kind}, and no stream: {self._shown(other)}",
                hint="is this the address of a model server that streams?",
            )
        raise EngineUnavailable(
            f"{self.url}{path} ended its stream before it was done",
            hint="look into the server's log",
        )

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = httpx.AsyncClient(
                transport=Connections(_IDLE_S),
                headers=self._headers,
                event_hooks={"request": [_send_trace_on]},
                # A step's `Limit` bounds the rest.
                timeout=httpx.Timeout(None, connect=_CONNECT_S),
            )
        return self._clients[loop]

    def _parse(self, path: str, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineError(
                f"{self.url}{path} answered what is no JSON: {self._shown(text)!r}",
                hint="is this the address of a model server?",
            ) from error

    def _shown(self, text: str) -> str:
        """The start of a reply, as an error may show it."""
        return (text.replace(self._key, "***") if self._key else text)[:_SHOWN]

    def _refused(self, path: str, response: httpx.Response) -> Exception:
        status, body = response.status_code, self._shown(response.text)
        message = f"{self.url}{path} answered {status}: {body.strip() or '(empty)'}"
        if status in {401, 403}:
            return ConfigError(message, hint="check api_key", status=status)
        if status in {429, 503}:
            after = response.headers.get("retry-after", "")
            return Overloaded(
                message,
                hint="try again later",
                status=status,
                retry_after_s=float(after) if after.isdigit() else 1.0,
                comes_again=status == httpx.codes.TOO_MANY_REQUESTS or after.isdigit(),
            )
        if status == httpx.codes.BAD_GATEWAY:
            return EngineUnavailable(message, hint="start the server behind it", status=status)
        hint = "look into the server's log" if status >= 500 else "the server refused the request"
        if response.has_redirect_location:
            hint = f"give the address that it names: {response.headers['location']}"
        return EngineError(message, hint=hint, status=status, body=body)

    def _lost(self, path: str, error: httpx.HTTPError) -> EngineUnavailable:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return EngineUnavailable(
                f"nobody answers at {self.url} ({what})", hint="start the server, check the URL"
            )
        return EngineUnavailable(
            f"the connection to {self.url}{path} broke ({what})",
            hint="look into the server's log",
        )


def _let_go(clients: Clients) -> None:
    """Have each event loop that still runs close its connections."""
    for loop, client in list(clients.items()):
        if loop.is_running():
            asyncio.run_coroutine_threadsafe(client.aclose(), loop)


async def _send_trace_on(request: httpx.Request) -> None:
    """The run's trace context goes with every request that the run makes."""
    header = traceparent.get()
    if header is not None:
        request.headers["traceparent"] = header


async def _finish(lines: Any) -> None:
    """Read the end of a stream that has said all: only then is its connection used again."""
    with contextlib.suppress(httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(_END_S):
            while await _next(lines) is not None:
                pass


async def _next(lines: Any) -> str | None:
    found: str | None = await anext(lines, None)
    return found
