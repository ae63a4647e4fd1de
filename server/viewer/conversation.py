"""Exchanges with any server as a conversation: who said what.

What lives here: messages out of the JSON of chat and completion requests. What does not:
recording and grouping (`server/trace`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.trace.record import Exchange

__all__ = ["Said", "Turn", "turns_of"]


@dataclass(frozen=True, slots=True)
class Said:
    """One message. `note` names what is no text: an image, a call of a tool."""

    role: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """An exchange: `before` counts its messages that the exchange before had already, `said` are
    those that came with this one, `reply` is the answer (None: there was none)."""

    exchange: Exchange
    before: int
    said: tuple[Said, ...]
    reply: Said | None


def turns_of(exchanges: Sequence[Exchange]) -> tuple[Turn, ...]:
    """The exchanges of a group in order, each with what it added."""
    turns: list[Turn] = []
    known: tuple[Said, ...] = ()
    for one in exchanges:
        asked = _asked(_json(one.request.text))
        shared = 0
        while shared < min(len(known), len(asked)) and known[shared] == asked[shared]:
            shared += 1
        turns.append(Turn(one, shared, asked[shared:], _reply(one)))
        known = asked
    return tuple(turns)


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:  # no JSON, or the record has only its beginning
        return None


def _asked(body: Any) -> tuple[Said, ...]:
    if not isinstance(body, Mapping):
        return ()
    messages = body.get("messages")
    if isinstance(messages, list):
        return tuple(_said(one) for one in messages if isinstance(one, Mapping))
    for name in ("prompt", "text", "input", "args"):
        if body.get(name) is not None:
            value = body[name]
            return (Said(name, value if isinstance(value, str) else _pretty(value)),)
    return ()


def _said(message: Mapping[str, Any]) -> Said:
    content = message.get("content")
    texts: list[str] = []
    notes: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part is not None:
            notes.append(str(part.get("type", "part") if isinstance(part, Mapping) else "part"))
    if message.get("tool_calls"):
        texts.append(_pretty(message["tool_calls"]))
        notes.append("tool calls")
    return Said(str(message.get("role", "message")), "\n".join(texts), ", ".join(notes))


def _reply(one: Exchange) -> Said | None:
    if one.output:
        return Said("assistant", one.output, one.finish_reason or "")
    body = _json(one.response.text)
    if isinstance(body, Mapping) and isinstance(body.get("choices"), list) and body["choices"]:
        message = body["choices"][0].get("message")
        if isinstance(message, Mapping):
            return _said(message)
    return None


def _pretty(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
