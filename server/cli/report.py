"""How an error looks in a terminal: what is wrong, what to do, where it happened.

What lives here: the rendering. What does not: which error is raised when (that is the other
rooms' work).
"""

from __future__ import annotations

import traceback

from rich.console import Console
from rich.text import Text

from phloem.errors import PhloemError, where_of

__all__ = ["report"]


def report(error: Exception) -> None:
    """Write `error` to standard error as one message with its remedy and its place."""
    hint: str | None
    if isinstance(error, PhloemError):
        message, hint = error.message, error.hint
    else:
        message = f"{type(error).__name__}: {error}"
        hint = "this is no error that phloem explains; --debug shows the traceback"
    text = Text.assemble(("error: ", "bold red"), message)
    if hint:
        text.append("\n  hint: ", style="bold").append(hint)
    if where := where_of(error) or _raised_at(error):
        text.append("\n  where: ", style="bold").append(str(where))
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)


def _raised_at(error: Exception) -> str | None:
    """File and line that raised an error without a place, such as one of a file's own imports."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, PhloemError) or not frames:
        return None
    return f"{frames[-1].filename}:{frames[-1].lineno}"
