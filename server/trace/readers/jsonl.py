"""Traces out of a folder of JSONL files, as the JSONL sink writes them.

What lives here: `JsonlReader`. What does not: writing (`sinks/jsonl.py`).

A first look reads every line once; later looks read only what was added. In memory stay one
summary and the search text of each trace, and where its lines are. A last line without its
newline is still being written and is left for the next look.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phloem.errors import JournalError
from phloem.server.trace.assemble import assemble, haystack
from phloem.server.trace.paging import facets_of, page_of
from phloem.server.trace.reader import (
    Facets,
    TraceFilter,
    TraceNotFound,
    TracePage,
    TraceSummary,
    matches,
    summary_of,
)
from phloem.server.trace.record import (
    Exchange,
    RunTrace,
    exchange_from_json,
    run_from_json,
)

__all__ = ["JsonlReader"]


@dataclass(slots=True)
class _Kept:
    """One trace: where its lines are (file, byte offset), and what lists need."""

    lines: list[tuple[Path, int]] = field(default_factory=list)
    summary: TraceSummary | None = None
    text: str = ""


class JsonlReader:
    """The traces of a folder; the files of a run that is being recorded may grow meanwhile.

    Raises `JournalError` if there is no such folder, or a line is none of ours.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise JournalError(
                f"there is no folder of traces {folder}",
                hint="name the folder that `phloem trace-proxy --to jsonl:FOLDER` writes to",
            )
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.Lock()

    def list(self, wanted: TraceFilter, *, limit: int = 50, cursor: str | None = None) -> TracePage:
        """See `TraceReader.list`."""
        with self._lock:
            self._refresh()
            found = [
                kept.summary
                for kept in self._kept.values()
                if kept.summary is not None and matches(wanted, kept.summary, kept.text)
            ]
        return page_of(found, limit, cursor)

    def get(self, trace: str) -> RunTrace:
        """See `TraceReader.get`."""
        with self._lock:
            self._refresh()
            if trace not in self._kept:
                raise TraceNotFound(f"{self._folder} holds no trace {trace!r}")
            return self._assemble(self._kept[trace])

    def facets(self) -> Facets:
        """See `TraceReader.facets`."""
        with self._lock:
            self._refresh()
            return facets_of(kept.summary for kept in self._kept.values() if kept.summary)

    def _refresh(self) -> None:
        """Take in what was added since the last look, and forget what was deleted."""
        files = sorted(self._folder.glob("*.jsonl"))
        if not set(self._read) <= set(files):
            self._read.clear()
            self._kept.clear()
        changed = set()
        for file in files:
            for offset, document in self._new_lines(file):
                group = document["group"] if document["document"] == "exchange" else document["id"]
                self._kept.setdefault(group, _Kept()).lines.append((file, offset))
                changed.add(group)
        for group in changed:
            kept = self._kept[group]
            run = self._assemble(kept)
            kept.summary, kept.text = summary_of(run), haystack(run)

    def _new_lines(self, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with file.open("rb") as lines:
                lines.seek(offset := self._read.get(file, 0))
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    yield offset, _document(file, line)
                    offset += len(line)
                    self._read[file] = offset
        except OSError as error:
            raise JournalError(f"{file} can't be read: {error}") from error

    def _assemble(self, kept: _Kept) -> RunTrace:
        run: RunTrace | None = None
        exchanges: dict[str, Exchange] = {}
        for file, offset in kept.lines:
            with file.open("rb") as lines:
                lines.seek(offset)
                document = _document(file, lines.readline())
            if document.pop("document") == "run":
                run = run_from_json(document)
            else:
                exchange = exchange_from_json(document)
                exchanges[exchange.id] = exchange
        return assemble(run, list(exchanges.values()))


def _document(file: Path, line: bytes) -> dict[str, Any]:
    """A line; its `document` says what it is: "exchange" or "run"."""
    try:
        found = json.loads(line)
        if found["document"] in {"exchange", "run"}:
            return dict(found)
    except (ValueError, TypeError, KeyError):
        pass
    raise JournalError(
        f"{file} holds a line that is no trace: {line[:60]!r}",
        hint="the folder must hold only files of `phloem trace-proxy --to jsonl:FOLDER`",
    )
