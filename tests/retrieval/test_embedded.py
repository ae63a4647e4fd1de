"""The embedded index survives crashes, and has many readers beside one writer."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phloem.errors import FieldNotFound, IndexLocked, IndexNotFound, RetrievalError
from phloem.retrieval import Document, EmbeddedIndex, Query
from phloem.retrieval.embed.protocol import unit_vector
from phloem.retrieval.embedded.facts import facts_of
from phloem.retrieval.embedded.layout import Layout
from phloem.retrieval.embedded.lock import writer_lock
from phloem.retrieval.embedded.reader import Reader
from phloem.retrieval.embedded.schema import words
from phloem.retrieval.embedded.search import find

WRITER = """
import asyncio, sys
from phloem.retrieval import Document, EmbeddedIndex
async def main(root, start):
    index = EmbeddedIndex(root)
    n = int(start)
    while True:
        docs = [Document(f"d{n + i}", f"text number {n + i}", vector=[1.0, float(n + i)])
                for i in range(20)]
        await index.add(docs)
        n += 20
        print(n, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.slow)])
async def test_kill_9_loses_nothing_acknowledged(tmp_path: Path, kills: int) -> None:
    """A writer is killed between and during commits: all it acknowledged is found, whole, and the
    next writer goes on at once."""
    rng = random.Random(5)
    acknowledged = 0
    for _ in range(kills):
        writer = start(WRITER, str(tmp_path), str(acknowledged))
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 6)):
            acknowledged = int(writer.stdout.readline())
        await asyncio.sleep(rng.random() * 0.03)
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        writer.stdout.close()
        writer.wait()
        index = EmbeddedIndex(tmp_path, lock_wait=0)
        stored = set(await index.ids())
        assert {f"d{n}" for n in range(acknowledged)} <= stored
        # A batch is all or nothing, and one more may have been committed than was acknowledged.
        assert len(stored) in (acknowledged, acknowledged + 20)
        (hit,) = await index.search(
            Query("any", mode="knn", vector=[1.0, float(acknowledged - 1)], k=1)
        )
        assert hit.id in stored
        assert (await index.add([Document("probe", "still writable")])).added == 1
        assert await index.delete(["probe"]) == 1
        await index.aclose()


REBUILDER = """
import asyncio, sys
from phloem.retrieval import Document, EmbeddedIndex
async def main(root, start):
    index = EmbeddedIndex(root)
    n = int(start)
    while True:
        n += 1
        await index.rebuild([Document(f"d{i}", f"edition {n}") for i in range(30)])
        print(n, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
async def test_kill_9_in_a_rebuild_leaves_one_whole_edition(tmp_path: Path, kills: int) -> None:
    """Whenever a rebuild dies, all documents are of one edition: the last acknowledged or the one
    after it."""
    rng = random.Random(6)
    edition = 0
    for _ in range(kills):
        rebuilder = start(REBUILDER, str(tmp_path), str(edition))
        assert rebuilder.stdout is not None
        for _ in range(rng.randrange(1, 4)):
            edition = int(rebuilder.stdout.readline())
        await asyncio.sleep(rng.random() * 0.05)
        rebuilder.send_signal(signal.SIGKILL)
        rest = rebuilder.stdout.read().split()
        edition = int(rest[-1]) if rest else edition
        rebuilder.stdout.close()
        rebuilder.wait()
        index = EmbeddedIndex(tmp_path, lock_wait=0)
        texts = {doc.text for doc in await index.get(await index.ids())}
        assert await index.count() == 30
        assert texts in ({f"edition {edition}"}, {f"edition {edition + 1}"})
        await index.aclose()


async def test_part_of_a_vector_left_by_a_crash_is_dropped(tmp_path: Path) -> None:
    """Bytes of a half-written row are cut off, and rows stay aligned with their documents."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document("a", "x", vector=[1.0, 0.0])])
    with (Layout(tmp_path, "default").current() / "vectors.f32").open("ab") as file:
        file.write(b"\x01\x02\x03")
    await index.add([Document("b", "x", vector=[0.0, 1.0])])
    for vector, expected in (([1.0, 0.1], "a"), ([0.1, 1.0], "b")):
        hits = await index.search(Query("x", mode="knn", vector=vector, k=1))
        assert hits[0].id == expected
    await index.aclose()


async def test_a_generation_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    """A rebuild that died before its switch leaves files that the next rebuild removes."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document("a", "x")])
    left = tmp_path / "default" / "000002"
    left.mkdir()
    (left / "meta.json").write_text("{")
    await index.rebuild([Document("b", "x")])
    assert await index.ids() == ["b"]
    assert not (tmp_path / "default" / "000001").exists()
    await index.aclose()


HOLDER = """
import sys, time
from pathlib import Path
from phloem.retrieval.embedded.lock import writer_lock
with writer_lock(Path(sys.argv[1]), index="default", wait=0):
    print("held", flush=True)
    time.sleep(60)
