"""Time limits and retries of one step.

What lives here: `limited` and `attempts`. What does not: the run's own deadline, which the
driver of the run enforces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from phloem.errors import DeadlineExceeded, PhloemError, ProgramError

__all__ = ["attempts", "limited"]

T = TypeVar("T")
FIRST_PAUSE_S = 0.05


async def limited(work: Awaitable[T], seconds: float | None, what: str) -> T:
    """Await `work` for at most `seconds`. Raises `DeadlineExceeded` naming `what`,
    and `ProgramError` for seconds that are no such number."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (number and seconds > 0):
        if isinstance(work, Coroutine):
            work.close()
        raise ProgramError(
            f"{what} has the timeout {seconds!r}", hint="give a number of seconds above 0"
        )
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        # A TimeoutError of the work itself is the work's own answer.
        if not limit.expired():
            raise
        raise DeadlineExceeded(
            f"{what} took longer than its timeout of {seconds} s",
            hint="raise timeout=, which bounds all attempts together",
        ) from None


async def attempts(
    make: Callable[[], Awaitable[T]],
    retries: int,
    may_retry: Callable[[Exception], bool] | None = None,
) -> T:
    """Await `make()` up to `retries` times more while it fails in a way that may pass.

    By default that is an error whose `retryable` is true. Pauses double from 50 ms, or follow
    the error's own `retry_after_s`. Raises `ProgramError` for `retries` that are no such number.
    """
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise ProgramError(f"retries={retries!r} is not a count", hint="give 0 or more")
    pause = FIRST_PAUSE_S
    while True:
        try:
            return await make()
        except Exception as error:
            allowed = may_retry(error) if may_retry else getattr(error, "retryable", False)
            if retries <= 0 or not allowed:
                raise
            details = error.details if isinstance(error, PhloemError) else {}
            await asyncio.sleep(details.get("retry_after_s", pause))
            retries, pause = retries - 1, pause * 2
