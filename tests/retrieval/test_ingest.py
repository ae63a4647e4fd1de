"""Files become chunks, and only what changed is stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from phloem.errors import ConfigError, IndexNotFound, RetrievalError, RetrievalUnavailable
from phloem.retrieval import (
    AddReport,
    Document,
    ElasticsearchRetriever,
    EmbeddedIndex,
    Query,
    admin,
)
from phloem.retrieval.ingest.chunks import Chunking
from phloem.retrieval.ingest.pipeline import IngestReport, Progress, add_files, rebuild_from_files
from phloem.retrieval.ingest.readers import SourceFile, find_files, read_file
from phloem.retrieval.ingest.sources import Source, UnreadableSource


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedIndex]:
    made = EmbeddedIndex(tmp_path / "indexes")
    yield made
    await made.aclose()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A handbook with every type of file that needs no extra."""
    made = tmp_path / "handbook"
    (made / "deep").mkdir(parents=True)
    (made / "refunds.md").write_text(
        "# Refunds\nTen days.\n\n## Abroad\nThirty days.\n\n```\n# no heading\n```\n"
    )
    (made / "deep" / "notes.txt").write_text("\ufeffPlain notes. Two sentences.")
    (made / "page.html").write_text(
        "<title>Shipping</title><script>var x = 'hidden'</script>"
        "<h1>Parcels</h1><p>Up to <b>30</b> kg &amp; no more.</p><ul><li>one<li>two</ul>"
    )
    rows = [{"id": "r1", "text": "First record", "lang": "en", "n": 1}, {"text": "Second record"}]
    (made / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (made / "table.csv").write_text('id,text,title,kind\nt1,"A cell, quoted",Head,a\n,Other,,b\n')
    (made / ".hidden.txt").write_text("not this")
    (made / "image.png").write_bytes(b"\x89PNG")
    return made


def counts(report: IngestReport) -> tuple[int, int, int, int]:
    state = report.progress
    return state.added, state.unchanged, state.removed, state.failed


async def test_all_types_are_read_with_their_structure(store: EmbeddedIndex, folder: Path) -> None:
    """Text, headings, titles, records and metadata of every type arrive in the index."""
    report = await add_files(store, [folder], index="h")
    assert report.failed == ()
    assert await store.ids(index="h") == [
        "handbook/deep/notes.txt",
        "handbook/faq.jsonl:2",
        "handbook/page.html",
        "handbook/refunds.md#0",
        "handbook/refunds.md#1",
        "handbook/table.csv:2",
        "r1",
        "t1",
    ]
    found = {doc.id: doc for doc in await store.get(await store.ids(index="h"), index="h")}
    assert found["handbook/deep/notes.txt"].text == "Plain notes. Two sentences."
    assert found["handbook/refunds.md#0"].title == "Refunds"
    assert found["handbook/refunds.md#1"].title == "Refunds > Abroad"
    assert "# no heading" in found["handbook/refunds.md#1"].text
    assert found["handbook/page.html"].title == "Shipping > Parcels"
    assert found["handbook/page.html"].text == "Up to 30 kg & no more.\none\ntwo"
    assert (found["r1"].meta["lang"], found["r1"].meta["n"]) == ("en", 1)
    assert (found["t1"].text, found["t1"].title) == ("A cell, quoted", "Head")
    assert found["t1"].meta["kind"] == "a"
    assert found["r1"].meta["chunk"] == {
        "source": "handbook/faq.jsonl", "number": 0, "start": 0, "end": 12,
    }  # fmt: skip


async def test_adding_again_changes_nothing(store: EmbeddedIndex, folder: Path) -> None:
    """The second run stores nothing and says so; ids don't depend on the working directory."""
    first = await add_files(store, [folder], index="h")
    generation = next((store.root / "h").glob("0*")) / "meta.json"
    before = generation.read_bytes()
    again = await add_files(store, [folder / ".." / "handbook"], index="h")
    assert counts(again) == (0, first.progress.added, 0, 0)
    assert generation.read_bytes() == before


async def test_a_changed_file_replaces_its_chunks(store: EmbeddedIndex, folder: Path) -> None:
    """Only changed chunks are stored, and chunks that are gone are removed."""
    await add_files(store, [folder], index="h")
    (folder / "refunds.md").write_text("# Refunds\nTen days.\n")
    report = await add_files(store, [folder], index="h")
    assert counts(report) == (1, 6, 2, 0)
    ids = await store.ids(index="h")
    assert [id_ for id_ in ids if "refunds" in id_] == ["handbook/refunds.md"]


async def test_an_interrupted_run_goes_on(store: EmbeddedIndex, tmp_path: Path) -> None:
    """When the index fails midway its error says what stays, and the next run stores the rest."""
    file = tmp_path / "many.jsonl"
    file.write_text("".join(json.dumps({"text": f"record {n}"}) + "\n" for n in range(600)))

    class Failing(EmbeddedIndex):
        calls = 0

        async def add(self, docs: Any, *, index: str = "default") -> AddReport:
            self.calls += 1
            if self.calls == 2:
                raise RetrievalUnavailable("the server went away")
            return await super().add(docs, index=index)

    failing = Failing(store.root)
    with pytest.raises(RetrievalUnavailable) as caught:
        await add_files(failing, [file], index="h")
    await failing.aclose()
    assert "256 documents were stored" in caught.value.__notes__[0]
    assert await store.count(index="h") == 256
    report = await add_files(store, [file], index="h")
    assert counts(report) == (344, 256, 0, 0)


async def test_bad_files_and_records_are_named_and_stop_nothing(
    store: EmbeddedIndex, folder: Path
) -> None:
    """Each unreadable file, record and cell is in the report with its place; the rest is stored."""
    (folder / "latin.txt").write_bytes("Müll".encode("latin1"))
    (folder / "broken.jsonl").write_text(
        '{"text": "good"}\n{"text": \n[1]\n{"no": "text"}\n{"text": "x", "title": 3}\n'
        '{"text": "x", "chunk": 1}\n{"text": "x", "id": [1]}\n\n{"text": "also good"}\n'
    )
    (folder / "broken.csv").write_text("text,a\none,1,2\ntwo,2\n")
    (folder / "headless.csv").write_text("body,a\none,1\n")
    report = await add_files(store, [folder], index="h")
    places = [what.rpartition("/")[2] for what, _ in report.failed]
    assert places == [
        "broken.csv:2", *[f"broken.jsonl:{n}" for n in range(2, 8) if n != 7], "broken.jsonl:7",
        "headless.csv", "latin.txt",
    ]  # fmt: skip
    reasons = dict(report.failed)
    assert any("not UTF-8 (byte 1)" in why for why in reasons.values())
    assert any("no column 'text'; it has: body, a" in why for why in reasons.values())
    assert report.progress.failed == len(report.failed)
    texts = {doc.text for doc in await store.get(await store.ids(index="h"), index="h")}
    assert {"good", "also good", "two", "First record"} <= texts


@pytest.mark.parametrize("fillers", [0, 300])
async def test_equal_ids_are_not_lost_silently(
    store: EmbeddedIndex, tmp_path: Path, fillers: int
) -> None:
    """The second document with an id is reported, in the same file or in another, however far
    behind; a rebuild refuses it."""
    rows = [{"id": 1, "text": "first"}, *({"text": f"filler {n}"} for n in range(fillers))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    (tmp_path / "b.jsonl").write_text('{"id": 1, "text": "second"}\n')
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    report = await add_files(store, files, index="h")
    assert [what for what, _ in report.failed] == ["1", "1"]
    assert all("a.jsonl has the same id" in why for _, why in report.failed)
    assert [doc.text for doc in await store.get(["1"], index="h")] == ["first"]
    with pytest.raises(UnreadableSource, match="same id"):
        await rebuild_from_files(store, files, index="h")


async def test_progress_reaches_its_total(store: EmbeddedIndex, folder: Path) -> None:
    """Progress never goes back, and ends with all files and all bytes."""
    seen: list[Progress] = []
    await add_files(store, [folder], index="h", progress=seen.append)
    assert [p.bytes_done for p in seen] == sorted(p.bytes_done for p in seen)
    last = seen[-1]
    assert (last.files_done, last.bytes_done) == (last.files_total, last.bytes_total)
    assert (last.files_total, last.added) == (5, 8)
    assert last.rate > 0


async def test_rebuild_takes_the_files_in_place_of_the_index(
    store: EmbeddedIndex, folder: Path
) -> None:
    """After a rebuild the index holds the files' documents and no others."""
    await store.add([Document("old", "old text")], index="h")
    seen: list[Progress] = []
    report = await rebuild_from_files(store, [folder], index="h", progress=seen.append)
    assert counts(report) == (8, 0, 0, 0)
    assert "old" not in await store.ids(index="h")
    assert seen[-1].bytes_done == seen[-1].bytes_total


async def test_a_rebuild_from_unreadable_files_keeps_the_old_index(
    store: EmbeddedIndex, folder: Path
) -> None:
    """A file that can't be read stops the rebuild before the switch."""
    await store.add([Document("old", "old text")], index="h")
    (folder / "latin.txt").write_bytes(b"\xff")
    with pytest.raises(UnreadableSource, match=r"latin\.txt is not UTF-8"):
        await rebuild_from_files(store, [folder], index="h")
    assert await store.ids(index="h") == ["old"]


def test_paths_that_make_no_sense_are_refused(folder: Path, tmp_path: Path) -> None:
    """A missing path, an unknown type, and two files of one name are errors."""
    with pytest.raises(ConfigError, match="no file or folder"):
        find_files([tmp_path / "none"])
    with pytest.raises(ConfigError, match="unknown type"):
        find_files([folder / "image.png"])
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"both be called 'notes\.txt'"):
        find_files([folder / "deep" / "notes.txt", other / "notes.txt"])


def test_a_file_given_twice_is_one_file(folder: Path) -> None:
    """The same folder under two paths is read once."""
    assert len(find_files([folder, folder / "deep" / ".."])) == 5


def test_a_pdf_is_read_page_by_page(tmp_path: Path) -> None:
    """Each page is a section; a file that is no PDF, and one without text, are errors."""
    file = tmp_path / "two.pdf"
    file.write_bytes(pdf("Page one says hello.", "Page two says goodbye."))
    (source,) = read_file(SourceFile(file, "two.pdf", 1))
    assert isinstance(source, Source)
    texts = [source.text[s.start : s.end].strip() for s in source.sections]
    assert texts == ["Page one says hello.", "Page two says goodbye."]
    assert [section.headings for section in source.sections] == [("page 1",), ("page 2",)]
    file.write_bytes(b"no pdf at all")
    with pytest.raises(UnreadableSource, match="can't be read as PDF"):
        list(read_file(SourceFile(file, "two.pdf", 1)))
    file.write_bytes(pdf(""))
    with pytest.raises(UnreadableSource, match="holds no text"):
        list(read_file(SourceFile(file, "two.pdf", 1)))


def pdf(*pages: str) -> bytes:
    """A small PDF with a line of text on each page (ISO 32000-1, section 7.5)."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for n, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        box = "/MediaBox [0 0 612 792]"
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} {font} /Contents {5 + 2 * n} 0 R >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    tail = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return out + f"{tail}startxref\n{len(out)}\n%%EOF\n".encode()


async def test_the_commands_work_on_any_store(store: EmbeddedIndex, folder: Path) -> None:
    """add, list, show, search, delete and drop do what `phloem index` says."""
    report = await admin.add([folder], index="h", store=store)
    assert report.progress.added == 8
    assert [info.name for info in await admin.list_indexes(store=store)] == ["h"]
    details = await admin.show("h", sample=2, store=store)
    assert (details.info.documents, len(details.sample)) == (8, 2)
    assert str(store.root) in details.source
    hits = await admin.search(Query("parcels kg", index="h"), store=store)
    assert hits[0].id == "handbook/page.html"
    assert await admin.delete(["r1", "none"], index="h", store=store) == 1
    again = await admin.rebuild([folder], index="h", store=store)
    assert again.progress.added == 8
    assert "embedded" in await admin.check(store=store)
    await admin.drop("h", store=store)
    with pytest.raises(IndexNotFound):
        await admin.show("h", store=store)


async def test_the_default_store_is_closed_after_a_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a store the commands use the one that the environment names."""
    for name in ("PHLOEM_ES_URL", "PHLOEM_OPENSEARCH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PHLOEM_INDEX_DIR", str(tmp_path / "here"))
    await admin.add([folder], index="h")
    assert (tmp_path / "here" / "h" / "current").exists()
    assert len(await admin.search(Query("parcels", index="h"))) == 1


async def test_a_chunking_that_can_t_work_is_refused() -> None:
    """An overlap as large as the chunk is an error."""
    with pytest.raises(ConfigError, match="overlap"):
        Chunking(size=100, overlap=100)


async def test_ingestion_into_a_server(server_url: str, folder: Path, index: str) -> None:
    """The same files go into a server, again without a second store."""
    server = ElasticsearchRetriever(server_url)
    try:
        assert counts(await add_files(server, [folder], index=index)) == (8, 0, 0, 0)
        assert counts(await add_files(server, [folder], index=index)) == (0, 8, 0, 0)
        (folder / "refunds.md").write_text("# Refunds\nTen days.\n")
        assert counts(await add_files(server, [folder], index=index)) == (1, 6, 2, 0)
        with pytest.raises(RetrievalError):
            await admin.show(f"{index}-none", store=server)
    finally:
        await server.drop(index)
        await server.aclose()
