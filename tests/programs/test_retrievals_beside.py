"""Retrievals that run beside each other: in a fork, and inside `parallel()`."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest

import phloem as ph
from phloem.errors import ProgramError, RetrievalError, where_of
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Hit, Hits, Query


class Gathering:
    """Answers no search before `wanted` of them are there; each gets its own hit."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.queries: list[str] = []
        self.turns: list[set[str]] = [set()]
        self._all = asyncio.Event()

    async def search(self, query: Query) -> Hits:
        self.queries.append(query.text)
        if len(self.queries) == self.wanted:
            self._all.set()
        await asyncio.wait_for(self._all.wait(), 5)
        if query.text.startswith("bad"):
            raise RetrievalError(f"no luck with {query.text}")
        return Hits((Hit(query.text, f"text of {query.text}", 1.0),))

    async def aclose(self) -> None:
        pass


QUESTIONS = ["one", "two", "three"]


def test_a_fork_s_retrievals_run_side_by_side() -> None:
    """Each branch of a fork retrieves and goes on with its own hits, none waiting for another."""

    @ph.function
    def program(s):
        s += "Begin. "
        forks = s.fork(3)
        for branch, question in zip(forks, QUESTIONS, strict=True):
            docs = ph.retrieve("docs", question)
            branch += ph.user(ph.passages(docs, max_tokens=100) + "\n" + question)
            branch += ph.assistant(ph.gen("answer"))
        forks.join()
        return s["answer"]

    backend = ScriptedBackend(lambda prompt, *_: prompt[-60:-12])
    state = program.run(backend=backend, retriever=Gathering(3))
    for question, answer in zip(QUESTIONS, state.value, strict=True):
        assert f"text of {question}\n{question}" in answer
    assert state["docs"][0].id == "three"


def test_value_style_retrievals_in_parallel() -> None:
    """Inside `parallel()` retrievals run together; they are hits like any others."""

    @ph.function(prompts={"answer": "{% for d in docs %}{{ d.text }};{% endfor %}"})
    def program():
        with ph.parallel():
            one = ph.retrieve("one")
            rest = [ph.retrieve(text) for text in QUESTIONS[1:]]
        return ph.gen("answer", docs=[*one, *rest[0], *rest[1]]), one, len(rest[1])

    retriever = Gathering(3)
    backend = ScriptedBackend(lambda prompt, *_: "yes" if "one;text of two;" in prompt else "no")
    answer, one, count = program.run(backend=backend, retriever=retriever).value
    assert (answer, count, sorted(retriever.queries)) == ("yes", 1, sorted(QUESTIONS))
    plain = Hits((Hit("one", "text of one", 1.0),))
    assert one == plain
    assert plain == one
    assert type(copy.deepcopy(one)) is type(pickle.loads(pickle.dumps(one))) is Hits
    assert one[:1] == plain
    assert isinstance(one, Hits)


def test_state_style_retrievals_in_parallel() -> None:
    """`parallel()` serves retrievals of a state-style program too."""

    @ph.function
    def program(s):
        with ph.parallel():
            found = [ph.retrieve(text) for text in QUESTIONS]
        s += ph.passages([hit for hits in found for hit in hits])
        return found[1][0].id

    state = program.run(backend=ScriptedBackend(), retriever=Gathering(3))
    assert state.value == "two"
    assert state.text().count("text of") == 3


def test_an_error_is_raised_where_the_hits_are_read() -> None:
    """A failed retrieval fails its reader, with the place of the retrieval; others go on."""

    @ph.function
    def program(s):
        with ph.parallel():
            good = ph.retrieve("good")
            bad = ph.retrieve("bad")
            try:
                told = len(bad)
            except RetrievalError as error:
                told = error.message
        return good[0].id, told

    value = program.run(backend=ScriptedBackend(), retriever=Gathering(2)).value
    assert value == ("good", "no luck with bad")

    @ph.function
    def unread(s):
        with ph.parallel():
            ph.retrieve("bad docs")
        return 1

    with pytest.raises(RetrievalError, match="no luck") as caught:
        unread.run(backend=ScriptedBackend(), retriever=Gathering(1))
    where = where_of(caught.value)
    assert where is not None
    assert where.line == unread.function.__code__.co_firstlineno + 3


