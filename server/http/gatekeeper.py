"""Who may call, how often and how much at once: checked before a byte of the body is read.

What lives here: the middleware for API keys, rates and concurrency. What does not: the keys
themselves (`keys.py`) and limits on running work (`admission.py`).
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from phloem.server.http.concurrent import Concurrent
from phloem.server.http.keys import Keys
from phloem.server.http.rate import RateLimit
from phloem.server.http.replies import RequestError, json_reply

__all__ = ["OPEN_PATHS", "Gatekeeper"]

OPEN_PATHS = frozenset({"/", "/traces", "/health", "/ready", "/metrics"})
"""Need no key: probes and scrapers have none, and the pages ask for one themselves."""


class Gatekeeper:
    """Refuses with 401 a request without a known `Authorization: Bearer KEY`, with 429 one
    too many, in a minute or at once. Puts the caller's name into the request's state."""

    def __init__(self, app: ASGIApp, keys: Keys, rate: RateLimit, concurrent: Concurrent) -> None:
        self._app = app
        self._keys = keys
        self._rate = rate
        self._concurrent = concurrent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path in OPEN_PATHS or path.startswith("/static/"):
            await self._app(scope, receive, send)
            return
        try:
            caller = self._check(scope)
        except RequestError as error:
            await _reply(error)(scope, receive, send)
            return
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        with self._concurrent.one(caller) as allowed:
            busy = _too_many("too many requests at once", "too_many_at_once", 1)
            app = self._app if allowed else _reply(busy)
            await app(scope, receive, send)

    def _check(self, scope: Scope) -> str:
        """Whom the request counts for: the key's name, or the client's address."""
        caller = None
        if self._keys:
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            caller = self._keys.name_of(key.strip()) if scheme.lower() == "bearer" else None
            if caller is None:
                raise RequestError(
                    401,
                    "no valid API key was given",
                    code="invalid_api_key",
                    hint="send the header Authorization: Bearer KEY",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        scope["state"]["caller"] = caller
        client = scope.get("client")
        counted = caller or (client[0] if client else "")
        wait = self._rate.wait_s(counted)
        if wait:
            raise _too_many("too many requests in the last minute", "rate_limit_exceeded", wait)
        return counted


def _reply(error: RequestError) -> ASGIApp:
    return json_reply(error.status_code, {"error": error.body}, error.headers)


def _too_many(what: str, code: str, wait_s: int) -> RequestError:
    return RequestError(429, what, code=code, headers={"Retry-After": str(wait_s)})
