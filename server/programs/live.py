"""A run of this process: its events as they come, for any number of readers.

What lives here: `LiveRun`. What does not: starting one (`manager.py`) and the rows of runs that
are over (`rows.py`). Used on the web server's loop only.

A run whose engine was replaced under it begins a new attempt, whose events are told from the first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from phloem.server.programs.rows import RunRow
from phloem.surrogates import spelled

__all__ = ["LiveRun", "RunEvent"]

RunEvent = tuple[int, int, str, str]
"""The attempt, the event's number in it, its name, its data as JSON text."""


class LiveRun:
    """A run and its events. `over` once no event follows."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.events: list[tuple[str, str]] = []
        self.over = False
        self.error: BaseException | None = None
        self.cancelled_by: str | None = None
        """Who ended it early: "client", by asking; "reader", by going away; or "server"."""
        self.streamed = False
        """Whether its owner reads the events as they come, and takes none back."""
        self._news = asyncio.Event()
        self._cancel: Callable[[], Any] | None = None

    def put(self, name: str, data: Any) -> None:
        """Add an event and wake the readers."""
        text = json.dumps(data, default=repr, ensure_ascii=False)
        self.events.append((name, spelled(text)))
        self._wake()

    def begin_again(self, reason: str) -> None:
        """A new attempt: its first event says so to whoever has read of the one before."""
        self.row.attempt += 1
        self.events = []
        self.put("restarted", {"attempt": self.row.attempt, "reason": reason})

    @property
    def told_text(self) -> bool:
        """Whether this attempt has told of text that was generated."""
        return any(name == "token" for name, _ in self.events)

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
        """Events from number `start` of this attempt on, until the run is over."""
        attempt, position = self.row.attempt, start
        while True:
            if attempt != self.row.attempt:
                attempt, position = self.row.attempt, 0
            if position < len(self.events):
                name, data = self.events[position]
                yield (attempt, position, name, data)
                position += 1
            elif self.over:
                return
            else:
                await self._news.wait()

    async def ended(self) -> None:
        """Wait until the run is over."""
        while not self.over:
            await self._news.wait()
