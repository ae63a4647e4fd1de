"""What a user's strict type checker makes of the public face: `make types` checks this file, and
nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator

import phloem as ph
from phloem.errors import PhloemError, where_of


@ph.tool
def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@ph.tool(timeout=2.0, retries=1)
async def later(a: int) -> int:
    """The same number."""
    return a


@ph.function
def program(s: ph.State, question: str, k: int = 2) -> str:
    """Every kind of step in state style."""
    s += ph.system("Be short.")
    with s.user():
        s += question
    docs = ph.retrieve("docs", question, index="handbook", k=k)
    s += ph.user(ph.passages(docs, max_tokens=10) + "\n")
    s += ph.assistant("It is " + ph.gen("answer", regex="yes|no", max_tokens=4) + ".")
    branches = s.fork(2)
    for branch in branches:
        branch += ph.select("mood", ["good", "bad"])
    branches += lambda index: f"branch {index}"
    branches.join()
    with s.copy() as other:
        other += "aside"
    first: str = s["answer"]
    return f"{first} {add(1, 2)} {[hit.id for hit in docs]}"


@ph.function(prompts={"ask": "{{ question }}"})
async def in_values(question: str) -> str:
    """The other style."""
    with ph.parallel():
        answer: str = ph.gen("ask", max_tokens=4)
    return f"{answer} {await later(1)}"


class Agent:
    """A program that is a method."""

    @ph.function
    def reply(self, s: ph.State, text: str) -> str:
        """Say something."""
        s += text
        return str(s.text())


async def asynchronous() -> None:
    """All ways to run one from an event loop."""
    state = await program.arun(question="x", temperature=0)
    async for event in program.stream(question="x"):
        if event.type == "token":
            print(event.text.upper(), event.tokens)
        elif event.type == "step_finished":
            print(event.name, event.usage.generated)
    async for piece in state.text_async_iter("answer"):
        print(piece)


def synchronous() -> None:
    """All ways to run one elsewhere."""
    state: ph.ProgramState = program.run(question="x")
    states: list[ph.ProgramState] = program.run_batch([{"question": "x"}], on_error="raise")
    more: Iterator[ph.ProgramState] = program.run_batch([("x",)], generator_style=True)
    for one in (*states, *more):
        print(one.error(), one.usage.generated)
    for piece in state.text_iter("answer"):
        print(piece.upper())
    try:
        Agent().reply.run(text="x")
    except PhloemError as error:
        print(error.hint, where_of(error))
    bound: ph.Program = program.bind(k=3)
    print(bound.graph.opaque, bound.check(), state.explain(), in_values("x"))
