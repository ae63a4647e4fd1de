"""Records cut back: going on from an earlier effect, perhaps with another outcome.

What lives here: `rewind`, from a record to a shorter one. What does not: running it again
(`api/replay.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from phloem.errors import JournalError
from phloem.programs.executor.record import Address, Entry, Record
from phloem.programs.executor.values import encode, show
from phloem.retrieval.base import Hits

__all__ = ["find", "rewind"]


def find(record: Record, at: Address | str) -> Address:
    """The address of an effect given by address or by the name of its variable (the first).

    Raises `JournalError` if the record has no such effect.
    """
    if isinstance(at, str):
        named = [
            (entry.order, (path, seq))
            for path, entries in record.entries.items()
            for seq, entry in enumerate(entries)
            if entry.name == at
        ]
        if named:
            return min(named)[1]
    elif 0 <= at[1] < len(record.entries.get(at[0], ())):
        return (at[0], at[1])
    known = ", ".join(
        f"({path!r}, {seq}) {entry.kind} {entry.name}"
        for path, entries in record.entries.items()
        for seq, entry in enumerate(entries)
    )
    raise JournalError(f"the record has no effect {at!r}", hint=f"it has: {known or 'none'}")


def rewind(record: Record, at: Address | str, values: Mapping[str, Any]) -> Record:
    """The record up to and without the effect `at`; with it, if `values` gives its variable a
    new value. Effects of all branches that came later are dropped."""
    path, seq = find(record, at)
    pivot = record.entries[path][seq]
    cut = record.copy("resume")
    cut.entries = {
        name: kept
        for name, entries in cut.entries.items()
        if (kept := [entry for entry in entries if entry.order < pivot.order])
    }
    for name, value in values.items():
        if name != pivot.name:
            raise JournalError(
                f"the effect at {(path, seq)} sets {pivot.name!r}, not {name!r}",
                hint="rewind to the effect that sets the variable",
            )
        cut.entries.setdefault(path, []).append(_changed(pivot, value))
    return cut


def _changed(entry: Entry, value: Any) -> Entry:
    outcome: Any
    if entry.kind == "gen":
        text = value if isinstance(value, str) else json.dumps(show(value), ensure_ascii=False)
        outcome = [
            {**item, "text": text, "tokens": [], "logprobs": [], "finish_reason": "stop"}
            for item in entry.outcome[:1]
        ]
    elif entry.kind == "select":
        outcome = {**entry.outcome, "choice": str(value)}
    elif entry.kind == "retrieve":
        hits = value if isinstance(value, Hits) else Hits(tuple(value))
        outcome = hits.to_json()
    else:
        outcome = encode(value)
    # The token ids of changed text are the tokenizer's to find.
    return replace(entry, outcome=outcome, session=None)
