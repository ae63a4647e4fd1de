"""The programs in SGLang's language, for its own frontend and for phloem alike.

What lives here: one program for each shape, made by `program` with the module that stands for
`sgl`. What does not: the same for engines without such a language (`glue.py`). A program returns
its outputs as (step, text) in the order in which they are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import texts
from .shapes import SHAPES, Step

__all__ = ["program"]

HEAD = "You are a support agent. Question: can I get a refund for a damaged item? Intent:"
CHECK_STEPS = SHAPES["rag"].steps
INTENTS = list(CHECK_STEPS["intent"].choices)
CHECK = CHECK_STEPS["answer"].pattern
VERDICT = CHECK_STEPS["verdict"].pattern
CALL = SHAPES["react"].steps["call"].pattern
ORDER = SHAPES["json"].steps["order"].pattern
DIGIT = SHAPES["vote"].steps["answer"].pattern


def program(sgl: Any, shape: str, shared: str) -> Any:
    """The program of a shape; `sgl` is the `sglang` or the `phloem` module."""
    return _MAKERS[shape](sgl, shared)


def _chain(sgl: Any, shared: str) -> Any:
    del shared

    @sgl.function
    def chain(s: Any, case: int) -> list[tuple[str, str]]:
        s += f"Case {case:09d}. " + HEAD
        s += sgl.gen("intent", 3, ignore_eos=True)
        found = texts.shuffled_passages(case)
        s += "\nPassages: " + found + "\nAnswer:"
        s += sgl.gen("answer", 80, ignore_eos=True)
        s += "\nverdict:"
        s += sgl.gen("verdict", 20, ignore_eos=True)
        s += "\nclosing:"
        s += sgl.gen("closing", 64, ignore_eos=True)
        return [(name, s[name]) for name in ("intent", "answer", "verdict", "closing")]

    return chain


def _rag(sgl: Any, shared: str) -> Any:
    del shared

    @sgl.function
    def rag(s: Any, case: int) -> list[tuple[str, str]]:
        s += f"Case {case:09d}. " + HEAD
        s += sgl.select("intent", choices=INTENTS)
        found = texts.handbook(case)
        s += "\nPassages:\n" + found + "\nThe facts as JSON:\n"
        s += sgl.gen("answer", 160, regex=CHECK)
        s += "\nDo the passages support this?"
        s += sgl.gen("verdict", 64, regex=VERDICT)
        s += "\nA friendly reply to the customer:"
        s += sgl.gen("closing", 48, ignore_eos=True)
        return [(name, s[name]) for name in ("intent", "answer", "verdict", "closing")]

    return rag


def _tree(sgl: Any, shared: str) -> Any:
    @sgl.function
    def tree(s: Any, problem: str) -> list[tuple[str, str]]:
        s += shared
        s += "\nProblem: " + problem + "\n"
        branches = s.fork(3)
        for i in range(3):
            branch = branches[i]
            branch += f"Plan {i + 1}:"
            branch += sgl.gen("plan", 24, ignore_eos=True)
            branch += "\nCarried out:"
            branch += sgl.gen("execute", 32, ignore_eos=True)
            branch += "\nWhat may be wrong with it:"
            branch += sgl.gen("reflect", 20, ignore_eos=True)
            branch += "\nPoints of 9:"
            branch += sgl.gen("score", 3, regex=DIGIT)
        branches.join()
        steps = ("plan", "execute", "reflect", "score")
        out = [(name, branch[name]) for branch in branches for name in steps]
        best = max(branches, key=lambda branch: branch["score"])
        s += "Best plan:" + best["plan"] + "\nSolution:"
        s += sgl.gen("final", 30, ignore_eos=True)
        return [*out, ("final", s["final"])]

    return tree


def _vote(sgl: Any, shared: str) -> Any:
    @sgl.function
    def vote(s: Any, problem: str) -> list[tuple[str, str]]:
        s += shared
        s += "\nProblem: " + problem + "\n"
        branches = s.fork(5)
        for i in range(5):
            branch = branches[i]
            branch += f"Thoughts {i + 1}:"
            branch += sgl.gen("thoughts", 48, ignore_eos=True)
            branch += "\nAnswer:"
            branch += sgl.gen("answer", 3, regex=DIGIT)
        branches.join()
        return [(name, branch[name]) for branch in branches for name in ("thoughts", "answer")]

    return vote


def _react(sgl: Any, shared: str) -> Any:
    del shared

    @sgl.function
    def react(s: Any, case: int) -> list[tuple[str, str]]:
        s += f"Run {case:09d}. Tools: search, lookup, count. Find the largest order of all rows.\n"
        for turn, result in enumerate(texts.tool_results(case)):
            s += f"Thought {turn + 1}:"
            s += sgl.gen(f"thought{turn}", 24, ignore_eos=True)
            s += "\nCall: "
            s += sgl.gen(f"call{turn}", 64, regex=CALL)
            s += "\nResult: " + result + "\n"
        s += "Final answer:"
        s += sgl.gen("final", 40, ignore_eos=True)
        turns = [(step, s[f"{step}{turn}"]) for turn in range(6) for step in ("thought", "call")]
        return [*turns, ("final", s["final"])]

    return react


def _few_shot(sgl: Any, shared: str) -> Any:
    @sgl.function
    def few_shot(s: Any, text: str) -> list[tuple[str, str]]:
        s += shared
        s += "\nText: " + text + "\nFeeling:"
        s += sgl.select("feeling", choices=list(texts.FEELINGS))
        return [("feeling", s["feeling"])]

    return few_shot


def _json(sgl: Any, shared: str) -> Any:
    @sgl.function
    def extract(s: Any, notice: str) -> list[tuple[str, str]]:
        s += shared
        s += "\nNotice: " + notice + "\nJSON: "
        s += sgl.gen("order", 160, regex=ORDER)
        return [("order", s["order"])]

    return extract


def _chat(sgl: Any, shared: str) -> Any:
    del shared

    @sgl.function
    def chat(s: Any, case: int) -> list[tuple[str, str]]:
        s += f"Chat {case:09d}. A customer talks to the support desk of a shop by mail.\n"
        for turn, said in enumerate(texts.chat_turns(case)):
            s += "Customer: " + said + "\nDesk:"
            s += sgl.gen(f"reply{turn}", 48, ignore_eos=True)
            s += "\n"
        return [("reply", s[f"reply{turn}"]) for turn in range(4)]

    return chat


_MAKERS: dict[str, Callable[[Any, str], Any]] = {
    "chain": _chain,
    "rag": _rag,
    "tree": _tree,
    "vote": _vote,
    "react": _react,
    "few_shot": _few_shot,
    "json": _json,
    "chat": _chat,
}


def step_of(shape: str, tokens: int | None, pattern: str | None) -> str:
    """The name of the step with these limits: how a server's calls are told apart."""

    def matches(step: Step) -> bool:
        return step.pattern == pattern and (pattern is not None or step.tokens == tokens)

    return next((n for n, s in SHAPES[shape].steps.items() if matches(s) and not s.choices), "")
