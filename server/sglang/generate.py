"""POST /generate.

What lives here: the endpoint, whole and streamed. What does not: its models (`models.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import ConfigError
from phloem.programs.protocol import (
    StepResult,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from phloem.server.generation.job import Job
from phloem.server.generation.run import admitted, collect, generate, preparing
from phloem.server.http.aborts import Aborted
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS, json_reply
from phloem.server.http.sse import ACCEPTED, EventStream, event
from phloem.server.http.state import ServerState, State
from phloem.server.openai.common_reply import DONE, error_events, finish, new_id
from phloem.server.sglang.models import FinishReason, GenerateReply, GenerateRequest, MetaInfo
from phloem.server.sglang.scoring import score_prompts

__all__ = ["router"]

_COUNTS = ("prompt_tokens", "cached_tokens")

router = APIRouter(route_class=StrictRoute, tags=["sglang"], responses=ERRORS)


@router.post(
    "/generate",
    response_model=GenerateReply | list[GenerateReply],
    responses={200: {"content": {"text/event-stream": {}}, "description": "Reply or stream."}},
)
async def generate_endpoint(body: GenerateRequest, request: Request, state: State) -> Response:
    """Go on from a text, as SGLang's endpoint of this name does."""
    if body.stream and not body.scores_only:
        job = await _prepared(state, request, body)
        return EventStream(_events(state, request, body, job), state.settings, error_events)
    work = state.aborts.run(_caller(request), body.rids, _replies(state, request, body))
    try:
        replies = await while_connected(request, work)
    except Aborted as error:
        count = len(body.prompts) * body.sampling.n
        replies = [_aborted(error) for _ in range(count)]
    for reply, rid in zip(replies, body.rids, strict=False):
        reply.meta_info.id = rid
    data = [reply.model_dump(exclude_none=True) for reply in replies]
    return json_reply(200, data[0] if body.single else data)


async def _replies(
    state: ServerState, request: Request, body: GenerateRequest
) -> list[GenerateReply]:
    arrived = request.state.arrived
    if body.scores_only:
        scoring = score_prompts(state.engine.backend, body, _namespace(state, request, body))
        return await admitted(state, "generate", scoring, arrived, _scoring_usage)
    job = await _prepared(state, request, body)
    results = await collect(state, "generate", job, arrived)
    return [_reply(one, body) for one in results.values()]


def _scoring_usage(replies: list[GenerateReply]) -> Usage:
    counts = [reply.meta_info for reply in replies]
    prompt, reused = (sum(getattr(one, name) for one in counts) for name in _COUNTS)
    return Usage(prompt=prompt, reused=reused, prefilled=prompt - reused)


def _caller(request: Request) -> str:
    return request.state.caller or ""


def _namespace(state: ServerState, request: Request, body: GenerateRequest) -> str:
    """The caller's own namespace, divided by the keys it gives."""
    caller, key = state.namespace(request), body.cache_key
    return f"{caller}\0{key}" if key else caller


async def _prepared(state: ServerState, request: Request, body: GenerateRequest) -> Job:
    with preparing(state, "generate", request.state.arrived):
        return await asyncio.to_thread(_job, state, request, body)


def _job(state: ServerState, request: Request, body: GenerateRequest) -> Job:
    params = body.sampling
    prompts = tuple(body.prompts)
    field = "text" if body.text is not None else "input_ids"
    if params.n * len(prompts) > state.settings.max_n:
        raise ConfigError(
            f"{params.n * len(prompts)} outputs are more than {state.settings.max_n}",
            param="sampling_params.n" if params.n > 1 else field,
        )
    return Job(
        prompts=prompts,
        field=field,
        params=params.params(body.top_logprobs_num if body.return_logprob else None),
        max_tokens=params.max_new_tokens,
        n=params.n,
        constraint=params.constraint(state.analyser),
        namespace=_namespace(state, request, body),
        priority=body.priority or 0,
    )


def _aborted(error: Aborted) -> GenerateReply:
    reason = FinishReason(type="abort", message=error.message)
    return GenerateReply(text="", output_ids=[], meta_info=MetaInfo(finish_reason=reason))


def _reply(result: StepResult, body: GenerateRequest) -> GenerateReply:
    reason = finish(result)
    meta = MetaInfo(
        finish_reason=FinishReason(
            type=reason,
            matched=result.stop,
            length=len(result.tokens) if reason == "length" else None,
        ),
        prompt_tokens=result.usage.prompt,
        completion_tokens=result.usage.generated,
        cached_tokens=result.usage.reused,
    )
    if body.return_logprob:
        meta.input_token_logprobs = []
        meta.output_token_logprobs = [_triple(one, body) for one in result.logprobs]
        if body.top_logprobs_num:
            meta.output_top_logprobs = [
                [[logprob, token, text] for token, text, logprob in one.top]
                for one in result.logprobs
            ]
    return GenerateReply(text=result.text, output_ids=list(result.tokens), meta_info=meta)


def _triple(one: TokenLogprob, body: GenerateRequest) -> list[object]:
    return [one.logprob, one.token, one.text if body.return_text_in_logprobs else None]


class _Output:
    """One candidate's output as it comes."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._text = ""
        self._tokens: list[int] = []
        self._told: int | None = None
        """Tokens of the last event; None before the first."""

    def add(self, piece: TokenEvent) -> GenerateReply | None:
        """It goes on. The event with all so far, if one is due."""
        self._text += piece.text
        self._tokens.extend(piece.tokens)
        size = len(self._tokens)
        if self._interval > 1 and self._told is not None and size - self._told < self._interval:
            return None
        self._told = size
        meta = MetaInfo(finish_reason=None, completion_tokens=size)
        return GenerateReply(text=self._text, output_ids=self._tokens, meta_info=meta)


async def _events(
    state: ServerState, request: Request, body: GenerateRequest, job: Job
) -> AsyncGenerator[bytes, None]:
    """Each event repeats the output so far, as SGLang's do; the last has the reason. The first
    comes at once, then one for each `stream_interval` tokens."""
    interval = body.sampling.stream_interval or 1
    outputs = defaultdict[int, _Output](lambda: _Output(interval))
    ident = body.rids[0] if body.rids else new_id("gen")
    work = generate(state, "generate", job, request.state.arrived)
    items = state.aborts.stream(_caller(request), body.rids, work) if body.rids else work
    async with contextlib.aclosing(work), contextlib.aclosing(items):
        try:
            async for index, item in items:
                if isinstance(item, TokenEvent) and item.empty:
                    yield ACCEPTED
                    continue
                whole = isinstance(item, StepResult)
                reply = (
                    _reply(item, body) if isinstance(item, StepResult) else outputs[index].add(item)
                )
                if reply is None:
                    continue
                reply.meta_info.id = ident
                data = reply.model_dump(exclude_none=whole)
                if len(job.prompts) * job.n > 1:
                    data["index"] = index
                yield event(json.dumps(data))
        except Aborted as error:
            reply = _aborted(error)
            reply.meta_info.id = ident
            yield event(json.dumps(reply.model_dump(exclude_none=True)))
    yield DONE