"""


async def test_a_second_writer_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    """IndexLocked names the process and host; readers go on; the lock ends with its process."""
    index = EmbeddedIndex(tmp_path, lock_wait=0.1)
    await index.add([Document("a", "x")])
    lock = tmp_path / "default" / "writer.lock"
    holder = start(HOLDER, str(lock))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(IndexLocked, match=f"process {holder.pid} ") as caught:
        await index.add([Document("b", "x")])
    assert caught.value.details["pid"] == holder.pid
    assert caught.value.retryable
    assert len(await index.search(Query("x"))) == 1
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert (await index.add([Document("b", "x")])).added == 1
    await index.aclose()


async def test_a_lock_of_a_dropped_index_is_not_the_lock_of_its_successor(tmp_path: Path) -> None:
    """A writer that waited while the index was dropped takes the new index's lock."""
    index = EmbeddedIndex(tmp_path, lock_wait=30)
    await index.add([Document("a", "x")])
    path = tmp_path / "default" / "writer.lock"
    with writer_lock(path, index="default", wait=0):
        adding = asyncio.create_task(index.add([Document("b", "x")]))
        await asyncio.sleep(0.2)
        successor = tmp_path / "successor"
        with writer_lock(successor, index="default", wait=0):
            successor.replace(path)  # as a drop by the holder and a new index do
            await asyncio.sleep(0.2)
            assert not adding.done()
    assert (await adding).added == 1
    await index.aclose()


async def test_a_writer_waits_for_another(tmp_path: Path) -> None:
    """Within `lock_wait` a writer waits until the lock is free."""
    index = EmbeddedIndex(tmp_path, lock_wait=30)
    await index.add([Document("a", "x")])
    with writer_lock(tmp_path / "default" / "writer.lock", index="default", wait=0):
        adding = asyncio.create_task(index.add([Document("b", "x")]))
        await asyncio.sleep(0.2)
        assert not adding.done()
    assert (await adding).added == 1
    await index.aclose()


async def test_readers_in_another_process_see_each_commit(tmp_path: Path) -> None:
    """A reader that is open elsewhere finds what was committed since, without being told."""
    reader, writer = EmbeddedIndex(tmp_path), EmbeddedIndex(tmp_path)
    for n in range(5):
        await writer.add([Document(f"d{n}", "same words")])
        assert len(await reader.search(Query("same", k=10))) == n + 1
    await writer.rebuild([Document("new", "same words")])
    assert [hit.id for hit in await reader.search(Query("same"))] == ["new"]
    await writer.drop("default")
    with pytest.raises(IndexNotFound):
        await reader.search(Query("same"))
    await reader.aclose()
    await writer.aclose()


async def test_many_readers_beside_one_writer(tmp_path: Path) -> None:
    """Searches that run while documents are added see whole batches only."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document(f"d{n}", "same words") for n in range(10)])
    done = asyncio.Event()
    sizes: set[int] = set()

    async def read() -> None:
        reader = EmbeddedIndex(tmp_path)
        while not done.is_set():
            sizes.add(len(await reader.search(Query("same", k=100))))
        await reader.aclose()

    readers = [asyncio.create_task(read()) for _ in range(3)]
    for batch in range(1, 6):
        await index.add([Document(f"d{10 * batch + n}", "same words") for n in range(10)])
    done.set()
    await asyncio.gather(*readers)
    assert sizes <= {10, 20, 30, 40, 50, 60}
    assert await index.count() == 60
    await index.aclose()


async def test_a_search_outlives_the_files_it_began_on(tmp_path: Path) -> None:
    """A snapshot that is in use goes on giving its documents after a rebuild removed its files."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document(f"old{n}", "same", vector=[1.0, float(n)]) for n in range(5)])
    snapshot = Reader(Layout(tmp_path, "default")).snapshot()
    await index.rebuild([Document("new", "same", vector=[1.0, 1.0])])
    for mode in ("bm25", "knn"):
        query = Query("same", mode=mode, k=9)
        hits = find(snapshot, query, lambda _: unit_vector([1.0, 0.0]))
        assert sorted(hit.id for hit in hits) == [f"old{n}" for n in range(5)]
    await index.aclose()


