"""GET /get_model_info, /flush_cache and /health_generate.

What lives here: SGLang's small endpoints as its clients use them. What does not: /health, which
is phloem's own and which they use too.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from phloem.programs.protocol import SamplingParams, Text
from phloem.server.generation.job import Job
from phloem.server.generation.run import collect
from phloem.server.http import bridge
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS, RequestError
from phloem.server.http.state import State

__all__ = ["router"]

router = APIRouter(tags=["sglang"], responses=ERRORS)

_TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {}}, "description": "Done."}
}


class ModelInfo(BaseModel):
    """What SGLang's frontend reads to choose a chat template."""

    model_path: str
    tokenizer_path: str
    is_generation: bool = True
    max_context: int
    fingerprint: str


@router.get("/get_model_info")
async def get_model_info(state: State) -> ModelInfo:
    """The model that is loaded."""
    has = state.engine.backend.capabilities
    return ModelInfo(
        model_path=has.model,
        tokenizer_path=has.model,
        max_context=has.max_context,
        fingerprint=has.fingerprint,
    )


@router.post("/flush_cache", response_class=PlainTextResponse, responses=_TEXT)
@router.get(
    "/flush_cache", response_class=PlainTextResponse, responses=_TEXT, include_in_schema=False
)
async def flush_cache(state: State) -> Response:
    """Forget all cached KV. Refused with 400 while requests run, as in SGLang."""
    if state.gate.running or state.gate.queued:
        raise RequestError(
            400,
            f"the cache can't be flushed: {state.gate.running} requests are running and "
            f"{state.gate.queued} are waiting",
            code="busy",
        )
    await bridge.call(state.engine.backend.flush_cache())
    return PlainTextResponse("Cache flushed.\n")


@router.get("/health_generate", response_class=PlainTextResponse, responses=_TEXT)
async def health_generate(request: Request, state: State) -> Response:
    """Whether the engine really generates: one token of a one-word prompt."""
    job = Job(prompts=((Text("Hi"),),), params=SamplingParams(temperature=0), max_tokens=1)
    await while_connected(request, collect(state, "generate", job, request.state.arrived))
    return PlainTextResponse("")
