"""How many requests may use the engine at once, how many may wait, and how long.

What lives here: `Gate`. What does not: the engine's own admission (it decides by memory) and
rate limits per key (`limits.py`). A request that waits keeps its place in the order of
arrival; one that goes away while waiting frees its place at once.
"""

from __future__ import annotations

import asyncio

from phloem.errors import DeadlineExceeded, Overloaded

__all__ = ["Gate", "Lease"]


class Lease:
    """The right to use the engine; `release` gives it back, once however often it is called."""

    def __init__(self, gate: Gate) -> None:
        self._gate: Gate | None = gate

    def release(self) -> None:
        """Give the place to the next in the queue."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave()


class Gate:
    """A counting semaphore with a bounded queue. Used on the web server's loop only."""

    def __init__(self, max_running: int, max_queued: int) -> None:
        self._slots = asyncio.Semaphore(max_running)
        self._max_running = max_running
        self._max_queued = max_queued
        self.running = 0
        self.queued = 0

    def check(self) -> None:
        """Raise `Overloaded` if one more could neither run nor wait."""
        if self._slots.locked() and self.queued >= self._max_queued:
            raise Overloaded(
                f"{self.running} requests are running and {self.queued} are waiting",
                hint="try again later; the server's limits are max_running and max_queued",
                running=self.running,
                queued=self.queued,
                retry_after_s=1 + self.queued // self._max_running,
            )

    async def enter(self, timeout_s: float) -> Lease:
        """Wait for a place. Raises `Overloaded` when the queue is full (at once), and
        `DeadlineExceeded` when the time is up first."""
        self.check()
        self.queued += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request waited {timeout_s:g} s for a place and got none",
                hint="raise the deadline, or try again when the server is less busy",
            ) from None
        finally:
            self.queued -= 1
        self.running += 1
        return Lease(self)

    def leave(self) -> None:
        """Called by a lease that ends."""
        self.running -= 1
        self._slots.release()
