"""Requests that can be ended by their id, from another connection.

What lives here: `Aborts`, the requests that run now by the ids their clients gave them. What does
not: the endpoint that aborts (`sglang/info.py`), and clients that simply leave
(`disconnect.py`). Used on the web server's loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from phloem.errors import Cancelled

__all__ = ["Aborted", "Aborts"]

T = TypeVar("T")


class Aborted(Cancelled):
    """The client ended its own request."""


class Aborts:
    """An id may stand for several requests; all of them end. Ids are the caller's own: nobody
    ends another's requests."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], set[asyncio.Event]] = {}

    def abort(self, caller: str, rid: str) -> None:
        """End the caller's requests of this id; one that is over already is left in peace."""
        for stop in self._running.get((caller, rid), ()):
            stop.set()

    def abort_all(self, caller: str) -> None:
        """End every request of the caller that has an id."""
        for owner, rid in list(self._running):
            if owner == caller:
                self.abort(caller, rid)

    async def run(self, caller: str, rids: Sequence[str], work: Coroutine[Any, Any, T]) -> T:
        """The outcome of `work`. Raises `Aborted` once one of `rids` is aborted."""
        with self._listed(caller, rids) as stop:
            stopping = asyncio.ensure_future(stop.wait())
            working = asyncio.ensure_future(work)
            try:
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                raise _aborted()
            finally:
                for task in (working, stopping):
                    task.cancel()
                await asyncio.gather(working, stopping, return_exceptions=True)

    async def stream(
        self, caller: str, rids: Sequence[str], items: AsyncIterator[T]
    ) -> AsyncGenerator[T, None]:
        """The items as they come. Raises `Aborted` once one of `rids` is aborted."""
        with self._listed(caller, rids) as stop:
            stopping = asyncio.ensure_future(stop.wait())
            coming = asyncio.ensure_future(anext(items, _END))
            try:
                while True:
                    await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        raise _aborted()
                    item = coming.result()
                    if isinstance(item, _End):
                        return
                    yield item
                    coming = asyncio.ensure_future(anext(items, _END))
            finally:
                for task in (coming, stopping):
                    task.cancel()
                await asyncio.gather(coming, stopping, return_exceptions=True)

    @contextlib.contextmanager
    def _listed(self, caller: str, rids: Sequence[str]) -> Iterator[asyncio.Event]:
        stop = asyncio.Event()
        keys = {(caller, rid) for rid in rids}
        for key in keys:
            self._running.setdefault(key, set()).add(stop)
        try:
            yield stop
        finally:
            for key in keys:
                self._running[key].discard(stop)
                if not self._running[key]:
                    del self._running[key]


class _End:
    """No item is one."""


_END = _End()


def _aborted() -> Aborted:
    return Aborted("the request was aborted", hint="its client asked for that by its rid")
