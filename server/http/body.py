"""Request bodies: bounded, and strict JSON.

What lives here: the route class whose requests parse JSON without the usual leniency: a key
twice in one object, bytes that are not UTF-8, half a surrogate pair, `NaN`, and nesting deeper than
any real request are refused with 400; and the middleware that bounds its size. What does not: the
fields (each endpoint's model).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phloem.server.http.replies import RequestError, json_reply
from phloem.surrogates import half_of_pair

__all__ = ["BodyLimit", "StrictRoute", "parse_json"]

MAX_DEPTH = 100
"""Levels of nesting; deeper JSON is an attack on the parsers that come after."""


def parse_json(body: bytes) -> Any:
    """`body` as JSON. Raises `RequestError` (400) for whatever two parsers could disagree on."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _refused(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _refused(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        # Python refuses to convert integers of thousands of digits.
        raise _refused("the body holds a number of too many digits") from None
    if _deeper(value, MAX_DEPTH):
        raise _refused(f"the body is nested deeper than {MAX_DEPTH} levels")
    if "\\u" in text:
        _check_surrogates(value)
    return value


def _check_surrogates(value: Any) -> None:
    """Refuse text that no encoding can write: an escape may name half of a surrogate pair."""
    half = half_of_pair(json.dumps(value, ensure_ascii=False))
    if half is not None:
        raise _refused(f"the body holds {half}, which is half of a surrogate pair")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for name in names if names.count(name) > 1)
        raise _refused(f"the key {double[:80]!r} occurs twice in one object", double[:80])
    return found


def _no_constant(name: str) -> Any:
    raise _refused(f"{name} is not JSON")


def _deeper(value: Any, levels: int) -> bool:
    """Whether `value` nests deeper than `levels`; walks level by level, not by recursion."""
    layer = [value]
    for _ in range(levels + 1):
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        layer = [item for item in inner if isinstance(item, dict | list)]
        if not layer:
            return False
    return True


def _refused(message: str, param: str | None = None) -> RequestError:
    return RequestError(400, message, code="invalid_json", param=param)


class BodyLimit:
    """Refuses a body of more than `most` bytes with 413: unread if it says so, else once it is."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdecimal() and int(announced) > self._most:
            error = self._too_large()
            await json_reply(413, {"error": error.body})(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise self._too_large()
            return message

        await self._app(scope, counted, send)

    def _too_large(self) -> RequestError:
        return RequestError(
            413,
            f"the body has more than {self._most} bytes",
            code="body_too_large",
            hint="send less; the server's limit is max_body_bytes",
        )


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body by `parse_json`."""
        return parse_json(await self.body())


class StrictRoute(APIRoute):
    """A route that reads its body by `parse_json`; give it to `APIRouter(route_class=...)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, on a strict request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict
