"""Replies of POST /v1/chat/completions, whole and in chunks.

What lives here: the pydantic models and their making from results. What does not: the
endpoint (`chat.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel

from phloem.programs.protocol import Backend, StepResult, TokenLogprob
from phloem.runtime.token_backend import TokenBackend
from phloem.server.http.sse import event
from phloem.server.openai.common_reply import FinishReason, UsageReply, finish, new_id
from phloem.server.openai.constraints import ToolMode
from phloem.server.openai.tool_stream import (
    CallArguments,
    CallStart,
    ContentPiece,
    Piece,
    ToolStream,
)

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatReply",
    "ChunkChoice",
    "ChunkWriter",
    "Delta",
    "Logprobs",
    "bytes_in",
    "chat_choice",
    "delta_of",
    "logprobs_of",
    "reason_of",
]

BytesOf: TypeAlias = Callable[[int, str], list[int] | None]


class TopLogprob(BaseModel):
    """One alternative."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenProbability(TopLogprob):
    """The chosen token and its alternatives."""

    top_logprobs: list[TopLogprob]


class Logprobs(BaseModel):
    """Natural-log probabilities of a reply's tokens."""

    content: list[TokenProbability]
    refusal: None = None


class FunctionReply(BaseModel):
    """The function called and its arguments, as JSON text."""

    name: str
    arguments: str


class ToolCallReply(BaseModel):
    """A call of the reply."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionReply


class ReplyMessage(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCallReply] | None = None


class ChatChoice(BaseModel):
    """One candidate."""

    index: int
    message: ReplyMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class ChatReply(BaseModel):
    """The whole reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    system_fingerprint: str | None = None


class FunctionDelta(BaseModel):
    """More of a call."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """More of the call with this index; the first has its id and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class Delta(BaseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    """What a chunk adds to one candidate."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(BaseModel):
    """One event of a stream. The last, with include_usage, has no choices but the usage."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageReply | None = None
    system_fingerprint: str | None = None


class ChunkWriter:
    """The chunks of one streamed reply, as events.

    Nearly all of them add a few characters to one candidate; those are written without a model in
    between, which would cost more than all else that a token costs here.
    """

    def __init__(self, model: str) -> None:
        self._shared: dict[str, Any] = {
            "id": new_id("chatcmpl"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        shared = json.dumps(self._shared, ensure_ascii=False, separators=(",", ":"))
        self._before = f'{shared[:-1]},"choices":['

    def text(self, index: int, text: str) -> bytes:
        """More text of a candidate."""
        delta = f'{{"content":{json.dumps(text, ensure_ascii=False)}}}'
        choice = f'{{"index":{index},"delta":{delta},"finish_reason":null}}'
        return event(f"{self._before}{choice}]}}")

    def choice(self, choice: ChunkChoice) -> bytes:
        """Anything about a candidate."""
        return event(
            ChatChunk(**self._shared, choices=[choice]).model_dump_json(exclude_unset=True)
        )

    def usage(self, usage: UsageReply) -> bytes:
        """The chunk after the last."""
        last = ChatChunk(**self._shared, choices=[], usage=usage)
        return event(last.model_dump_json(exclude_none=True))


def reason_of(result: StepResult, reader: ToolStream) -> FinishReason:
    """ "tool_calls" only for a reply that has whole calls; one that is cut says by what: "length",
    or "stop" for a stop text."""
    reason = finish(result)
    return "tool_calls" if reason == "stop" and reader.calls and reader.whole else reason


def chat_choice(
    index: int, result: StepResult, mode: ToolMode, bytes_of: BytesOf | None
) -> ChatChoice:
    """A finished candidate, with log-probabilities if the bytes of tokens are told."""
    reader = ToolStream(mode)
    pieces = [*reader.feed(result.text), *reader.finish()]
    content = "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece))
    calls = _whole_calls(pieces)
    message = ReplyMessage(content=None if calls else content, tool_calls=calls or None)
    return ChatChoice(
        index=index,
        message=message,
        logprobs=logprobs_of(result.logprobs, bytes_of) if bytes_of else None,
        finish_reason=reason_of(result, reader),
    )


def _whole_calls(pieces: Sequence[Piece]) -> list[ToolCallReply]:
    calls: Mapping[int, ToolCallReply] = {
        piece.index: ToolCallReply(
            id=piece.id, function=FunctionReply(name=piece.name, arguments="")
        )
        for piece in pieces
        if isinstance(piece, CallStart)
    }
    for piece in pieces:
        if isinstance(piece, CallArguments):
            calls[piece.index].function.arguments += piece.text
    return list(calls.values())


def delta_of(pieces: Sequence[Piece]) -> Delta | None:
    """What pieces of a reply add to its message, or None if nothing."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece))
    calls = [_call_delta(piece) for piece in pieces if not isinstance(piece, ContentPiece)]
    if not content and not calls:
        return None
    # Only what is set goes out: a field of null would say that the message has none.
    given: dict[str, Any] = {"content": content} if content else {}
    if calls:
        given["tool_calls"] = calls
    return Delta(**given)


def _call_delta(piece: CallStart | CallArguments) -> ToolCallDelta:
    if isinstance(piece, CallStart):
        function = FunctionDelta(name=piece.name, arguments="")
        return ToolCallDelta(index=piece.index, id=piece.id, type="function", function=function)
    return ToolCallDelta(index=piece.index, function=FunctionDelta(arguments=piece.text))


def bytes_in(backend: Backend) -> BytesOf:
    """What tells the bytes of a token, given its id and its text: they may be part of a character,
    which the text can't show. None where nobody knows them."""
    if isinstance(backend, TokenBackend):
        return lambda token, _: list(backend.token_bytes(token))
    return lambda _, text: None if "\ufffd" in text else list(text.encode())


def logprobs_of(tokens: Sequence[TokenLogprob], bytes_of: BytesOf) -> Logprobs:
    """The log-probabilities of some tokens."""
    return Logprobs(
        content=[
            TokenProbability(
                token=one.text,
                logprob=one.logprob,
                bytes=bytes_of(one.token, one.text),
                top_logprobs=[
                    TopLogprob(token=text, logprob=logprob, bytes=bytes_of(token, text))
                    for token, text, logprob in one.top
                ],
            )
            for one in tokens
        ]
    )
