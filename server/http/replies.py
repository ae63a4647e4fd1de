"""Errors as replies: one shape, OpenAI's, whatever went wrong.

What lives here: the models of that shape for the OpenAPI document, the reply for an
exception, and the handlers for what the framework raises. What does not: which class has
which status (`error_map.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from phloem.errors import Overloaded, PhloemError
from phloem.server.error_map import TYPES, error_object, status_of

__all__ = [
    "ERRORS",
    "ErrorBody",
    "RequestError",
    "add_handlers",
    "error_reply",
    "json_reply",
    "stopping",
]


class ErrorDetail(BaseModel):
    """What went wrong. `param` names the field at fault, `hint` says what to do."""

    message: str
    type: str
    param: str | None
    code: str | None
    hint: str | None = None
    details: dict[str, bool | int | float | str] | None = None
    where: dict[str, str | int] | None = None


class ErrorBody(BaseModel):
    """The body of every reply with a status of 400 or more."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request is at fault."},
    "5XX": {"model": ErrorBody, "description": "The server or something behind it is."},
}
"""For `responses=` of every endpoint."""


class RequestError(HTTPException):
    """A request that is refused for a reason no `PhloemError` stands for."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        default = "invalid_request_error" if status < 500 else "server_error"
        self.body: dict[str, Any] = {
            "message": message, "type": TYPES.get(status, default), "param": param, "code": code
        }  # fmt: skip
        if hint is not None:
            self.body["hint"] = hint


def json_reply(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response."""
    return JSONResponse(body, status, headers)


def error_reply(error: BaseException) -> Response:
    """The reply for an exception of the work itself, with `Retry-After` where known."""
    headers = {}
    if isinstance(error, PhloemError) and "retry_after_s" in error.details:
        # Whole seconds: the header knows no others.
        headers["Retry-After"] = str(math.ceil(error.details["retry_after_s"]))
    return json_reply(status_of(error), error_object(error), headers)


def stopping() -> Overloaded:
    """The error of a request that the server's end cuts off."""
    return Overloaded("the server is stopping", hint="send the request again", retry_after_s=5)


def add_handlers(app: FastAPI) -> None:
    """Let `app` answer every exception it knows in the one shape."""
    app.add_exception_handler(PhloemError, _phloem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)


async def _phloem(_: Request, error: Exception) -> Response:
    return error_reply(error)


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, RequestError):
        return json_reply(error.status_code, {"error": error.body}, error.headers)
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    # The framework's own: no such path, or not with this method.
    hint = "GET /openapi.json lists what there is"
    known = RequestError(error.status_code, str(error.detail), code=code, hint=hint)
    return json_reply(error.status_code, {"error": known.body}, error.headers)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _validation_reply(error.errors())


def _validation_reply(problems: Sequence[Any]) -> Response:
    """400 for one of the problems; the message says in how many more fields there are others.

    The values at fault are not repeated: they may be prompts or secrets.
    """
    field = problems[0]["loc"][:2]
    # A value that is none of several kinds has a problem for each; the deepest knows most.
    of_field = [one for one in problems if one["loc"][:2] == field]
    worst = max(of_field, key=lambda one: len(one["loc"]))
    place = _place(worst["loc"])
    param = worst.get("ctx", {}).get("param") or place or None
    said = str(worst["msg"]).removeprefix("Value error, ")
    message = f"{place}: {said}" if place else said
    others = len({one["loc"][:2] for one in problems}) - 1
    if others:
        message += f" (and {others} more)"
    code = "invalid_json" if worst["type"] == "json_invalid" else str(worst["type"])
    no_object = worst["loc"] == ("body",) and code in {"missing", "model_attributes_type"}
    hint = "send a JSON object, with content-type: application/json" if no_object else None
    refused = RequestError(400, message, code=code, param=param, hint=hint)
    return json_reply(400, {"error": refused.body})


def _place(loc: Sequence[str | int]) -> str:
    """The field in words. The first item of a location is "body", "query", "path" or "header"; the
    kinds of a value that may be of several are no fields."""
    kept = [str(part) for part in loc[1:2]]
    for at, part in enumerate(map(str, loc[2:]), 2):
        kind = part in {"str", "list", "dict"} or "[" in part
        kind = kind or part.startswith(("function-", "constrained-"))
        # Classes are named on the way to a field; fields of clients may have capitals too.
        kind = kind or (part[:1].isupper() and at < len(loc) - 1)
        named = loc[at - 1] == "nodes"  # by the client
        # Of a part that its tag chose, the tag and the field have one name.
        if named or (not kind and kept[-1:] != [part]):
            kept.append(part)
    return ".".join(kept)
