"""Greenlets over asyncio: how synchronous code waits without holding a thread.

What lives here: `drive`, which runs a plain function in a greenlet under an asyncio task, and
`wait`, which such a function calls to await something. What does not: what is awaited.

A run is one asyncio task that drives one greenlet. When code in the greenlet, however deep in
helpers, needs the engine, `wait` switches to the task with an awaitable; the task awaits it
and switches back with its result or its exception. Hundreds of runs share one thread.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from phloem.errors import ProgramError, where_of

__all__ = ["active", "apart", "contained", "drive", "in_greenlet", "run_coroutine", "wait"]

T = TypeVar("T")

active: contextvars.ContextVar[Any] = contextvars.ContextVar("phloem_frame", default=None)
"""The activation of the innermost program (a `frame.Frame`)."""


async def apart(work: Callable[[], Awaitable[T]]) -> T:
    """Await what is no part of the program that asks for it: a tool, a search. Programs that it
    runs are runs of their own, since a replay will not come by there."""
    token = active.set(None)
    try:
        return await work()
    finally:
        active.reset(token)


class _Driven(greenlet):  # type: ignore[misc] # greenlet ships no types
    """A greenlet whose parent is a task in `drive`."""


async def drive(function: Callable[[], T]) -> T:
    """Run `function()` in a greenlet of the current task; it may call `wait`.

    Raises what it raises (see `contained`), and `ProgramError` for a `CancelledError` of its own:
    to whoever waits for the task it would look as if the task had been cancelled.
    """
    worker = _Driven(lambda: contained(function))
    worker.gr_context = contextvars.copy_context()
    try:
        asked = worker.switch()
        while not worker.dead:
            try:
                answer = await asked
            except GeneratorExit:  # nobody drives this coroutine any more
                worker.throw(GreenletExit)
                raise
            except BaseException as error:  # noqa: BLE001 - every outcome goes on to the waiter
                asked = worker.throw(type(error), error, error.__traceback__)
            else:
                asked = worker.switch(answer)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ProgramError(
            "the program waited for something that was cancelled",
            hint="catch asyncio.CancelledError where it awaits a task that may be cancelled",
            where=where_of(error),
        ) from error
    return asked  # type: ignore[no-any-return] # the greenlet's return value


def contained(function: Callable[[], T]) -> T:
    """`function()`, with errors in place of what would end more than the program.

    Many programs share the thread and the process they run in. Raises `ProgramError`, with the
    place of the original, instead of `SystemExit`, `KeyboardInterrupt` and whatever else is no
    `Exception` (a batch would lose its other rows to it), and instead of `StopIteration`, which a
    coroutine can't pass on.
    """
    try:
        return function()
    except StopIteration as error:
        raise ProgramError(
            f"next() found nothing more: {error!r}",
            hint="give next() a default, or loop with for",
            where=where_of(error),
        ) from error
    except (Exception, asyncio.CancelledError, GreenletExit):
        raise
    except BaseException as error:
        ends = isinstance(error, SystemExit | KeyboardInterrupt)
        raise ProgramError(
            f"the program would end {'the process' if ends else 'more than itself'}: {error!r}",
            hint="return or raise an error there, and let the program's caller end the process"
            if ends
            else "raise an Exception",
            where=where_of(error),
        ) from error


def in_greenlet() -> bool:
    """Whether the caller may use `wait`."""
    return isinstance(getcurrent(), _Driven)


def wait(awaitable: Awaitable[T]) -> T:
    """Await from synchronous code that `drive` runs. Raises `ProgramError` elsewhere."""
    worker = getcurrent()
    if not isinstance(worker, _Driven):
        raise ProgramError(
            "a step was called outside of a running program, or from another thread of it",
            hint="call primitives from the program's own code, not from threads it starts",
        )
    return worker.parent.switch(awaitable)  # type: ignore[no-any-return]


class _Yielded:
    """Hands a future that a coroutine yielded on to the task, unchanged."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._future)


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end inside the greenlet, so that its callees may use `wait`."""
    send: Any = None
    error: BaseException | None = None
    while True:
        try:
            future = coroutine.throw(error) if error is not None else coroutine.send(send)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        send, error = None, None
        try:
            send = wait(_Yielded(future))
        except BaseException as raised:  # noqa: BLE001 - goes on into the coroutine
            error = raised
