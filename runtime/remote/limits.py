"""How long a remote step may wait, and how it is cancelled.

What lives here: `Limit`, one step's total time and its cancel switch. What does not: requests
(`http.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from phloem.errors import Cancelled, DeadlineExceeded

__all__ = ["Limit"]

T = TypeVar("T")


class Limit:
    """Bounds all waiting of one step. Made inside the event loop that waits.

    `timeout` is in seconds from now, `deadline` a `time.monotonic()` instant; the earlier counts.
    """

    def __init__(self, timeout: float | None, deadline: float | None = None) -> None:
        ends = [] if deadline is None else [deadline]
        if timeout is not None:
            ends.append(time.monotonic() + timeout)
        self._until = min(ends, default=None)
        self._cancelled = asyncio.Event()

    def cancel(self) -> None:
        """What waits, or will wait, ends with `Cancelled`."""
        self._cancelled.set()

    def allows(self, seconds: float) -> bool:
        """Whether so much time is left."""
        return self._until is None or time.monotonic() + seconds < self._until

    async def wait(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises `Cancelled` or `DeadlineExceeded`; `work` is then ended."""
        task = asyncio.ensure_future(work)
        switch = asyncio.ensure_future(self._cancelled.wait())
        left = None if self._until is None else max(0.0, self._until - time.monotonic())
        try:
            # A stream that always has more at hand must end too.
            if left != 0 and not self._cancelled.is_set():
                await asyncio.wait(
                    {task, switch}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if task.done():
                    return task.result()
        finally:
            switch.cancel()
            if not task.done():
                task.cancel()
            # Its own error, if it has one, is of no interest once the step has ended.
            await asyncio.gather(task, return_exceptions=True)
        if self._cancelled.is_set():
            raise Cancelled("the step was cancelled")
        raise DeadlineExceeded(
            "the server did not finish within the step's time",
            hint="allow more time (timeout= of the backend, deadline= of the run)",
        )
