"""Runs as rows of the journal: there and back.

What lives here: `RunRow`, its writes and its queries. What does not: live runs (`live.py`) and
effects (`journal/recording.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, delete, insert, select, update

from phloem.errors import JournalError
from phloem.server.error_map import error_object
from phloem.server.journal.schema import runs
from phloem.server.journal.store import Store, Unreadable, readable
from phloem.server.programs.models import RunReply, RunStatus

__all__ = ["UNFINISHED", "RunRow", "Runs"]

UNFINISHED = ("queued", "running")


@dataclass(slots=True)
class RunRow:
    """What the journal keeps of a run. `caller` "" is anybody, on a server without keys."""

    id: str
    program: str
    program_hash: str
    graph: dict[str, Any]
    fingerprint: str
    args: dict[str, Any]
    options: dict[str, Any]
    seed: int
    background: bool
    caller: str
    trace_id: str
    idempotency_key: str | None = None
    request_digest: str | None = None
    parent: str | None = None
    status: RunStatus = "queued"
    attempt: int = 1
    created_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def reply(self) -> RunReply:
        """The run as clients see it; one whose row was damaged says so in its error."""
        shown = set(RunReply.model_fields) - {"object"}
        known = {name: value for name, value in asdict(self).items() if name in shown}
        try:
            return RunReply(**known, **(self.result or {}))
        except (TypeError, ValidationError):
            known["args"] = known["args"] if isinstance(known["args"], dict) else {}
            known["error"] = error_object(_damage(self.damaged or ["result"]))["error"]
            return RunReply(**known)

    @property
    def damaged(self) -> list[str]:
        """The columns that can't be read."""
        return [one.name for one in fields(self) if isinstance(getattr(self, one.name), Unreadable)]


def _damage(columns: Sequence[str]) -> JournalError:
    return JournalError(
        f"the {' and '.join(columns)} of this run can't be read in the journal",
        hint="the file was damaged or edited; other runs are not concerned",
    )


_COLUMNS = [runs.c[item.name] for item in fields(RunRow)]


class Runs:
    """The table of runs."""

    def __init__(self, store: Store, keep: int) -> None:
        self.store = store
        self.keep = keep

    def insert(self, row: RunRow) -> Future[None]:
        """Keep a new run; done when it is on disk."""
        values = asdict(row)

        def write(connection: Connection) -> None:
            connection.execute(insert(runs).values(**values))

        return self.store.write(write)

    def update(self, run: str, **values: Any) -> Future[None]:
        """Change a run; done when it is on disk."""

        def write(connection: Connection) -> None:
            connection.execute(update(runs).where(runs.c.id == run).values(**values))

        return self.store.write(write)

    def finish(self, row: RunRow, events: Sequence[Sequence[str]]) -> Future[None]:
        """Keep how a run ended, with its events, and let the oldest finished runs go."""
        values = {name: getattr(row, name) for name in ("status", "finished_at", "result", "error")}

        def write(connection: Connection) -> None:
            connection.execute(
                update(runs).where(runs.c.id == row.id).values(**values, events=list(events))
            )
            done = runs.c.finished_at.is_not(None)
            old = select(runs.c.id).where(done).order_by(runs.c.finished_at.desc())
            old = old.limit(-1).offset(self.keep)
            connection.execute(delete(runs).where(runs.c.id.in_(old)))

        return self.store.write(write)

    def delete(self, run: str) -> Future[None]:
        """Forget a run and its effects."""

        def write(connection: Connection) -> None:
            connection.execute(delete(runs).where(runs.c.id == run))

        return self.store.write(write)

    def get(self, run: str) -> RunRow | None:
        """A run by its id."""
        return self._one(runs.c.id == run)

    def by_key(self, caller: str, key: str) -> RunRow | None:
        """The run that `caller` started with an idempotency key."""
        return self._one((runs.c.caller == caller) & (runs.c.idempotency_key == key))

    def events(self, run: str) -> list[list[str]] | None:
        """The events of a finished run as (name, JSON text), or None if none are kept."""
        found: list[list[str]] | None = self.store.read(
            lambda c: c.scalar(select(runs.c.events).where(runs.c.id == run))
        )
        return readable(found, f"the events of {run}")

    def unfinished(self) -> list[RunRow]:
        """Runs that a server left behind, oldest first."""
        query = select(*_COLUMNS).where(runs.c.status.in_(UNFINISHED)).order_by(runs.c.created_at)
        return self._all(query)

    def page(
        self, filters: Mapping[str, str | None], limit: int, after: tuple[float, str] | None
    ) -> list[RunRow]:
        """Runs, newest first, whose columns equal `filters` (None: any), from the one on that
        follows `after`, the start and the id of another."""
        query = select(*_COLUMNS).order_by(runs.c.created_at.desc(), runs.c.id).limit(limit)
        for name, value in filters.items():
            if value is not None:
                query = query.where(runs.c[name] == value)
        if after is not None:
            started, last = after
            tied = (runs.c.created_at == started) & (runs.c.id > last)
            query = query.where((runs.c.created_at < started) | tied)
        return self._all(query)

    def _one(self, condition: Any) -> RunRow | None:
        found = self._all(select(*_COLUMNS).where(condition))
        return found[0] if found else None

    def _all(self, query: Any) -> list[RunRow]:
        return self.store.read(lambda c: [RunRow(**row._mapping) for row in c.execute(query).all()])
