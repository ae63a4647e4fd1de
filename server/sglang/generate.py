"""POST /generate.

What lives here: the endpoint, whole and streamed. What does not: its models (`models.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import ConfigError
from phloem.programs.protocol import Backend, StepResult, Text, TokenEvent, TokenLogprob
from phloem.server.generation.job import Job
from phloem.server.generation.run import admitted, collect, generate
from phloem.server.http.body import StrictRoute
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import ERRORS, json_reply
from phloem.server.http.sse import EventStream, event
from phloem.server.http.state import ServerState, State
from phloem.server.openai.common_reply import DONE, error_events, finish, new_id
from phloem.server.sglang.models import FinishReason, GenerateReply, GenerateRequest, MetaInfo
from phloem.server.sglang.scoring import score_texts

__all__ = ["router"]

router = APIRouter(route_class=StrictRoute, tags=["sglang"], responses=ERRORS)


@router.post(
    "/generate",
    response_model=GenerateReply | list[GenerateReply],
    responses={200: {"content": {"text/event-stream": {}}, "description": "Reply or stream."}},
)
async def generate_endpoint(body: GenerateRequest, request: Request, state: State) -> Response:
    """Go on from a text, as SGLang's endpoint of this name does."""
    backend = state.engine.backend
    if body.scores_only:
        work = admitted(state, "generate", _score(backend, body), request.state.arrived)
        return _whole(body, await while_connected(request, work))
    job = await asyncio.to_thread(_job, state, request, body)
    if body.stream:
        return EventStream(_events(state, request, body, job), state.settings, error_events)
    results = await while_connected(request, collect(state, "generate", job, request.state.arrived))
    return _whole(body, [_reply(one, body) for one in results.values()])


def _whole(body: GenerateRequest, replies: Sequence[GenerateReply]) -> Response:
    """A list exactly where the request asks for more than one."""
    data = [reply.model_dump(exclude_none=True) for reply in replies]
    single = isinstance(body.text, str) and body.sampling_params.n == 1
    return json_reply(200, data[0] if single else data)


def _job(state: ServerState, request: Request, body: GenerateRequest) -> Job:
    params = body.sampling_params
    if params.n * len(body.texts) > state.settings.max_n:
        raise ConfigError(
            f"{params.n * len(body.texts)} outputs are more than {state.settings.max_n}",
            param="sampling_params.n" if params.n > 1 else "text",
        )
    return Job(
        prompts=tuple((Text(text),) for text in body.texts),
        params=params.params(body.top_logprobs_num if body.return_logprob else None),
        max_tokens=params.max_new_tokens,
        n=params.n,
        constraint=params.constraint(state.analyser),
        namespace=state.namespace(request),
    )


async def _score(backend: Backend, body: GenerateRequest) -> list[GenerateReply]:
    """Prefill only: no output, but the prompt's log-probabilities where asked."""
    if not body.return_logprob:
        counts = [await backend.prefill([Text(text)]) for text in body.texts]
        return [_prefilled(count) for count in counts]
    replies = []
    for tokens, logprobs in await score_texts(backend, body.texts):
        reply = _prefilled(len(tokens))
        start = max(0, body.logprob_start_len or 0)
        pairs = zip(logprobs[start:], tokens[start:], strict=True)
        reply.meta_info.input_token_logprobs = [[logprob, token, None] for logprob, token in pairs]
        reply.meta_info.output_token_logprobs = []
        replies.append(reply)
    return replies


def _prefilled(count: int) -> GenerateReply:
    meta = MetaInfo(
        id=new_id("gen"), finish_reason=FinishReason(type="length", length=0),
        prompt_tokens=count, completion_tokens=0, cached_tokens=0,
    )  # fmt: skip
    return GenerateReply(text="", output_ids=[], meta_info=meta)


def _reply(result: StepResult, body: GenerateRequest) -> GenerateReply:
    reason = finish(result)
    meta = MetaInfo(
        id=new_id("gen"),
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


async def _events(
    state: ServerState, request: Request, body: GenerateRequest, job: Job
) -> AsyncGenerator[bytes, None]:
    """Each event repeats the output so far, as SGLang's do; the last has the reason."""
    texts: dict[int, str] = {}
    tokens: dict[int, list[int]] = {}
    ident = new_id("gen")

    def so_far(index: int, piece: TokenEvent) -> GenerateReply:
        texts[index] = texts.get(index, "") + piece.text
        tokens.setdefault(index, []).extend(piece.tokens)
        meta = MetaInfo(
            id=ident, finish_reason=None, prompt_tokens=0,
            completion_tokens=len(tokens[index]), cached_tokens=0,
        )  # fmt: skip
        return GenerateReply(text=texts[index], output_ids=tokens[index], meta_info=meta)

    async with contextlib.aclosing(
        generate(state, "generate", job, request.state.arrived)
    ) as items:
        async for index, item in items:
            whole = isinstance(item, StepResult)
            reply = _reply(item, body) if isinstance(item, StepResult) else so_far(index, item)
            data = reply.model_dump(exclude_none=whole)
            if len(job.prompts) * job.n > 1:
                data["index"] = index
            yield event(json.dumps(data))
    yield DONE
