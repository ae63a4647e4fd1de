"""A program behind the chat endpoint: the model `program:NAME`.

What lives here: from a conversation to the program's arguments, and from its value to a reply.
What does not: the run (`programs/manager.py`).

The program must have either a parameter `messages`, which gets the conversation as dicts of
role and content, or exactly one required parameter, which gets the last user message. The
reply is the value it returns, as text or JSON. Where that is the text of the program's last step
(`final_steps.py`) a streamed reply has it as it comes. Any other value is known only when the run
ends and comes in one piece; until then comment lines keep the stream alive. Sampling fields are
defaults of the program's steps. The finish reason is "length" where max_tokens ended that step.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from phloem.errors import Cancelled
from phloem.programs.protocol import Usage
from phloem.server.http.disconnect import while_connected
from phloem.server.http.replies import RequestError, error_reply
from phloem.server.http.sse import EventStream
from phloem.server.openai.chat_reply import (
    ChatChoice,
    ChatReply,
    ChunkChoice,
    ChunkWriter,
    Delta,
    ReplyMessage,
)
from phloem.server.openai.chat_request import ChatRequest
from phloem.server.openai.common_reply import DONE, error_events, new_id, usage_of
from phloem.server.openai.final_steps import final_steps
from phloem.server.openai.messages import plain_text
from phloem.server.programs.catalog import Registered
from phloem.server.programs.live import LiveRun
from phloem.server.programs.manager import RunManager
from phloem.server.programs.models import RunRequest
from phloem.server.programs.start_routes import new_row

__all__ = ["program_chat"]

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "stop",
)  # fmt: skip
_REFUSED = ("tools", "response_format", "regex", "logprobs", "ignore_eos", "stop_token_ids")


async def program_chat(
    registered: Registered, body: ChatRequest, request: Request, manager: RunManager
) -> Response:
    """Run the program and answer with its value. The run is on record like any other."""
    for name in _REFUSED:
        if getattr(body, name):
            raise _unsupported(name)
    if body.n not in (None, 1):
        raise _unsupported("n")
    asked = RunRequest(
        args=_arguments(registered, body),
        deadline_s=body.deadline_s,
        seed=None if body.seed is None else body.seed % 2**31,
        stream=bool(body.stream),
    )
    row = new_row(manager, registered, request, asked)
    given = {name: getattr(body, name) for name in _SAMPLING} | {"max_tokens": body.limit}
    row.options["sampling"] = {name: value for name, value in given.items() if value is not None}
    live = await manager.start(registered, row)
    final = final_steps(registered.program)
    if body.stream:
        return EventStream(_events(live, body, final), manager.state.settings, error_events)
    try:
        await while_connected(request, live.ended())
    except Cancelled:
        live.cancel("reader")
        raise
    return _reply(live, body, final)


def _arguments(registered: Registered, body: ChatRequest) -> dict[str, Any]:
    schema = registered.schema()
    turns = [(message.role, plain_text(message.content)) for message in body.messages]
    if "messages" in schema.get("properties", {}):
        return {"messages": [{"role": role, "content": text} for role, text in turns]}
    required = schema.get("required", [])
    said = [text for role, text in turns if role == "user"]
    if len(required) != 1 or not said:
        raise RequestError(
            400,
            f"the program {registered.name} can't be talked to"
            if said
            else "a program needs a user message",
            code="not_a_chat_program",
            param="messages" if not said else "model",
            hint="it needs a parameter `messages`, or exactly one required parameter",
        )
    return {required[0]: said[-1]}


def _unsupported(name: str) -> RequestError:
    return RequestError(
        400, f"a program behind the chat endpoint takes no {name}", code="unsupported", param=name
    )


def _text(live: LiveRun) -> str:
    value = (live.row.result or {})["value"]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _usage(live: LiveRun) -> Usage:
    return Usage(**(live.row.result or {})["usage"])


def _reply(live: LiveRun, body: ChatRequest, final: frozenset[str]) -> Response:
    headers = {"x-run-id": live.row.id}
    if live.error is not None:
        reply = error_reply(live.error)
        reply.headers.update(headers)
        return reply
    made = ChatReply(
        id=new_id("chatcmpl"),
        created=int(live.row.created_at),
        model=body.model,
        choices=[
            ChatChoice(
                index=0,
                message=ReplyMessage(content=_text(live)),
                logprobs=None,
                finish_reason=_reason(live, final),
            )
        ],
        usage=usage_of(_usage(live)),
    )
    return Response(made.model_dump_json(), media_type="application/json", headers=headers)


async def _events(
    live: LiveRun, body: ChatRequest, final: frozenset[str]
) -> AsyncGenerator[bytes, None]:
    chunks = ChunkWriter(body.model)
    # What was passed on can't be taken back: a run that has told of its last step is not restarted.
    live.streamed = bool(final)
    said = ""
    opening = chunks.choice(_choice(Delta(role="assistant", content="")))
    try:
        async for _, _, name, data in live.follow():
            piece = _piece(data, final) if name == "token" else ""
            if piece:
                if not said:
                    yield opening
                said += piece
                yield chunks.text(0, piece)
    finally:
        live.cancel("reader")
    if live.error is not None:
        raise live.error
    if not said:
        yield opening
    if rest := _text(live).removeprefix(said):
        yield chunks.text(0, rest)
    yield chunks.choice(_choice(Delta(), _reason(live, final)))
    if body.stream_options is not None and body.stream_options.include_usage:
        yield chunks.usage(usage_of(_usage(live)))
    yield DONE


def _reason(live: LiveRun, final: frozenset[str]) -> Literal["stop", "length"]:
    """ "length" if the reply is the text of a step that max_tokens ended."""
    for name, data in reversed(live.events):
        told = json.loads(data) if name == "step_finished" else {}
        if told and told["node"] in final and told["path"] == "":
            return "length" if told["finish_reason"] == "length" else "stop"
    return "stop"


def _choice(delta: Delta, reason: Literal["stop", "length"] | None = None) -> ChunkChoice:
    return ChunkChoice(index=0, delta=delta, finish_reason=reason)


def _piece(data: str, final: frozenset[str]) -> str:
    """The text of a token event that belongs to the reply."""
    told = json.loads(data)
    return str(told["text"]) if told["node"] in final and told["path"] == "" else ""
