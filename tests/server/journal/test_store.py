"""The journal's store: order, groups, failures, and what is kept."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from phloem.errors import JournalError, ToolError
from phloem.programs.executor.record import Entry
from phloem.server.journal.recording import JournalRecord, StoredEffect, read_effects
from phloem.server.journal.schema import meta
from phloem.server.journal.store import Store
from phloem.server.programs.rows import RunRow, Runs


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
