"""An application that shows the traces of a reader: `phloem trace ui`.

What lives here: putting it together. What does not: the pages (`routes.py`). It listens on the
loopback address and asks for no key.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import RedirectResponse, Response

from phloem.server.http.replies import add_handlers
from phloem.server.trace.reader import TraceReader
from phloem.server.viewer.routes import router
from phloem.server.viewer.source import ReaderSource

__all__ = ["create_viewer"]


def create_viewer(reader: TraceReader) -> FastAPI:
    """The application over `reader`."""
    app = FastAPI(title="phloem traces", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.traces = ReaderSource(reader)
    app.state.asks_for_key = False
    add_handlers(app)
    app.include_router(router)

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
