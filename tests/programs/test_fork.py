"""Forks: independence, order, joins, failures."""

from __future__ import annotations

import asyncio

import pytest

import phloem as ph
from phloem.errors import EngineError
from phloem.programs.testing import ScriptedBackend


def answers(prompt: str, *_: object) -> str:
    return f"<{prompt[-1:]}>"


def test_fork_before_any_text() -> None:
    """Forking an empty state gives fresh states (bug case fk-01)."""

    @ph.function
    def program(s, n):
        branches = s.fork(n)
        for i, branch in enumerate(branches):
            branch += f"Say {i}"
            branch += ph.gen("x", max_tokens=4)
        if n:
            s += branches[0]["x"]
        return [b["x"] for b in branches], len(branches)

    for n, expected in ((0, []), (1, ["<0>"]), (3, ["<0>", "<1>", "<2>"])):
        state = program.run(n, backend=ScriptedBackend(answers))
        assert state.value == (expected, n)


def test_fork_inside_a_fork() -> None:
    """A branch can fork; its children go on from where it is in its own lane."""

    @ph.function
    def program(s):
        s += "t"
        (outer,) = s.fork(1)
        outer += "a" + ph.gen("x")
        inner = outer.fork(2)
        inner += lambda i: f"{i}" + ph.gen("y")
        inner.join()
        return outer["y"], inner[0].text(), inner[1]["x"]

    state = program.run(backend=ScriptedBackend(answers))
    assert state.value == (["<0>", "<1>"], "ta<a>0<0>", "<a>")


def test_variables_stay_in_their_branch() -> None:
    """A branch's variables are not visible to its siblings or the parent before a join."""

    @ph.function
    def program(s):
        s.set_var("old", 1)
        forks = s.fork(2)
        forks[0] += ph.gen("x")
        forks[1] += "b"
        return "x" in forks[1], "x" in s, forks[1]["old"], "x" in forks[0]

    assert program.run(backend=ScriptedBackend(["1"])).value == (False, False, 1, True)


def test_join_gathers_in_order_and_aligned() -> None:
    """A join gives one value for each branch, None where a branch set none, and a second
    round replaces the first."""

    @ph.function
    def program(s):
        s.set_var("x", "before")
        for _ in range(2):
            forks = s.fork(3)
            forks[2] += "2" + ph.gen("x")
            forks[0] += "0" + ph.gen("x")
            forks.join()
        return s["x"]

    assert program.run(backend=ScriptedBackend(answers)).value == ["<0>", None, "<2>"]


def test_join_appends_texts() -> None:
    """`concate_and_append` puts the branches' own texts at the end, in order."""

    @ph.function
    def program(s):
        s += "t"
        forks = s.fork(2)
        forks += lambda i: f"{i}:" + ph.gen("x")
        forks.join("concate_and_append")
        s += "!"

    assert program.run(backend=ScriptedBackend(answers)).text() == "t0:<:>1:<:>!"


def test_group_takes_text_lists_and_functions() -> None:
    """`forks += ...` takes the same text for all, one item each, or a function of the index."""

    @ph.function
    def program(s):
        forks = s.fork(2)
        forks += "same "
        forks += ["a", "b"]
        forks += str
        return [f.text() for f in forks]

    assert program.run(backend=ScriptedBackend()).value == ["same a0", "same b1"]


def test_copy_brings_variables_back_as_they_are() -> None:
    """`with s.copy()` adds its variables, not lists of them, and leaves the text alone."""

    @ph.function
    def program(s):
        s += "a"
        with s.copy() as t:
            t += "b" + ph.gen("x")
        return s["x"]

    state = program.run(backend=ScriptedBackend(["1"]))
    assert (state.value, state.text()) == ("1", "a")


def test_meta_info_crosses_forks() -> None:
    """A branch knows the meta data of its parent's steps."""

    @ph.function
    def program(s):
        s += ph.gen("x")
        (fork,) = s.fork(1)
        return fork.get_meta_info("x")["finish_reason"]

    assert program.run(backend=ScriptedBackend(["1"])).value == "stop"


def test_branches_run_side_by_side() -> None:
    """Four branches' steps are all in the engine at once."""
    backend = ScriptedBackend(answers, gate=lambda: asyncio.sleep(0))

    @ph.function
    def program(s):
        s += "t"
        forks = s.fork(4)
        forks += ph.gen("x")
        forks.join()

    program.run(backend=backend)
    assert backend.peak_running == 4
    assert backend.open_sessions == 0


@pytest.mark.parametrize("read", ["join", "index", "text", "never"])
def test_failing_branch_raises_wherever_it_is_read(read: str) -> None:
    """A branch's error is raised by a join, a read, or at the latest at the end of the run."""
    backend = ScriptedBackend(answers, faults={1: EngineError("boom")})

    @ph.function
    def program(s):
        forks = s.fork(3)
        for i in range(3):
            forks[i] += str(i)
            forks[i] += ph.gen("x")
            forks[i] += "after"
        if read == "join":
            forks.join()
        elif read == "index":
            return forks[1]["x"]
        elif read == "text":
            return forks[1].text()
        return None

    with pytest.raises(EngineError, match="boom") as caught:
        program.run(backend=backend)
    assert caught.value.where is not None
    assert caught.value.where.node is not None
    if read == "join":
        assert any("in branch 1 of 3" in note for note in caught.value.__notes__)


def test_join_can_keep_failures() -> None:
    """on_error="keep" keeps the good values, and the error in the failed branch's place."""
    backend = ScriptedBackend(answers, faults={1: EngineError("boom")})

    @ph.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: str(i) + ph.gen("x")
        forks.join(on_error="keep")
        return s["x"], forks.errors

    values, errors = program.run(backend=backend).value
    assert values[0] == "<0>"
    assert isinstance(values[1], EngineError)
    assert values[2] == "<2>"
    assert [type(e).__name__ for e in errors] == ["NoneType", "EngineError", "NoneType"]


def test_failing_branch_cancels_its_siblings() -> None:
    """When a join raises, the siblings' running steps are stopped."""
    blocked = asyncio.Event()
    faults = {0: EngineError("boom")}
    turns = iter([None])

    async def gate() -> None:
        if next(turns, "blocked"):
            await blocked.wait()

    backend = ScriptedBackend(answers, faults=faults, gate=gate)

    @ph.function
    def program(s):
        forks = s.fork(2)
        forks += ph.gen("x")
        forks.join()

    with pytest.raises(EngineError, match="boom"):
        program.run(backend=backend)
    assert backend.running == 0
    assert backend.open_sessions == 0


def test_user_error_between_steps_of_branches() -> None:
    """An error of the program's own code cancels every branch and leaves as itself (fk-03)."""
    backend = ScriptedBackend(answers, gate=lambda: asyncio.sleep(0.001))

    @ph.function
    def program(s):
        forks = s.fork(4)
        for i, fork in enumerate(forks):
            fork += ph.gen("x")
            if i == 2:
                raise ValueError("bad luck")
            fork += ph.gen("y")

    with pytest.raises(ValueError, match="bad luck"):
        program.run(backend=backend)
    assert (backend.running, backend.open_sessions) == (0, 0)
