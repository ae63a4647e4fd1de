"""The value of a step that was started and not yet awaited.

What lives here: `Deferred`, and `PendingHits`, the face of one that a program may hold. What does
not: the work itself. A deferred generation is put in its place before any code of the program can
see it (`machine.py`); the hits of a deferred retrieval may be seen, and wait when they are read.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Generator
from typing import Any

from phloem.errors import Cancelled
from phloem.programs.executor import hub, loop
from phloem.retrieval.base import Hits

__all__ = ["Deferred", "PendingHits"]


class Deferred:
    """A step that runs beside the program. `told` is whether its error has been raised."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.told = False

    @property
    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return self._task.done()

    def value(self) -> Any:
        """Wait for the step. Raises its error."""
        if not self._task.done():
            if not hub.in_greenlet() and not loop.on_loop_thread():
                return loop.call(self.result())  # a thread of the program, or a reader outside
            hub.wait(asyncio.wait([self._task]))
        return self._outcome()

    async def result(self) -> Any:
        """The same from a coroutine of the run's loop."""
        await asyncio.wait([self._task])
        return self._outcome()

    def settle(self) -> None:
        """Wait. Raises an error that nobody has been told yet."""
        if not self.told:
            self.value()

    def cancel(self) -> None:
        """Stop the step."""
        self._task.cancel()

    def _outcome(self) -> Any:
        self.told = True
        if self._task.cancelled():
            raise Cancelled("the run ended before this step did", hint="read its value earlier")
        return self._task.result()


class PendingHits(Hits):
    """Hits of a retrieval that runs beside the program: whoever reads them waits for them.

    In all else they are `Hits`, by their class too, so that equality, copies with changes and
    records see no difference.
    """

    __slots__ = ("deferred",)
    deferred: Deferred

    def __init__(self, deferred: Deferred) -> None:
        object.__setattr__(self, "deferred", deferred)

    @property  # type: ignore[misc] # see the docstring
    def __class__(self) -> type[Hits]:  # type: ignore[override]
        return Hits

    def __hash__(self) -> int:
        return id(self)

    def __await__(self) -> Generator[Any, None, Hits]:
        hits: Hits = yield from self.deferred.result().__await__()
        return hits

    def __reduce_ex__(self, protocol: object) -> Any:
        return _itself, (self.deferred.value(),)

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            return getattr(self.deferred.value(), name)
        return super().__getattribute__(name)


_FIELDS = frozenset(field.name for field in dataclasses.fields(Hits))


def _itself(hits: Hits) -> Hits:
    return hits
