"""What events tell of a program's own values, and that they tell it only when asked to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import phloem as ph
from phloem.programs import events as ev
from phloem.programs.executor.deferred import Deferred, PendingHits
from phloem.programs.executor.glance import glance
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hits, Query


@ph.tool
def look_up(word: str) -> dict[str, str]:
    return {"word": word}


@ph.function
def program(s: ph.State, topic: str) -> str:
    s += "Say: " + ph.gen("said", max_tokens=9, temperature=0)
    words = s["said"].split()
    found = look_up(words[0])
    s += " " + ph.select("choice", ["yes", "no"])
    return found["missing"] + topic


def events_of(trace_values: bool) -> list[Any]:
    backend = ScriptedBackend(["a b"])
    state = program.run(stream=True, topic="t", backend=backend, trace_values=trace_values)
    assert isinstance(state.error(), KeyError)
    return list(state.events)


def test_events_tell_what_was_asked_and_what_python_wrote() -> None:
    """With trace_values a step tells what it asks for, and a Python node what it wrote."""
    events = events_of(True)
    asked = {e.name: e.asked for e in events if isinstance(e, ev.StepStarted)}
    assert asked["said"]["max_tokens"] == 9
    assert asked["choice"] == {"choices": ["yes", "no"]}
    assert asked["look_up"] == {"args": ["a"], "kwargs": {}}
    values = [e.values for e in events if isinstance(e, ev.Ran)]
    assert {"words": ["a", "b"]} in values


def test_a_failed_run_tells_its_variables_and_its_source() -> None:
    """The last event holds the source around the failing line and all variables there."""
    last = events_of(True)[-1]
    assert isinstance(last, ev.RunFailed)
    assert dict(last.excerpt)[last.line or 0].strip() == 'return found["missing"] + topic'
    assert last.variables == {"topic": "t", "words": ["a", "b"], "found": {"word": "a"}}


def test_without_trace_values_nothing_is_told() -> None:
    """By default events hold neither arguments of steps nor variables nor source."""
    events = events_of(False)
    assert all(e.asked is None for e in events if isinstance(e, ev.StepStarted))
    assert all(e.values is None for e in events if isinstance(e, ev.Ran))
    assert (events[-1].excerpt, events[-1].variables) == ((), None)


def test_the_innermost_program_tells_its_variables() -> None:
    """Of programs that call each other the one that failed shows its variables."""

    @ph.function
    def inner(s: ph.State, depth: int) -> None:
        doubled = 2 * depth
        s += "x" * doubled
        raise ValueError("inner")

    @ph.function
    def outer(s: ph.State) -> None:
        mine = 3
        inner(s, mine)

    state = outer.run(stream=True, backend=ScriptedBackend([]), trace_values=True)
    assert isinstance(state.error(), ValueError)
    last = state.events[-1]
    assert isinstance(last, ev.RunFailed)
    assert last.variables == {"depth": 3, "doubled": 6}


def test_the_cause_of_an_error_is_told() -> None:
    """An error raised from another names it in the last event, traced or not."""

    class Down:
        async def search(self, query: Query) -> Hits:
            raise ConnectionError("refused") from OSError("no route")

        async def aclose(self) -> None:
            pass

    @ph.function
    def asks(s: ph.State) -> None:
        ph.retrieve("docs", "anything")

    state = asks.run(stream=True, backend=ScriptedBackend([]), retriever=Down())
    assert isinstance(state.error(), ConnectionError)
    last = state.events[-1]
    assert isinstance(last, ev.RunFailed)
    assert last.cause == "OSError: no route"


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (b"\x00", "b'\\x00'"),
        ({1: (2, {3})}, {"1": [2, [3]]}),
        ("x" * 3000, "x" * 2000 + "… (3000 characters)"),
        (list(range(52)), [*range(50), "… 2 more"]),
        (Unprintable(), "<Unprintable, whose repr fails: RuntimeError>"),
    ],
)
def test_values_are_cut_to_what_can_be_read(value: Any, shown: Any) -> None:
    """Long texts and lists end with a count, and nothing that a value does breaks the run."""
    assert glance(value) == shown


def test_values_that_hold_themselves_end() -> None:
    """A list inside itself is cut at a depth."""
    loop: list[Any] = []
    loop.append(loop)
    assert "[...]" in str(glance(loop))


async def test_a_value_that_is_not_there_is_not_waited_for() -> None:
    """A glance at hits that nobody has read neither waits nor takes their error away."""

    async def fail() -> None:
        raise ConnectionError("down")

    task = asyncio.ensure_future(fail())
    await asyncio.wait([task])
    hits = PendingHits(Deferred(task))
    assert glance(hits) == "… (not read yet)"
    assert not hits.deferred.told
    with pytest.raises(ConnectionError):
        hits.deferred.settle()
    assert glance(hits) == "<PendingHits, which raises ConnectionError>"
