"""The programs as calls of an engine that knows nothing of programs.

What lives here: one function for each shape over a `Cursor`, with the texts of `frontend.py`
(a test holds the two together). What does not: the engines' cursors.

A cursor is how people write this without a runtime: a text that grows, sent whole to a server at
each step; or, on an engine in this process, whatever object the engine offers for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from . import texts
from .frontend import HEAD
from .shapes import SHAPES, Step

__all__ = ["Cursor", "Engine", "run"]

Outputs = list[tuple[str, str]]


class Cursor(Protocol):
    """One growing text."""

    def append(self, text: str) -> None:
        """Put text at the end."""
        ...

    def take(self, name: str, step: Step) -> str:
        """Generate a step's text at the end, and return it."""
        ...

    def copy(self) -> Cursor:
        """Another one that goes on from here."""
        ...


class Engine(Protocol):
    """Where cursors come from."""

    def open(self) -> Cursor:
        """An empty text."""
        ...

    def together(self, tasks: Sequence[Callable[[], Outputs]]) -> list[Outputs]:
        """The results of tasks that don't depend on each other."""
        ...


def run(engine: Engine, shape: str, shared: str, row: dict[str, Any]) -> Outputs:
    """Run one program; its outputs as (step, text)."""
    return _PROGRAMS[shape](engine, shared, **row)


class _Writer:
    """A cursor with the steps of a shape, that keeps what was said."""

    def __init__(self, shape: str, cursor: Cursor) -> None:
        self.shape, self.cursor = shape, cursor
        self.out: Outputs = []

    def __call__(self, text: str, step: str) -> str:
        self.cursor.append(text)
        said = self.cursor.take(step, SHAPES[self.shape].steps[step])
        self.out.append((step, said))
        return said


def _chain(engine: Engine, shared: str, case: int) -> Outputs:
    del shared
    write = _Writer("chain", engine.open())
    write(f"Case {case:09d}. " + HEAD, "intent")
    write("\nPassages: " + texts.shuffled_passages(case) + "\nAnswer:", "answer")
    write("\nverdict:", "verdict")
    write("\nclosing:", "closing")
    return write.out


def _rag(engine: Engine, shared: str, case: int) -> Outputs:
    del shared
    write = _Writer("rag", engine.open())
    write(f"Case {case:09d}. " + HEAD, "intent")
    write("\nPassages:\n" + texts.handbook(case) + "\nThe facts as JSON:\n", "answer")
    write("\nDo the passages support this?", "verdict")
    write("\nA friendly reply to the customer:", "closing")
    return write.out


def _tree(engine: Engine, shared: str, problem: str) -> Outputs:
    root = engine.open()
    root.append(shared + "\nProblem: " + problem + "\n")

    def branch(i: int, cursor: Cursor) -> Outputs:
        write = _Writer("tree", cursor)
        write(f"Plan {i + 1}:", "plan")
        write("\nCarried out:", "execute")
        write("\nWhat may be wrong with it:", "reflect")
        write("\nPoints of 9:", "score")
        return write.out

    outs = engine.together([_later(branch, i, root.copy()) for i in range(3)])
    plan, *_, score = zip(*(tuple(text for _, text in out) for out in outs), strict=True)
    best = max(range(3), key=lambda i: score[i])
    write = _Writer("tree", root)
    write("Best plan:" + plan[best] + "\nSolution:", "final")
    return [*(item for out in outs for item in out), *write.out]


def _vote(engine: Engine, shared: str, problem: str) -> Outputs:
    root = engine.open()
    root.append(shared + "\nProblem: " + problem + "\n")

    def branch(i: int, cursor: Cursor) -> Outputs:
        write = _Writer("vote", cursor)
        write(f"Thoughts {i + 1}:", "thoughts")
        write("\nAnswer:", "answer")
        return write.out

    outs = engine.together([_later(branch, i, root.copy()) for i in range(5)])
    return [item for out in outs for item in out]


def _react(engine: Engine, shared: str, case: int) -> Outputs:
    del shared
    write = _Writer("react", engine.open())
    lead = f"Run {case:09d}. Tools: search, lookup, count. Find the largest order of all rows.\n"
    for turn, result in enumerate(texts.tool_results(case)):
        write(f"{lead}Thought {turn + 1}:", "thought")
        write("\nCall: ", "call")
        lead = "\nResult: " + result + "\n"
    write(lead + "Final answer:", "final")
    return write.out


def _few_shot(engine: Engine, shared: str, text: str) -> Outputs:
    write = _Writer("few_shot", engine.open())
    write(shared + "\nText: " + text + "\nFeeling:", "feeling")
    return write.out


def _json(engine: Engine, shared: str, notice: str) -> Outputs:
    write = _Writer("json", engine.open())
    write(shared + "\nNotice: " + notice + "\nJSON: ", "order")
    return write.out


def _chat(engine: Engine, shared: str, case: int) -> Outputs:
    del shared
    write = _Writer("chat", engine.open())
    lead = f"Chat {case:09d}. A customer talks to the support desk of a shop by mail.\n"
    for said in texts.chat_turns(case):
        write(f"{lead}Customer: {said}\nDesk:", "reply")
        lead = "\n"
    return write.out


def _later(
    branch: Callable[[int, Cursor], Outputs], i: int, cursor: Cursor
) -> Callable[[], Outputs]:
    return lambda: branch(i, cursor)


_PROGRAMS: dict[str, Callable[..., Outputs]] = {
    "chain": _chain,
    "rag": _rag,
    "tree": _tree,
    "vote": _vote,
    "react": _react,
    "few_shot": _few_shot,
    "json": _json,
    "chat": _chat,
}
