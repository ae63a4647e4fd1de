"""Which exchanges belong together.

What lives here: `Groups`. What does not: putting traces together when they are read
(`server/trace/assemble.py`).

1. phloem names the run (`x-run-id`, or the run's own path).
2. A client that sends a W3C `traceparent` names the trace.
3. Else the conversation: a request that begins with all that an earlier one of the same caller
   sent, and goes on, continues it. The last 10,000 requests are remembered, by hashes.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from phloem.server.http.trace_context import TraceContext
from phloem.server.trace.record import GroupKind
from phloem.server.trace.recorder.raw import RawExchange

__all__ = ["Groups", "run_of_exchange", "trace_of"]

T = TypeVar("T")

REMEMBERED = 10_000
NEAR = 64
"""Prompts with the same beginning that a new prompt is compared with."""
_BEGINNING = 48

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
        self._messages: OrderedDict[bytes, str] = OrderedDict()
        self._prompts: OrderedDict[bytes, list[tuple[str, str]]] = OrderedDict()

    def of(self, raw: RawExchange, parts: Sequence[str]) -> tuple[str, GroupKind]:
        """Id and kind of the group of an exchange whose request gives the model `parts`."""
        if (run := run_of_exchange(raw)) is not None:
            return run, "run"
        if (trace := trace_of(raw)) is not None:
            return trace, "trace"
        if not parts:
            return raw.id, "trace"
        caller = raw.header("authorization") + raw.client.rpartition(":")[0]
        found = (
            self._conversation(caller, parts, raw.id)
            if len(parts) > 1 or parts[0].startswith("[")
            else self._continued(caller, parts[0], raw.id)
        )
        return found, "conversation"

    def _conversation(self, caller: str, messages: Sequence[str], new: str) -> str:
        """The group of the longest earlier list of messages that this one continues."""
        hashed = hashlib.sha256(caller.encode())
        prefixes = []
        for message in messages:
            hashed.update(message.encode() + b"\0")
            prefixes.append(hashed.digest())
        known = (self._messages[one] for one in reversed(prefixes[:-1]) if one in self._messages)
        group = next(known, new)
        _remember(self._messages, prefixes[-1], group)
        return group

    def _continued(self, caller: str, prompt: str, new: str) -> str:
        """The group of the longest earlier prompt that this one continues."""
        begin = hashlib.sha256((caller + "\0" + prompt[:_BEGINNING]).encode()).digest()
        near = self._prompts.get(begin, [])
        known = [one for one in near if len(one[0]) < len(prompt) and prompt.startswith(one[0])]
        group = max(known, key=lambda one: len(one[0]))[1] if known else new
        _remember(self._prompts, begin, [*near[-NEAR:], (prompt, group)])
        return group


def _remember(kept: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > REMEMBERED:
        kept.popitem(last=False)
