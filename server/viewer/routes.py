"""GET /traces and the pieces of its pages.

What lives here: the endpoints. What does not: HTML (`render.py`) and traces (`source.py`). The
page at `/traces` holds no trace: what it shows comes by further requests, which it makes with the
key that its user has typed, and which the gatekeeper checks like all others.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, get_args

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from phloem.errors import ConfigError
from phloem.server.http.replies import RequestError
from phloem.server.trace.reader import TraceFilter, TraceNotFound
from phloem.server.trace.record import Status
from phloem.server.viewer.panels import Story
from phloem.server.viewer.render import (
    render_compare,
    render_list,
    render_panel,
    render_rows,
    render_shell,
    render_story,
    static_file,
)
from phloem.server.viewer.source import TraceSource

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

PAGE = 50
_FILES = {"traces.js": "text/javascript", "traces.css": "text/css"}
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


async def _source(request: Request) -> TraceSource:
    found: TraceSource = request.app.state.traces
    return found


Source = Annotated[TraceSource, Depends(_source)]
Text = Annotated[str | None, Query(max_length=500)]
Length = Annotated[str | None, Query(max_length=30)]


def _caller(request: Request) -> str | None:
    """Whose traces may be seen: those of the request's key; on a server without keys, all."""
    found: str | None = request.state.caller
    return found


def _reply(html: str) -> Response:
    return HTMLResponse(html, headers=_HEADERS)


@router.get("/traces")
async def shell(request: Request) -> Response:
    """The page, without traces."""
    return _reply(render_shell(asks_for_key=request.app.state.asks_for_key))


@router.get("/static/traces/{name}")
async def static(name: str) -> Response:
    """The page's script and style."""
    if name not in _FILES:
        raise RequestError(404, "there is no such file", code="not_found")
    return Response(static_file(name), media_type=_FILES[name], headers=_HEADERS)


@router.get("/traces/list")
async def list_traces(
    request: Request,
    source: Source,
    q: Text = None,
    program: Text = None,
    status: Text = None,
    error: Text = None,
    min_ms: Length = None,
    max_ms: Length = None,
    cursor: Text = None,
) -> Response:
    """A page of the list."""
    wanted = TraceFilter(
        text=q or None,
        program=program or None,
        status=_status(status),
        error_type=error or None,
        min_ms=_number("min_ms", min_ms),
        max_ms=_number("max_ms", max_ms),
    )
    reader = source.reader(_caller(request))
    try:
        page = await asyncio.to_thread(reader.list, wanted, limit=PAGE, cursor=cursor or None)
    except ConfigError as refused:
        raise RequestError(400, refused.message, code="invalid_cursor", param="cursor") from None
    facets = await asyncio.to_thread(reader.facets)
    return _reply(render_list(page, wanted, facets, cursor=cursor))


def _status(text: str | None) -> Status | None:
    if not text:
        return None
    for word in get_args(Status):
        if word == text:
            return word  # type: ignore[no-any-return] # one of the literal's own words
    raise RequestError(400, f"there is no status {text!r}", code="invalid_status", param="status")


def _number(name: str, text: str | None) -> float | None:
    """A form's empty field asks for nothing."""
    try:
        return float(text) if text else None
    except ValueError:
        raise RequestError(400, f"{name} is no number", code="invalid_number", param=name) from None


async def _story(request: Request, source: TraceSource, trace: str) -> Story:
    try:
        return await asyncio.to_thread(source.story, trace, _caller(request))
    except TraceNotFound as error:
        raise _unknown(error) from None


def _unknown(error: TraceNotFound) -> RequestError:
    return RequestError(404, error.message, code="trace_not_found")


@router.get("/traces/compare")
async def compare(request: Request, source: Source, old: str, new: str) -> Response:
    """Two runs side by side."""
    first = await _story(request, source, old)
    second = await _story(request, source, new)
    return _reply(await asyncio.to_thread(render_compare, first, second))


@router.get("/traces/runs/{trace}")
async def run(request: Request, source: Source, trace: str) -> Response:
    """A run's page, without rows and panels."""
    story = await _story(request, source, trace)
    return _reply(await asyncio.to_thread(render_story, story))


@router.get("/traces/runs/{trace}/rows/{chunk}")
async def rows(request: Request, source: Source, trace: str, chunk: int) -> Response:
    """A piece of the timeline."""
    story = await _story(request, source, trace)
    return _reply(await asyncio.to_thread(render_rows, story, chunk))


@router.get("/traces/runs/{trace}/panels/{name:path}")
async def panel(request: Request, source: Source, trace: str, name: str) -> Response:
    """What a row opens."""
    story = await _story(request, source, trace)
    try:
        return _reply(await asyncio.to_thread(render_panel, story, name))
    except TraceNotFound as error:
        raise _unknown(error) from None
