"""The one background event loop that all runs of a process share.

What lives here: starting it and handing coroutines to it. What does not: the runs. Backends,
retrievers and their connections live on this loop only, so a caller's own loops (a notebook,
a test, a web server) never meet them.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from phloem.errors import ProgramError
from phloem.programs.executor import deadlock

__all__ = ["call", "loop", "on_loop_thread", "submit", "wait", "wait_until"]

T = TypeVar("T")
PATIENCE_S = 0.5
"""How often a thread that waits looks whether it can wait for ever."""
STOP_S = 2.0
"""How long a process that ends waits for its runs to be cancelled."""

_lock = threading.Lock()
_state: dict[str, Any] = {"loop": None, "thread": None, "pid": None}


def loop() -> asyncio.AbstractEventLoop:
    """The loop, started at the first call (and again in a forked process)."""
    with _lock:
        # A forked child inherits the object but not its thread.
        if _state["loop"] is None or _state["pid"] != os.getpid():
            fresh = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(fresh,), name="phloem", daemon=True)
            _state.update(loop=fresh, thread=thread, pid=os.getpid())
            thread.start()
        return _state["loop"]  # type: ignore[no-any-return]


@atexit.register
def _stop() -> None:
    """End the thread before the interpreter does: greenlets must die on their own thread."""
    running, thread = _state["loop"], _state["thread"]
    if running is not None and _state["pid"] == os.getpid() and thread is not None:
        running.call_soon_threadsafe(running.stop)
        thread.join(timeout=2 * STOP_S)


def _serve(fresh: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(fresh)
    while _left_early(fresh):
        pass
    if tasks := asyncio.all_tasks(fresh):
        for task in tasks:
            task.cancel()
        fresh.run_until_complete(asyncio.wait(tasks, timeout=STOP_S))
    fresh.close()


def _left_early(fresh: asyncio.AbstractEventLoop) -> bool:
    """Run the loop until it is stopped; or until a task that some program started wants to end
    the process, which is that task's own outcome and no reason to leave the others alone."""
    try:
        fresh.run_forever()
    except (SystemExit, KeyboardInterrupt):
        return True
    return False


def on_loop_thread() -> bool:
    """Whether the caller runs on the loop's thread, where blocking would block everything."""
    return threading.current_thread() is _state["thread"]


def submit(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Start a coroutine on the loop from any thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop())


def call(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop and wait for it (see `wait`)."""
    return wait(submit(coroutine))


def wait(future: concurrent.futures.Future[T]) -> T:
    """Wait for what `submit` returned; an interrupt cancels it.

    Raises `ProgramError` on the loop's own thread, and on one that a program waits for.
    """
    if on_loop_thread():
        future.cancel()
        raise ProgramError(
            "a blocking call was made on phloem's own event loop",
            hint="in async tools and callbacks use the async form (arun)",
        )
    try:
        while not future.done():
            with contextlib.suppress(TimeoutError):
                future.exception(PATIENCE_S)
            deadlock.refuse(_state["thread"], future.done)
        return future.result()
    except BaseException:
        future.cancel()
        raise


def wait_until(changed: threading.Condition, ready: Callable[[], bool]) -> None:
    """Wait on a condition, whose lock is held, until `ready()`. Raises `ProgramError` as `wait`."""
    while not changed.wait_for(ready, PATIENCE_S):
        deadlock.refuse(_state["thread"], ready)
