"""`phloem index` on both kinds of store, and what a killed one leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phloem.retrieval import ElasticsearchRetriever, EmbeddedIndex
from phloem.retrieval.admin import Store
from phloem.server.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def phloem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs the command line in this process: (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PHLOEM_INDEX_DIR", str(tmp_path / "indexes"))

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, captured.out, captured.err

    return run


@pytest.fixture(params=["embedded", "server"])
def where(request: pytest.FixtureRequest, index: str) -> Iterator[list[str]]:
    """The options that choose a store."""
    if request.param == "embedded":
        yield []
        return
    url = request.getfixturevalue("server_url")
    yield ["--es-url", url]

    async def clean() -> None:
        store = ElasticsearchRetriever(url)
        for info in await store.indexes():
            if info.name.startswith(index):
                await store.drop(info.name)
        await store.aclose()

    asyncio.run(clean())


def test_the_whole_way_of_an_index(
    phloem: Command, where: list[str], index: str, tmp_path: Path
) -> None:
    """create, add, list, search, show, rebuild and delete work on either store."""
    (tmp_path / "fields.py").write_text(
        "from datetime import date\nfrom pydantic import BaseModel\n\n"
        "class Fields(BaseModel):\n    day: date\n"
    )
    assert phloem("index", "create", index, "--fields", "fields.py:Fields", *where)[0] == 0
    rows = [{"id": f"n{n}", "text": f"note {n} on tea", "day": "2024-05-01"} for n in range(3)]
    file = tmp_path / "notes.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = phloem("index", "add", file, "-i", index, *where)
    assert (code, "3 passages added" in out, "passages/s" in out) == (0, True, True)
    assert f"{index}  3 documents" in phloem("index", "list", *where)[1]
    assert "note 1" in phloem("index", "search", "tea 1", "-i", index, "-k", "1", *where)[1]
    assert "3 documents" in phloem("index", "show", index, *where)[1]
    file.write_text(json.dumps(rows[0]))
    assert "1 passages added" in phloem("index", "rebuild", file, "-i", index, *where)[1]
    assert f"{index}  1 documents" in phloem("index", "list", *where)[1]
    assert phloem("index", "delete", index, *where)[0] == 0
    assert index not in phloem("index", "list", *where)[1]


@pytest.mark.parametrize("named", ["fields.py", "fields.py:Nix", "fields.py:number", "nix.py:A"])
def test_fields_that_are_none(phloem: Command, tmp_path: Path, index: str, named: str) -> None:
    """`--fields` that names no class ends with a message and makes nothing."""
    (tmp_path / "fields.py").write_text("number = 1\n")
    code, _, said = phloem("index", "create", index, "--fields", named)
    assert code == 2
    assert "FILE.py" in said
    assert index not in phloem("index", "list")[1]


def test_documents_that_a_server_refuses_are_named(
    phloem: Command, server_url: str, index: str, tmp_path: Path
) -> None:
    """What does not fit the field types is named with the reason; the rest is stored."""
    (tmp_path / "fields.py").write_text(
        "from pydantic import BaseModel\n\nclass Fields(BaseModel):\n    year: int\n"
    )
    phloem("index", "create", index, "--fields", "fields.py:Fields", "--es-url", server_url)
    rows = [{"id": "good", "text": "x", "year": 1}, {"id": "bad", "text": "x", "year": "soon"}]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, said = phloem("index", "add", "notes.jsonl", "-i", index, "--es-url", server_url)
    assert code != 0
    assert "1 passages added" in out
    assert "1 could not be added" in said
    assert "#bad" in said or "bad:" in said
    phloem("index", "delete", index, "--es-url", server_url)


def test_a_killed_add_goes_on_where_it_stopped(
    phloem: Command, where: list[str], index: str, tmp_path: Path, server_url: str
) -> None:
    """After kill -9 the same command stores what is missing, and nothing twice."""
    documents = 1_200 if where else 2_000
    rows = ({"id": f"n{n}", "text": f"note {n} on tea"} for n in range(documents))
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["index", "add", "notes.jsonl", "-i", index, *where]
    code = f"from phloem.server.cli import main; main({words!r})"
    adding = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    stored = asyncio.run(_stored_some(where, index, tmp_path, server_url))
    adding.kill()
    adding.wait()
    assert stored < documents
    code_, out, _ = phloem(*words)
    assert code_ == 0
    counts = dict(zip(["added", "unchanged"], _numbers(out), strict=False))
    assert counts["unchanged"] >= stored
    assert counts["added"] > 0
    assert counts["added"] == documents - counts["unchanged"]
    assert f"{index}  {documents} documents" in phloem("index", "list", *where)[1]


async def _stored_some(where: list[str], index: str, folder: Path, url: str) -> int:
    """How many documents were there when the first had come."""
    store: Store = ElasticsearchRetriever(url) if where else EmbeddedIndex(folder / "indexes")
    try:
        for _ in range(1_000):
            found = {info.name: info.documents for info in await store.indexes()}
            if found.get(index):
                return found[index]
            await asyncio.sleep(0.02)
    finally:
        await store.aclose()
    raise AssertionError("nothing was stored")


def _numbers(line: str) -> list[int]:
    return [int(word) for word in line.split(": ")[1].replace(",", "").split() if word.isdigit()]
