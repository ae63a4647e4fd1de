"""Programs in the ways that Python code is written around them: decorators, classes, pickles,
threads, processes, files that change."""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import multiprocessing
import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import Any

import pytest

import phloem as ph
from phloem.errors import CompileError, ProgramError, where_of
from phloem.programs.testing import ScriptedBackend


def engine() -> ScriptedBackend:
    return ScriptedBackend(lambda *_: "ok")


@ph.function
def module_program(s, q):
    """A program that a module holds."""
    s += q + ph.gen("a")
    return s["a"]


@ph.tool
def module_tool(x: int) -> int:
    """One more."""
    return x + 1


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return wrapper


calls: list[str] = []


def test_a_decorator_below_is_part_of_the_program() -> None:
    """What wraps the function runs, and style, arguments and error lines are the function's."""

    @ph.function
    @counted
    def program(s, q, fail=False):
        s += q + ph.gen("a")
        if fail:
            raise ValueError("here")
        return s["a"]

    @ph.function(prompts={"ask": "{{ q }}?"})
    @counted
    def in_values(q):
        return ph.gen("ask")

    calls.clear()
    assert program.run("q", backend=engine()).text() == "qok"
    assert in_values.run(q="q", backend=engine()).value == "ok"
    assert calls == ["program", "in_values"]
    assert [opaque.reason for opaque in program.graph.opaque] == ["a decorator stands around it"]
    with pytest.raises(ValueError, match="here") as caught:
        program.run("q", fail=True, backend=engine())
    where = where_of(caught.value)
    assert where is not None
    assert where.line == program.function.__wrapped__.__code__.co_firstlineno + 5


def test_programs_and_tools_of_classes() -> None:
    """Class methods and static methods are programs in either order of decorators; a tool that is
    a method has its object; a parameter that is only called `cls` is an argument."""

    class Agent:
        name = "Ada"
        seen: list[str]

        @classmethod
        @ph.function
        def above(cls, s, q):
            s += cls.name + q + ph.gen("a")

        @ph.function
        @classmethod
        def below(cls, s, q):
            s += cls.name + q + ph.gen("a")

        @ph.function
        @staticmethod
        def static(s, cls):
            s += cls + ph.gen("a")

        @ph.tool
        def note(self, word: str) -> int:
            """Remember a word."""
            self.seen.append(word)
            return len(self.seen)

        @ph.function
        def ask(self, s, q):
            s += f"{self.note(q)}" + ph.gen("a")

    class Other(Agent):
        name = "Bob"

    agent = Other()
    agent.seen = []
    for program in (Other.above, agent.above, Other.below, agent.below):
        assert program.run(q="?", backend=engine()).text() == "Bob?ok"
    assert agent.static.run(cls="x", backend=engine()).text() == "xok"
    assert agent.ask.run("hi", backend=engine()).text() == "1ok"
    assert list(agent.note.parameters["properties"]) == ["word"]
    assert ph.call_tool({"name": "note", "arguments": {"word": "ho"}}, [agent.note]) == 2
    assert agent.ask.compiled is Agent.ask.compiled


def test_programs_and_tools_can_be_pickled() -> None:
    """Programs, also with bound arguments, and tools are pickled by name; a local one can't be."""
    program, bound, tool = pickle.loads(
        pickle.dumps([module_program, module_program.bind(q="q"), module_tool])
    )
    assert program is module_program is copy.deepcopy(module_program)
    assert tool is module_tool
    assert bound.run(backend=engine()).text() == "qok"

    @ph.function
    def local(s):
        s += "x"

    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)


def _waits(how: str) -> Any:
    @ph.function
    def program(s):
        backend = engine()

        def inner(_: int = 0) -> Any:
            return module_program.run("q", backend=backend).value

        if how == "join":
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(_outcome(inner)))
            thread.start()
            thread.join()
            raise found[0]
        with ThreadPoolExecutor(2) as pool:
            if how == "map":
                return list(pool.map(inner, range(3)))
            jobs = [pool.submit(inner) for _ in range(2)]
            if how == "as_completed":
                return [job.result() for job in as_completed(jobs)]
            if how == "wait":
                return [job.result() for job in wait(jobs).done]
            if how == "result":
                return [job.result() for job in jobs]
        return [job.result() for job in jobs]  # the pool's end has waited

    return program


