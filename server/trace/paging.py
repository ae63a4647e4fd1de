"""Pages and facets of summaries that are in memory.

What lives here: what readers without an index of their own share. What does not: filtering
(`reader.matches`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phloem.errors import ConfigError
from phloem.server.trace.reader import Facets, TracePage, TraceSummary

__all__ = ["cursor_of", "facets_of", "page_of", "parse_cursor"]


def page_of(found: Sequence[TraceSummary], limit: int, cursor: str | None) -> TracePage:
    """The page of `found` after `cursor`, newest first."""
    ordered = sorted(found, key=lambda one: (-one.started, one.id))
    start = 0
    if cursor is not None:
        started, last = parse_cursor(cursor)
        start = sum((-one.started, one.id) <= (-started, last) for one in ordered)
    items = tuple(ordered[start : start + limit])
    more = start + limit < len(ordered)
    return TracePage(
        items, cursor_of(items[-1].started, items[-1].id) if more and items else None, len(ordered)
    )


def cursor_of(started: float, last: str) -> str:
    """The cursor of the page after the trace with this start and id: it stays right when newer
    ones come."""
    return f"{started!r}:{last}"


def parse_cursor(cursor: str) -> tuple[float, str]:
    """The inverse of `cursor_of`. Raises `ConfigError`."""
    started, colon, last = cursor.partition(":")
    try:
        if colon:
            return float(started), last
    except ValueError:
        pass
    raise ConfigError(
        f"{cursor!r} is no cursor", hint="take the `next` of a former page", param="cursor"
    )


def facets_of(found: Iterable[TraceSummary]) -> Facets:
    """The values that occur in `found`."""
    lines = list(found)
    return Facets(
        tuple(sorted({one.program for one in lines if one.program})),
        tuple(sorted({one.status for one in lines})),
        tuple(sorted({one.error_type for one in lines if one.error_type})),
    )
