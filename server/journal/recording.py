"""A run's record that writes itself into the journal as it grows.

What lives here: `JournalRecord`. What does not: replaying (the record's base class does it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog
from sqlalchemy import Connection, delete, insert, select

from phloem.errors import JournalError, ToolError
from phloem.programs.executor.record import Address, Entry, Record
from phloem.server.journal.schema import effects
from phloem.server.journal.store import Store, readable

__all__ = [
    "JournalRecord",
    "StoredEffect",
    "entry_from_json",
    "entry_to_json",
    "read_effects",
]

log = structlog.get_logger("phloem.server")


@dataclass(frozen=True, slots=True)
class StoredEffect:
    """An effect as it was kept; `entry` None is a tool call that is not known to have ended."""

    path: str
    seq: int
    entry: Mapping[str, Any] | None


def read_effects(store: Store, run: str) -> list[StoredEffect]:
    """A run's effects in the order they happened. Raises `JournalError` for one that is no JSON."""
    rows = store.read(
        lambda c: c.execute(
            select(effects.c.path, effects.c.seq, effects.c.entry)
            .where(effects.c.run == run)
            .order_by(effects.c.position)
        ).all()
    )
    return [
        StoredEffect(path, seq, readable(entry, f"effect {seq} of branch {path!r} of {run}"))
        for path, seq, entry in rows
    ]


@dataclass
class JournalRecord(Record):
    """A `Record` of the run `run`. Not yet attached to a store, it only replays."""

    run: str = ""
    store: Store | None = None
    unfinished: set[Address] = field(default_factory=set)
    """Tool calls that were begun by an execution that died."""
    repeat_unfinished: bool = False
    """Whether those are called again: somebody has looked."""
    whole: bool = True
    """Whether all effects so far are on disk or on their way there."""
    _told: bool = False

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
            self._keep(write)
        return (path, seq)

    async def begin(self, path: str, kind: str, name: str | None, *, repeatable: bool) -> None:
        """Keep, durably, that the next effect of `path` is about to happen outside.

        Raises `ToolError` if an execution that died had begun it already: it may have
        happened, so it is not repeated unless that does no harm. Raises `JournalError` if it
        can't be kept, or an effect before it could not.
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
        written = self._keep(lambda c: c.execute(insert(effects).values(**row)))
        await asyncio.wrap_future(written)

    def _keep(self, write: Callable[[Connection], Any]) -> Future[None]:
        """Queue a write, which is done only if all before it were: after a gap a resumed run
        would take each effect for the one before it."""

        def kept(connection: Connection) -> None:
            if not self.whole:
                raise JournalError(
                    "an earlier effect of the run could not be kept", hint="see the log"
                )
            self.whole = False
            write(connection)
            self.whole = True

        assert self.store is not None
        written = self.store.write(kept)
        written.add_done_callback(self._kept)
        return written

    def _kept(self, written: Future[None]) -> None:
        """On the journal's thread, before anything that was asked for later."""
        if written.cancelled() or (error := written.exception()) is None:
            return
        self.whole = False
        if not self._told:
            self._told = True
            log.error("effects_not_kept", run=self.run, reason=str(error))


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """The entry as plain JSON, in the form that records have it."""
    found: dict[str, Any] = Record(entries={"": [entry]}).to_json()["entries"][""][0]
    return found


def entry_from_json(data: Mapping[str, Any]) -> Entry:
    """The inverse of `entry_to_json`."""
    return Record.from_json({**Record().to_json(), "entries": {"": [data]}}).entries[""][0]
