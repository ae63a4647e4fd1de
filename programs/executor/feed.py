"""A run's event stream: written once, read by any number of readers at any pace.

What lives here: `Feed`. What does not: the events (`programs/events.py`). Readers may sit in
other threads or on other event loops than the run; none of them can miss an event or wait for
one that will never come, because the end of the run wakes everybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from phloem.programs.events import AnyEvent
from phloem.programs.executor.loop import wait_until

__all__ = ["Feed"]


class Feed:
    """An append-only list of events with blocking and async readers."""

    def __init__(self) -> None:
        self._events: list[AnyEvent] = []
        self._changed = threading.Condition()
        self._wakers: list[Callable[[], None]] = []
        self._done = False

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """All events so far."""
        return tuple(self._events)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def done(self) -> bool:
        """Whether no event will follow."""
        return self._done

    def put(self, event: AnyEvent) -> None:
        """Add an event and wake the readers."""
        with self._changed:
            self._events.append(event)
        self._wake()

    def close(self) -> None:
        """Say that no event follows."""
        with self._changed:
            self._done = True
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
            wakers = list(self._wakers)
        for waker in wakers:
            waker()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Block until `ready()` or the end of the run, whichever is first."""
        with self._changed:
            wait_until(self._changed, lambda: self._done or ready())

    def __iter__(self) -> Iterator[AnyEvent]:
        """Every event from the first, blocking until each comes; ends with the run."""
        position = 0
        while True:
            with self._changed:
                wait_until(self._changed, functools.partial(self._beyond, position))
                if position >= len(self._events):
                    return
                event = self._events[position]
            position += 1
            yield event

    def _beyond(self, position: int) -> bool:
        """Whether a reader at `position` has nothing to wait for."""
        return position < len(self._events) or self._done

    async def __aiter__(self) -> AsyncIterator[AnyEvent]:
        """The same for an event loop, which is never blocked."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def waker() -> None:
            # A reader whose loop is gone can't be woken, and need not be.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(news.set)

        with self._changed:
            self._wakers.append(waker)
        try:
            position = 0
            while True:
                news.clear()
                while position < len(self._events):
                    yield self._events[position]
                    position += 1
                if self._done and position >= len(self._events):
                    return
                await news.wait()
        finally:
            with self._changed:
                self._wakers.remove(waker)
