"""POST /v1/completions.

What lives here: the endpoint, whole and streamed. What does not: its models, and doing the
work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import ConfigError, ConstraintError
from phloem.programs.protocol import StepResult
from phloem.server.generation.job import Job
from phloem.server.generation.run import collect, generate
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS
from phloem.server.http.sse import ACCEPTED, EventStream, event
from phloem.server.http.state import ServerState, State
from phloem.server.openai.common_reply import DONE, error_events, finish, new_id, usage_reply
from phloem.server.openai.completion_models import (
    CompletionChoice,
    CompletionReply,
    CompletionRequest,
    completion_logprobs,
)
from phloem.server.openai.fields import sampling
from phloem.server.openai.names import check_model

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, tags=["openai"], responses=ERRORS)


@router.post(
    "/v1/completions",
    response_model=CompletionReply,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Reply or stream."}},
)
async def completions(body: CompletionRequest, request: Request, state: State) -> Response:
    """Go on from one or more prompts, as OpenAI's endpoint of this name does."""
    backend = state.engine.backend
    check_model(state, body.model)
    job = await asyncio.to_thread(_job, state, request, body)
    if body.stream:
        return EventStream(_events(state, request, body, job), state.settings, error_events)
    started = int(time.time())
    results = await while_connected(
        request, collect(state, "completion", job, request.state.arrived)
    )
    reply = CompletionReply(
        id=new_id("cmpl"),
        created=started,
        model=body.model,
        choices=[_choice(index, one, body) for index, one in results.items()],
        usage=usage_reply(results, job.n),
        system_fingerprint=backend.capabilities.fingerprint,
    )
    return Response(reply.model_dump_json(), media_type="application/json")


def _job(state: ServerState, request: Request, body: CompletionRequest) -> Job:
    n, most = body.n or 1, state.settings.max_n
    if n * len(body.prompts) > most:
        param = "n" if n > 1 else "prompt"
        raise ConfigError(f"{n * len(body.prompts)} candidates are more than {most}", param=param)
    constraint = None
    if body.regex is not None:
        try:
            constraint = state.analyser.build(regex=body.regex)
        except ConstraintError as error:
            error.details["param"] = "regex"
            raise
    return Job(
        prompts=tuple(body.prompts),
        params=sampling(body, body.logprobs),
        max_tokens=body.max_tokens or 16,
        n=n,
        constraint=constraint,
        namespace=state.namespace(request),
        deadline=request.state.arrived + body.deadline_s if body.deadline_s else None,
    )


def _choice(index: int, result: StepResult, body: CompletionRequest) -> CompletionChoice:
    wanted = body.logprobs is not None
    return CompletionChoice(
        index=index,
        text=result.text,
        logprobs=completion_logprobs(result.logprobs, 0) if wanted else None,
        finish_reason=finish(result),
    )


async def _events(
    state: ServerState, request: Request, body: CompletionRequest, job: Job
) -> AsyncGenerator[bytes, None]:
    chunk_id, created = new_id("cmpl"), int(time.time())
    results: dict[int, StepResult] = {}
    offsets: dict[int, int] = {}

    def chunk(choice: CompletionChoice) -> bytes:
        made = CompletionReply(id=chunk_id, created=created, model=body.model, choices=[choice])
        return event(made.model_dump_json(exclude={"usage"}))

    async with contextlib.aclosing(
        generate(state, "completion", job, request.state.arrived)
    ) as items:
        async for index, item in items:
            if isinstance(item, StepResult):
                results[index] = item
                yield chunk(CompletionChoice(index=index, text="", finish_reason=finish(item)))
            elif item.text or item.logprobs:
                piece = CompletionChoice(index=index, text=item.text)
                if body.logprobs is not None:
                    offset = offsets.get(index, 0)
                    piece.logprobs = completion_logprobs(item.logprobs, offset)
                    offsets[index] = offset + sum(len(one.text) for one in item.logprobs)
                yield chunk(piece)
            elif item.empty:
                yield ACCEPTED
    if body.stream_options is not None and body.stream_options.include_usage:
        last = CompletionReply(
            id=chunk_id, created=created, model=body.model, choices=[],
            usage=usage_reply(results, job.n),
        )  # fmt: skip
        yield event(last.model_dump_json(exclude_none=True))
    yield DONE
