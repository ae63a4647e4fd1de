"""Which exchanges belong together.

What lives here: `Groups`. What does not: putting traces together when they are read
(`server/trace/assemble.py`).

1. phloem names the run (`x-run-id`, or the run's own path).
2. A client that sends a W3C `traceparent` names the trace.
3. Else the conversation: a request that begins with all that an earlier one of the same caller
   sent, and goes on, continues it. Requests are remembered by their hashes only.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from typing import TypeAlias

from phloem.server.http.trace_context import TraceContext
from phloem.server.trace.record import GroupKind
from phloem.server.trace.recorder.raw import RawExchange

__all__ = ["Groups", "run_of_exchange", "trace_of"]

REMEMBERED = 1000
"""Requests of one caller that a new one may continue."""
CALLERS = 1000
_Known: TypeAlias = "OrderedDict[tuple[int, bytes], str]"
"""Length and hash of what an earlier request gave the model, and its group."""

_RUN_PATH = re.compile(r"/v1/runs/(run_[0-9a-f]+)")
_RUN_ID = re.compile(r"run_[0-9a-f]+")


def run_of_exchange(raw: RawExchange) -> str | None:
    """The run of phloem that an exchange started or asked about."""
    named = raw.header("x-run-id", response=True)
    if _RUN_ID.fullmatch(named):
        return named
    found = _RUN_PATH.search(raw.target)
    return found[1] if found else None


def trace_of(raw: RawExchange) -> str | None:
    """The trace that the client's request belongs to, or None."""
    header = raw.header("traceparent")
    if not header:
        return None
    found = TraceContext.receive(header)
    return found.trace_id if found.parent_id is not None else None


class Groups:
    """Gives each exchange its group."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _Known] = OrderedDict()

    def of(self, raw: RawExchange, given: str) -> tuple[str, GroupKind]:
        """Id and kind of the group of an exchange whose request gives the model `given`."""
        if (run := run_of_exchange(raw)) is not None:
            return run, "run"
        if (trace := trace_of(raw)) is not None:
            return trace, "trace"
        if not given:
            return raw.id, "trace"
        caller = raw.header("authorization") + raw.client.rpartition(":")[0]
        known = self._callers.setdefault(caller, OrderedDict())
        self._callers.move_to_end(caller)
        if len(self._callers) > CALLERS:
            self._callers.popitem(last=False)
        return _continued(known, given, raw.id), "conversation"


def _continued(known: _Known, given: str, new: str) -> str:
    """The group of the longest known text that `given` goes on from, else `new`. All beginnings
    of known lengths are hashed in one pass."""
    hashed, done, group = hashlib.sha256(), 0, new
    for length in sorted({length for length, _ in known if length < len(given)}):
        hashed.update(given[done:length].encode())
        done = length
        group = known.get((length, hashed.digest()), group)
    hashed.update(given[done:].encode())
    key = (len(given), hashed.digest())
    known[key] = group
    known.move_to_end(key)
    if len(known) > REMEMBERED:
        known.popitem(last=False)
    return group
