"""How the compiler knows a primitive: by what the function says of itself.

What lives here: the decorators that say it, and the error for what a primitive does not take. What
does not: the primitives.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from phloem.errors import CompileError

__all__ = ["check_keywords", "check_name", "mark", "mark_text"]

F = TypeVar("F", bound=Callable[..., Any])


def mark(kind: str, **facts: Any) -> Callable[[F], F]:
    """Declare a function a primitive of `kind` (see `compiler/describe.py`). Its named parameters
    are what it `takes`, unless `facts` says otherwise."""

    def declare(function: F) -> F:
        function.__phloem_kind__ = kind  # type: ignore[attr-defined] # functions take attributes
        named = inspect.signature(function).parameters.values()
        takes = [p.name for p in named if p.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__phloem_takes__ = takes  # type: ignore[attr-defined] # as above
        for name, value in facts.items():
            setattr(function, f"__phloem_{name}__", value)
        return function

    return declare


def mark_text(function: F) -> F:
    """Declare that `function` makes text for a prompt, and may make it later where the compiler
    sees that the text goes right into a state."""
    function.__phloem_text__ = True  # type: ignore[attr-defined] # functions take attributes
    return function


def check_name(name: object) -> None:
    """Raises `CompileError` for a name of a variable that is no text."""
    if name is not None and not isinstance(name, str):
        raise CompileError(
            f"the name of a step is a text, not {name!r}",
            hint='write the name of its variable first, as in gen("answer", ...)',
        )


def check_keywords(primitive: str, function: Any, given: Iterable[str]) -> None:
    """Raises `CompileError` for a keyword that a primitive does not have, with the one that may be
    meant. A primitive that does not say what it has may have any."""
    known: Sequence[str] | None = getattr(function, "__phloem_takes__", None)
    name = next((name for name in given if known is not None and name not in known), None)
    if name is None or known is None:
        return
    near = difflib.get_close_matches(name, known, 1)
    others = f"it has: {', '.join(known)}; variables of a template belong to value style"
    raise CompileError(
        f"{primitive}() has no argument {name!r}",
        hint=f"did you mean {near[0]}=?" if near else others,
    )
