"""How the compiler knows a primitive: by what the function says of itself.

What lives here: the decorator that says it. What does not: the primitives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["mark", "mark_text"]

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
