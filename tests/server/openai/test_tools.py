"""tools and tool_choice, streamed and not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phloem.grammar.analyser import default_analyser
from phloem.grammar.testing import compiler_of
from phloem.runtime.model.tiny import tiny_tokenizer
from phloem.server.openai.chat_request import ChatRequest
from phloem.server.openai.constraints import reply_constraint
from phloem.server.openai.tool_stream import (
    CallArguments,
    CallStart,
    ContentPiece,
    Piece,
    ToolStream,
)
from tests.server.harness import Running
from tests.server.openai.test_chat import streamed

GET_TEMP = {
    "type": "function",
    "function": {
        "name": "get_temp",
        "parameters": {
            "$defs": {"city": {"type": "string", "maxLength": 12}},
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
}
TOOLS = [GET_TEMP, PING]


def calls_of(server: Running, stream: bool, **body: Any) -> tuple[list[dict[str, Any]], str]:
    """The calls and the finish reason, read as a client of that mode reads them."""
    body = {"tools": TOOLS, "max_tokens": 200, "seed": 5, "temperature": 1, **body}
    if not stream:
        choice = server.chat(**body).json()["choices"][0]
        return choice["message"]["tool_calls"] or [], choice["finish_reason"]
    calls: dict[int, dict[str, Any]] = {}
    reason = ""
    for event in streamed(server, **body):
        choice = event["choices"][0]
        reason = choice["finish_reason"] or reason
        for part in choice["delta"].get("tool_calls", []):
            if "id" in part:
                calls[part["index"]] = part | {"function": dict(part["function"])}
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return list(calls.values()), reason


@pytest.mark.parametrize("stream", [False, True])
def test_required_gives_a_known_call(server: Running, stream: bool) -> None:
    """tool_choice required gives one call of a known tool with arguments of its schema."""
    calls, reason = calls_of(server, stream, tool_choice="required")
    assert reason == "tool_calls"
    assert len(calls) == 1
    assert calls[0]["id"].startswith("call_")
    arguments = json.loads(calls[0]["function"]["arguments"])
    if calls[0]["function"]["name"] == "get_temp":
        assert len(arguments.pop("city")) <= 12
        assert arguments == {}
    else:
        assert calls[0]["function"]["name"] == "ping"


@pytest.mark.parametrize("stream", [False, True])
def test_a_named_tool_is_the_one_called(server: Running, stream: bool) -> None:
    """A named tool is called, and the reason is tool_calls in both modes."""
    choice = {"type": "function", "function": {"name": "get_temp"}}
    calls, reason = calls_of(server, stream, tool_choice=choice)
    assert [call["function"]["name"] for call in calls] == ["get_temp"]
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_none_gives_text_only(server: Running, stream: bool) -> None:
    """tool_choice none gives no call and never the reason tool_calls."""
    calls, reason = calls_of(server, stream, tool_choice="none", max_tokens=20)
    assert calls == []
    assert reason in {"stop", "length"}


@pytest.mark.parametrize("stream", [False, True])
def test_auto_gives_calls_or_text(server: Running, stream: bool) -> None:
    """tool_choice auto says tool_calls exactly when there are calls."""
    calls, reason = calls_of(server, stream, max_tokens=30)
    assert (reason == "tool_calls") == bool(calls)


def test_an_unknown_tool_is_refused(server: Running) -> None:
    """A tool_choice that names no tool is a 400 that names the field."""
    choice = {"type": "function", "function": {"name": "nope"}}
    reply = server.chat(tools=TOOLS, tool_choice=choice)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_whose_schema_can_not_be_enforced_is_refused(server: Running, choice: str) -> None:
    """Arguments get the treatment of any schema: what can't be kept is a 400 for the field."""
    function = {"name": "f", "parameters": {"properties": {"x": {"$ref": "http://a.b/c"}}}}
    tools = [{"type": "function", "function": function}]
    reply = server.chat(tools=tools, tool_choice=choice)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools"


