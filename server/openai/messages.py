"""Chat messages as the model's own prompt.

What lives here: applying a `ChatFormat` to messages, with tools described in the system
message where there are any. What does not: what the model may answer (`constraints.py`).

A message's text is `Text` and never becomes a special token, whatever it spells; only the
format's own pieces do. So a message can't end its turn or open another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from phloem.errors import Unsupported
from phloem.programs.protocol import ChatFormat, Segment, Text
from phloem.server.openai.chat_request import (
    AssistantMessage,
    Content,
    Message,
    SystemMessage,
    Tool,
    ToolMessage,
)

__all__ = ["CALL_BEGIN", "CALL_END", "chat_prompt", "plain_text"]

CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
RESULT_BEGIN, RESULT_END = "<tool_response>", "</tool_response>"
"""The marks that most open models with tools are trained on (Hermes, Qwen)."""


def chat_prompt(
    chat: ChatFormat, messages: Sequence[Message], tools: Sequence[Tool] = ()
) -> tuple[Segment, ...]:
    """The messages and the opening of the assistant's turn.

    Raises `Unsupported` for a role that the model's template does not know.
    """
    turns = [(_role(chat, message), _text(message)) for message in messages]
    if turns[0][0] != "system" and chat.default_system is not None:
        turns.insert(0, ("system", chat.default_system))
    if tools:
        turns = _with_tools(turns, tools)
    if "system" not in chat.prefix:
        turns = _without_system(turns)
    segments: list[Segment] = [*chat.begin]
    for role, text in turns:
        segments += chat.prefix[role]
        if text:
            segments.append(Text(text, heal=False))
        segments += chat.suffix[role]
    return (*segments, *chat.prefix["assistant"])


def _role(chat: ChatFormat, message: Message) -> str:
    role = "system" if isinstance(message, SystemMessage) else message.role
    if role == "tool" and "tool" not in chat.prefix:
        return "user"
    if role != "system" and role not in chat.prefix:
        raise Unsupported(f"the model's chat template has no role {role!r}", param="messages")
    return role


def _text(message: Message) -> str:
    text = plain_text(message.content)
    if isinstance(message, ToolMessage):
        return f"{RESULT_BEGIN}\n{text}\n{RESULT_END}"
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls or ():
            name = json.dumps(call.function.name)
            body = f'{{"name":{name},"arguments":{call.function.arguments}}}'
            text += f"{CALL_BEGIN}{body}{CALL_END}"
    return text


def plain_text(content: Content | None) -> str:
    """The text of a message's content, its parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def _with_tools(turns: list[tuple[str, str]], tools: Sequence[Tool]) -> list[tuple[str, str]]:
    described = "\n".join(
        json.dumps(tool.function.model_dump(exclude_none=True, exclude={"strict"}))
        for tool in tools
    )
    note = (
        f"You can call these functions:\n<tools>\n{described}\n</tools>\n"
        f'To call one, answer with {CALL_BEGIN}{{"name":NAME,"arguments":OBJECT}}{CALL_END}.'
    )
    if turns[0][0] == "system":
        return [("system", f"{turns[0][1]}\n\n{note}"), *turns[1:]]
    return [("system", note), *turns]


def _without_system(turns: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """For templates without a system role: instructions open the next user message."""
    found: list[tuple[str, str]] = []
    pending = ""
    for role, text in turns:
        if role == "system":
            pending += text + "\n\n"
        else:
            found.append((role, pending + text if role == "user" else text))
            pending = "" if role == "user" else pending
    return found if not pending else [*found, ("user", pending.rstrip())]
