"""Tools: Python functions with outside effects, for programs and for models to call.

What lives here: `@tool`, the schema of a call, and doing a call that a model wrote. What does
not: recording and running it (`executor/services.py`).
"""

from __future__ import annotations

import functools
import inspect
import json
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import pydantic

from phloem.errors import CompileError, ToolError
from phloem.programs.effects import CallTool
from phloem.programs.executor.frame import current
from phloem.programs.executor.perform import perform

__all__ = ["Tool", "call_schema", "call_tool", "now", "tool"]


class Tool:
    """A function that a run calls once, records, and never repeats in a replay.

    Calling it in a program runs it on a small pool of threads (an `async def` on the event
    loop, awaited), so that it may block. Outside of a program it is the plain function.
    A thread can't be stopped: a tool that is cancelled or timed out is left to end by itself.
    """

    __phloem_kind__ = "tool"

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        timeout: float | None = None,
        retries: int = 0,
        idempotent: bool = False,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name or function.__name__
        self.timeout = timeout
        self.retries = retries
        self.idempotent = idempotent

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """A tool that is a method has its `self` bound."""
        if (
            instance is None
            or next(iter(inspect.signature(self.function).parameters), "") != "self"
        ):
            return self
        return Tool(
            types.MethodType(self.function, instance),
            name=self.name,
            timeout=self.timeout,
            retries=self.retries,
            idempotent=self.idempotent,
        )

    def __reduce__(self) -> str:
        """Tools are pickled, as functions are, by the name under which they are found."""
        return self.function.__qualname__

    @property
    def description(self) -> str:
        """The function's docstring."""
        return inspect.getdoc(self.function) or ""

    @functools.cached_property
    def _adapter(self) -> pydantic.TypeAdapter[Any]:
        function: Any = self.function
        return pydantic.TypeAdapter(function)

    @functools.cached_property
    def parameters(self) -> dict[str, Any]:
        """The arguments as a JSON Schema object. Raises `CompileError` for arguments that JSON
        can't give."""
        try:
            return self._adapter.json_schema()
        except pydantic.errors.PydanticUserError as error:
            raise CompileError(
                f"the arguments of the tool {self.name!r} have no JSON Schema: {error}",
                hint="annotate them with types that JSON can hold",
            ) from error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it. In a program this is a step of the run; an `async` tool must be awaited."""
        frame = current()
        if frame is None:
            return self.function(*args, **kwargs)
        effect = CallTool(
            self.name, self.function, args, kwargs, self.timeout, self.retries, self.idempotent
        )
        # Hits that are still to come may be among the arguments, and an error of theirs goes first.
        frame.settle()
        if inspect.iscoroutinefunction(self.function):
            # It may be gathered with others, which end in any order.
            apart = replace(effect, slot=frame.branch.slot())
            return perform(frame.branch, apart, frame.site())
        return frame.ask(effect)

    def checked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as a model gives them, converted to what the function takes.

        Raises `ToolError`, saying what is wrong with which argument.
        """
        signature = inspect.signature(self.function)
        unknown = [name for name in arguments if name not in signature.parameters]
        if unknown:
            raise ToolError(
                f"the tool {self.name!r} has no argument {unknown[0]!r}",
                hint=f"it takes: {', '.join(signature.parameters) or 'nothing'}",
            )
        checked = {}
        for name, parameter in signature.parameters.items():
            if name not in arguments:
                if parameter.default is inspect.Parameter.empty:
                    raise ToolError(
                        f"the tool {self.name!r} needs the argument {name!r}", hint="give it"
                    )
                continue
            checked[name] = self._converted(name, parameter, arguments[name])
        return checked

    def _converted(self, name: str, parameter: inspect.Parameter, value: Any) -> Any:
        kind: Any = Any if parameter.annotation is parameter.empty else self._hints[name]
        try:
            return pydantic.TypeAdapter(kind).validate_python(value)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            raise ToolError(
                f"the argument {name!r} of the tool {self.name!r}: {first['msg']}",
                hint=f"got {value!r}",
            ) from error

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return inspect.get_annotations(self.function, eval_str=True)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    idempotent: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout: float | None = None,
    retries: int = 0,
    idempotent: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function. `timeout` is in seconds; `retries` repeat it after any error.

    A run that goes on after a crash never calls a tool again that may have been called, unless
    `idempotent` says that a second call does no harm.
    """

    def make(inner: Callable[..., Any]) -> Tool:
        return Tool(inner, name=name, timeout=timeout, retries=retries, idempotent=idempotent)

    return make if function is None else make(function)


def call_schema(*tools: Tool) -> dict[str, Any]:
    """A JSON Schema for one call of one of `tools`: {"name": …, "arguments": {…}}.

    Give it to `gen(schema=...)`: the model then can't write a call that does not fit.
    """
    if not tools:
        raise CompileError("call_schema() needs at least one tool", hint="pass the tools")
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": item.name}, "arguments": _inlined(item.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for item in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its definitions put in place, so that it can be part of another."""
    definitions = schema.get("$defs", {})

    def put(node: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [put(item, inside) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            name = node["$ref"].rsplit("/", 1)[-1]
            if name in inside:
                raise CompileError(
                    f"the tool's argument type {name!r} contains itself",
                    hint="use a type that is not recursive",
                )
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return {**put(definitions[name], (*inside, name)), **put(rest, inside)}
        return {key: put(value, inside) for key, value in node.items() if key != "$defs"}

    return put(dict(schema), ())  # type: ignore[no-any-return] # a dict stays a dict


def call_tool(
    call: Mapping[str, Any] | str,
    tools: Sequence[Tool],
    *,
    on_error: Literal["return", "raise"] = "return",
) -> Any:
    """Do a call that a model wrote: {"name": …, "arguments": {…}} or its JSON text.

    With on_error="return" a wrong call or a failing tool gives the text "error: …", for the
    model to read; with "raise" it raises `ToolError`, or the tool's own error.
    """
    try:
        chosen, arguments = _parse(call, tools)
        return chosen(**chosen.checked(arguments))
    except Exception as error:
        if on_error == "raise":
            raise
        message = (
            error.message if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        )
        return f"error: {message}"


def _parse(call: Mapping[str, Any] | str, tools: Sequence[Tool]) -> tuple[Tool, Any]:
    try:
        data = json.loads(call) if isinstance(call, str) else call
        name, arguments = data["name"], data["arguments"]
    except (ValueError, KeyError, TypeError) as error:
        raise ToolError(
            f"this is no tool call: {call!r}", hint='write {"name": ..., "arguments": {...}}'
        ) from error
    for item in tools:
        if item.name == name:
            return item, arguments
    known = ", ".join(item.name for item in tools) or "none"
    raise ToolError(f"there is no tool {name!r}", hint=f"known: {known}")


def now() -> float:
    """Seconds since the epoch, recorded: a replay sees the time of the run it replays."""
    frame = current()
    if frame is None:
        return time.time()
    return float(frame.ask(CallTool("now", time.time)))
