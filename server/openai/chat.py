"""POST /v1/chat/completions.

What lives here: the endpoint, whole and streamed. What does not: the models of request and
reply, prompts, constraints, and doing the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import ConfigError
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import Backend, StepResult, Text, TokenEvent
from phloem.server.generation.job import Job
from phloem.server.generation.run import collect, generate, preparing
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS
from phloem.server.http.sse import EventStream
from phloem.server.http.state import ServerState, State
from phloem.server.openai.chat_reply import (
    ChatReply,
    ChunkChoice,
    ChunkWriter,
    Delta,
    bytes_in,
    chat_choice,
    delta_of,
    logprobs_of,
    reason_of,
)
from phloem.server.openai.chat_request import ChatRequest
from phloem.server.openai.common_reply import DONE, error_events, new_id, usage_reply
from phloem.server.openai.constraints import (
    constrains,
    offered_tools,
    reply_constraint,
    tool_mode,
)
from phloem.server.openai.fields import sampling
from phloem.server.openai.messages import CALL_BEGIN, chat_prompt
from phloem.server.openai.names import check_model, program_of
from phloem.server.openai.program_chat import program_chat
from phloem.server.openai.tool_stream import ToolStream
from phloem.server.programs.dependencies import Manager

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, tags=["openai"], responses=ERRORS)


@router.post(
    "/v1/chat/completions",
    response_model=ChatReply,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Reply or stream."}},
)
async def chat_completions(
    body: ChatRequest, request: Request, state: State, manager: Manager
) -> Response:
    """Answer a conversation, as OpenAI's endpoint of this name does.

    The model `program:NAME` runs a program: see `openai/program_chat.py`.
    """
    backend = state.engine.backend
    program = program_of(body.model)
    if program is not None:
        return await program_chat(manager.catalog.get(program, "model"), body, request, manager)
    check_model(state, body.model)
    with preparing(state, "chat", request.state.arrived):
        constraint = None
        if constrains(body):
            # A large schema takes a while to check: not on the loop that serves everybody.
            allowed = backend.capabilities.constraints
            constraint = await asyncio.to_thread(reply_constraint, state.analyser, body, allowed)
        job = _job(state, backend, request, body, constraint)
    if body.stream:
        return EventStream(_events(state, request, body, job), state.settings, error_events)
    started = int(time.time())
    arrived = request.state.arrived
    results = await while_connected(request, collect(state, "chat", job, arrived))
    mode = tool_mode(body)
    bytes_of = bytes_in(backend) if body.logprobs else None
    reply = ChatReply(
        id=new_id("chatcmpl"),
        created=started,
        model=body.model,
        choices=[chat_choice(i, one, mode, bytes_of) for i, one in results.items()],
        usage=usage_reply(results, job.n),
        system_fingerprint=backend.capabilities.fingerprint,
    )
    return Response(reply.model_dump_json(), media_type="application/json")


def _job(
    state: ServerState,
    backend: Backend,
    request: Request,
    body: ChatRequest,
    constraint: Constraint | None,
) -> Job:
    """The work that a body asks for. Raises for what can't be done, before any of it."""
    n = body.n or 1
    if n > state.settings.max_n:
        raise ConfigError(f"n is {n}, the most allowed is {state.settings.max_n}", param="n")
    prompt = chat_prompt(backend.chat, body.messages, offered_tools(body))
    if tool_mode(body) == "call":
        prompt = (*prompt, Text(CALL_BEGIN, heal=False))
    return Job(
        prompts=(prompt,),
        field="messages",
        params=sampling(body, (body.top_logprobs or 0) if body.logprobs else None),
        max_tokens=body.limit,
        n=n,
        constraint=constraint,
        namespace=state.namespace(request),
        deadline=request.state.arrived + body.deadline_s if body.deadline_s else None,
    )


async def _events(
    state: ServerState, request: Request, body: ChatRequest, job: Job
) -> AsyncGenerator[bytes, None]:
    """The stream: per candidate a first chunk with the role, then its text, then its end."""
    mode = tool_mode(body)
    chunks = ChunkWriter(body.model)
    readers = [ToolStream(mode) for _ in range(job.n)]
    results: dict[int, StepResult] = {}
    begun: set[int] = set()
    plain = mode == "none" and not body.logprobs
    bytes_of = bytes_in(state.engine.backend)
    async with contextlib.aclosing(generate(state, "chat", job, request.state.arrived)) as items:
        async for index, item in items:
            if index not in begun:
                begun.add(index)
                opening = Delta(role="assistant", content="")
                yield chunks.choice(ChunkChoice(index=index, delta=opening, finish_reason=None))
            if plain and isinstance(item, TokenEvent):
                if item.text:
                    yield chunks.text(index, item.text)
                continue
            reader = readers[index]
            if isinstance(item, StepResult):
                results[index] = item
                pieces = reader.finish()
            else:
                pieces = reader.feed(item.text)
            probabilities = () if isinstance(item, StepResult) else item.logprobs
            delta = delta_of(pieces)
            if delta is not None or probabilities:
                choice = ChunkChoice(index=index, delta=delta or Delta(), finish_reason=None)
                if body.logprobs:
                    choice.logprobs = logprobs_of(probabilities, bytes_of)
                yield chunks.choice(choice)
            if isinstance(item, StepResult):
                reason = reason_of(item, reader)
                yield chunks.choice(ChunkChoice(index=index, delta=Delta(), finish_reason=reason))
    if body.stream_options is not None and body.stream_options.include_usage:
        yield chunks.usage(usage_reply(results, job.n))
    yield DONE
