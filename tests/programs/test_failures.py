"""Every primitive, failing in every way, read in every way: the error comes, nothing hangs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import phloem as ph
from phloem.errors import (
    BudgetExceeded,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    Overloaded,
    ProgramError,
    RetrievalError,
    where_of,
)
from phloem.programs import events as ev
from phloem.programs.testing import ScriptedBackend

from .conftest import FakeRetriever

WAIT_S = 20


class Boom(EngineError):
    """The failure that these tests cause."""


def in_time(function: Any, *args: Any) -> Any:
    """The outcome of a call on a thread of its own; a hang is a failure, not a stall."""
    box: list[Any] = []

    def work() -> None:
        try:
            box.append(("value", function(*args)))
        except BaseException as error:  # noqa: BLE001 - handed on
            box.append(("error", error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "hangs"
    kind, outcome = box[0]
    if kind == "error":
        raise outcome
    return outcome


def gen_program(s):
    s += "a" + ph.gen("first", max_tokens=3)
    s += ph.gen("x", max_tokens=3)
    s += "after" + ph.gen("later")


def select_program(s):
    s += "a" + ph.select("first", ["p", "q"])
    s += ph.select("x", ["u", "v"])
    s += ph.gen("later")


def retrieve_program(s):
    s += "a" + ph.gen("first", max_tokens=3)
    ph.retrieve("x", "query")
    s += ph.gen("later")


def fork_program(s):
    s += "a" + ph.gen("first", max_tokens=3)
    forks = s.fork(3)
    forks += ph.gen("x")
    forks.join()
    s += ph.gen("later")


def code_program(s):
    s += "a" + ph.gen("first", max_tokens=3)
    raise Boom("boom")


PROGRAMS = {
    "gen": gen_program,
    "select": select_program,
    "retrieve": retrieve_program,
    "fork": fork_program,
    "code": code_program,
}


def start(kind: str, moment: str) -> tuple[ph.Program, dict[str, Any]]:
    step = 0 if moment == "before" else 1
    backend = ScriptedBackend(
        lambda *_: "out",
        faults={step: Boom("boom")},
        fault_after=2 if moment == "while" else 0,
        gate=lambda: asyncio.sleep(0.001),
    )
    retriever = FakeRetriever(error=Boom("boom") if moment != "never" else None)
    return ph.function(PROGRAMS[kind]), {"backend": backend, "retriever": retriever}


def check(error: BaseException) -> None:
    assert type(error) is Boom
    where = where_of(error)
    assert where is not None
    assert where.node
    assert where.line
    assert where.trace_id


def sync(program: ph.Program, options: dict[str, Any]) -> None:
    program.run(**options)


def asynchronous(program: ph.Program, options: dict[str, Any]) -> None:
    asyncio.run(program.arun(**options))


def streamed_text(program: ph.Program, options: dict[str, Any]) -> None:
    state = program.run(stream=True, **options)
    for _ in state.text_iter():
        pass


def streamed_variable(program: ph.Program, options: dict[str, Any]) -> None:
    state = program.run(stream=True, **options)
    for _ in state.text_iter("later"):
        pass


def streamed_events(program: ph.Program, options: dict[str, Any]) -> None:
    for _ in program.stream(**options):
        pass


def async_text(program: ph.Program, options: dict[str, Any]) -> None:
    async def read() -> None:
        state = program.run(stream=True, **options)
        async for _ in state.text_async_iter("later"):
            pass

    asyncio.run(read())


def variable(program: ph.Program, options: dict[str, Any]) -> None:
    program.run(stream=True, **options)["later"]


def text(program: ph.Program, options: dict[str, Any]) -> None:
    program.run(stream=True, **options).text()


def value(program: ph.Program, options: dict[str, Any]) -> None:
    program.run(stream=True, **options).value  # noqa: B018 - the read is the point


def batch(program: ph.Program, options: dict[str, Any]) -> None:
    (state,) = program.run_batch([{}], **options)
    error = state.error()
    assert error is not None
    raise error


def forked(program: ph.Program, options: dict[str, Any]) -> None:
    @ph.function
    def outer(s):
        forks = s.fork(2)
        program(forks[0])
        forks.join()

    outer.run(**options)


READERS = [
    sync, asynchronous, streamed_text, streamed_variable, streamed_events, async_text,
    variable, text, value, batch, forked,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("moment", ["before", "while", "after"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_failure_reaches_every_reader(kind: str, moment: str, reader: Any) -> None:
    """Whatever fails, whenever, every way of reading raises the error itself, and in time."""
    program, options = start(kind, moment)
    with pytest.raises(Boom) as caught:
        in_time(reader, program, options)
    check(caught.value)
    assert options["backend"].running == 0
    assert options["backend"].open_sessions == 0


def test_failed_runs_end_their_feed_with_the_error() -> None:
    """The last event of a failed run names the error and the node."""
    program, options = start("gen", "after")
    state = program.run(stream=True, **options)
    assert isinstance(state.error(), Boom)
    last = state.events[-1]
    assert isinstance(last, ev.RunFailed)
    assert (last.error, last.node) == ("Boom", "gen:x")
    assert any(isinstance(event, ev.StepFailed) for event in state.events)


def test_variables_known_so_far_are_kept() -> None:
    """After a failure the variables that were set can still be read."""
    program, options = start("gen", "after")
    state = program.run(stream=True, **options)
    assert isinstance(state.error(), Boom)
    assert state["first"] == "out"
    assert state.variables() == {"first": "out"}


def test_a_program_can_handle_a_failed_step() -> None:
    """`try` around a step works as in Python, and the run goes on."""

    @ph.function
    def program(s):
        try:
            s += "a" + ph.gen("x")
        except Boom:
            s += "handled"
        s += ph.gen("y")
        return s["y"]

    backend = ScriptedBackend(lambda *_: "out", faults={0: Boom("boom")})
    state = program.run(backend=backend)
    assert (state.value, state.text(), state.error()) == ("out", "ahandledout", None)


def test_deadline_ends_the_run() -> None:
    """A run that is not done at its deadline raises and leaves nothing running."""
    stuck = ScriptedBackend(lambda *_: "x" * 100, gate=lambda: asyncio.sleep(0.05))
    program, _ = start("gen", "never")
    with pytest.raises(DeadlineExceeded, match=r"0\.1 s"):
        in_time(lambda: program.run(backend=stuck, deadline=0.1))
    assert (stuck.running, stuck.open_sessions) == (0, 0)


def test_step_timeout_names_the_step() -> None:
    """A step's own timeout raises, naming it, and the program may go on."""
    backend = ScriptedBackend(lambda *_: "x" * 9, gate=lambda: asyncio.sleep(0.05))

    @ph.function
    def program(s):
        try:
            s += ph.gen("slow", timeout=0.08)
        except DeadlineExceeded as error:
            return str(error)

    assert "'slow'" in program.run(backend=backend).value


