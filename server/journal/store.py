"""Writing the journal in groups, and reading it.

What lives here: `Store`: one thread that writes, queries, and the claim of the one server that goes
on with the runs. What does not: what a row means (`server/programs`).

Each write is one function of a connection. The writer takes all that are waiting, runs them in
one transaction and commits once (group commit), so many runs share the cost of a disk flush.
SQLite runs with a write-ahead log and `synchronous=FULL`: what was acknowledged survives a
power cut (https://www.sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, insert, select
from sqlalchemy.exc import SQLAlchemyError

from phloem.errors import JournalError
from phloem.server.journal.schema import LAYOUT, meta, metadata

__all__ = ["Store", "Unreadable", "readable"]

T = TypeVar("T")
_Write = tuple[Callable[[Connection], Any], "Future[Any]"]


class Unreadable(str):
    """What a JSON column holds if that is no JSON: the file was damaged, or edited."""

    __slots__ = ()


def readable(value: T, what: str) -> T:
    """`value` of a JSON column. Raises `JournalError` if it is `Unreadable`."""
    if isinstance(value, Unreadable):
        raise JournalError(
            f"the journal holds no JSON for {what}",
            hint="the file was damaged or edited; other runs are not concerned",
        )
    return value


class Store:
    """The journal's file. `path` None is a temporary file that goes with the process."""

    def __init__(self, path: Path | None) -> None:
        self._folder = None if path else tempfile.TemporaryDirectory(prefix="phloem-journal-")
        self.path = path or Path(str(self._folder and self._folder.name), "j.db")
        self._engine = _open(self.path, durable=path is not None)
        self._claim: int | None = None
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="phloem-journal", daemon=True)
        self.commits = 0
        """Transactions so far: fewer than writes under load."""
        self._thread.start()

    def claim(self) -> None:
        """Be the one process that goes on with the journal's runs, until `close`.

        Raises `JournalError` while another one is. Readers need no claim.
        """
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"the journal can't be claimed: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            raise JournalError(
                f"the journal {self.path} is in use by another server (process {holder})",
                hint="its runs would be done twice; stop that server, or use another file",
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._claim = descriptor

    def write(self, statement: Callable[[Connection], T]) -> Future[T]:
        """Run `statement` in the next transaction; the future is done when it is on disk.

        Writes happen in the order they were asked, also if nobody waits for them any more. The
        future raises `JournalError`.
        """
        done: Future[T] = Future()
        self._queue.put((statement, done))
        return done

    def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` now, on the caller's thread. Raises `JournalError`. Values of JSON columns
        may be `Unreadable`."""
        try:
            with self._engine.connect() as connection:
                return query(connection)
        except SQLAlchemyError as error:
            raise _failed("read", error) from error

    def close(self) -> None:
        """Write what is waiting, and let go of the file."""
        self._queue.put(None)
        self._thread.join()
        self._engine.dispose()
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None
        if self._folder is not None:
            self._folder.cleanup()

    def _serve(self) -> None:
        open_ = True
        while open_:
            group: list[_Write] = []
            item = self._queue.get()
            while item is not None:
                group.append(item)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            open_ = item is not None
            if group:
                self._commit(group)

    def _commit(self, group: list[_Write]) -> None:
        """One transaction. A write that fails is undone alone; a failed commit fails all.

        Whatever a statement raises is for whoever asked for it: this thread writes for all.
        """
        # From here on nobody can take a future back; who had done so is not told.
        waits = [done.set_running_or_notify_cancel() for _, done in group]
        outcomes: list[tuple[Any, JournalError | None]] = []
        try:
            with self._engine.begin() as connection:
                for statement, _ in group:
                    outcomes.append(_attempt(connection, statement))
            self.commits += 1
        except Exception as error:  # noqa: BLE001 - see above
            outcomes = [(None, _failed("written", error))] * len(group)
        for (_, done), waited, (value, problem) in zip(group, waits, outcomes, strict=True):
            if not waited:
                continue
            if problem is None:
                done.set_result(value)
            else:
                done.set_exception(problem)


def _attempt(
    connection: Connection, statement: Callable[[Connection], Any]
) -> tuple[Any, JournalError | None]:
    """What a statement gives, or why it was undone. Raises if the whole transaction was: SQLite
    gives it up when the disk is full."""
    try:
        with connection.begin_nested():
            return statement(connection), None
    except Exception as error:
        if not connection.connection.in_transaction:
            raise
        return None, _failed("written", error)


def _failed(what: str, error: Exception) -> JournalError:
    if isinstance(error, JournalError):
        return error
    # What came first: where SQLite gives a transaction up, undoing it fails too.
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    # The message of SQLAlchemy quotes the statement's values: arguments of runs. Only what SQLite
    # says itself is told.
    cause = first if isinstance(first, sqlite3.Error) else type(first).__name__
    return JournalError(
        f"the journal can't be {what}: {cause}",
        hint="check the file's folder, its permissions and the space left",
    )


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return Unreadable(text)


def _open(path: Path, *, durable: bool) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"the journal's folder can't be made: {error}") from error
    engine = create_engine(f"sqlite:///{path}", json_deserializer=_loads)

    @event.listens_for(engine, "connect")
    def pragmas(connection: Any, _: Any) -> None:
        # Python's sqlite3 must not begin transactions by itself, or savepoints don't nest.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            f"synchronous={'FULL' if durable else 'OFF'}",
            "foreign_keys=ON",
            "busy_timeout=10000",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
            known = connection.scalar(select(meta.c.value).where(meta.c.name == "layout"))
            if known is None:
                connection.execute(insert(meta).values(name="layout", value=str(LAYOUT)))
            elif known != str(LAYOUT):
                raise JournalError(
                    f"the journal {path} has layout {known}, this version writes {LAYOUT}",
                    hint="finish its runs with the version that wrote it, or use another file",
                )
    except SQLAlchemyError as error:
        raise _failed("opened", error) from error
    return engine
