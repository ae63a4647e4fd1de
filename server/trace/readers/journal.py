"""The runs of a journal as traces: `/traces` of a server needs no proxy.

What lives here: `JournalReader`. What does not: the tables (`journal/schema.py`) and runs that
are not over: while a run is live its events are in the server's memory only, so its trace has
what is on disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Text, case, cast, func, or_, select

from phloem.server.error_map import code_of
from phloem.server.journal.recording import read_effects
from phloem.server.journal.schema import effects, runs
from phloem.server.journal.store import Store
from phloem.server.programs.rows import Runs
from phloem.server.trace.paging import cursor_of, parse_cursor
from phloem.server.trace.reader import (
    PREVIEW,
    Facets,
    TraceFilter,
    TraceNotFound,
    TracePage,
    TraceSummary,
)
from phloem.server.trace.record import RunTrace
from phloem.server.trace.runs import camel, run_of

__all__ = ["JournalReader"]

_TOOK_MS = 1000 * (runs.c.finished_at - runs.c.created_at)


def _read(column: ColumnElement[Any], part: ColumnElement[Any]) -> ColumnElement[Any]:
    """`part` of a JSON column, or null where that is no JSON: one damaged run hides no others."""
    return case((func.json_valid(column) == 1, part))


_CODE = _read(runs.c.error, runs.c.error["code"].as_string())
_VALUE = _read(runs.c.result, runs.c.result["value"].as_string())
_MESSAGE = _read(runs.c.error, runs.c.error["message"].as_string())
_TOKENS = _read(runs.c.result, runs.c.result["usage"]["generated"].as_integer())
_COLUMNS = (
    runs.c.id, runs.c.program, runs.c.status, runs.c.created_at, _TOOK_MS.label("took_ms"),
    _CODE.label("code"), _MESSAGE.label("message"), _TOKENS.label("tokens"),
    func.substr(_VALUE, 1, PREVIEW).label("preview"), runs.c.parent, runs.c.trace_id,
    select(func.count()).where(effects.c.run == runs.c.id).scalar_subquery().label("steps"),
)  # fmt: skip


class JournalReader:
    """The runs of `caller` (None: of everybody) in a journal's store."""

    def __init__(self, store: Store, caller: str | None = None) -> None:
        self._store = store
        self._runs = Runs(store, keep=0)
        self._caller = caller

    def list(self, wanted: TraceFilter, *, limit: int = 50, cursor: str | None = None) -> TracePage:
        """See `TraceReader.list`."""
        if wanted.kind not in {None, "run"}:
            return TracePage((), None, 0)
        conditions = [*self._allowed(), *_conditions(wanted)]
        query: Select[Any] = select(*_COLUMNS).where(*conditions)
        if cursor is not None:
            started, last = parse_cursor(cursor)
            query = query.where(
                or_(
                    runs.c.created_at < started,
                    (runs.c.created_at == started) & (runs.c.id > last),
                )
            )
        query = query.order_by(runs.c.created_at.desc(), runs.c.id).limit(limit + 1)
        rows = self._store.read(lambda c: c.execute(query).all())
        total = self._store.read(
            lambda c: c.scalar(select(func.count()).select_from(runs).where(*conditions))
        )
        items = tuple(_summary(row) for row in rows[:limit])
        more = len(rows) > limit
        return TracePage(items, cursor_of(items[-1].started, items[-1].id) if more else None, total)

    def get(self, trace: str) -> RunTrace:
        """See `TraceReader.get`."""
        row = self._runs.get(trace)
        if row is None or self._caller not in {None, row.caller}:
            raise TraceNotFound(f"the journal holds no run {trace!r}")
        steps = [
            {"path": one.path, "seq": one.seq, **(one.entry or {})}
            for one in read_effects(self._store, trace)
        ]
        events = [json.loads(data) for _, data in self._runs.events(trace) or ()]
        transitions = [event for event in events if "type" in event and "seq" in event]
        reply = row.reply().model_dump() | {"steps": steps}
        graph = None if "graph" in row.damaged else row.graph
        return run_of(reply, transitions, graph=graph)

    def facets(self) -> Facets:
        """See `TraceReader.facets`."""

        def column(what: ColumnElement[Any]) -> Iterable[str]:
            query = select(what).where(*self._allowed()).distinct()
            found = self._store.read(lambda c: c.scalars(query).all())
            return sorted(value for value in found if value is not None)

        return Facets(
            tuple(column(runs.c.program)),
            tuple(column(runs.c.status)),  # type: ignore[arg-type] # the journal's own words
            tuple(camel(code) for code in column(_CODE)),
        )

    def _allowed(self) -> Sequence[ColumnElement[bool]]:
        return [] if self._caller is None else [runs.c.caller == self._caller]


def _conditions(wanted: TraceFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.program is not None:
        found.append(runs.c.program == wanted.program)
    if wanted.status is not None:
        found.append(runs.c.status == wanted.status)
    if wanted.error_type is not None:
        found.append(_CODE.in_([code_of(wanted.error_type)]))
    if wanted.min_ms is not None:
        found.append(wanted.min_ms <= _TOOK_MS)
    if wanted.max_ms is not None:
        found.append(wanted.max_ms >= _TOOK_MS)
    if wanted.since is not None:
        found.append(runs.c.created_at >= wanted.since)
    if wanted.until is not None:
        found.append(runs.c.created_at < wanted.until)
    if wanted.text is not None:
        found.append(_holds(wanted.text))
    return found


def _holds(text: str) -> ColumnElement[bool]:
    # JSON columns keep other characters than ASCII as escapes.
    escaped = json.dumps(text)[1:-1]
    columns = (runs.c.args, runs.c.result, runs.c.error)
    return or_(
        runs.c.id == text,
        runs.c.trace_id == text,
        runs.c.program.icontains(text, autoescape=True),
        *(cast(column, Text).icontains(escaped, autoescape=True) for column in columns),
    )


def _summary(row: Row[Any]) -> TraceSummary:
    return TraceSummary(
        id=row.id,
        kind="run",
        program=row.program,
        status=row.status,
        started=row.created_at,
        duration_ms=row.took_ms,
        error_type=camel(row.code) if row.code else None,
        error_message=row.message,
        steps=row.steps,
        tokens=row.tokens,
        preview=" ".join(row.preview.split()) if row.preview else "",
        parent=row.parent,
        trace_id=row.trace_id,
    )
