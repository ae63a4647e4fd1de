"""What a reply must be, from `response_format`, `regex`, `tools` and `tool_choice`.

What lives here: building the `Constraint`. What does not: reading calls out of the reply
(`tool_stream.py`).

With "required" or a named tool the reply is one call, as compact JSON with its name first.
With "auto" it is either calls between their marks or a reply that does not begin like one.
Structures are never closed early: a reply cut by max_tokens says finish_reason "length".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from phloem.errors import ConstraintError
from phloem.grammar.spec import Analyser, Constraint
from phloem.grammar.tags import calls_or
from phloem.server.openai.chat_request import (
    ChatRequest,
    JsonSchemaFormat,
    NamedTool,
    Tool,
)
from phloem.server.openai.messages import CALL_BEGIN, CALL_END

__all__ = ["ToolMode", "constrains", "offered_tools", "reply_constraint", "tool_mode"]

ToolMode = Literal["none", "auto", "call"]
"""none: no calls. auto: calls or text. call: exactly one call."""


_TEXT = rf"(?!{CALL_BEGIN.rstrip('>')})[\s\S]*"
"""Any text but for one that might be meant as a call; it may begin with "<" as HTML does."""


def tool_mode(request: ChatRequest) -> ToolMode:
    """How the reply relates to tools."""
    if not request.tools or request.tool_choice == "none":
        return "none"
    return "auto" if request.tool_choice in (None, "auto") else "call"


def offered_tools(request: ChatRequest) -> list[Tool]:
    """The tools that the reply may call. Raises `ConstraintError` for an unknown name."""
    tools = request.tools or []
    if tool_mode(request) == "none":
        return []
    if not isinstance(request.tool_choice, NamedTool):
        return tools
    name = request.tool_choice.function.name
    named = [tool for tool in tools if tool.function.name == name]
    if not named:
        known = ", ".join(tool.function.name for tool in tools)
        raise ConstraintError(
            f"tool_choice names {name!r}, which is not among the tools",
            hint=f"the tools are: {known}",
            param="tool_choice",
        )
    return named


def constrains(request: ChatRequest) -> bool:
    """Whether anything in the request could make a constraint."""
    asked = request.tools, request.regex, request.response_format
    return any(part is not None for part in asked)


def reply_constraint(
    analyser: Analyser, request: ChatRequest, allowed: frozenset[str]
) -> Constraint | None:
    """The constraint on the reply, or None. `allowed` are the kinds the backend enforces.

    Raises `ConstraintError`, its `param` the field at fault.
    """
    mode = tool_mode(request)
    if mode == "call":
        schema = _call_schema(_parameters(request))
        with _param("tools"):
            return analyser.build(schema=schema, finish="free")
    if mode == "auto" and "lark" in allowed:
        return _calls_or_reply(analyser, request)
    return _reply(analyser, request)


def _reply(analyser: Analyser, request: ChatRequest) -> Constraint | None:
    """The constraint on a reply that is no call."""
    if request.regex is not None:
        with _param("regex"):
            return analyser.build(regex=request.regex, finish="free")
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if isinstance(form, JsonSchemaFormat):
        schema = form.json_schema.schema_
    else:
        schema = {"type": "object"} if form.value is None else form.value
    with _param("response_format"):
        return analyser.build(schema=schema, finish="free")


def _calls_or_reply(analyser: Analyser, request: ChatRequest) -> Constraint:
    """Calls between their marks, or else what `_reply` says or text not beginning like one."""
    reply = _reply(analyser, request) or Constraint("regex", _TEXT)
    at_most = 1 if request.parallel_tool_calls is False else None
    tools = _parameters(request)
    with _param("tools"):
        either = calls_or(tools, reply, begin=CALL_BEGIN, end=CALL_END, at_most=at_most)
        return analyser.build(lark=either.source, finish="free")


def _parameters(request: ChatRequest) -> dict[str, dict[str, Any]]:
    """The schema of each offered tool's arguments, by the tool's name."""
    found = {}
    for tool in offered_tools(request):
        parameters = tool.function.parameters or {"properties": {}}
        if parameters.get("type", "object") != "object":
            raise ConstraintError(
                f"the parameters of {tool.function.name} must be of type object", param="tools"
            )
        found[tool.function.name] = {**_closed(parameters), "type": "object"}
    return found


_OPENING = frozenset(
    (
        "$dynamicRef", "$ref", "additionalProperties", "allOf", "anyOf", "dependentRequired",
        "dependentSchemas", "else", "if", "minProperties", "oneOf", "patternProperties", "then",
        "unevaluatedProperties",
    )
)  # fmt: skip
"""Keywords that may ask for more members than those in `properties`."""


def _closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema of a call's arguments without names that the function does not have.

    JSON Schema allows any, but a caller passes them on; a model that is free to makes some up. A
    schema that says nothing of its names is left as it is.
    """
    names = parameters.get("properties")
    if not isinstance(names, dict) or _OPENING & parameters.keys():
        return parameters
    if any(name not in names for name in parameters.get("required") or ()):
        return parameters
    return {**parameters, "additionalProperties": False}


def _call_schema(tools: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One call of any of `tools`, in one schema without identifiers: every backend reads it.

    Each tool's own schema moves to `$defs`, and what it refers to with it.
    """
    calls = []
    definitions = {}
    for number, (name, parameters) in enumerate(tools.items()):
        root = f"#/$defs/tool{number}"
        definitions[f"tool{number}"] = _rebase(parameters, root)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": {"$ref": root}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls, "$defs": definitions}


def _rebase(schema: Any, root: str) -> Any:
    """`schema` with its references to places in itself ("#/...") moved below `root`."""
    if isinstance(schema, list):
        return [_rebase(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:]
        if key == "$ref" and isinstance(value, str) and (value == "#" or value[:2] == "#/")
        else _rebase(value, root)
        for key, value in schema.items()
    }


@contextlib.contextmanager
def _param(name: str) -> Iterator[None]:
    """Say which field of the request an error of a constraint belongs to."""
    try:
        yield
    except ConstraintError as error:
        error.details["param"] = name
        raise
