"""The events of a run as they come, for both kinds of `for`.

What lives here: `EventStream`. What does not: the feed behind it (`executor/feed.py`).
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import AsyncIterator, Iterator
from typing import Any

from phloem.programs.api.state import ProgramState
from phloem.programs.events import AnyEvent

__all__ = ["EventStream"]


class EventStream:
    """Iterate to get events; at the end the program's error, if any, is raised."""

    def __init__(self, state: ProgramState, future: concurrent.futures.Future[Any]) -> None:
        self.state = state
        self._future = future

    def __iter__(self) -> Iterator[AnyEvent]:
        try:
            yield from self.state._branch.run.feed
            self._raise()
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[AnyEvent]:
        try:
            async for event in self.state._branch.run.feed:
                yield event
            self._raise()
        finally:
            self.cancel()

    def _raise(self) -> None:
        error = self.state._branch.run.error
        if error is not None:
            raise error

    def cancel(self) -> None:
        """Cancel the run if it is not finished: its forks, retrievals and queued steps too."""
        self._future.cancel()
