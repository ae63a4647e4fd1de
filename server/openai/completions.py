"""POST /v1/completions.

What lives here: the endpoint, whole and streamed. What does not: its models, and doing the
work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import ConfigError, ConstraintError
from phloem.programs.protocol import StepResult, Usage
from phloem.server.generation.echo import Echo, tell_back
from phloem.server.generation.job import Item, Job
from phloem.server.generation.run import admitted, generate, placed, preparing
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS
from phloem.server.http.sse import ACCEPTED, EventStream, event
from phloem.server.http.state import ServerState, State
from phloem.server.openai.common_reply import (
    DONE,
    UsageReply,
    error_events,
    finish,
    new_id,
    usage_reply,
)
from phloem.server.openai.completion_models import (
    CompletionChoice,
    CompletionReply,
    CompletionRequest,
    completion_logprobs,
    echo_choice,
    untold_logprobs,
    with_echo,
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
    with preparing(state, "completion", request.state.arrived):
        job = await asyncio.to_thread(_job, state, request, body)
    if body.stream:
        return EventStream(_events(state, request, body, job), state.settings, error_events)
    started = int(time.time())
    choices, usage = await while_connected(request, _whole(state, request, body, job))
    reply = CompletionReply(
        id=new_id("cmpl"),
        created=started,
        model=body.model,
        choices=choices,
        usage=usage,
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
        max_tokens=16 if body.max_tokens is None else body.max_tokens,
        n=n,
        constraint=constraint,
        namespace=state.namespace(request),
        deadline=request.state.arrived + body.deadline_s if body.deadline_s else None,
    )


async def _whole(
    state: ServerState, request: Request, body: CompletionRequest, job: Job
) -> tuple[list[CompletionChoice], UsageReply]:
    echoes = await _echoes(state, request, body, job)
    async with contextlib.aclosing(_output(state, request, job, echoes)) as items:
        found = {index: one async for index, one in items if isinstance(one, StepResult)}
    results = dict(sorted(found.items()))
    choices = []
    for index, result in results.items():
        choice = CompletionChoice(index=index, text=result.text, finish_reason=finish(result))
        before = echo_choice(index, echoes[index // job.n], body.logprobs) if echoes else None
        if body.logprobs is not None:
            offset = len(before.text) if before else 0
            choice.logprobs = completion_logprobs(result.logprobs, offset)
            if _ends_untold(result, body):
                choice.logprobs = untold_logprobs(offset)
        choices.append(with_echo(before, choice) if before else choice)
    return choices, usage_reply(results, job.n)


def _ends_untold(result: StepResult, body: CompletionRequest) -> bool:
    """Whether an echo is followed by no token that can be told: its end, or part of a character.
    Who reads a prompt's numbers counts on one entry after them."""
    wanted = body.echo and body.logprobs is not None and body.max_tokens != 0
    return bool(wanted) and not result.logprobs


async def _echoes(
    state: ServerState, request: Request, body: CompletionRequest, job: Job
) -> list[Echo]:
    """What each prompt is told back as, if that is asked for."""
    if not body.echo:
        return []
    arrived = request.state.arrived
    work = tell_back(state.engine.backend, job, scored=body.logprobs is not None)
    if job.max_tokens == 0:
        return await admitted(state, "completion", work, arrived, _echo_usage)
    return await placed(state, work, arrived)


def _echo_usage(echoes: Sequence[Echo]) -> Usage:
    return sum((echo.usage for echo in echoes), Usage())


async def _output(
    state: ServerState, request: Request, job: Job, echoes: Sequence[Echo]
) -> AsyncGenerator[Item, None]:
    """The progress of all candidates. Without any output they end as they begin."""
    if job.max_tokens == 0:
        for number, echo in enumerate(echoes):
            for index in range(number * job.n, (number + 1) * job.n):
                yield index, StepResult("", (), "length", echo.usage)
        return
    work = generate(state, "completion", job, request.state.arrived)
    async with contextlib.aclosing(work) as items:
        async for item in items:
            yield item


async def _events(
    state: ServerState, request: Request, body: CompletionRequest, job: Job
) -> AsyncGenerator[bytes, None]:
    chunk_id, created = new_id("cmpl"), int(time.time())
    results: dict[int, StepResult] = {}
    offsets: dict[int, int] = {}

    def chunk(choice: CompletionChoice) -> bytes:
        made = CompletionReply(id=chunk_id, created=created, model=body.model, choices=[choice])
        return event(made.model_dump_json(exclude={"usage"}))

    echoes = await _echoes(state, request, body, job)
    for index in range(len(echoes) * job.n):
        before = echo_choice(index, echoes[index // job.n], body.logprobs)
        offsets[index] = len(before.text)
        yield chunk(before)
    async with contextlib.aclosing(_output(state, request, job, echoes)) as items:
        async for index, item in items:
            if isinstance(item, StepResult):
                results[index] = item
                end = CompletionChoice(index=index, text="", finish_reason=finish(item))
                if _ends_untold(item, body):
                    end.logprobs = untold_logprobs(offsets[index])
                yield chunk(end)
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
