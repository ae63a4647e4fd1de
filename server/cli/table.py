"""The trace table of a run: a row per transition, what each reused, and why not more.

What lives here: rows made from a run's events, and their rendering. What does not: the events
(`programs/events.py`); nothing here asks the engine anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from phloem.programs.events import (
    Appended,
    BranchTaken,
    Event,
    Forked,
    Joined,
    Ran,
    Retrieved,
    RunFailed,
    RunFinished,
    StepFailed,
    StepFinished,
)
from phloem.programs.protocol import PrefixMiss, Usage

__all__ = ["Row", "print_trace", "rows", "trace"]

COUNTS = ("prompt", "reused", "forced", "generated", "scored")
"""The fields of `Usage` that the table shows; the forced tokens are among the generated."""

TEXT = "append"
"""What a row of text alone is called."""

SHOWN = 24
"""Characters of a token's text that a sentence below the table shows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One transition. `usage` and `ms` are None for transitions that never ask the model."""

    path: str
    node: str | None
    what: str
    place: str
    usage: Usage | None = None
    ms: float | None = None
    miss: PrefixMiss | None = None


def rows(events: Iterable[Event]) -> list[Row]:
    """The transitions among `events`, in order.

    Text belongs to the statement that put it there: what `s += ph.assistant(ph.gen("x"))` puts
    before and after the step is part of the step's row, and a statement of text alone is one
    row, however many parts it has.
    """
    found: list[Row] = []
    for event in events:
        row = _row(event)
        if row is None:
            continue
        last = found[-1] if found else None
        if last and row.place and (last.path, last.place) == (row.path, row.place):
            if row.what == TEXT:
                continue
            if last.what == TEXT:
                found.pop()
        found.append(row)
    return found


def trace(events: Iterable[Event]) -> RenderableType:
    """The table of a run with its totals and, below it, where steps left the cached prefix."""
    events = list(events)
    listed = rows(events)
    total = sum((row.usage for row in listed if row.usage), Usage())
    end = next((e for e in events if isinstance(e, RunFinished | RunFailed)), None)
    spent = sum(row.ms for row in listed if row.ms is not None) if end is None else end.at * 1000
    files = {row.place.partition(":")[0] for row in listed if row.place}
    shared = files.pop() if len(files) == 1 else ""
    table = Table(
        title=shared,
        title_justify="left",
        box=box.SIMPLE,
        show_edge=False,
        pad_edge=False,
        show_footer=True,
        collapse_padding=True,
    )
    table.add_column("transition", footer=f"{len(listed)} transitions", no_wrap=True)
    table.add_column("line" if shared else "source", footer="total", no_wrap=True)
    for title, count in zip(COUNTS, _counts(total), strict=True):
        table.add_column(title, footer=count, justify="right", no_wrap=True)
    table.add_column("ms", footer=_milliseconds(spent), justify="right", no_wrap=True)
    for row in listed:
        name = Text(f"[{row.path}] {row.what}" if row.path else row.what)
        table.add_row(
            name,
            Text(row.place.removeprefix(f"{shared}:")),
            *_counts(row.usage),
            _milliseconds(row.ms),
        )
    return Group(table, *_misses(listed))


def print_trace(events: Iterable[Event], console: Console | None = None) -> None:
    """Print `trace(events)`, by default to standard output."""
    (console or Console(highlight=False)).print(trace(events))


def _row(event: Event) -> Row | None:
    place = f"{Path(event.file).name}:{event.line}" if event.file and event.line else ""
    row = Row(path=event.path, node=event.node, what="", place=place)
    if isinstance(event, Appended):
        return replace(row, what=TEXT)
    if isinstance(event, StepFinished):
        what = f"{event.kind} {event.name or ''}".rstrip()
        return replace(row, what=what, usage=event.usage, ms=event.timing.total_ms, miss=event.miss)
    if isinstance(event, Retrieved):
        what = f"retrieve {event.name or event.index}"
        return replace(row, what=what, ms=event.took_ms)
    if isinstance(event, BranchTaken):
        return replace(row, what=f"branch: {event.taken}")
    if isinstance(event, Forked):
        return replace(row, what=f"fork {len(event.children)}")
    if isinstance(event, Joined):
        return replace(row, what=f"join {len(event.children)}")
    if isinstance(event, Ran):
        return replace(row, what="python" + (f": {', '.join(event.wrote)}" if event.wrote else ""))
    if isinstance(event, StepFailed):
        return replace(row, what=f"{event.kind} {event.name or ''} failed: {event.error}")
    return None


def _counts(usage: Usage | None) -> list[str]:
    if usage is None:
        return [""] * len(COUNTS)
    return [str(getattr(usage, name)) for name in COUNTS]


def _milliseconds(ms: float | None) -> str:
    return "" if ms is None else f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"


def _misses(listed: Iterable[Row]) -> list[Text]:
    """A sentence for each step that could have reused more than it did."""
    found = []
    for row in listed:
        if row.miss is None:
            continue
        line = f"{row.what} left the cached prefix at token {row.miss.position}"
        shown = row.miss.text if len(row.miss.text) <= SHOWN else row.miss.text[:SHOWN] + "…"
        line += f" ({shown!r})"
        if row.miss.origin:
            line += f", put there by {row.miss.origin}"
        found.append(Text(line, style="yellow"))
    return found
