"""What model servers answer: text, usage, finish reason, errors, out of whole or streamed bodies.

What lives here: `Reply` and `read_reply`, for OpenAI's chat, completions and responses, for
SGLang's and llama.cpp's native endpoints, and for runs of phloem. What does not: requests
(`requests.py`) and headers (`exchange.py`).

A stream is read as its server-sent events
(https://html.spec.whatwg.org/multipage/server-sent-events.html); one that breaks off gives what
had come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from phloem.server.trace.record import TraceError

__all__ = ["Reply", "error_of", "read_reply"]


@dataclass(slots=True)
class Reply:
    """What is known of an answer so far. `done` says that a stream came to its proper end."""

    output: str = ""
    model: str | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    errors: list[TraceError] = field(default_factory=list)
    tools: dict[int, list[str]] = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    """The texts of a stream's events, for whoever must see them apart."""

    def add(self, text: Any) -> None:
        """More of the output."""
        if isinstance(text, str) and text:
            self.output += text
            self.pieces.append(text)


def read_reply(text: str, content_type: str) -> Reply:
    """The answer in a body. One that is neither JSON nor a stream of events is empty."""
    reply = Reply()
    if "text/event-stream" in content_type:
        for name, data in _events(text):
            _take(reply, data, name)
    elif "json" in content_type:
        _take(reply, _json(text), None)
    for number, parts in sorted(reply.tools.items()):
        reply.add(("\n" if number or reply.output else "") + "".join(parts))
    return reply


def _events(text: str) -> Iterator[tuple[str | None, Any]]:
    """(name, JSON data) of the events; `[DONE]` and comments are left out."""
    for block in text.replace("\r\n", "\n").replace("\r", "\n").split("\n\n"):
        name, lines = None, []
        for line in block.split("\n"):
            key, _, value = line.partition(":")
            if key == "event":
                name = value.strip()
            elif key == "data":
                lines.append(value.removeprefix(" "))
        data = "\n".join(lines)
        if data and data != "[DONE]":
            yield name, _json(data)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _take(reply: Reply, data: Any, event: str | None) -> None:
    """One whole body, or one event of a stream."""
    if isinstance(data, list):
        for item in data:
            _take(reply, item, event)
        return
    if not isinstance(data, Mapping):
        return
    error = error_of(data) if event != "error" else error_of({"error": data.get("error", data)})
    if error is not None and error not in reply.errors:
        reply.errors.append(error)
    reply.model = data.get("model") or reply.model
    if isinstance(data.get("usage"), Mapping):
        reply.usage = dict(data["usage"])
    _take_text(reply, data, event)


def _take_text(reply: Reply, data: Mapping[str, Any], event: str | None) -> None:
    """The part of an answer that is the model's, by the shape of the answer."""
    if event is not None and str(data.get("type")) == event and "seq" in data:
        _run_event(reply, data)
    elif isinstance(data.get("choices"), list):
        _choices(reply, data["choices"])
    elif isinstance(data.get("meta_info"), Mapping):
        _sglang(reply, data)
    elif isinstance(data.get("type"), str) and data["type"].startswith("response."):
        _responses_event(reply, data)
    elif data.get("object") == "response":
        _response(reply, data)
    elif isinstance(data.get("content"), str) and "stop" in data:
        _llama_cpp(reply, data)
    elif data.get("object") == "run" and isinstance(data.get("text"), str) and not reply.output:
        reply.add(data["text"])


def error_of(data: Mapping[str, Any]) -> TraceError | None:
    """The error that a body or an event tells, in the shapes that servers use."""
    found = data.get("error")
    if found is None and data.get("object") == "error":
        found = data
    if isinstance(found, str) and found:
        return TraceError(type="error", message=found)
    if not isinstance(found, Mapping):
        return None
    where = found.get("where")
    where = where if isinstance(where, Mapping) else {}
    kind = found.get("code") or found.get("type") or "error"
    return TraceError(
        type=str(kind),
        message=str(found.get("message", "")),
        hint=found.get("hint"),
        program=where.get("program"),
        node=where.get("node"),
        file=where.get("file"),
        line=where.get("line"),
    )


def _choices(reply: Reply, choices: list[Any]) -> None:
    for choice in choices:
        if not isinstance(choice, Mapping) or choice.get("index", 0) != 0:
            continue
        part = choice.get("delta") or choice.get("message") or {}
        reply.add(part.get("reasoning_content"))
        reply.add(part.get("content"))
        reply.add(choice.get("text"))
        for call in part.get("tool_calls") or ():
            function = call.get("function") or {}
            parts = reply.tools.setdefault(int(call.get("index") or 0), [])
            parts += filter(None, (function.get("name"), function.get("arguments")))
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason


def _sglang(reply: Reply, data: Mapping[str, Any]) -> None:
    """SGLang's `/generate`. In its streams each event has all of the text so far."""
    text, meta = data.get("text"), data["meta_info"]
    if isinstance(text, str):
        reply.add(text.removeprefix(reply.output) if reply.output else text)
    reason = meta.get("finish_reason")
    if isinstance(reason, Mapping):
        reply.finish_reason = str(reason.get("type"))
        if reason.get("type") == "abort":
            message = str(reason.get("message") or "aborted")
            reply.errors.append(TraceError(type="abort", message=message))
    counted = ("prompt_tokens", "completion_tokens", "cached_tokens")
    reply.usage = {name: meta[name] for name in counted if name in meta}


def _responses_event(reply: Reply, data: Mapping[str, Any]) -> None:
    """OpenAI's responses API, streamed."""
    if data["type"] == "response.output_text.delta":
        reply.add(data.get("delta"))
    elif isinstance(data.get("response"), Mapping):
        whole = data["response"]
        reply.model = whole.get("model") or reply.model
        reply.finish_reason = whole.get("status") or reply.finish_reason
        reply.usage = whole.get("usage") or reply.usage
        if (error := error_of(whole)) is not None:
            reply.errors.append(error)


def _response(reply: Reply, data: Mapping[str, Any]) -> None:
    """OpenAI's responses API, whole."""
    reply.finish_reason = data.get("status")
    for item in data.get("output") or ():
        for part in item.get("content") or ():
            reply.add(part.get("text"))


def _llama_cpp(reply: Reply, data: Mapping[str, Any]) -> None:
    """llama.cpp's `/completion`."""
    reply.add(data["content"])
    if data["stop"]:
        reply.finish_reason = str(data.get("stop_type") or "stop")
        reply.usage = {
            "prompt_tokens": data.get("tokens_evaluated"),
            "completion_tokens": data.get("tokens_predicted"),
        }


def _run_event(reply: Reply, data: Mapping[str, Any]) -> None:
    """An event of a run of phloem."""
    if data["type"] == "token":
        reply.add(data.get("text"))
    elif data["type"] == "step_finished":
        reply.finish_reason = data.get("finish_reason") or reply.finish_reason
