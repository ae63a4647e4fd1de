"""Rewinds from a viewer of its own, passed on to the server whose runs it shows.

What lives here: the two requests of the pages that start a run. What does not: doing them
(`server/programs`).

The server takes them for the user's key, so they are taken from the viewer's own pages only: not
from another site that the user's browser has open, under whatever name it reached this address.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from phloem.server.http.replies import RequestError
from phloem.server.trace.readers.remote import RemoteReader

__all__ = ["LOOPBACK", "forwarding"]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def forwarding(server: RemoteReader) -> APIRouter:
    """The endpoints that `server` answers."""
    router = APIRouter(include_in_schema=False)

    @router.post("/v1/runs/{run}/rewind")
    async def rewind(run: str, request: Request) -> Response:
        """Rewind a run there."""
        return await _pass_on(server, f"/v1/runs/{quote(run, safe='')}/rewind", request)

    @router.post("/v1/programs/{program}/runs")
    async def again(program: str, request: Request) -> Response:
        """Start a run there."""
        return await _pass_on(server, f"/v1/programs/{quote(program, safe='')}/runs", request)

    return router


async def _pass_on(server: RemoteReader, path: str, request: Request) -> Response:
    here = f"{request.url.scheme}://{request.headers.get('host', '')}"
    own = request.headers.get("origin", here) == here and request.url.hostname in LOOPBACK
    # Without this type a browser sends what another site's form says, and asks nobody.
    if not own or request.headers.get("content-type") != "application/json":
        raise RequestError(403, "only the viewer's own pages may rewind", code="foreign_page")
    body = await request.body()
    reply = await asyncio.to_thread(server.post, path, body)
    return Response(reply.content, reply.status_code, media_type=reply.headers.get("content-type"))
