"""The value of a step that was started and not yet awaited.

What lives here: `Deferred`. What does not: who waits: the machine puts the value in its place
before any code of the program can see this object.
"""

from __future__ import annotations

import asyncio
from typing import Any

from phloem.programs.executor import hub

__all__ = ["Deferred"]


class Deferred:
    """A step of `parallel()` or `fresh=True` on its own branch."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def value(self) -> Any:
        """Wait for the step. Raises its error."""
        return hub.wait(self._task)

    def cancel(self) -> None:
        """Stop the step."""
        self._task.cancel()