def test_a_branch_without_hits_fails_alone() -> None:
    """With on_error="keep" a branch whose retrieval fails keeps its error; the others answer."""

    @ph.function
    def program(s):
        forks = s.fork(2)
        for branch, question in zip(forks, ["good", "bad"], strict=True):
            docs = ph.retrieve(question)
            branch += ph.user(ph.passages(docs)) + ph.gen("answer")
        forks.join(on_error="keep")
        return s["answer"]

    first, second = program.run(backend=ScriptedBackend(["ok"]), retriever=Gathering(2)).value
    assert first == "ok"
    assert isinstance(second, RetrievalError)


def test_a_try_keeps_its_meaning_beside_a_fork() -> None:
    """A retrieval inside `try` is done there and then, so that its error is caught there."""

    @ph.function
    def program(s):
        forks = s.fork(2)
        for branch in forks:
            try:
                docs = ph.retrieve("bad")
            except RetrievalError:
                docs = ()
            branch += ph.gen("answer") + str(len(docs))
        forks.join()
        return s["answer"]

    value = program.run(backend=ScriptedBackend(["a", "b"]), retriever=Gathering(1)).value
    assert value == ["a", "b"]


def test_a_tool_sees_hits_and_waits_for_them() -> None:
    """What has effects outside runs after the retrievals begun before it, and fails with them."""
    called: list[Any] = []

    @ph.tool
    def save(hits: Any) -> int:
        called.append(hits)
        return len(hits)

    @ph.function
    def program(s, text):
        with ph.parallel():
            docs = ph.retrieve(text)
            return save(docs)

    assert program.run("x", backend=ScriptedBackend(), retriever=Gathering(1)).value == 1
    with pytest.raises(RetrievalError):
        program.run("bad", backend=ScriptedBackend(), retriever=Gathering(1))
    assert len(called) == 1


def test_a_recorded_run_answers_from_its_record() -> None:
    """Retrievals that ended in any order are handed back to the places that asked."""

    @ph.function
    def program(s):
        with ph.parallel():
            found = [ph.retrieve(text) for text in QUESTIONS]
        return [hits[0].id for hits in found]

    state = program.run(backend=ScriptedBackend(), retriever=Gathering(3), record=True)
    again = program.replay(state.record())
    assert again.value == state.value == QUESTIONS


def test_async_programs_may_await_retrievals() -> None:
    """`await retrieve(...)` works in an async program; in tasks that it starts, retrievals run side
    by side."""

    @ph.function
    async def program(s):
        first = await ph.retrieve("docs", "one")
        plain = ph.retrieve("one")
        return first == plain, first[0].id, s["docs"][0].id

    retriever = Gathering(1)
    value = program.run(backend=ScriptedBackend(), retriever=retriever).value
    assert value == (True, "one", "one")

    @ph.function
    async def gathered(s):
        async def ids(question: str) -> str:
            docs = await ph.retrieve(question)
            return docs[0].id

        return await asyncio.gather(*map(ids, QUESTIONS))

    assert gathered.run(backend=ScriptedBackend(), retriever=Gathering(3)).value == QUESTIONS


@pytest.mark.parametrize("timeout", ["1", 0, -1, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: Any) -> None:
    """The error names the retrieval and the timeout."""

    @ph.function
    def program(s):
        ph.retrieve("one", timeout=timeout)

    with pytest.raises(ProgramError, match=f"'one' has the timeout {timeout!r}"):
        program.run(backend=ScriptedBackend(), retriever=Gathering(1))
