"""A run of this process: its events as they come, for any number of readers.

What lives here: `LiveRun`. What does not: starting one (`manager.py`) and the rows of runs that
are over (`rows.py`). Used on the web server's loop only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from phloem.server.programs.rows import RunRow

__all__ = ["LiveRun", "RunEvent"]

RunEvent = tuple[int, str, str]
"""The event's number in its attempt, its name, its data as JSON text."""


class LiveRun:
    """A run and its events. `over` once no event follows."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.events: list[tuple[str, str]] = []
        self.over = False
        self.error: BaseException | None = None
        self.cancelled_by: str | None = None
        """Who ended it early: "client" or "server"."""
        self._news = asyncio.Event()
        self._cancel: Callable[[], Any] | None = None

    def put(self, name: str, data: Any) -> None:
        """Add an event and wake the readers."""
        self.events.append((name, json.dumps(data, default=repr, ensure_ascii=False)))
        self._wake()

    def close(self) -> None:
        """Say that no event follows."""
        self.over = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def on_cancel(self, cancel: Callable[[], Any]) -> None:
        """Set what ends the work; done at once if that was asked already."""
        self._cancel = cancel
        if self.cancelled_by is not None:
            cancel()

    def cancel(self, by: str) -> None:
        """End the run early, within one step."""
        if self.cancelled_by is None and not self.over:
            self.cancelled_by = by
            if self._cancel is not None:
                self._cancel()

    async def follow(self, start: int = 0) -> AsyncGenerator[RunEvent, None]:
        """Events from number `start` on, until the run is over."""
        position = start
        while True:
            while position < len(self.events):
                yield (position, *self.events[position])
                position += 1
            if self.over:
                return
            await self._news.wait()

    async def ended(self) -> None:
        """Wait until the run is over."""
        while not self.over:
            await self._news.wait()
