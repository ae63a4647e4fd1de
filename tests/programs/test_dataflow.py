"""What the graph buys: early retrievals, hints, grammars compiled beside, pinned prefixes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import phloem as ph
from phloem.errors import RetrievalError
from phloem.programs.testing import ScriptedBackend

from .conftest import FakeRetriever


def run(program: ph.Program, retriever: FakeRetriever, *args: Any) -> list[str]:
    """The order in which the engine and the retriever were asked."""
    log = retriever.log

    def answer(*_: object) -> str:
        log.append("gen")
        return "out"

    backend = ScriptedBackend(answer, gate=lambda: asyncio.sleep(0))
    try:
        program.run(*args, backend=backend, retriever=retriever)
    except RetrievalError:
        log.append("error")
    return log


def test_a_certain_retrieval_starts_before_the_step_before_it() -> None:
    """A retrieval whose arguments are known overlaps an unrelated gen, and is asked once."""

    @ph.function
    def program(s, q):
        s += "a" + ph.gen("x")
        docs = ph.retrieve("docs", q, index="i", k=3)
        s += ph.passages(docs)

    retriever = FakeRetriever("d")
    assert run(program, retriever, "q") == ["search", "gen"]
    assert len(retriever.queries) == 1


def test_a_slow_retrieval_overlaps_decoding() -> None:
    """The step ends while the retrieval still waits: neither waits for the other."""
    retriever = FakeRetriever("d")
    retriever.gate = asyncio.Event()

    @ph.function
    def program(s, q):
        s += "a" + ph.gen("x")
        ph.retrieve("docs", q)

    def answer(*_: object) -> str:
        retriever.log.append("gen")
        assert retriever.gate is not None
        retriever.gate.set()
        return "out"

    program.run("q", backend=ScriptedBackend(answer), retriever=retriever)
    assert retriever.log == ["search", "gen"]


@pytest.mark.parametrize("case", ["depends", "branch", "tool", "python", "loop", "call in query"])
def test_retrievals_that_must_stay_in_place(case: str) -> None:
    """A retrieval never moves before what it reads, out of a branch, or over user code."""

    @ph.tool
    def note() -> None:
        log.append("tool")

    def depends(s, q):
        s += "a" + ph.gen("x")
        q = s["x"]
        ph.retrieve("docs", q)

    def branch(s, q):
        s += "a" + ph.gen("x")
        if s["x"] == "out":
            ph.retrieve("docs", q)

    def tool(s, q):
        s += "a" + ph.gen("x")
        note()
        ph.retrieve("docs", q)

    def python(s, q):
        s += "a" + ph.gen("x")
        log.append("python")
        ph.retrieve("docs", q)

    def loop(s, q):
        s += "a" + ph.gen("x")
        for _ in range(1):
            ph.retrieve("docs", q)

    def call(s, q):
        s += "a" + ph.gen("x")
        ph.retrieve("docs", q.strip())

    body = {f.__name__: f for f in (depends, branch, tool, python, loop)}
    retriever = FakeRetriever("d")
    log = retriever.log
    order = run(ph.function(body.get(case, call)), retriever, "q")
    assert order.index("gen") < order.index("search")


def test_early_errors_are_raised_at_their_place() -> None:
    """A retrieval that fails early lets the steps before it run, and raises where it stands."""

    @ph.function
    def program(s, q):
        s += "a" + ph.gen("x")
        s += ph.gen("y")
        ph.retrieve("docs", q)
        s += ph.gen("z")

    retriever = FakeRetriever("d", error=RetrievalError("down"))
    assert run(program, retriever, "q") == ["search", "gen", "gen", "error"]


def test_unset_arguments_and_wrong_calls_raise_as_ever() -> None:
    """What can't be evaluated early raises its own error at its own place."""

    @ph.function
    def program(s):
        s += "a" + ph.gen("x")
        if s["x"] == "never":
            q = "x"
        s += ph.gen("y")
        ph.retrieve("docs", q)

    backend = ScriptedBackend(["1", "2"])
    with pytest.raises(UnboundLocalError, match="'q'"):
        program.run(backend=backend, retriever=FakeRetriever())
    assert backend.outputs == 2


def test_the_engine_is_told_the_next_use() -> None:
    """After each step the engine knows how many nodes lie before the session's next step."""

    @ph.function
    def program(s, q):
        s += "a" + ph.gen("x")
        s += "b" + ph.gen("y")
        docs = ph.retrieve("docs", q)
        print_nothing = len(docs)
        s += str(print_nothing) + ph.gen("z")
        return "end"

    backend = ScriptedBackend(lambda *_: "o")
    program.run("q", backend=backend, retriever=FakeRetriever())
    assert [call.data for call in backend.calls if call.kind == "hint"] == [0, 2, None]


def test_constraints_compile_as_the_run_starts() -> None:
    """The engine is given all known constraints before the first step asks for one."""

    @ph.function
    def program(s):
        s += "a" + ph.gen("x")
        s += ph.gen("y", regex="[a-z]+")
        s += ph.gen("z", regex="[a-z]+")

    backend = ScriptedBackend(lambda *_: "o", gate=lambda: asyncio.sleep(0.001))
    program.run(backend=backend)
    kinds = [call.kind for call in backend.calls]
    (prepared,) = [call.data for call in backend.calls if call.kind == "prepare"]
    assert [constraint.source for constraint in prepared] == ["[a-z]+"]
    constrained = [i for i, call in enumerate(backend.calls) if call.constraint is not None]
    assert kinds.index("prepare") < constrained[0]


def test_constant_prefix_can_be_pinned() -> None:
    """`cache()` prefills what every run begins with, as the session will have it."""

    @ph.function
    def program(s, q):
        s += ph.system("Be kind.")
        s += ph.user("Q: " + q)
        s += ph.assistant(ph.gen("x"))

    backend = ScriptedBackend(["A"])
    tokens = program.cache(backend)
    program.run("why", backend=backend)
    (pinned,) = [call.prompt for call in backend.calls if call.kind == "prefill"]
    assert tokens == len("Be kind.system\n\nuser\nQ: ") + 3
    assert backend.prompts()[0].startswith(pinned)


def test_explain_names_the_line_that_missed() -> None:
    """Every step is reported with its tokens; a miss names position, line and cost."""
    from phloem.programs.events import StepFinished
    from phloem.programs.explain import explain
    from phloem.programs.protocol import PrefixMiss, Timing, Usage

    event = StepFinished(
        run="r",
        seq=0,
        at=0.0,
        node="gen:x",
        line=7,
        kind="gen",
        name="x",
        text="t",
        value="t",
        usage=Usage(prompt=100, reused=60, prefilled=40, generated=5),
        timing=Timing(prefill_ms=80.0, total_ms=100.0),
        miss=PrefixMiss(70, " why", "p.py:5"),
    )
    (report,) = explain([event])
    assert (report.missed_tokens, report.missed_ms) == (30, 60.0)
    assert "left the cached prefix at token 70 (' why', from p.py:5)" in str(report)

    @ph.function
    def program(s):
        s += "abc" + ph.gen("x") + ph.select("y", ["p", "q"])

    first, second = program.run(backend=ScriptedBackend(["out"])).explain()
    assert (first.prompt, first.prefilled, first.generated, first.missed_at) == (3, 3, 3, None)
    assert (second.kind, second.scored) == ("select", 2)
