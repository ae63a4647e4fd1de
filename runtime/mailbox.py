"""From any thread to an event loop: messages in order, few wake-ups.

What lives here: `Mailbox`, one per job or stream, and the `Dispatcher` that all mailboxes of a loop
share. What does not: what the messages say.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Dispatcher:
    """Hands messages over to one loop; those of one engine step cost it one wake-up."""

    _of_loop: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Dispatcher]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._posted: deque[tuple[Mailbox[Any], Any]] = deque()
        self._awake = False

    @classmethod
    def of_running_loop(cls) -> Dispatcher:
        """The dispatcher of the loop that runs now."""
        loop = asyncio.get_running_loop()
        found = cls._of_loop.get(loop)
        if found is None:
            found = cls._of_loop[loop] = cls(loop)
        return found

    def post(self, mailbox: Mailbox[T], message: T) -> bool:
        """From any thread. False: the loop is closed, nobody will read it."""
        loop = self._loop()
        with self._lock:
            # One that was woken may be closed before it comes to read.
            if loop is None or loop.is_closed():
                self._posted.clear()
                return False
            self._posted.append((mailbox, message))
            if self._awake:
                return True
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # closed just now
                self._posted.clear()
                return False
            self._awake = True
            return True

    def _deliver(self) -> None:
        with self._lock:
            self._awake = False
            messages, self._posted = self._posted, deque()
        for mailbox, message in messages:
            mailbox.receive(message)


class Mailbox(Generic[T]):
    """Messages for one reader on the loop that made it."""

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] | None = None
        """Called (on the sender's thread) when the reader's loop is gone."""
        self._dispatcher = Dispatcher.of_running_loop()
        self._messages: asyncio.Queue[T] = asyncio.Queue()

    def put(self, message: T) -> None:
        """From any thread."""
        if not self._dispatcher.post(self, message) and self.on_lost is not None:
            self.on_lost()

    def receive(self, message: T) -> None:
        """On the loop."""
        self._messages.put_nowait(message)

    async def get(self) -> T:
        """The next message."""
        return await self._messages.get()

    async def take(self) -> list[T]:
        """All messages that are here; waits for the first."""
        taken = [await self._messages.get()]
        while not self._messages.empty():
            taken.append(self._messages.get_nowait())
        return taken
