"""What sessions on remote engines have in common.

What lives here: `RemoteSession`, a session's place, its one running step and its end. What does
not: its text (tokens for SGLang, messages for OpenAI).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence

from phloem.errors import Cancelled, EngineError
from phloem.runtime.place import Place
from phloem.runtime.remote.limits import Limit

__all__ = ["RemoteSession", "branch_seed"]


def branch_seed(place: Place, seed: int) -> int:
    """`seed` mixed with the place's branch, in 31 bits, which every server takes."""
    if not place.branch:
        return seed & 0x7FFFFFFF
    digest = hashlib.sha256(f"{seed}\0{place.branch}".encode()).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF


class RemoteSession:
    """The part of `programs.protocol.Session` that asks no server. `timeout` bounds each step."""

    def __init__(self, place: Place, timeout: float | None) -> None:
        self.place = place
        self._timeout = timeout
        self._limit: Limit | None = None
        self._children = 0
        self._closed = False

    @property
    def id(self) -> str:
        """See `Session`."""
        return self.place.id

    def hint(self, next_use: int | None, place: str = "") -> None:
        """See `Session`. A remote cache takes no advice."""

    async def cancel(self) -> None:
        """See `Session`."""
        if self._limit is not None:
            self._limit.cancel()

    async def close(self) -> None:
        """See `Session`."""
        self._closed = True
        await self.cancel()

    def children(self, n: int, branches: Sequence[str] | None) -> list[Place]:
        """Where the next `n` forks are opened; they are numbered on over the session's life."""
        self.check_open()
        first = self._children
        self._children += n
        return self.place.forks(first, n, branches)

    @contextlib.contextmanager
    def step(self) -> Iterator[Limit]:
        """One step's limit. Raises `EngineError` if another step runs."""
        self.check_open()
        if self._limit is not None:
            raise EngineError(
                f"session {self.id} is in a step already",
                hint="await one step before the next, or fork the session",
            )
        self._limit = Limit(self._timeout, self.place.deadline)
        try:
            yield self._limit
        finally:
            self._limit = None

    def check_open(self) -> None:
        """Raises `Cancelled` after `close`."""
        if self._closed:
            raise Cancelled(f"session {self.id} is closed", hint="open a new one")
