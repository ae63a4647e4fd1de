"""A run's events as server-sent events.

What lives here: the wire form and where a reader begins. What does not: the events themselves
(`phloem/programs/events.py`).

The name of an event is its type; its id is ATTEMPT-NUMBER. A reader that comes back with
`Last-Event-ID` gets what follows it, no less and no more. After a restart of the server, or of the
engine under it, the run's attempt is another one, whose events are told from the first: they repeat
what the record holds, so a reader with an id of an earlier attempt begins anew. One who reads on
while the engine is replaced gets a "restarted" event, and then the new attempt's.
The last events are "error", if it failed, and "done" with the run as GET shows it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncGenerator

from phloem.server.error_map import error_object
from phloem.server.http.sse import EventStream, event
from phloem.server.programs.live import LiveRun
from phloem.server.programs.manager import RunManager

__all__ = ["event_stream", "first_event"]


_ID = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def first_event(last_event_id: str | None, live: LiveRun) -> int:
    """The number of the event to begin with: the first, for an id that this attempt never gave."""
    found = _ID.fullmatch(last_event_id or "")
    if found is None or int(found[1]) != live.row.attempt or int(found[2]) >= len(live.events):
        return 0
    return int(found[2]) + 1


def event_stream(live: LiveRun, manager: RunManager, start: int, *, owned: bool) -> EventStream:
    """The events from number `start` on. `owned`: the run ends when the reader goes away."""
    stream = EventStream(
        _events(live, start, owned),
        manager.state.settings,
        lambda error: [event(json.dumps(error_object(error)["error"]), name="error")],
    )
    stream.headers["x-run-id"] = live.row.id
    return stream


async def _events(live: LiveRun, start: int, owned: bool) -> AsyncGenerator[bytes, None]:
    live.streamed = live.streamed or owned
    try:
        async with contextlib.aclosing(live.follow(start)) as events:
            async for attempt, number, name, data in events:
                yield event(data, name=name, id=f"{attempt}-{number}")
    finally:
        if owned:
            live.cancel("reader")
