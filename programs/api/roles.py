"""Chat roles, media, special tokens, and independent steps.

What lives here: the small primitives. What does not: steps that ask the model
(`primitives.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from phloem.errors import CompileError, ProgramError
from phloem.programs.effects import (
    AddSpecial,
    Effect,
    Expression,
    Generate,
    Media,
    RoleBegin,
    RoleEnd,
    to_expression,
)
from phloem.programs.executor.frame import current, value_frame
from phloem.programs.marks import mark

__all__ = [
    "assistant",
    "assistant_begin",
    "assistant_end",
    "image",
    "parallel",
    "separate_reasoning",
    "special",
    "system",
    "system_begin",
    "system_end",
    "user",
    "user_begin",
    "user_end",
    "video",
]


def _give(*items: Effect) -> Any:
    """The expression of `items` in state style; in value style they are done at once."""
    frame = value_frame()
    if frame is None:
        return Expression(items)
    for item in items:
        frame.act(frame.branch, item)
    return None


def _role(role: str) -> Callable[[Any], Any]:
    @mark("role", role=role)
    def whole(value: Any) -> Any:
        return _give(RoleBegin(role), *to_expression(value).items, RoleEnd(role))

    whole.__name__ = whole.__qualname__ = role
    whole.__doc__ = f"A whole {role} message: text, a primitive, or a sum of such."
    return whole


def _edge(role: str, kind: str, effect: Effect) -> Callable[[], Any]:
    @mark(f"role_{kind}", role=role)
    def edge() -> Any:
        return _give(effect)

    edge.__name__ = edge.__qualname__ = f"{role}_{kind}"
    edge.__doc__ = f"The {kind} of a {role} message."
    return edge


system = _role("system")
user = _role("user")
assistant = _role("assistant")
system_begin = _edge("system", "begin", RoleBegin("system"))
system_end = _edge("system", "end", RoleEnd("system"))
user_begin = _edge("user", "begin", RoleBegin("user"))
user_end = _edge("user", "end", RoleEnd("user"))
assistant_begin = _edge("assistant", "begin", RoleBegin("assistant"))
assistant_end = _edge("assistant", "end", RoleEnd("assistant"))


def special(token: str) -> Any:
    """One special token of the model, by its spelling. Text never becomes one; this does."""
    return _give(AddSpecial(token))


def image(source: str | bytes) -> Any:
    """An image (path, URL or bytes), for engines with vision; others refuse it by name."""
    return _give(Media("image", source))


def video(source: str | bytes, num_frames: int) -> Any:
    """A video, of which `num_frames` are shown, for engines with vision."""
    return _give(Media("video", source, num_frames))


_REASONING = {
    "deepseek-r1": ("<think>", "</think>"),
    "deepseek-v3": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "qwen3-thinking": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "kimi": ("◁think▷", "◁/think▷"),
}


@mark("reasoning")
def separate_reasoning(expression: Any, model_type: str) -> Expression:
    """Keep the reasoning block of the steps in `expression` apart.

    The step's variable and message hold what follows the block; the block's text is the
    variable `<name>_reasoning_content`. The session's text keeps both, as the model saw them.
    """
    marks = _REASONING.get(model_type.lower())
    if marks is None:
        raise CompileError(
            f"separate_reasoning() does not know the model type {model_type!r}",
            hint=f"known: {', '.join(sorted(_REASONING))}",
        )
    items = to_expression(expression).items
    return Expression(
        tuple(replace(i, reasoning=marks) if isinstance(i, Generate) else i for i in items)
    )


@contextmanager
def _parallel() -> Iterator[None]:
    frame = current()
    if frame is None:
        raise ProgramError(
            "parallel() works inside a running program", hint="call it from a @function"
        )
    before, frame.parallel = frame.parallel, True
    try:
        yield
    finally:
        frame.parallel = before


@mark("parallel")
def parallel() -> Any:
    """`with parallel():` the steps inside are independent of each other and run side by side.

    Each goes on from the session as it stood when the block began, and none becomes part of
    it. Their values are there after the block, or as soon as the code inside reads them. So it is
    with retrievals, in both styles: those of a block travel together where the retriever can do
    that, and an error is raised where the hits are read, at the latest when the block ends. In
    state style steps on a state keep their order; `s.fork()` runs them side by side.
    """
    return _parallel()
