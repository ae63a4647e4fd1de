"""What a reply must be, from `response_format`, `regex`, `tools` and `tool_choice`.

What lives here: building the `Constraint`. What does not: reading calls out of the reply
(`tool_stream.py`).

With "required" or a named tool the reply is one call, as compact JSON with its name first.
With "auto" it is either calls between their marks or a reply that does not begin like one.
Structures are never closed early: a reply cut by max_tokens says finish_reason "length".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from phloem.errors import ConstraintError
from phloem.grammar.spec import Analyser, Constraint
from phloem.server.openai.chat_request import (
    ChatRequest,
    JsonSchemaFormat,
    NamedTool,
    Tool,
)
from phloem.server.openai.messages import CALL_BEGIN, CALL_END

__all__ = ["ToolMode", "offered_tools", "reply_constraint", "tool_mode"]

ToolMode = Literal["none", "auto", "call"]
"""none: no calls. auto: calls or text. call: exactly one call."""


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


def reply_constraint(
    analyser: Analyser, request: ChatRequest, allowed: frozenset[str]
) -> Constraint | None:
    """The constraint on the reply, or None. `allowed` are the kinds the backend enforces.

    Raises `ConstraintError`, its `param` the field at fault.
    """
    mode = tool_mode(request)
    if mode == "call":
        schema = _call_schema(offered_tools(request))
        return _build(analyser, "tools", schema=schema, finish="free")
    if mode == "auto" and "lark" in allowed:
        grammar = _auto_grammar(request)
        return _build(analyser, "tools", lark=grammar, finish="free")
    if request.regex is not None:
        return _build(analyser, "regex", regex=request.regex, finish="free")
    form = _format_schema(request)
    if form is not None:
        return _build(analyser, "response_format", schema=form, finish="free")
    return None


def _build(analyser: Analyser, param: str, **source: Any) -> Constraint:
    try:
        return analyser.build(**source)
    except ConstraintError as error:
        error.details["param"] = param
        raise


def _format_schema(request: ChatRequest) -> dict[str, Any] | None:
    form = request.response_format
    if form is None or form.type == "text":
        return None
    if isinstance(form, JsonSchemaFormat):
        return form.json_schema.schema_
    return {"type": "object"} if form.value is None else form.value


def _call_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    """One call of any of `tools`. Each schema moves to `$defs`, its references with it."""
    calls = []
    definitions = {}
    for number, tool in enumerate(tools):
        parameters = tool.function.parameters or {"type": "object", "properties": {}}
        if parameters.get("type", "object") != "object":
            raise ConstraintError(
                f"the parameters of {tool.function.name} must be of type object", param="tools"
            )
        key = f"tool{number}"
        definitions[key] = _rebase({**parameters, "type": "object"}, f"#/$defs/{key}")
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    "arguments": {"$ref": f"#/$defs/{key}"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls, "$defs": definitions}


def _rebase(schema: Any, root: str) -> Any:
    """`schema` with its references to itself ("#...") moved below `root`."""
    if isinstance(schema, list):
        return [_rebase(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value[1:]
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _rebase(value, root)
        for key, value in schema.items()
    }


def _auto_grammar(request: ChatRequest) -> str:
    """Calls between their marks, or else text that does not begin with "<" (or the format)."""
    call = _json_rule(_call_schema(offered_tools(request)))
    several = "+" if request.parallel_tool_calls is not False else ""
    schema = _format_schema(request)
    other = "TEXT" if schema is None else _json_rule(schema)
    return (
        f"start: call{several} | {other}\n"
        f"call: {json.dumps(CALL_BEGIN)} {call} {json.dumps(CALL_END)}\n"
        "TEXT: /([^<](?s:.)*)?/\n"
    )


def _json_rule(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})
