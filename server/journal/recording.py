"""A run's record that writes itself into the journal as it grows.

What lives here: `JournalRecord`. What does not: replaying (the record's base class does it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from phloem.errors import ToolError
from phloem.programs.executor.record import Address, Entry, Record
from phloem.server.journal.schema import effects
from phloem.server.journal.store import Store

__all__ = [
    "JournalRecord",
    "StoredEffect",
    "entry_from_json",
    "entry_to_json",
    "read_effects",
]


@dataclass(frozen=True, slots=True)
class StoredEffect:
    """An effect as it was kept; `entry` None is a tool call that is not known to have ended."""

    path: str
    seq: int
    entry: Mapping[str, Any] | None


def read_effects(store: Store, run: str) -> list[StoredEffect]:
    """A run's effects in the order they happened."""
    rows = store.read(
        lambda c: c.execute(
            select(effects.c.path, effects.c.seq, effects.c.entry)
            .where(effects.c.run == run)
            .order_by(effects.c.position)
        ).all()
    )
    return [StoredEffect(*row) for row in rows]


@dataclass
class JournalRecord(Record):
    """A `Record` of the run `run`. Not yet attached to a store, it only replays."""

    run: str = ""
    store: Store | None = None
    unfinished: set[Address] = field(default_factory=set)
    """Tool calls that were begun by an execution that died."""
    repeat_unfinished: bool = False
    """Whether those are called again: somebody has looked."""

    @classmethod
    def load(
        cls, run: str, store: Store, stored: Sequence[StoredEffect], seed: int
    ) -> JournalRecord:
        """The record of a run that goes on from `stored`."""
        record = cls(run=run, store=store, mode="resume", drawn_seed=seed)
        for effect in stored:
            if effect.entry is None:
                record.unfinished.add((effect.path, effect.seq))
            else:
                known = record.entries.setdefault(effect.path, [])
                known.append(entry_from_json(effect.entry))
        return record

    def rewrite(self, stored: Sequence[StoredEffect]) -> Future[None]:
        """Keep the effects that this run took over from another; done when they are on disk."""
        rows = [
            {"run": self.run, "path": one.path, "seq": one.seq, "position": at, "entry": one.entry}
            for at, one in enumerate(stored)
        ]

        def write(connection: Connection) -> None:
            connection.execute(insert(effects), rows)

        assert self.store is not None
        return self.store.write(write)

    def add(self, path: str, entry: Entry) -> Address:
        """Keep a new effect, and queue it for the disk."""
        path, seq = super().add(path, entry)
        kept = self.entries[path][seq]
        data = entry_to_json(kept)

        def write(connection: Connection) -> None:
            # A tool call has a row from its beginning; it is replaced.
            here = (effects.c.run == self.run) & (effects.c.path == path) & (effects.c.seq == seq)
            connection.execute(delete(effects).where(here))
            connection.execute(
                insert(effects).values(
                    run=self.run, path=path, seq=seq, position=kept.order, entry=data
                )
            )

        if self.store is not None:
            self.store.write(write)
        return (path, seq)

    async def begin(self, path: str, kind: str, name: str | None, *, repeatable: bool) -> None:
        """Keep, durably, that the next effect of `path` is about to happen outside.

        Raises `ToolError` if an execution that died had begun it already: it may have
        happened, so it is not repeated unless that does no harm.
        """
        seq = len(self.entries.get(path, ()))
        if (path, seq) in self.unfinished:
            if not (repeatable or self.repeat_unfinished):
                raise ToolError(
                    f"the {kind} {name!r} had begun when the server stopped, and whether it "
                    "happened is not known",
                    hint="look, then resume the run with repeat_unfinished, or set its result "
                    "with rewind",
                    path=path,
                    seq=seq,
                )
            return
        if self.store is None:
            return
        position = sum(map(len, self.entries.values()))
        row = {"run": self.run, "path": path, "seq": seq, "position": position}
        written = self.store.write(lambda c: c.execute(insert(effects).values(**row)).rowcount)
        await asyncio.wrap_future(written)


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The entry as plain JSON, in the form that records have it."""
    found: dict[str, Any] = Record(entries={"": [entry]}).to_json()["entries"][""][0]
    return found


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """The inverse of `entry_to_json`."""
    return Record.from_json({**Record().to_json(), "entries": {"": [data]}}).entries[""][0]
