"""Threads that a program waits for while they wait for the program.

What lives here: finding that out. What does not: the waiting (`loop.py`). All programs share one
thread. One that starts threads and waits for them (`join()`, results of an executor) holds that
thread; if they wait for a run or for a state meanwhile, none of them would ever go on.
"""

from __future__ import annotations

import concurrent.futures.thread
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator

from phloem.errors import ProgramError, Where, attach_where

__all__ = ["refuse"]

_WAITING = frozenset(
    [threading.__file__, concurrent.futures._base.__file__, concurrent.futures.thread.__file__]
)
"""Files of the functions with which a program waits for threads."""
_HELD = ("self", "fs", "pending")
"""What those functions call the threads and futures that they wait for."""


def refuse(shared: threading.Thread | None, over: Callable[[], bool]) -> None:
    """Raise `ProgramError`, naming the line, if the thread of all programs waits for this one, and
    what this one waits for is not `over` yet."""
    frame = sys._current_frames().get(shared.ident or 0) if shared is not None else None
    awaited = set()
    while frame is not None and frame.f_code.co_filename in _WAITING:
        awaited |= set(map(id, _held(frame)))
        frame = frame.f_back
    if frame is None or awaited.isdisjoint(map(id, _mine())) or over():
        return
    error = ProgramError(
        "a thread that a program has started and waits for would wait for that program",
        hint="inside a program use run_batch(), fork() or a tool in place of threads",
    )
    attach_where(error, Where(frame.f_code.co_name, None, frame.f_code.co_filename, frame.f_lineno))
    raise error


def _held(frame: types.FrameType) -> Iterator[object]:
    for name in _HELD:
        value = frame.f_locals.get(name)
        yield value
        if name != "self" and isinstance(value, Iterable):
            yield from list(value)


def _mine() -> Iterator[object]:
    """This thread, and the future of the job that it does for an executor."""
    yield threading.current_thread()
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is concurrent.futures.thread._WorkItem.run.__code__:
            yield frame.f_locals["self"].future
        frame = frame.f_back
