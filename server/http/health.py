"""GET /health, /ready and /metrics.

What lives here: the probes and the scrape. What does not: the series (`metrics.py`).
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import PhloemError
from phloem.server.http.replies import json_reply
from phloem.server.http.state import State

__all__ = ["router"]

router = APIRouter(tags=["operations"])


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Ready(BaseModel):
    """Whether requests can be served, and what is missing if not."""

    ready: bool
    model: str
    index: str


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> Health:
    """Whether the process is alive; says nothing about the model."""
    return Health()


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses={503: {"model": Ready, "description": "Not ready."}})
async def ready(state: State) -> Response:
    """Whether the model is loaded and the index, where one is set, can be reached."""
    model = state.engine.status
    index = "ok"
    try:
        await state.check_index()
    except PhloemError as error:
        index = f"failed: {type(error).__name__}"
    good = model == "loaded" and index == "ok"
    return json_reply(
        200 if good else 503, Ready(ready=good, model=model, index=index).model_dump()
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus series."}},
)
async def metrics(request: Request, state: State) -> Response:
    """The server's counters, for Prometheus."""
    body, content_type = state.metrics.expose(request.headers.get("accept", ""))
    return Response(body, media_type=content_type)
