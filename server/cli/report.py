"""How an error looks in a terminal: what is wrong, what to do, where it happened.

What lives here: the rendering, and the wrapper that marks an exception as the user's own.
What does not: which error is raised when (that is the other rooms' work).
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from phloem.errors import PhloemError, where_of

__all__ = ["UserCodeError", "report"]


class UserCodeError(Exception):
    """An exception that the user's own code raised in a run; the cause is the original."""


def report(error: PhloemError | UserCodeError) -> None:
    """Write `error` to standard error as one message with its remedy and its place."""
    cause = error.__cause__ if isinstance(error, UserCodeError) else error
    assert cause is not None
    if isinstance(cause, PhloemError):
        message, hint = cause.message, cause.hint
    else:
        message = f"{type(cause).__name__}: {cause}"
        hint = "this is no error that phloem explains; --debug shows the traceback"
    text = Text.assemble(("error: ", "bold red"), message)
    if hint:
        text.append("\n  hint: ", style="bold").append(hint)
    if where := where_of(cause):
        text.append("\n  where: ", style="bold").append(str(where))
    Console(stderr=True, soft_wrap=True, highlight=False).print(text)
