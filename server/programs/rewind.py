"""A run's effects up to a step, that step or its prompt perhaps changed.

What lives here: from a request's address and value to the effects that a rewound run takes
over. What does not: the cutting itself (`programs/executor/rewind.py`) and running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.errors import JournalError
from phloem.programs.executor.record import Address, Entry, Record
from phloem.programs.executor.rewind import find, revalue, rewind, reword
from phloem.retrieval.base import Hit, Hits
from phloem.server.http.replies import RequestError
from phloem.server.journal.recording import StoredEffect, entry_from_json, entry_to_json
from phloem.server.programs.models import RewindRequest

__all__ = ["rewound"]


def rewound(stored: Sequence[StoredEffect], asked: RewindRequest) -> list[StoredEffect]:
    """The effects before the step, and the step itself with its new value if one is set; or those
    before its prompt, and the prompt's new text.

    Raises `RequestError` if the step is not found, or found more than once, or has no such prompt.
    """
    record = Record()
    for effect in stored:
        if effect.entry is not None:
            record.entries.setdefault(effect.path, []).append(entry_from_json(effect.entry))
    try:
        at = find(record, _address(record, asked))
    except JournalError as error:
        raise _refused(error.message, "node" if asked.node is not None else "seq") from None
    cut = _cut(record, at, asked)
    kept = [
        (entry.order, StoredEffect(name, number, entry_to_json(entry)))
        for name, entries in cut.entries.items()
        for number, entry in enumerate(entries)
    ]
    return [effect for _, effect in sorted(kept, key=lambda pair: pair[0])]


def _cut(record: Record, at: Address, asked: RewindRequest) -> Record:
    sets = "set" in asked.model_fields_set
    if sets and asked.prompt is not None:
        raise _refused("change the step's value or its prompt, not both", "prompt")
    try:
        if asked.prompt is not None:
            return reword(record, at, asked.prompt)
        if sets:
            return revalue(record, at, _value(record.entries[at[0]][at[1]], asked.set))
    except JournalError as error:
        param = "prompt" if asked.prompt is not None else "set"
        raise _refused(f"{error.message}: {error.hint}", param) from None
    return rewind(record, at, {})


def _address(record: Record, asked: RewindRequest) -> Address:
    if (asked.node is None) == (asked.seq is None):
        raise _refused("name the step either by `node` or by `path` and `seq`", "node")
    if asked.seq is not None:
        return (asked.path, asked.seq)
    found = [
        (path, seq)
        for path, entries in record.entries.items()
        for seq, entry in enumerate(entries)
        if entry.node == asked.node
    ]
    if len(found) == 1:
        return found[0]
    places = ", ".join(f"path {path!r} seq {seq}" for path, seq in found)
    if found:
        raise _refused(f"the node was passed {len(found)} times: {places}", "node")
    known = dict.fromkeys(e.node for entries in record.entries.values() for e in entries if e.node)
    listed = ", ".join(known) or "none"
    raise _refused(f"the node has no recorded step; these have: {listed}", "node")


def _value(entry: Entry, value: Any) -> Any:
    """The new value as the record's own code takes it."""
    if entry.kind != "retrieve":
        return value
    try:
        return Hits(tuple(Hit.from_json(hit) for hit in value))
    except (KeyError, TypeError) as error:
        raise _refused(f"hits are objects with id, text and score: {error}", "set") from None


def _refused(message: str, param: str) -> RequestError:
    return RequestError(400, message, code="invalid_step", param=param)
