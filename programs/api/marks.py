"""How the compiler knows a primitive: by what the function says of itself.

What lives here: the decorators that say it, and the error for what a primitive does not take. What
does not: the primitives.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from phloem.errors import CompileError

__all__ = ["mark", "mark_text", "unknown"]

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


def unknown(primitive: str, function: Callable[..., Any], given: Mapping[str, Any]) -> CompileError:
    """The error for keywords that a primitive does not have, with the one that may be meant."""
    name = next(iter(given))
    known: Sequence[str] = function.__phloem_takes__  # type: ignore[attr-defined] # see `mark`
    near = difflib.get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]}=?" if near else f"it has: {', '.join(known)}"
    return CompileError(
        f"{primitive}() has no argument {name!r}",
        hint=f"{meant} (variables of a template belong to value style)",
    )