async def test_replaced_and_deleted_vectors_are_not_found(tmp_path: Path) -> None:
    """Rows of documents that were replaced or removed never come back."""
    index = EmbeddedIndex(tmp_path)
    docs = [Document(f"d{n}", "x", vector=[1.0, float(n)]) for n in range(6)]
    await index.add(docs)
    await index.add([Document("d5", "moved", vector=[-1.0, 0.0]), Document("plain", "x")])
    await index.delete(["d4"])
    hits = await index.search(Query("x", mode="knn", vector=[1.0, 5.0], k=10))
    assert [hit.id for hit in hits] == ["d3", "d2", "d1", "d0", "d5"]
    await index.aclose()


async def test_vectors_can_come_later(tmp_path: Path, embedder: Any) -> None:
    """Documents without a vector are found by words, those with one by vector too."""
    await EmbeddedIndex(tmp_path).add([Document("plain", "old text")])
    index = EmbeddedIndex(tmp_path, embedder=embedder)
    await index.add([Document("vector", "new text")])
    by_vector = await index.search(Query("new text", mode="knn", k=5))
    assert [hit.id for hit in by_vector] == ["vector"]
    hybrid = await index.search(Query("text", mode="hybrid", k=5))
    assert {hit.id for hit in hybrid} == {"plain", "vector"}
    await index.aclose()


async def test_an_unknown_embedder_is_named(tmp_path: Path, embedder: Any) -> None:
    """An index filled with a model phloem does not know asks for it, in searches and writes."""
    await EmbeddedIndex(tmp_path, embedder=embedder).add([Document("a", "x")])
    index = EmbeddedIndex(tmp_path)
    with pytest.raises(Exception, match="filled with the embedder 'words'"):
        await index.search(Query("x", mode="knn"))
    with pytest.raises(Exception, match="filled with the embedder 'words'"):
        await index.add([Document("b", "x")])
    assert await index.count() == 1
    await index.aclose()


async def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    """An index written by a later version is an error that says so."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document("a", "x")])
    await index.aclose()
    settings = Layout(tmp_path, "default").current() / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "format": 99}))
    with pytest.raises(RetrievalError, match="format 99"):
        await index.search(Query("x"))
    await index.aclose()


async def test_damaged_files_are_an_error_that_names_the_index(tmp_path: Path) -> None:
    """An index whose files can't be read says which, and what to do."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document("a", "x")])
    await index.aclose()
    (Layout(tmp_path, "default").current() / "meta.json").write_text("not json")
    with pytest.raises(RetrievalError, match="'default' can't be read") as caught:
        await index.search(Query("x"))
    assert "rebuild" in caught.value.hint
    await index.aclose()


async def test_raw_queries_are_refused(tmp_path: Path) -> None:
    """The escape hatch is a server's language; the embedded index says it does not speak it."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document("a", "x")])
    with pytest.raises(RetrievalError, match="does not speak it"):
        await index.search(Query("x", raw={"match_all": {}}))
    await index.aclose()


def test_words_are_cut_as_the_standard_analyzer_cuts_them() -> None:
    """Letters and digits run together, also across an inner apostrophe or full stop; Han and
    Hiragana characters are words of their own; case is folded."""
    text = "Don't pay 3.14 to naïve_user 日本の カタカナ 한국어 n/a C++ x@y.z U.S.A. 🎉"
    assert words(text) == [
        "don't", "pay", "3.14", "to", "naïve_user", "日", "本", "の", "カタカナ", "한국어",
        "n", "a", "c", "x", "y.z", "u.s.a",
    ]  # fmt: skip


def test_facts_tell_types_apart() -> None:
    """1, 1.0 and True, and "1" are number, the same number, boolean and string."""
    terms = [facts_of({"f": value})[-1] for value in (1, 1.0, True, "1")]
    assert terms[0] == terms[1]
    assert len(set(terms)) == 3


def test_no_files_are_left_open(tmp_path: Path) -> None:
    """Writing and searching a second time leaves no more open files than the first."""

    async def work() -> None:
        index = EmbeddedIndex(tmp_path)
        for n in range(4):
            await index.add([Document(f"d{n}", "same words", vector=[1.0, float(n)])])
            for _ in range(10):
                await index.search(Query("same"))
                await index.search(Query("same", mode="knn", vector=[1.0, 1.0]))
        await index.aclose()

    asyncio.run(work())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(work())
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_a_filter_by_text_says_that_text_is_matched(tmp_path: Path) -> None:
    """Text and title are no facts: a filter by them is refused with what to do instead."""
    index = EmbeddedIndex(tmp_path)
    await index.add([Document("a", "one", title="two")])
    for name in ("text", "title"):
        with pytest.raises(FieldNotFound, match="which is matched") as caught:
            await index.search(Query("one", filter={name: "one"}))
        assert "meta" in str(caught.value.hint)
