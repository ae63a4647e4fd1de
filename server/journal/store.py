"""Writing the journal in groups, and reading it.

What lives here: `Store`: one thread that writes, and queries. What does not: what a row means
(`server/programs`).

Each write is one function of a connection. The writer takes all that are waiting, runs them in
one transaction and commits once (group commit), so many runs share the cost of a disk flush.
SQLite runs with a write-ahead log and `synchronous=FULL`: what was acknowledged survives a
power cut (https://www.sqlite.org/pragma.html#pragma_synchronous).
"""

from __future__ import annotations

import queue
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

__all__ = ["Store"]

T = TypeVar("T")
_Write = tuple[Callable[[Connection], Any], "Future[Any]"]


class Store:
    """The journal's file. `path` None is a temporary file that goes with the process."""

    def __init__(self, path: Path | None) -> None:
        self._folder = None if path else tempfile.TemporaryDirectory(prefix="phloem-journal-")
        where = path if path is not None else Path(str(self._folder and self._folder.name), "j.db")
        self._engine = _open(where, durable=path is not None)
        self._queue: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="phloem-journal", daemon=True)
        self.commits = 0
        """Transactions so far: fewer than writes under load."""
        self._thread.start()

    def write(self, statement: Callable[[Connection], T]) -> Future[T]:
        """Run `statement` in the next transaction; the future is done when it is on disk.

        Writes happen in the order they were asked. The future raises `JournalError`.
        """
        done: Future[T] = Future()
        self._queue.put((statement, done))
        return done

    def read(self, query: Callable[[Connection], T]) -> T:
        """Run `query` now, on the caller's thread. Raises `JournalError`."""
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
        """One transaction. A write that fails is undone alone; a failed commit fails all."""
        outcomes: list[tuple[Future[Any], Any, JournalError | None]] = []
        try:
            with self._engine.begin() as connection:
                for statement, done in group:
                    try:
                        with connection.begin_nested():
                            outcomes.append((done, statement(connection), None))
                    except SQLAlchemyError as error:
                        outcomes.append((done, None, _failed("written", error)))
            self.commits += 1
        except SQLAlchemyError as error:
            failure = _failed("written", error)
            outcomes = [(done, None, failure) for _, done in group]
        for done, value, problem in outcomes:
            if problem is None:
                done.set_result(value)
            else:
                done.set_exception(problem)


def _failed(what: str, error: SQLAlchemyError) -> JournalError:
    # The message of SQLAlchemy quotes the statement's values: arguments of runs. Only its cause
    # is told.
    cause = getattr(error, "orig", None) or type(error).__name__
    return JournalError(
        f"the journal can't be {what}: {cause}",
        hint="check the file's folder, its permissions and the space left",
    )


def _open(path: Path, *, durable: bool) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JournalError(f"the journal's folder can't be made: {error}") from error
    engine = create_engine(f"sqlite:///{path}")

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
