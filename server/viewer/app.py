"""An application that shows the traces of a reader: `phloem trace ui`.

What lives here: putting it together. What does not: the pages (`routes.py`). It listens on the
loopback address and asks for no key. Over a running server it passes rewinds on (`forward.py`),
if only this machine can reach it: the server does them for its user's key.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import RedirectResponse, Response

from phloem.server.http.replies import add_handlers
from phloem.server.trace.reader import TraceReader
from phloem.server.trace.readers.remote import RemoteReader
from phloem.server.viewer.forward import LOOPBACK, forwarding
from phloem.server.viewer.routes import router
from phloem.server.viewer.source import ReaderSource

__all__ = ["create_viewer"]


def create_viewer(reader: TraceReader, *, host: str = "127.0.0.1") -> FastAPI:
    """The application over `reader`, to be served at `host`."""
    app = FastAPI(title="phloem traces", docs_url=None, redoc_url=None, openapi_url=None)
    forwards = isinstance(reader, RemoteReader) and host in LOOPBACK
    app.state.traces = ReaderSource(reader, can_rewind=forwards)
    app.state.asks_for_key = False
    add_handlers(app)
    app.include_router(router)
    if isinstance(reader, RemoteReader) and forwards:
        app.include_router(forwarding(reader))

    @app.middleware("http")
    async def everybody(request: Request, call_next: RequestResponseEndpoint) -> Response:
        """There are no keys here: all may see all."""
        request.state.caller = None
        return await call_next(request)

    @app.get("/")
    async def home() -> Response:
        """There is only one page."""
        return RedirectResponse("traces")

    return app
