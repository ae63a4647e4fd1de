"""Many runs of one program as one thing.

What lives here: keeping a batch, and its progress. What does not: HTTP (`batch_routes.py`). The
runs are ordinary background runs: they survive the server one by one, and a batch is nothing but
the list of their ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from sqlalchemy import Connection, func, insert, select

from phloem.server.journal.schema import batches, runs
from phloem.server.journal.store import readable
from phloem.server.programs.manager import RunManager
from phloem.server.programs.rows import RunRow

__all__ = ["FORGOTTEN", "Batch", "Batches", "batch_id"]

FORGOTTEN = "forgotten"
"""The status of a line whose run was deleted, or was the oldest of more than `keep_runs`."""


_KEY_ENDS = len("batch_") + 16


def batch_id(key: str, asked: str) -> str:
    """The id of a batch, from a digest of what its client calls it and one of what was asked, 16
    characters each. In the id, the journal lets one of two batches with a key in."""
    return f"batch_{key}{asked}"


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

    async def start(self, batch: Batch, rows: Sequence[RunRow]) -> Batch:
        """Keep a batch with all its runs, or nothing of it, and begin. Returns it once it is on
        disk, or else the batch that has its key already."""
        values = {name: getattr(batch, name) for name in Batch.__slots__}

        def write(connection: Connection) -> str | None:
            same_key = batches.c.id.startswith(batch.id[:_KEY_ENDS], autoescape=True)
            first: str | None = connection.scalar(select(batches.c.id).where(same_key))
            if first is None:
                connection.execute(insert(batches).values(**values))
                connection.execute(insert(runs), [asdict(row) for row in rows])
            return first

        first = await asyncio.wrap_future(self._store.write(write))
        known = None if first is None else await asyncio.to_thread(self.get, first)
        if known is not None:
            return known
        self._manager.spawn(self._manager.take_up(batch.runs))
        return batch

    async def resume(self, batch: Batch) -> None:
        """Go on with the runs that did not succeed."""
        again = []
        for run in batch.runs:
            row = await asyncio.to_thread(self._manager.runs.get, run)
            if row is not None and row.status in {"failed", "cancelled", "interrupted"}:
                await asyncio.wrap_future(self._manager.runs.update(run, status="queued"))
                again.append(run)
        self._manager.spawn(self._manager.take_up(again))

    async def cancel(self, batch: Batch) -> None:
        """End the runs that are not over."""
        for run in batch.runs:
            await self._manager.cancel(run)

    def get(self, batch: str) -> Batch | None:
        """A batch by its id. Raises `JournalError` if it can't be read."""
        query = select(*(batches.c[name] for name in Batch.__slots__))
        found = self._store.read(
            lambda c: c.execute(query.where(batches.c.id == batch)).one_or_none()
        )
        if found is None:
            return None
        readable(found.runs, f"the runs of {batch}")
        return Batch(**found._mapping)

    def counts(self, batch: Batch) -> dict[str, int]:
        """How many of its runs have which status; "forgotten" are those that are not kept any
        more."""
        query = select(runs.c.status, func.count()).where(runs.c.id.in_(batch.runs))
        rows = self._store.read(lambda c: c.execute(query.group_by(runs.c.status)).all())
        found = {row[0]: row[1] for row in rows}
        gone = len(batch.runs) - sum(found.values())
        return found | ({FORGOTTEN: gone} if gone else {})
