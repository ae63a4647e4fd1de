"""Where a page takes its traces from.

What lives here: `TraceSource`, what the endpoints ask; one for the server itself, whose live runs
are in memory, and one for any reader. What does not: reading (`server/trace/readers`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Protocol

from phloem.server.journal.recording import read_effects
from phloem.server.programs.manager import RunManager
from phloem.server.trace.reader import TraceReader
from phloem.server.trace.readers.journal import JournalReader
from phloem.server.trace.record import RunTrace
from phloem.server.trace.runs import run_of
from phloem.server.viewer.panels import Story

__all__ = ["ReaderSource", "ServerSource", "TraceSource"]

KEPT = 16
"""Traces whose steps are kept at hand: a page asks for pieces of one many times."""


class TraceSource(Protocol):
    """What the pages need. Both calls block, but for a run that is live."""

    def reader(self, caller: str | None) -> TraceReader:
        """The traces that `caller` may see (None: of everybody)."""
        ...

    def story(self, trace: str, caller: str | None) -> Story:
        """A trace, ready to be shown. Raises `TraceNotFound`."""
        ...


class _Stories:
    """The stories that were asked for last."""

    def __init__(self, *, can_rewind: bool) -> None:
        self._can_rewind = can_rewind
        self._kept: OrderedDict[tuple[str, int, float], Story] = OrderedDict()

    def of(self, run: RunTrace) -> Story:
        """The run's story, made once for what does not change any more."""
        if run.finished is None:
            return Story(run, can_rewind=False)
        key = (run.id, run.attempt, run.finished)
        if key not in self._kept:
            self._kept[key] = Story(run, can_rewind=self._can_rewind)
        story = self._kept[key]
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return story


class ReaderSource:
    """The traces of a reader, the same for all who ask. `can_rewind` as in `Story`."""

    def __init__(self, reader: TraceReader, *, can_rewind: bool = False) -> None:
        self._reader = reader
        self._stories = _Stories(can_rewind=can_rewind)

    def reader(self, caller: str | None) -> TraceReader:
        """See `TraceSource`."""
        del caller
        return self._reader

    def story(self, trace: str, caller: str | None) -> Story:
        """See `TraceSource`."""
        return self._stories.of(self.reader(caller).get(trace))


class ServerSource:
    """The runs of a server: its journal, and what is live."""

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager
        self._stories = _Stories(can_rewind=True)

    def reader(self, caller: str | None) -> TraceReader:
        """See `TraceSource`."""
        return JournalReader(self._manager.runs.store, caller)

    def story(self, trace: str, caller: str | None) -> Story:
        """See `TraceSource`."""
        live = self._manager.live.get(trace)
        if live is None or caller not in {None, live.row.caller}:
            return self._stories.of(self.reader(caller).get(trace))
        events = [json.loads(data) for _, data in list(live.events)]
        transitions = [event for event in events if "type" in event and "seq" in event]
        steps = [
            {"path": one.path, "seq": one.seq, **(one.entry or {})}
            for one in read_effects(self._manager.runs.store, trace)
        ]
        reply = live.row.reply().model_dump() | {"steps": steps}
        return self._stories.of(run_of(reply, transitions, graph=live.row.graph))
