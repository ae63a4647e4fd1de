"""A session's way to its engine, wherever that runs.

What lives here: the protocol `Lane`. What does not: the two that there are, to an engine in this
process (`local.py`) and in a child process (`host/`), and the sessions (`embedded_session.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from phloem.runtime.engine.messages import Deliver
from phloem.runtime.engine.work import Work

__all__ = ["Cancel", "Lane"]

Cancel: TypeAlias = Callable[[], None]
"""Ends the work with `Cancelled`; nothing if it has ended. From any thread; does not wait."""


class Lane(Protocol):
    """One for each session: what an engine knows of the session's next steps hangs on it."""

    def submit(self, work: Work, deliver: Deliver) -> Cancel:
        """Begin; never waits and never raises. All that happens, errors too, is delivered, the
        outcome last. From any thread."""
        ...

    def expect(self, next_use: int | None, place: str = "") -> None:
        """Steps until the session's KV is used again; None: never. See `Session.hint`."""
        ...

    def another(self) -> Lane:
        """The lane of another session on the same engine."""
        ...
