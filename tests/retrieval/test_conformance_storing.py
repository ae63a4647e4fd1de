"""What every store promises about storing: one suite for all three."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from phloem.errors import IndexLocked, IndexNotFound, RetrievalError
from phloem.retrieval import Document, Hits, Query
from phloem.retrieval.admin import Store

ANIMALS = [
    Document("cat", "The cat sat on the mat.", "Cats", {"legs": 4, "lang": "en"}),
    Document("dog", "A dog ran after the cat and barked.", "Dogs", {"legs": 4, "lang": "en"}),
    Document("snake", "A snake has no legs at all.", None, {"legs": 0, "lang": "en"}),
]


def ids(hits: Hits) -> list[str]:
    return [hit.id for hit in hits]


async def test_failed_documents_are_named_and_the_others_stored(store: Store, index: str) -> None:
    """A document that can't be stored is in the report with the reason; the rest is there."""
    docs = [
        Document("good", "fine"),
        Document("", "no id"),
        Document("x" * 600, "long id"),
        Document("nan", "x", meta={"n": float("nan")}),
        Document("object", "x", meta={"n": object()}),
        Document("lone", "\ud800"),
        Document("type", 3),  # type: ignore[arg-type]
        Document("also-good", "fine"),
    ]
    report = await store.add(docs, index=index)
    assert report.added == 2
    assert {id_ for id_, _ in report.failed} == {"", "x" * 600, "nan", "object", "lone", "type"}
    assert all(why for _, why in report.failed)
    assert await store.ids(index=index) == ["also-good", "good"]


async def test_delete_get_and_fingerprints(store: Store, index: str) -> None:
    """Documents can be read by id, compared by fingerprint, and removed."""
    await store.add(ANIMALS, index=index)
    got = await store.get(["snake", "none", "cat"], index=index)
    assert [(d.id, d.title, dict(d.meta)) for d in got] == [
        ("snake", None, {"legs": 0, "lang": "en"}),
        ("cat", "Cats", {"legs": 4, "lang": "en"}),
    ]
    before = await store.fingerprints(["cat", "dog", "none"], index=index)
    assert set(before) == {"cat", "dog"}
    await store.add([Document("cat", "changed"), ANIMALS[1]], index=index)
    after = await store.fingerprints(["cat", "dog"], index=index)
    assert after["dog"] == before["dog"]
    assert after["cat"] != before["cat"]
    assert await store.delete(["cat", "none"], index=index) == 1
    assert await store.ids(index=index) == ["dog", "snake"]
    assert "cat" not in ids(await store.search(Query("changed cat", index=index)))


async def test_missing_indexes_are_errors_everywhere(store: Store, index: str) -> None:
    """Every method but add, rebuild and create raises IndexNotFound, and makes nothing."""
    for call in (
        store.count(index=index),
        store.get(["a"], index=index),
        store.ids(index=index),
        store.fingerprints(["a"], index=index),
        store.delete(["a"], index=index),
        store.drop(index),
    ):
        with pytest.raises(IndexNotFound, match=index):
            await call
    assert index not in [info.name for info in await store.indexes()]


@pytest.mark.parametrize("given", [[{"id": "x", "text": "y"}], "text", None, {"id": "x"}], ids=str)
async def test_what_is_no_documents_is_refused(store: Store, index: str, given: Any) -> None:
    """Dicts in place of documents are a mistake that names the remedy, and store nothing."""
    await store.add(ANIMALS, index=index)
    for call in (store.add, store.rebuild):
        with pytest.raises(RetrievalError, match=r"not a (document|list of documents)"):
            await call(given, index=index)
    assert await store.count(index=index) == len(ANIMALS)


@pytest.mark.parametrize("given", ["cat", [5], None], ids=str)
async def test_one_id_is_no_list_of_ids(store: Store, index: str, given: Any) -> None:
    """A text in place of a list is refused: its letters would be taken for ids."""
    await store.add(ANIMALS, index=index)
    for call in (store.delete, store.get, store.fingerprints):
        with pytest.raises(RetrievalError, match=r"not a list of ids|not an id"):
            await call(given, index=index)
    assert await store.count(index=index) == len(ANIMALS)


async def test_create_and_drop(store: Store, index: str) -> None:
    """An index is made once and can be made again after it was dropped."""
    await store.create(index)
    with pytest.raises(RetrievalError, match="exists already"):
        await store.create(index)
    await store.add(ANIMALS, index=index)
    await store.drop(index)
    with pytest.raises(IndexNotFound):
        await store.count(index=index)
    await store.create(index)
    assert await store.count(index=index) == 0


