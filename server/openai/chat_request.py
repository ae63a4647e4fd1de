"""The body of POST /v1/chat/completions.

What lives here: its pydantic models. What does not: what is done with them. Unknown fields of
the body are refused; unknown fields of a message are ignored, because clients send replies
back as they got them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from phloem.server.openai.fields import Count, Flag, GenerateFields, Unsupported, wrong

__all__ = ["ChatRequest", "Function", "JsonSchemaFormat", "Message", "NamedTool", "Tool"]

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Strictly(BaseModel):
    """A part whose unknown fields are refused: one might be meant to constrain the reply."""

    model_config = ConfigDict(extra="forbid")


class TextPart(BaseModel):
    """A piece of a message's content."""

    type: Literal["text"]
    text: str


def _only_text(value: Any) -> Any:
    for part in value if isinstance(value, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"parts of type {kind[:40]!r} are not supported; send text parts")
    return value


Content = Annotated[str | list[TextPart], BeforeValidator(_only_text)]


class SystemMessage(BaseModel):
    """Instructions; "developer" is OpenAI's newer name of the role."""

    role: Literal["system", "developer"]
    content: Content


class UserMessage(BaseModel):
    """What the user said."""

    role: Literal["user"]
    content: Content


class FunctionCall(BaseModel):
    """A call the model made; `arguments` is JSON text."""

    name: Name
    arguments: str


class ToolCall(BaseModel):
    """A call in an earlier reply."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(BaseModel):
    """An earlier reply."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(BaseModel):
    """The result of a tool call."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


Message = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


class Function(Strictly):
    """A function the model may call; `parameters` is the JSON Schema of its arguments."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Flag | None = None


class Tool(Strictly):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strictly):
    """The name in a `tool_choice`."""

    name: Name


class NamedTool(Strictly):
    """A `tool_choice` of one tool."""

    type: Literal["function"]
    function: NamedFunction


class TextFormat(Strictly):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Strictly):
    """Any JSON object, or, with `value`, JSON of that schema: the form of Hugging Face's text
    generation server, which its client sends."""

    type: Literal["json_object"]
    value: dict[str, Any] | None = None


class JsonSchemaSpec(Strictly):
    """A named JSON Schema."""

    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: Flag | None = None


class JsonSchemaFormat(Strictly):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaSpec


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class ChatRequest(GenerateFields):
    """The body. `max_completion_tokens` wins over its older name `max_tokens`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: Flag | None = None
    top_logprobs: Annotated[int, Strict(), Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: Flag | None = None

    modalities: list[Literal["text"]] | None = None
    reasoning_effort: Unsupported = None
    functions: Unsupported = None
    function_call: Unsupported = None
    audio: Unsupported = None
    prediction: Unsupported = None
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise wrong("top_logprobs", "top_logprobs is only allowed with logprobs: true")
        if self.tool_choice not in (None, "none") and not self.tools:
            raise wrong("tool_choice", "tool_choice is only allowed with tools")
        names = [tool.function.name for tool in self.tools or ()]
        if double := next((name for name in names if names.count(name) > 1), None):
            raise wrong("tools", f"two tools have the name {double}")
        if self.regex is not None and self.response_format not in (None, TextFormat(type="text")):
            raise wrong("regex", "regex and response_format exclude each other")
        if self.tools and self.tool_choice != "none" and self.regex is not None:
            raise wrong("regex", "regex and tools exclude each other")
        return self

    @property
    def limit(self) -> int | None:
        """The output tokens asked for."""
        return self.max_completion_tokens or self.max_tokens
