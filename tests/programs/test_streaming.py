"""Reading a run while it runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import phloem as ph
from phloem.errors import UnknownVariable
from phloem.programs import events as ev
from phloem.programs.testing import ScriptedBackend


@ph.function
def program(s):
    s += ph.user("q")
    s += ph.assistant("A: " + ph.gen("x", max_tokens=9) + ph.select("y", ["!", "?"]))
    return s["x"]


def engine() -> ScriptedBackend:
    return ScriptedBackend(["é🦊日"], scores={"!": -1, "?": -2})


def test_pieces_join_to_the_text() -> None:
    """The streamed pieces, joined, are the text of the same run not streamed."""
    state = program.run(stream=True, backend=engine())
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text() == program.run(backend=engine()).text()
    assert len(pieces) > 4


def test_pieces_of_one_variable() -> None:
    """A variable's pieces are that step's own text, for gen and select."""
    state = program.run(stream=True, backend=engine())
    assert list(state.text_iter("x")) == ["é", "🦊", "日"]
    assert list(state.text_iter("y")) == ["!"]


@ph.function
def sets(s):
    with s.var_scope("scope"):
        s += "a" + ph.gen("x", max_tokens=9)
    s.set_var("five", 5)
    branches = s.fork(2)
    for branch in branches:
        branch += ph.gen("each", max_tokens=9)
    branches.join()
    s += ph.gen("none", max_tokens=0)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [("scope", ["aout"]), ("five", ["5"]), ("each", ["['out', 'out']"]), ("none", [])],
)
def test_what_no_step_has_told_comes_whole(name: str, pieces: list[str]) -> None:
    """A variable that the program set, or a scope or a join, is read at the end, in one piece."""

    async def read(state: ph.ProgramState) -> list[tuple[str, object]]:
        return [pair async for pair in state.text_async_iter(name, return_meta_data=True)]

    state = sets.run(stream=True, backend=ScriptedBackend(lambda *_: "out"))
    assert list(state.text_iter(name)) == pieces
    assert [piece for piece, _ in asyncio.run(read(state)) if piece] == pieces


def test_pieces_of_a_variable_that_nothing_set() -> None:
    """Reading one that never comes raises, as an index does, when the run is over."""

    async def read(state: ph.ProgramState) -> list[str]:
        return [piece async for piece in state.text_async_iter("y")]

    state = sets.run(stream=True, backend=ScriptedBackend(lambda *_: "out"))
    with pytest.raises(UnknownVariable, match="'y'"):
        list(state.text_iter("y"))
    with pytest.raises(UnknownVariable, match="'y'"):
        asyncio.run(read(state))


def test_any_number_of_readers_at_any_time() -> None:
    """Two readers at once and one after the end all see everything."""
    state = program.run(stream=True, backend=engine())
    first, second = state.text_iter(), state.text_iter()
    mixed = [next(first), next(second)]
    assert mixed[0] == mixed[1]
    assert "".join(first) == "".join(second)
    assert "".join(state.text_iter()) == state.text()


def test_async_reading_on_another_loop() -> None:
    """`text_async_iter` works on the caller's loop, which goes on meanwhile."""

    async def read() -> tuple[list[str], int]:
        slow = engine()
        slow.gate = lambda: asyncio.sleep(0.01)
        state = await program.arun(stream=True, backend=slow)
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(beat())
        found = [piece async for piece in state.text_async_iter("y")]
        task.cancel()
        return found, beats

    pieces, beats = asyncio.run(read())
    assert pieces == ["!"]
    assert beats > 3


def test_async_reading_with_meta_data() -> None:
    """With return_meta_data the pieces come with the step's meta data."""

    async def read() -> list[tuple[str, dict]]:
        state = program.run(stream=True, backend=engine())
        return [pair async for pair in state.text_async_iter("y", return_meta_data=True)]

    ((text, meta),) = asyncio.run(read())
    assert text == "!"
    assert meta["scores"] == [-1.0, -2.0]


def test_event_stream_is_complete_and_ordered() -> None:
    """The events begin with RunStarted, end with RunFinished, and count up."""
    stream = program.stream(backend=engine())
    events = list(stream)
    assert isinstance(events[0], ev.RunStarted)
    assert isinstance(events[-1], ev.RunFinished)
    assert [event.seq for event in events] == list(range(len(events)))
    assert all(event.to_json()["type"] for event in events)
    assert stream.state.value == "é🦊日"


def test_run_inside_a_running_loop() -> None:
    """The synchronous API works while an event loop runs in the caller's thread (a notebook)."""

    async def cell() -> str:
        return program.run(backend=engine()).value

    assert asyncio.run(cell()) == "é🦊日"


def test_reading_a_variable_waits_for_it_alone() -> None:
    """`state[name]` returns as soon as that step is done, while the run goes on."""
    go_on = asyncio.Event()

    async def gate() -> None:
        if backend.outputs > 1:
            await go_on.wait()

    backend = ScriptedBackend(["one", "two"], gate=gate)

    @ph.function
    def two(s):
        s += ph.gen("a") + ph.gen("b")

    state = two.run(stream=True, backend=backend)
    assert state["a"] == "one"
    assert not any(isinstance(event, ev.RunFinished) for event in state.events)
    from phloem.programs.executor import loop

    loop.loop().call_soon_threadsafe(go_on.set)
    assert state["b"] == "two"


EXIT = """
import asyncio
import phloem as ph
from phloem.programs.testing import ScriptedBackend

@ph.function
def program(s):
    forks = s.fork(3)
    forks += ph.gen("x")
    forks.join()

backend = ScriptedBackend(lambda *_: "x" * 10_000, gate=lambda: asyncio.sleep(0.01))
state = program.run(stream=True, backend=backend)
print("leaving")
"""


def test_a_process_can_end_while_a_run_is_running() -> None:
    """Leaving the process cancels its runs: it ends at once and says nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXIT],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")