@pytest.mark.parametrize("name", ["", "Upper", "a b", "../x", "a/b", "-a", "a*", "a,b", "."])
async def test_bad_index_names_are_refused(store: Store, name: str) -> None:
    """Names that one of the stores could not hold are refused by all."""
    with pytest.raises(RetrievalError, match="not an index name"):
        await store.add(ANIMALS, index=name)


async def test_rebuild_replaces_everything_at_once(store: Store, index: str) -> None:
    """Searches during a rebuild see all of the old or all of the new, never a mixture."""
    old = [Document(f"old{n}", f"common word {n}") for n in range(20)]
    new = [Document(f"new{n}", f"common word {n}") for n in range(20)]
    await store.add(old, index=index)
    seen: set[frozenset[str]] = set()
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            hits = await store.search(Query("common", index=index, k=50))
            seen.add(frozenset(hit.id[:3] for hit in hits))
            assert len(hits) == 20

    watching = asyncio.create_task(watch())
    for documents in (new, old, new):
        assert (await store.rebuild(documents, index=index)).added == 20
    done.set()
    await watching
    assert seen <= {frozenset({"old"}), frozenset({"new"})}
    assert await store.ids(index=index) == sorted(doc.id for doc in new)


async def test_a_rebuild_that_fails_leaves_the_old_documents(store: Store, index: str) -> None:
    """A refused document, or an error of the source, keeps the index as it was."""
    await store.add(ANIMALS, index=index)
    report = await store.rebuild([Document("new", "x"), Document("", "bad")], index=index)
    assert len(report.failed) == 1

    def broken() -> Any:
        yield Document("new", "x")
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        await store.rebuild(broken(), index=index)
    assert await store.ids(index=index) == sorted(doc.id for doc in ANIMALS)
    assert (await store.rebuild([Document("new", "x")], index=index)).added == 1
    assert await store.ids(index=index) == ["new"]


async def test_the_last_of_equal_ids_in_one_call_wins(store: Store, index: str) -> None:
    """Adding one id twice in a call leaves the second document."""
    await store.add([Document("a", "first"), Document("a", "second")], index=index)
    assert [doc.text for doc in await store.get(["a"], index=index)] == ["second"]
    assert await store.count(index=index) == 1


async def test_adding_a_known_id_replaces_the_document(store: Store, index: str) -> None:
    """The old text is no longer found, the count stays."""
    await store.add([Document("a", "old words"), Document("b", "other")], index=index)
    await store.add([Document("a", "new words")], index=index)
    assert await store.count(index=index) == 2
    assert ids(await store.search(Query("old", index=index))) == []
    assert ids(await store.search(Query("new", index=index))) == ["a"]


async def test_two_rebuilds_at_once(open_store: Callable[..., Store], index: str) -> None:
    """Of two rebuilds of one index one is told that the other is under way, or they follow each
    other; either way the index then holds one whole edition, and can be rebuilt again."""
    stores = [open_store(), open_store()]
    editions = {name: [f"{name}{number}" for number in range(400)] for name in ("a", "b")}
    await stores[0].add([Document("old", "x")], index=index)

    async def rebuild(store: Store, name: str) -> str:
        try:
            await store.rebuild([Document(id_, "x") for id_ in editions[name]], index=index)
        except IndexLocked as error:
            return error.message
        return "done"

    ends = await asyncio.gather(*map(rebuild, stores, editions))
    assert "done" in ends
    assert all(end == "done" or index in end for end in ends)
    assert await stores[0].ids(index=index) in [sorted(ids) for ids in editions.values()]
    names = [info.name for info in await stores[0].indexes() if info.name.startswith(index)]
    assert names == [index]
    assert (await stores[1].rebuild([Document("new", "x")], index=index)).added == 1
    assert await stores[0].ids(index=index) == ["new"]


async def test_two_that_fill_a_new_index_at_once(
    open_store: Callable[..., Store], index: str
) -> None:
    """Whoever comes second adds to the index that the first has just made."""
    stores = [open_store(), open_store()]
    adding = (store.add([Document(f"d{n}", "x")], index=index) for n, store in enumerate(stores))
    reports = await asyncio.gather(*adding)
    assert [report.added for report in reports] == [1, 1]
    assert await stores[0].ids(index=index) == ["d0", "d1"]
