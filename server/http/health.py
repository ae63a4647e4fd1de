"""GET /health, /ready and /metrics.

What lives here: the probes and the scrape. What does not: the series (`metrics.py`).
"""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import PhloemError
from phloem.server.http.replies import json_reply
from phloem.server.http.state import PROBE_TIMEOUT_S, State

__all__ = ["router"]

router = APIRouter(tags=["operations"])


class Health(BaseModel):
    """The process answers. "held up": a program has held up all others for too long."""

    status: str = "ok"


class Ready(BaseModel):
    """Whether requests can be served, and what is missing if not."""

    ready: bool
    model: str
    index: str
    runs: str


@router.head("/health", include_in_schema=False)
@router.get(
    "/health",
    response_model=Health,
    responses={503: {"model": Health, "description": "Nothing goes on."}},
)
async def health(state: State) -> Response:
    """Whether the process is alive; says nothing about the model."""
    if state.pulse.lost:
        return json_reply(503, Health(status="held up").model_dump())
    return json_reply(200, Health().model_dump())


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"model": Ready, "description": "Not ready."}})
async def ready(state: State) -> Response:
    """Whether the model is loaded, the index, where one is set, can be reached, and no program
    holds up all others."""
    model = state.engine.status
    runs = "held up" if state.pulse.held else "ok"
    index = "ok"
    try:
        async with asyncio.timeout(2 * PROBE_TIMEOUT_S):
            await state.check_index()
    except PhloemError as error:
        index = f"failed: {type(error).__name__}"
    except TimeoutError:
        index = "no answer"
    good = (model, index, runs) == ("loaded", "ok", "ok")
    found = Ready(ready=good, model=model, index=index, runs=runs)
    return json_reply(200 if good else 503, found.model_dump())


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus series."}},
)
async def metrics(request: Request, state: State) -> Response:
    """The server's counters, for Prometheus."""
    body, content_type = state.metrics.expose(request.headers.get("accept", ""))
    return Response(body, media_type=content_type)
