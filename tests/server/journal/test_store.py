"""The journal's store: order, groups, failures, and what is kept."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update

from phloem.errors import JournalError, ToolError
from phloem.programs.executor.record import Entry
from phloem.server.journal.recording import JournalRecord, StoredEffect, read_effects
from phloem.server.journal.schema import meta
from phloem.server.journal.store import Store
from phloem.server.programs.rows import RunRow, Runs
from phloem.server.trace.reader import TraceFilter
from phloem.server.trace.readers.journal import JournalReader


def row(name: str, **fields: Any) -> RunRow:
    given: dict[str, Any] = {
        "program": "p", "program_hash": "h", "graph": {}, "fingerprint": "f", "args": {},
        "options": {}, "seed": 1, "background": True, "caller": "", "trace_id": "t",
    }  # fmt: skip
    return RunRow(id=name, **(given | fields))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    made = Store(tmp_path / "deep" / "journal.db")
    yield made
    made.close()


def test_writes_that_wait_share_a_commit(store: Store) -> None:
    """While one transaction runs, all writes that come are done in the next, in order."""
    begin, blocked = threading.Event(), threading.Event()

    def slow(_: Any) -> None:
        blocked.set()
        begin.wait(5)

    runs = Runs(store, keep=1000)
    first = store.write(slow)
    blocked.wait(5)
    writes = [runs.insert(row(f"run{number:03}")) for number in range(100)]
    last = runs.update("run099", status="running")
    begin.set()
    for write in (first, *writes, last):
        write.result(10)
    assert store.commits == 2
    assert len(runs.unfinished()) == 100
    found = runs.get("run099")
    assert found is not None
    assert found.status == "running"


def test_a_write_that_fails_fails_alone(store: Store) -> None:
    """A write that breaks a rule raises; those of the same group are kept."""
    runs = Runs(store, keep=1000)
    good, double, other = (runs.insert(row(name)) for name in ("a", "a", "b"))
    good.result(5)
    other.result(5)
    with pytest.raises(JournalError, match="UNIQUE"):
        double.result(5)
    assert [found.id for found in runs.unfinished()] == ["a", "b"]


def test_what_was_written_is_there_for_the_next(tmp_path: Path) -> None:
    """A journal that is opened again has everything, and refuses another layout."""
    path = tmp_path / "journal.db"
    first = Store(path)
    Runs(first, keep=10).insert(row("a", args={"n": [1, "ü"]})).result(5)
    first.close()
    second = Store(path)
    found = Runs(second, keep=10).get("a")
    assert found is not None
    assert found.args == {"n": [1, "ü"]}
    second.write(lambda c: c.execute(update(meta).values(value="99")).rowcount).result(5)
    second.close()
    with pytest.raises(JournalError, match="layout 99"):
        Store(path)


def test_a_journal_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """A file that is no database is an error that names the cause."""
    path = tmp_path / "journal.db"
    path.write_text("this is no database" * 100)
    with pytest.raises(JournalError, match="not a database"):
        Store(path)


def test_the_oldest_finished_runs_go(store: Store) -> None:
    """Only `keep` finished runs stay, with their effects; unfinished ones are never dropped."""
    runs = Runs(store, keep=2)
    runs.insert(row("open")).result(5)
    for number in range(4):
        made = row(f"run{number}")
        runs.insert(made).result(5)
        record = JournalRecord(run=made.id, store=store)
        record.add("", Entry("gen", "x", "r", [1]))
        made.status, made.finished_at = "succeeded", float(number)
        runs.finish(made, [("done", "{}")]).result(5)
    kept = [found.id for found in runs.page({}, 10, None)]
    assert sorted(kept) == ["open", "run2", "run3"]
    assert read_effects(store, "run0") == []
    assert len(read_effects(store, "run3")) == 1


async def test_a_call_that_had_begun_is_not_repeated(store: Store) -> None:
    """A tool call begun by an execution that died is refused, unless it may be repeated."""
    Runs(store, keep=2).insert(row("a")).result(5)
    record = JournalRecord(run="a", store=store)
    record.add("", Entry("gen", "x", "r", [1]))
    await record.begin("", "tool", "note", repeatable=False)
    stored = read_effects(store, "a")
    assert stored[1] == StoredEffect("", 1, None)
    again = JournalRecord.load("a", store, stored, seed=1)
    again.take("", "gen", "x", "r")
    with pytest.raises(ToolError, match="had begun"):
        await again.begin("", "tool", "note", repeatable=False)
    await again.begin("", "tool", "note", repeatable=True)
    again.repeat_unfinished = True
    await again.begin("", "tool", "note", repeatable=False)
    again.add("", Entry("tool", "note", "r", 5))
    store.write(lambda c: c.execute(select(meta)).all()).result(5)
    assert [effect.entry is None for effect in read_effects(store, "a")] == [False, False]


def test_a_temporary_journal_goes_with_its_server() -> None:
    """Without a path the journal is a temporary file that close() removes."""
    store = Store(None)
    store.write(lambda c: c.execute(insert(meta).values(name="x", value="y")).rowcount).result(5)
    folder = Path(str(store._folder and store._folder.name))
    assert folder.is_dir()
    store.close()
    assert not folder.exists()


def test_who_gives_up_waiting_harms_no_other(store: Store) -> None:
    """A write that nobody waits for any more is done, and so are those after it."""
    begin = threading.Event()
    runs = Runs(store, keep=1000)
    first = store.write(lambda _: begin.wait(5))
    given_up = runs.insert(row("a"))
    assert given_up.cancel()
    last = runs.insert(row("b"))
    begin.set()
    for write in (first, last):
        write.result(5)
    assert [found.id for found in runs.unfinished()] == ["a", "b"]


def test_whatever_a_write_raises_is_told_to_who_asked(store: Store) -> None:
    """Any error of a statement is its own; the writer goes on."""

    def odd(_: Any) -> None:
        raise RuntimeError("odd")

    failed = store.write(odd)
    with pytest.raises(JournalError, match="RuntimeError"):
        failed.result(5)
    Runs(store, keep=1000).insert(row("a")).result(5)


def test_one_server_goes_on_with_a_journal(tmp_path: Path) -> None:
    """While one process has claimed a journal no other can; anybody may read."""
    path = tmp_path / "journal.db"
    first, second = Store(path), Store(path)
    first.claim()
    with pytest.raises(JournalError, match=f"in use by another server .process {os.getpid()}"):
        second.claim()
    assert Runs(second, keep=10).unfinished() == []
    first.close()
    second.claim()
    second.close()


def damage(store: Store, table: str, column: str, where: str) -> None:
    """Let a JSON column hold something else."""
    statement = text(f"UPDATE {table} SET {column} = '{{\"cut' WHERE {where}")
    store.write(lambda c: c.execute(statement).rowcount).result(5)


@pytest.mark.parametrize("column", ["args", "options", "graph", "result", "error"])
def test_a_damaged_run_hides_no_other(store: Store, column: str) -> None:
    """A column that is no JSON is named in the run's own error; lists and searches go on."""
    runs = Runs(store, keep=1000)
    for name in ("a", "b"):
        runs.insert(row(name, status="failed", result={"value": 1}, error={})).result(5)
    damage(store, "runs", column, "id = 'a'")
    found = {one.id: one for one in runs.page({}, 10, None)}
    assert set(found) == {"a", "b"}
    assert (found["a"].damaged, found["b"].damaged) == ([column], [])
    if column in {"args", "result", "error"}:
        error = found["a"].reply().error
        assert error is not None
        assert error.message == f"the {column} of this run can't be read in the journal"
    listed = JournalReader(store).list(TraceFilter(text="p"))
    assert {one.id for one in listed.items} == {"a", "b"}