@pytest.mark.parametrize("parameters", [None, {}, {"type": "object", "properties": {}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_function_without_parameters_is_called_with_none(
    server: Running, stream: bool, parameters: Any
) -> None:
    """Parameters left out are an empty list of them, as OpenAI's reference says."""
    function = (
        {"name": "ping"} if parameters is None else {"name": "ping", "parameters": parameters}
    )
    tools = [{"type": "function", "function": function}]
    for seed in range(3):
        calls, reason = calls_of(server, stream, tools=tools, tool_choice="required", seed=seed)
        assert [call["function"]["arguments"] for call in calls] == ["{}"]
        assert reason == "tool_calls"


def test_no_argument_is_made_up(server: Running) -> None:
    """A call's arguments have names of the function's parameters only."""
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for seed in range(4):
        calls, _ = calls_of(server, False, tools=tools, tool_choice="required", seed=seed)
        assert json.loads(calls[0]["function"]["arguments"]).keys() <= {"a"}


@pytest.mark.parametrize(
    "more",
    [
        {"required": ["b"]},
        {"minProperties": 3, "maxProperties": 3, "additionalProperties": {"type": "boolean"}},
        {"anyOf": [{"required": ["b"]}], "maxProperties": 2},
    ],
)
def test_arguments_beside_the_parameters_are_allowed_where_they_are_asked_for(
    server: Running, more: dict[str, Any]
) -> None:
    """A schema that needs names which are not in `properties` is not closed."""
    parameters = {"type": "object", "properties": {"a": {"type": "boolean"}}, **more}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert server.chat(tools=tools, tool_choice="required", max_tokens=1).status_code == 200


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_arguments_may_refer_to_anchors(server: Running, choice: str) -> None:
    """A reference by name is found wherever the tool's schema was put."""
    named = {"city": {"$anchor": "city", "enum": ["Rome"]}}
    members = {"city": {"$ref": "#city"}, "other": {"$ref": "#/properties/city"}}
    parameters = {"$defs": named, "properties": members, "required": ["city", "other"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    calls, _ = calls_of(server, False, tools=tools, tool_choice=choice)
    if choice == "required":
        arguments = json.loads(calls[0]["function"]["arguments"])
        assert arguments == {"city": "Rome", "other": "Rome"}


def test_exclusive_branches_of_arguments_are_enforced(server: Running) -> None:
    """Keywords that the grammar engine does not know itself hold in arguments too."""
    kinds = [{"properties": {"k": {"const": k}}, "required": ["k"]} for k in "ab"]
    parameters = {"oneOf": kinds, "required": ["n"], "properties": {"n": {"enum": [1, 2]}}}
    tool = {"type": "function", "function": {"name": "pick", "parameters": parameters}}
    body = {"tools": [tool], "max_tokens": 300, "temperature": 1}
    for choice in ("auto", "required"):
        assert server.chat(**body | {"tool_choice": choice, "max_tokens": 1}).status_code == 200
    for seed in range(4):
        choice = server.chat(**body, tool_choice="required", seed=seed).json()["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            found = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            assert found["k"] in ("a", "b")
            assert found["n"] in (1, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_cut_call_says_length(server: Running, stream: bool) -> None:
    """A call cut by max_tokens ends with "length", not with tool_calls."""
    _, reason = calls_of(server, stream, tool_choice="required", max_tokens=6)
    assert reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_a_stop_text_cut_says_stop(server: Running, stream: bool) -> None:
    """A call cut by a stop text is no call to make: it ends with "stop", not with tool_calls."""
    named = {"type": "function", "function": {"name": "get_temp"}}
    calls, reason = calls_of(server, stream, tool_choice=named, stop='"city"')
    assert calls[0]["function"]["arguments"] == "{"
    assert reason == "stop"


def test_results_of_calls_can_be_sent_back(server: Running) -> None:
    """A conversation with a call and its result is a good prompt."""
    call = {"id": "c1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "ping!"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "pong"},
    ]
    assert server.chat(messages=messages, tools=TOOLS).status_code == 200


MARKED = (
    '<tool_call>{"name":"a","arguments":{"x":"}\\"</tool_call>"}}</tool_call>'
    '<tool_call>{"name":"b","arguments":{}}</tool_call>'
)


def read(pieces: list[Piece]) -> tuple[str, list[tuple[str, str]]]:
    text = "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece))
    names = [piece.name for piece in pieces if isinstance(piece, CallStart)]
    arguments = ["" for _ in names]
    for piece in pieces:
        if isinstance(piece, CallArguments):
            arguments[piece.index] += piece.text
    return text, list(zip(names, arguments, strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_calls_are_read_whatever_the_pieces(size: int) -> None:
    """Calls with marks and braces inside strings are read the same for every cut."""
    reader = ToolStream("auto")
    cuts = [MARKED[at : at + size] for at in range(0, len(MARKED), size)]
    pieces = [piece for cut in cuts for piece in reader.feed(cut)] + reader.finish()
    assert read(pieces) == ("", [("a", '{"x":"}\\"</tool_call>"}'), ("b", "{}")])


def test_a_reply_beside_tools_may_begin_with_a_bracket() -> None:
    """Where tools are offered a reply may be HTML; only what begins like a call must be one."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    request = ChatRequest.model_validate(body)
    kinds = frozenset({"lark", "regex", "json_schema"})
    constraint = reply_constraint(default_analyser(), request, kinds)
    compiler = compiler_of(tiny_tokenizer())
    assert constraint is not None
    for text, fits in [("<b>x</b>", True), ("< tool", True), ("<tool_call> x", False), ("", True)]:
        matcher = compiler.matcher(constraint)
        tokens = compiler.tokenizer.ll.tokenize_str(text)
        assert (matcher.accepts_prefix(tokens) == len(tokens)) is fits, text


@pytest.mark.parametrize("text", ["", "<", "<tool", "<b>bold</b>", "plain", "a <tool_call>{}"])
def test_text_that_is_no_call_stays_text(text: str) -> None:
    """Text that does not begin with a call's mark is content, all of it."""
    reader = ToolStream("auto")
    pieces = [piece for character in text for piece in reader.feed(character)] + reader.finish()
    assert read(pieces) == (text, [])
