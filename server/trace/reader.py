"""Finding traces: the protocol that viewers and `phloem trace` read through.

What lives here: filters, pages, summaries and `TraceReader`. What does not: the readers
themselves (`readers/`: JSONL folders, Elasticsearch, a server's journal, a running server).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from phloem.errors import JournalError
from phloem.server.trace.record import GroupKind, RunTrace, Status, TraceError

__all__ = [
    "Facets",
    "TraceFilter",
    "TraceNotFound",
    "TracePage",
    "TraceReader",
    "TraceSummary",
    "matches",
    "summary_of",
]


class TraceNotFound(JournalError):
    """The source holds no trace with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFilter:
    """Which traces; None asks for nothing. All that is given must hold.

    `text` is looked for, without regard to case, in ids, program, arguments, messages, outputs,
    paths and errors. `since` and `until` bound the start: [since, until).
    """

    program: str | None = None
    status: Status | None = None
    error_type: str | None = None
    kind: GroupKind | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    text: str | None = None
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """A trace as lists show it. `steps` counts events that end a step, or exchanges where there
    are no events; `tokens` is what was generated; `preview` the beginning of the last output."""

    id: str
    kind: GroupKind
    program: str | None
    status: Status
    started: float
    duration_ms: float | None
    error_type: str | None = None
    error_message: str | None = None
    steps: int = 0
    exchanges: int = 0
    tokens: int | None = None
    preview: str = ""
    parent: str | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class TracePage:
    """Summaries, newest first. `next` is the cursor of the following page, None on the last.
    `total` counts all that match, where the source can tell."""

    items: tuple[TraceSummary, ...]
    next: str | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Facets:
    """The values that filters can have, sorted."""

    programs: tuple[str, ...] = ()
    statuses: tuple[Status, ...] = ()
    error_types: tuple[str, ...] = ()


class TraceReader(Protocol):
    """A source of traces. Calls block: an event loop makes them in a thread."""

    def list(self, wanted: TraceFilter, *, limit: int = 50, cursor: str | None = None) -> TracePage:
        """A page of what matches, newest first. `cursor` is a former page's `next`.

        Raises `JournalError` if the source can't be read, `ConfigError` for a bad cursor.
        """
        ...

    def get(self, trace: str) -> RunTrace:
        """A trace with everything in it. Raises `TraceNotFound`, `JournalError`."""
        ...

    def facets(self) -> Facets:
        """What there is to filter by. Raises `JournalError`."""
        ...


ENDS = frozenset({"step_finished", "step_failed", "retrieved"})
"""Types of the events that end a step."""

PREVIEW = 160


def summary_of(run: RunTrace) -> TraceSummary:
    """The line of a list for a trace."""
    error: TraceError | None = run.error
    return TraceSummary(
        id=run.id,
        kind=run.kind,
        program=run.program,
        status=run.status,
        started=run.started,
        duration_ms=run.duration_ms,
        error_type=error.type if error else None,
        error_message=error.message if error else None,
        steps=sum(event.get("type") in ENDS for event in run.events) or len(run.exchanges),
        exchanges=len(run.exchanges),
        tokens=_tokens(run),
        preview=_preview(run),
        parent=run.parent,
        trace_id=run.trace_id,
    )


def matches(wanted: TraceFilter, line: TraceSummary, haystack: str) -> bool:
    """Whether a trace is asked for. `haystack` is its text, in lower case."""
    equal = (
        (wanted.program, line.program),
        (wanted.status, line.status),
        (wanted.error_type, line.error_type),
        (wanted.kind, line.kind),
    )
    took = line.duration_ms or 0.0
    return (
        all(asked is None or asked == has for asked, has in equal)
        and (wanted.min_ms is None or took >= wanted.min_ms)
        and (wanted.max_ms is None or took <= wanted.max_ms)
        and (wanted.since is None or line.started >= wanted.since)
        and (wanted.until is None or line.started < wanted.until)
        and (wanted.text is None or wanted.text.lower() in haystack)
    )


def _tokens(run: RunTrace) -> int | None:
    """Generated tokens, by whichever report there is."""
    if run.usage is not None:
        return int(run.usage.get("generated", run.usage.get("completion_tokens")) or 0)
    reported = [one.usage.get("completion_tokens") for one in run.exchanges if one.usage]
    return sum(int(count) for count in reported if count) if reported else None


def _preview(run: RunTrace) -> str:
    if run.exchanges and run.exchanges[-1].output:
        text = run.exchanges[-1].output
    elif isinstance(run.value, str):
        text = run.value
    else:
        text = next(
            (str(event["text"]) for event in reversed(run.events)
             if event.get("type") == "step_finished" and event.get("text")),
            "",
        )  # fmt: skip
    return " ".join(text.split())[:PREVIEW]
