"""The tries of one request: at which servers, and when there is no other.

What lives here: `Tries`. What does not: the choice among servers (`fleet.py`), and requests
(`session.py`).

A server that can't be reached (`EngineUnavailable`) or has too much to do (`Overloaded`: 429, 503)
has done nothing that counts, so another one is asked. Where all others have refused, one that has
too much to do is asked again, if it said when to come. Any other failure is the request's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from phloem.errors import EngineUnavailable, Overloaded
from phloem.runtime.remote.limits import Limit
from phloem.runtime.sglang.fleet import Fleet, Server, counted

__all__ = ["Tries"]

_WAITS = 3
_LONGEST_WAIT_S = 30.0


class Tries:
    """Within a step's `limit`. Call `next`, ask the server, and call `failed` if that fails."""

    def __init__(self, fleet: Fleet, limit: Limit) -> None:
        self._fleet = fleet
        self._limit = limit
        self._refused: dict[Server, EngineUnavailable | Overloaded] = {}
        self._waits = 0

    @property
    def begun(self) -> bool:
        """Whether a server has failed already."""
        return bool(self._refused) or self._waits > 0

    async def next(self, tokens: Sequence[int], namespace: str, home: Server | None) -> Server:
        """The server to ask now, `home` if it can be.

        Raises `EngineUnavailable` or `Overloaded` if there is none, and what ends a step.
        """
        while True:
            try:
                server = await self._fleet.choose(tokens, namespace, home, self._refused)
            except EngineUnavailable as none_left:
                await self._wait(none_left)
                continue
            try:
                with counted(server):
                    await server.confirm(self._limit)
            except (EngineUnavailable, Overloaded) as error:
                self.failed(server, error)
            else:
                return server

    def failed(self, server: Server, error: EngineUnavailable | Overloaded) -> None:
        """It could not be reached, or has refused."""
        if isinstance(error, Overloaded):
            server.rest(error)
        else:
            server.fail(error)
        self._refused[server] = error

    async def _wait(self, none_left: EngineUnavailable) -> None:
        """Until one of those that have too much to do may be asked again.

        Raises `none_left` if there is none, and `Overloaded` if that is too late.
        """
        busy = [error for error in self._refused.values() if isinstance(error, Overloaded)]
        if not busy:
            raise none_left
        error = min(busy, key=_pause)
        pause = _pause(error)
        if self._waits == _WAITS or pause > _LONGEST_WAIT_S or not self._limit.allows(pause):
            raise error
        self._waits += 1
        await self._limit.wait(asyncio.sleep(pause))
        self._refused = {s: e for s, e in self._refused.items() if not isinstance(e, Overloaded)}


def _pause(error: Overloaded) -> float:
    """Seconds until the server may be asked again; endless if it did not say that it can be."""
    return (
        float(error.details["retry_after_s"]) if error.details.get("comes_again") else float("inf")
    )