def test_retries_take_only_errors_that_may_pass() -> None:
    """`retries=` repeats a step after a retryable error, and only then."""
    busy = Overloaded("busy", retry_after_s=0.0)

    @ph.function
    def program(s):
        s += ph.gen("x", retries=2)

    good = ScriptedBackend(lambda *_: "ok", faults={0: busy, 1: busy})
    assert program.run(backend=good).text() == "ok"
    for faults in ({0: busy, 1: busy, 2: busy}, {0: Boom("boom")}):
        with pytest.raises(EngineError):
            program.run(backend=ScriptedBackend(lambda *_: "ok", faults=faults))


def test_each_sample_is_retried() -> None:
    """`retries=` holds for each of several samples, and no attempt goes on after one has failed."""
    busy = Overloaded("busy", retry_after_s=0.0)
    later = Overloaded("busy", retry_after_s=60.0)

    @ph.function
    def program(s):
        s += ph.gen("x", n=3, retries=1)
        return s["x"]

    good = ScriptedBackend(lambda *_: "ok", faults={0: busy, 2: busy})
    assert program.run(backend=good).value == ["ok"] * 3
    bad = ScriptedBackend(lambda *_: "ok", faults={0: later, 1: Boom("boom")})
    with pytest.raises(Boom):
        in_time(lambda: program.run(backend=bad))
    assert (bad.running, bad.open_sessions) == (0, 0)


def test_retrieval_retries() -> None:
    """A retrieval's retries ask again after a retryable error."""

    class Flaky(FakeRetriever):
        async def search(self, query):
            self.queries.append(query)
            if len(self.queries) < 3:
                error = RetrievalError("busy")
                error.retryable = True  # type: ignore[misc]
                raise error
            return self.hits

    flaky = Flaky("a")

    @ph.function
    def program(s):
        return len(ph.retrieve("docs", "q", retries=2))

    assert program.run(retriever=flaky, backend=ScriptedBackend()).value == 1
    assert len(flaky.queries) == 3


def test_token_budget() -> None:
    """A run stops with BudgetExceeded when its tokens are spent, inside a step or before one."""

    @ph.function
    def program(s):
        s += "12345" + ph.gen("x", max_tokens=10)
        s += ph.gen("y", max_tokens=10)

    def run(budget: int) -> ph.ProgramState:
        return program.run(backend=ScriptedBackend(lambda *_: "1234"), token_budget=budget)

    assert run(14).text() == "1234512341234"
    for budget in (5, 7, 9, 11):
        with pytest.raises(BudgetExceeded):
            run(budget)


def test_cancelling_a_stream_cancels_the_run() -> None:
    """Leaving an event stream early stops its forks, steps and retrievals."""
    backend = ScriptedBackend(lambda *_: "x" * 100, gate=lambda: asyncio.sleep(0.01))

    @ph.function
    def program(s):
        forks = s.fork(3)
        forks += ph.gen("x")
        forks.join()

    stream = program.stream(backend=backend)
    for event in stream:
        if isinstance(event, ev.Token):
            break
    stream.cancel()
    in_time(stream.state.sync)
    assert (backend.running, backend.open_sessions) == (0, 0)
    with pytest.raises(Cancelled):
        in_time(stream.state.text)


def test_steps_from_foreign_threads_are_refused() -> None:
    """A thread that the program starts can't use the program's state."""
    caught = []

    @ph.function
    def program(s):
        def work() -> None:
            try:
                s.__iadd__("x")
            except ProgramError as error:
                caught.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    program.run(backend=ScriptedBackend())
    assert "inside its own running program" in caught[0]


def test_a_finished_state_can_not_be_extended() -> None:
    """After the run, adding to its state says so."""

    @ph.function
    def program(s):
        s += "x"

    state = program.run(backend=ScriptedBackend())
    with pytest.raises(ProgramError, match="running program"):
        state += "y"
