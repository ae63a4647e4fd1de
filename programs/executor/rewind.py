"""Records cut back: going on from an earlier effect, perhaps with another outcome or prompt.

What lives here: `rewind`, `revalue` and `reword`, from a record to a shorter one. What does not:
running it again (`api/replay.py`).

Text is no effect, since the program says it again by itself. One that a person put in its place
is: its entry has a path of its own, which `Record.put` asks for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from phloem.errors import JournalError
from phloem.programs.executor.failures import is_failure
from phloem.programs.executor.record import Address, Entry, Record, depth, text_path
from phloem.programs.executor.values import encode, show
from phloem.retrieval.base import Hits

__all__ = ["Prompt", "find", "revalue", "rewind", "reword"]

Prompt = str | Sequence[str | None]
"""New text for a prompt: for its one text, or an item for each of them (None: as it was)."""


_PROMPTED = {"gen", "select"}


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
    else:
        match at:
            case (str(path), int(seq)) if 0 <= seq < len(record.entries.get(path, ())):
                return (path, seq)
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
    for name in values:
        if name != pivot.name:
            raise JournalError(
                f"the effect at {(path, seq)} sets {pivot.name!r}, not {name!r}",
                hint="rewind to the effect that sets the variable",
            )
    if values:
        return revalue(record, (path, seq), values[str(pivot.name)])
    return _cut(record, pivot.order)


def revalue(record: Record, at: Address, value: Any) -> Record:
    """The record up to and with the effect `at`, which has come to `value`.

    Raises `JournalError` if it is a gen or a select that failed, or a text (see `reword`).
    """
    path, seq = at
    pivot = record.entries[path][seq]
    if pivot.kind == "text" or (pivot.kind in _PROMPTED and is_failure(pivot.outcome)):
        raise JournalError(
            f"the {pivot.kind} at {at} has no value to change", hint="rewind it with a prompt"
        )
    cut = _cut(record, pivot.order)
    cut.entries.setdefault(path, []).append(_changed(pivot, value))
    return cut


def reword(record: Record, at: Address | str, prompt: Prompt) -> Record:
    """The record up to what the gen or select `at` added to its prompt, with `prompt` there.

    What it added are the ordinary texts that the program has put in on the step's branch since
    the gen or select before. Markup of roles and what steps said stays as it is. Raises
    `JournalError` for an effect that has no prompt, and if `prompt` has not an item for each text.
    """
    path, seq = find(record, at)
    numbers = _added(record, path, seq)
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    if len(texts) != len(numbers):
        raise JournalError(
            f"the step at {(path, seq)} added {len(numbers)} texts to its prompt, and "
            f"{len(texts)} are given",
            hint="give one for each, None for those that stay; text from before the step's own "
            "branch or the step before is changed there",
        )
    first = next((n for n, text in zip(numbers, texts, strict=True) if text is not None), None)
    if first is None:
        raise JournalError("the new prompt changes nothing", hint="give at least one text")
    cut = _cut(record, min(e.order for e in _after_text(record, path, first)))
    for number, text in zip(numbers, texts, strict=True):
        place = text_path(path, number)
        known = record.entries.get(place)
        if text is None and known is None:
            continue
        order = cut.entries[place][0].order if place in cut.entries else _size(cut)
        outcome = known[0].outcome if text is None and known is not None else text
        cut.entries[place] = [Entry("text", None, "", outcome, order=order)]
    return cut


def _added(record: Record, path: str, seq: int) -> range:
    """The numbers of the texts that are new in a step's prompt."""
    entries = record.entries[path]
    step = entries[seq]
    if step.kind not in _PROMPTED:
        raise JournalError(
            f"the effect at {(path, seq)} is a {step.kind}, which has no prompt",
            hint="name a gen or a select",
        )
    if step.texts is None:
        raise JournalError(
            "the record does not know where text was put in",
            hint="it was written by an earlier version of phloem; run the program again",
        )
    before = [one.texts for one in entries[:seq] if one.kind in _PROMPTED and one.texts]
    return range(before[-1][-1] if before else 0, step.texts[-1])


def _after_text(record: Record, path: str, number: int) -> list[Entry]:
    """The effects that came after a text on its branch, and on branches split off later."""
    level = depth(path)
    return [
        entry
        for name, entries in record.entries.items()
        if name.partition("~")[0] == path or name.startswith(f"{path}." if path else "")
        for entry in entries
        if entry.texts is not None and len(entry.texts) > level and entry.texts[level] > number
    ]


def _cut(record: Record, order: int) -> Record:
    """The record's first `order` effects."""
    cut = record.copy("resume")
    cut.entries = {
        name: kept
        for name, entries in cut.entries.items()
        if (kept := [entry for entry in entries if entry.order < order])
    }
    return cut


def _size(record: Record) -> int:
    return sum(map(len, record.entries.values()))


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
