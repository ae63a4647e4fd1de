"""The application: routers, middleware, handlers, and an OpenAPI document that tells the truth.

What lives here: putting them together. What does not: any endpoint, and running the
application (`serve.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from phloem.server.http import bridge, health
from phloem.server.http.body import BodyLimit
from phloem.server.http.concurrent import Concurrent
from phloem.server.http.context import RequestContext
from phloem.server.http.gatekeeper import OPEN_PATHS, Gatekeeper
from phloem.server.http.replies import add_handlers
from phloem.server.http.state import ServerState
from phloem.server.openai import chat, completions, embeddings, models
from phloem.server.page import routes as page
from phloem.server.programs import (
    batch_routes,
    catalog_routes,
    graph_routes,
    run_routes,
    start_routes,
)
from phloem.server.programs.manager import RunManager
from phloem.server.sglang import generate, info
from phloem.server.viewer import routes as traces
from phloem.server.viewer.source import ServerSource

__all__ = ["create_app"]

log = structlog.get_logger("phloem.server")

STOP_S = 15.0
"""How long runs, searches and the engine may take to end."""

ROUTERS = (
    health.router,
    models.router,
    chat.router,
    completions.router,
    embeddings.router,
    catalog_routes.router,
    start_routes.router,
    run_routes.router,
    graph_routes.router,
    batch_routes.router,
    generate.router,
    info.router,
    page.router,
    traces.router,
)


def create_app(state: ServerState, manager: RunManager) -> FastAPI:
    """The application around `state`; its engine and its runs start and stop with it."""
    app = FastAPI(
        title="phloem",
        version=version("phloem"),
        description="Programs, and OpenAI's API beside them, on one engine.",
        root_path=state.settings.root_path,
        middleware=_middleware(state),
        lifespan=_lifespan,
        docs_url="/docs",
        redoc_url=None,
    )
    app.state.server = state
    app.state.manager = manager
    app.state.traces = ServerSource(manager)
    app.state.asks_for_key = bool(state.keys)
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign] # FastAPI's documented way
    return app


def _middleware(state: ServerState) -> list[Middleware]:
    """From the outside in."""
    found = [Middleware(RequestContext, metrics=state.metrics)]
    if state.settings.cors_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(state.settings.cors_origins),
                allow_methods=["*"],
                allow_headers=["*"],
            )
        )
    concurrent = Concurrent(state.settings.concurrent_requests)
    return [
        *found,
        Middleware(Gatekeeper, keys=state.keys, rate=state.rate, concurrent=concurrent),
        Middleware(BodyLimit, most=state.settings.max_body_bytes),
    ]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    state: ServerState = app.state.server
    manager: RunManager = app.state.manager
    state.engine.start()
    manager.spawn(state.pulse.watch())
    manager.spawn(manager.pin_prefixes())
    manager.spawn(manager.recover(await asyncio.to_thread(manager.runs.unfinished)))
    yield
    try:
        async with asyncio.timeout(STOP_S):
            await manager.stop()
            if state.retriever is not None:
                await bridge.call(state.retriever.aclose())
            await state.engine.stop()
    except TimeoutError:
        # A program holds its loop. What must outlive the process is on disk.
        log.error("stopped_too_slowly", after_s=STOP_S)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, less the 422 it assumes (bad requests are 400), plus the keys."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        state: ServerState = app.state.server
        for path, methods in found["paths"].items():
            for operation in methods.values():
                operation["responses"].pop("422", None)
                if state.keys and path not in OPEN_PATHS:
                    operation["security"] = [{"key": []}]
        parts = found.setdefault("components", {})
        if state.keys:
            parts["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for name in ("HTTPValidationError", "ValidationError"):
            parts.get("schemas", {}).pop(name, None)
        app.openapi_schema = found
    return app.openapi_schema