def _outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ProgramError as error:
        return error


@pytest.mark.parametrize("how", ["join", "result", "map", "as_completed", "wait", "exit"])
def test_waiting_for_threads_that_wait_for_the_program(how: str) -> None:
    """A thread that a program waits for can't wait for a run: an error says so and names the line,
    and other programs go on."""
    program = _waits(how)
    with pytest.raises(ProgramError, match="started and waits for") as caught:
        program.run(backend=engine())
    where = where_of(caught.value)
    assert where is not None
    assert where.file == __file__
    assert module_program.run("q", backend=engine()).value == "ok"


def test_a_state_that_a_thread_of_the_program_reads() -> None:
    """Reading what is there works in a thread; what is not there yet is no wait for ever."""

    @ph.function
    def program(s):
        s += ph.gen("a")
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: s["a"]).result(), pool.submit(lambda: s["b"]).exception()

    value, error = program.run(backend=engine()).value
    assert value == "ok"
    assert isinstance(error, ProgramError)


def test_tools_inside_of_tools_never_wait_for_threads() -> None:
    """More tools than threads, each of which runs a program with a tool, all come to an end."""

    @ph.function
    def inner(s, x):
        return module_tool(x)

    @ph.tool
    def outside(x: int) -> Any:
        together.wait()
        return inner.run(x, backend=engine()).value

    @ph.function
    def program(s, x):
        return outside(x)

    together = threading.Barrier(8, timeout=30)
    states = program.run_batch([(x,) for x in range(8)], backend=engine())
    assert [state.value for state in states] == list(range(1, 9))


def test_programs_in_tasks_of_a_program() -> None:
    """`arun` inside an async program is part of its run: engine, record and errors."""

    @ph.function
    async def program(s):
        first = await module_program.arun("1")
        rest = await asyncio.gather(*[module_program.arun(q) for q in "23"])
        s += ph.gen("after")
        return [state.text() for state in (first, *rest)]

    backend = engine()
    state = program.run(backend=backend, record=True)
    assert state.value == ["1ok", "2ok", "3ok"]
    assert (len(backend.prompts()), backend.open_sessions) == (4, 0)
    assert program.replay(state.record()).value == state.value


def test_a_tool_is_apart_from_the_program() -> None:
    """What an async tool runs is no part of the run: a replay does not come by there."""

    @ph.tool
    async def ask(q: str) -> str:
        return (await module_program.arun(q, backend=engine())).value

    @ph.function
    async def program(s):
        found = await ask("q")
        inner = await module_program.arun("q")
        return found, inner.value

    state = program.run(backend=engine(), record=True)
    assert program.replay(state.record()).value == ("ok", "ok")


def _in_child(queue: Any) -> None:
    @ph.function
    def program(s):
        s += f"{module_tool(1)}" + ph.gen("a")

    queue.put(program.run(backend=engine()).text())


def test_a_forked_process_has_its_own_loop_and_threads() -> None:
    """Programs and tools run in a process that was forked after some ran here."""

    @ph.function
    def program(s):
        return [module_tool(x) for x in range(3)]

    assert program.run(backend=engine()).value == [1, 2, 3]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == "2ok"
    finally:
        child.kill()
        child.join()


def test_a_file_that_changed_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was imported runs, also where the new text differs in constants or names alone."""
    text = "import phloem as ph\n\n@ph.function\ndef p(s):\n    s += 'one' + ph.gen('a')\n"
    file = tmp_path / "changing_program.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("changing_program")
    file.write_text(text.replace("one", "two!"))
    assert module.p.run(backend=engine()).text() == "oneok"
    assert "changed" in module.p.graph.opaque[0].reason
    del sys.modules["changing_program"]


def test_a_lambda_is_a_program() -> None:
    """It is one node, and the graph says why."""
    program = ph.function(lambda s, q: s.user(q))
    assert program.run("q", backend=engine()).messages()[-1]["content"] == "q"
    assert [opaque.reason for opaque in program.graph.opaque] == ["it is a lambda"]
    with pytest.raises(CompileError, match="not partial"):
        ph.function(functools.partial(print, 1))  # type: ignore[arg-type]
