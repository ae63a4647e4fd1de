"""GET /get_model_info, /get_server_info, /flush_cache, /health_generate; POST /abort_request.

What lives here: SGLang's small endpoints as its clients use them. What does not: /health, which
is phloem's own and which they use too.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from phloem.programs.protocol import SamplingParams, Text
from phloem.server.generation.job import Job
from phloem.server.generation.run import collect
from phloem.server.http import bridge
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS, RequestError
from phloem.server.http.state import State
from phloem.server.openai.fields import Flag

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


class ServerInfo(BaseModel):
    """What phloem's SGLang backend reads of a server, by SGLang's names. `product` tells phloem."""

    product: str = "phloem"
    version: str
    max_req_input_len: int
    grammar_backend: str = "llguidance"
    enable_deterministic_inference: bool
    enable_priority_scheduling: bool = True
    incremental_streaming_output: bool = False


class AbortRequest(BaseModel):
    """Which requests to end."""

    model_config = ConfigDict(extra="forbid")

    rid: str = ""
    abort_all: Flag = False


@router.get("/model_info", include_in_schema=False)
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


@router.get("/server_info", include_in_schema=False)
@router.get("/get_server_info")
async def get_server_info(state: State) -> ServerInfo:
    """What the server can do."""
    has = state.engine.backend.capabilities
    return ServerInfo(
        version=version("phloem"),
        max_req_input_len=has.max_context,
        enable_deterministic_inference=has.seed,
    )


@router.post("/abort_request", status_code=200)
async def abort_request(body: AbortRequest, request: Request, state: State) -> None:
    """End the caller's requests with this `rid`, or all that have one; none is no error."""
    caller = request.state.caller or ""
    if body.abort_all:
        state.aborts.abort_all(caller)
    else:
        state.aborts.abort(caller, body.rid)


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
