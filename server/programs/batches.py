"""Many runs of one program as one thing.

What lives here: keeping a batch, starting its runs a few at a time, its progress. What does
not: HTTP (`batch_routes.py`). The runs are ordinary background runs: they survive the server
one by one, and a batch is nothing but the list of their ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, insert, select

from phloem.server.journal.schema import batches, runs
from phloem.server.programs.live import LiveRun
from phloem.server.programs.manager import RunManager
from phloem.server.programs.rows import RunRow

__all__ = ["Batch", "Batches"]

AT_ONCE = 32
"""Runs of one batch that are live at a time; the others wait on disk."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: the ids of its runs in the order of its lines."""

    id: str
    program: str
    caller: str
    runs: list[str]
    created_at: float = field(default_factory=time.time)


class Batches:
    """The batches of a server."""

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager
        self._store = manager.runs.store

    async def start(self, batch: Batch, rows: Sequence[RunRow]) -> None:
        """Keep a batch with all its runs, and begin. Returns once they are on disk."""
        values = {name: getattr(batch, name) for name in Batch.__slots__}

        def write(connection: Connection) -> None:
            connection.execute(insert(batches).values(**values))

        # Writes are done in order: when the last is on disk, all are.
        self._store.write(write)
        written = [self._manager.runs.insert(row) for row in rows]
        await asyncio.gather(*map(asyncio.wrap_future, written))
        self._manager.spawn(self._work(batch.runs))

    async def resume(self, batch: Batch) -> None:
        """Go on with the runs that did not succeed."""
        again = []
        for run in batch.runs:
            row = await asyncio.to_thread(self._manager.runs.get, run)
            if row is not None and row.status in {"failed", "cancelled", "interrupted"}:
                await asyncio.wrap_future(self._manager.runs.update(run, status="queued"))
                again.append(run)
        self._manager.spawn(self._work(again))

    async def cancel(self, batch: Batch) -> None:
        """End the runs that are not over."""
        for run in batch.runs:
            await self._manager.cancel(run)

    def get(self, batch: str) -> Batch | None:
        """A batch by its id."""
        query = select(*(batches.c[name] for name in Batch.__slots__))
        found = self._store.read(
            lambda c: c.execute(query.where(batches.c.id == batch)).one_or_none()
        )
        return None if found is None else Batch(**found._mapping)

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many of its runs have which status."""
        query = select(runs.c.status, func.count()).where(runs.c.id.in_(batch.runs))
        rows = self._store.read(lambda c: c.execute(query.group_by(runs.c.status)).all())
        return {row[0]: row[1] for row in rows}

    async def _work(self, ids: Sequence[str]) -> None:
        """Begin each run that still waits, `AT_ONCE` at a time."""
        places = asyncio.Semaphore(AT_ONCE)
        tasks = []
        for run in ids:
            await places.acquire()
            row = await asyncio.to_thread(self._manager.runs.get, run)
            if row is None or row.status != "queued" or run in self._manager.live:
                places.release()
                continue
            live = await self._manager.resume(row)
            tasks.append(asyncio.ensure_future(_release_after(live, places)))
        await asyncio.gather(*tasks)


async def _release_after(live: LiveRun, places: asyncio.Semaphore) -> None:
    await live.ended()
    places.release()
