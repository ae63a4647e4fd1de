"""Tools: schemas, calls of programs and of models, records."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import phloem as ph
from phloem.errors import CompileError, DeadlineExceeded, JournalError, ToolError
from phloem.programs.testing import ScriptedBackend


class Place(BaseModel):
    city: str
    zone: int = 0


@ph.tool
def weather(place: Place, unit: Literal["C", "F"] = "C") -> str:
    """The weather somewhere."""
    return f"{place.city} {unit}"


@ph.tool
def add(a: int, b: int = 1) -> int:
    """The sum."""
    return a + b


def test_schema_comes_from_the_annotations() -> None:
    """A tool's arguments are a closed JSON Schema object, its docstring the description."""
    schema = add.parameters
    assert schema["properties"]["a"]["type"] == "integer"
    assert schema["required"] == ["a"]
    assert add.description == "The sum."
    calls = ph.call_schema(add, weather)["anyOf"]
    assert [call["properties"]["name"]["const"] for call in calls] == ["add", "weather"]
    assert "$ref" not in str(calls)


def test_outside_of_a_program_a_tool_is_its_function() -> None:
    """Calling a tool outside of a program just calls it."""
    assert add(2, b=3) == 5


def test_tools_run_on_the_pool_and_are_events() -> None:
    """A tool may block: it runs on a thread of the pool, once, and its result is an event."""
    threads = []

    @ph.tool
    def where(x: int) -> int:
        threads.append(threading.current_thread().name)
        return x * 2

    @ph.function
    def program(s):
        y = where(4)
        s += str(y)
        return y

    state = program.run(backend=ScriptedBackend())
    assert (state.value, state.text()) == (8, "8")
    assert threads[0].startswith("phloem-tool")
    assert [e.value for e in state.events if e.type == "step_finished"] == [8]
    assert [node.kind for node in program.graph.nodes.values()] == ["call", "append", "return"]


def test_async_tools_are_awaited_side_by_side() -> None:
    """An async tool is awaited, alone or with others."""

    @ph.tool
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    @ph.function
    async def program(s):
        first = await double(1)
        both = await asyncio.gather(double(2), double(3))
        return first, both

    assert program.run(backend=ScriptedBackend()).value == (2, [4, 6])
    assert next(iter(program.graph.nodes.values())).kind == "call"


def test_models_calls_are_checked_and_done() -> None:
    """A call that a model wrote is converted to the function's types and done."""
    call = {"name": "weather", "arguments": {"place": {"city": "Oslo"}, "unit": "F"}}
    assert ph.call_tool(call, [add, weather]) == "Oslo F"
    assert ph.call_tool('{"name": "add", "arguments": {"a": 1}}', [add]) == 2


@pytest.mark.parametrize(
    "call",
    [
        "no json",
        '{"name": "add"}',
        {"name": "nope", "arguments": {}},
        {"name": "add", "arguments": {}},
        {"name": "add", "arguments": {"a": "x"}},
        {"name": "add", "arguments": {"a": 1, "c": 2}},
    ],
)
def test_wrong_calls_are_told_or_raised(call: Any) -> None:
    """A wrong call is text for the model, or a ToolError, by choice."""
    assert ph.call_tool(call, [add]).startswith("error: ")
    with pytest.raises(ToolError):
        ph.call_tool(call, [add], on_error="raise")


def test_a_tools_own_error_keeps_its_type() -> None:
    """An error of the tool's code leaves the run as it is, or is told to the model."""

    @ph.tool
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    @ph.function
    def program(s):
        s += ph.call_tool({"name": "broken", "arguments": {}}, [broken])
        broken()

    with pytest.raises(ZeroDivisionError, match="by zero") as caught:
        program.run(backend=ScriptedBackend())
    assert "phloem: program program, node call:" in "".join(caught.value.__notes__)


def test_retries_and_timeout() -> None:
    """`retries=` repeats a failing tool, `timeout=` bounds it."""
    calls = []

    @ph.tool(retries=2)
    def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("again")
        return len(calls)

    @ph.tool(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(10)

    @ph.function
    async def program(s, which):
        return flaky() if which else await slow()

    assert program.run(True, backend=ScriptedBackend()).value == 3
    with pytest.raises(DeadlineExceeded, match="'slow'"):
        program.run(False, backend=ScriptedBackend())


def test_replay_calls_no_tool_and_sees_the_old_clock() -> None:
    """Tool results and the clock come from the record in a replay."""
    calls = []

    @ph.tool
    def effect(x: int) -> dict[str, int]:
        calls.append(x)
        return {"x": x}

    @ph.function
    def program(s):
        return effect(1), ph.now()

    state = program.run(record=True, backend=ScriptedBackend())
    assert program.replay(state.record()).value == state.value
    assert calls == [1]


def test_values_that_json_cannot_hold_are_refused_or_registered() -> None:
    """A recorded tool must return JSON values, or values with a codec."""
    from phloem.programs.executor.values import register_codec

    class Odd:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Odd)

        __hash__ = object.__hash__

    @ph.tool
    def odd() -> Odd:
        return Odd()

    @ph.function
    def program(s):
        return odd()

    assert program.run(backend=ScriptedBackend()).value == Odd()
    with pytest.raises(JournalError, match="Odd"):
        program.run(record=True, backend=ScriptedBackend())
    register_codec("odd", Odd, lambda value: None, lambda data: Odd())
    record = program.run(record=True, backend=ScriptedBackend()).record()
    assert program.replay(record).value == Odd()


def test_arguments_without_schema_are_refused() -> None:
    """A tool whose arguments JSON can't give says so when its schema is asked for."""

    @ph.tool
    def takes(value: threading.Lock) -> None: ...

    with pytest.raises(CompileError, match="no JSON Schema"):
        takes.parameters  # noqa: B018 - the read is the point
