"""From the web server's event loop to the one that runs and engines live on, and back.

What lives here: awaiting a coroutine there, and reading an async generator of there. What
does not: what is awaited. Cancelling on this side cancels on the other side; context
variables (the trace) go along, because a task inherits the context it is submitted from.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from phloem.programs.executor.loop import submit
from phloem.runtime.mailbox import Mailbox

__all__ = ["call", "stream"]

T = TypeVar("T")

_END = object()


async def call(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the engine's loop and await its outcome here."""
    return await asyncio.wrap_future(submit(coroutine))


async def stream(
    source: AsyncGenerator[T, None], on_end: Callable[[], None]
) -> AsyncGenerator[list[T], None]:
    """The items of `source`, which runs on the engine's loop, each time all that have come.
    Raises what it raises.

    `source` runs at its own pace: a slow reader here never holds it up. `on_end` is called
    here once `source` is over, however that came about. Closing this generator cancels
    `source`, which sees the cancellation at its next await.
    """
    home = asyncio.get_running_loop()
    mailbox: Mailbox[Any] = Mailbox()

    async def pump() -> None:
        async with contextlib.aclosing(source):
            async for item in source:
                mailbox.put(item)

    def ended(_: object) -> None:
        # This loop may be gone (a server that stops) while the other one winds up.
        with contextlib.suppress(RuntimeError):
            home.call_soon_threadsafe(on_end)
        mailbox.put(_END)

    future = submit(pump())
    future.add_done_callback(ended)
    try:
        over = False
        while not over:
            items = await mailbox.take()
            over = items[-1] is _END
            if over:
                items.pop()
            if items:
                yield items
        future.result()
    finally:
        future.cancel()