def test_damaged_events_and_effects_are_told(store: Store) -> None:
    """What else is no JSON is an error that names it, where it is asked for."""
    runs = Runs(store, keep=1000)
    made = row("a")
    runs.insert(made).result(5)
    JournalRecord(run="a", store=store).add("", Entry("gen", "x", "r", [1]))
    made.status, made.finished_at = "succeeded", 1.0
    runs.finish(made, [("done", "{}")]).result(5)
    damage(store, "runs", "events", "id = 'a'")
    damage(store, "effects", "entry", "run = 'a'")
    with pytest.raises(JournalError, match="the events of a"):
        runs.events("a")
    with pytest.raises(JournalError, match="effect 0 of branch '' of a"):
        read_effects(store, "a")


async def test_after_a_gap_no_effect_is_kept(store: Store) -> None:
    """An effect that could not be written is the end of the record: none after it is kept, and no
    tool is called any more."""
    Runs(store, keep=1000).insert(row("a")).result(5)
    trigger = text(
        "CREATE TRIGGER full BEFORE INSERT ON effects WHEN NEW.seq = 1 "
        "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    store.write(lambda c: c.execute(trigger).rowcount).result(5)
    record = JournalRecord(run="a", store=store)
    for outcome in range(4):
        record.add("", Entry("gen", "x", "r", [outcome]))
    with pytest.raises(JournalError, match="earlier effect"):
        await record.begin("", "tool", "note", repeatable=True)
    assert [effect.seq for effect in read_effects(store, "a")] == [0]


def test_pages_part_runs_that_started_at_once(store: Store) -> None:
    """Runs of one instant are on one page each, whatever the clock says."""
    runs = Runs(store, keep=1000)
    for name in "abcde":
        runs.insert(row(name, created_at=5.0)).result(5)
    found: list[str] = []
    after: tuple[float, str] | None = None
    while page := runs.page({}, 2, after):
        found += [one.id for one in page]
        after = (page[-1].created_at, page[-1].id)
    assert found == list("abcde")


def test_a_full_disk_is_told_and_passes(store: Store) -> None:
    """A write that finds no room fails with its whole group, none of which is kept; once there is
    room again writes are."""
    runs = Runs(store, keep=1000)

    def room(pages: int) -> None:
        """Let the file grow by so many pages."""

        def limit(connection: Any) -> None:
            size = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {size + pages}")

        store.write(limit).result(5)

    begin = threading.Event()
    room(0)
    first = store.write(lambda _: begin.wait(5))
    large = [runs.insert(row(name, args={"text": "x" * 100_000})) for name in ("a", "b")]
    begin.set()
    first.exception(5)
    for write in large:
        with pytest.raises(JournalError, match="full"):
            write.result(5)
    room(1000)
    runs.insert(row("c", args={"text": "x" * 100_000})).result(5)
    assert [found.id for found in runs.unfinished()] == ["c"]
