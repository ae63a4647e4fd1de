"""The pages through the application: what they hold, who sees them, and that no text is markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

import phloem as ph
from phloem.programs import registry
from phloem.programs.testing import ScriptedBackend
from phloem.retrieval.base import Document
from phloem.retrieval.testing import FakeRetriever
from phloem.server.http.keys import hash_key
from phloem.server.journal.schema import runs
from phloem.server.journal.store import Store
from phloem.server.programs.rows import RunRow
from phloem.server.trace.readers.journal import JournalReader
from phloem.server.trace.readers.jsonl import JsonlReader
from phloem.server.viewer import render_run
from phloem.server.viewer.app import create_viewer
from phloem.server.viewer.panels import Story
from phloem.server.viewer.render import CHUNK
from tests.server.harness import serving, tiny
from tests.server.viewer.samples import HOSTILE, exchange, folder_of, hostile_run, long_run


@ph.function
def program(s: ph.State, topic: str) -> str:
    """Says something."""
    s += topic + ": " + ph.gen("said")
    if s["said"] == "fail":
        raise ValueError("told to fail")
    return s["said"]


class Seen(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """The viewer over a folder with a hostile run, a long one and a foreign conversation."""
    said = [{"role": "user", "content": HOSTILE}]
    folder = folder_of(tmp_path, [hostile_run(), long_run(500), exchange(0, said, HOSTILE)])
    with TestClient(create_viewer(JsonlReader(folder))) as client:
        yield client


def test_no_text_is_ever_markup(client: TestClient) -> None:
    """Hostile names, prompts, hits, sources and errors stay text on every page."""
    story = Story(hostile_run())
    paths = ["traces/list", f"traces/list?q={HOSTILE[:20]}", "traces/runs/run_hostile"]
    paths += ["traces/runs/run_hostile/rows/0", "traces/runs/conv_1", "traces/runs/conv_1/rows/0"]
    paths += [f"traces/runs/run_hostile/panels/{name}" for name in story.panels]
    paths += [f"traces/runs/conv_1/panels/{name}" for name in ("run", "exchanges/0")]
    paths += ["traces/compare?old=run_hostile&new=run_hostile"]
    paths += ["traces/compare?old=run_hostile&new=run_long"]
    told = 0
    for path in paths:
        reply = client.get(path)
        assert reply.status_code == 200, path
        seen = Seen(reply.text)
        assert not {"script", "img", "style", "iframe"} & set(seen.tags), path
        assert not [name for name, _ in seen.attributes if name.startswith("on")], path
        told += "&lt;script&gt;document.title" in reply.text
    assert told > len(paths) / 2


def test_pages_allow_no_foreign_script(client: TestClient) -> None:
    """The policy of every page allows scripts and styles of the server only."""
    shell = client.get("traces")
    assert shell.headers["content-security-policy"].startswith("default-src 'self'")
    assert not [value for name, value in Seen(shell.text).attributes if value.startswith("http")]
    for name in ("traces.js", "traces.css"):
        assert f"static/traces/{name}" in shell.text
        assert client.get(f"static/traces/{name}").status_code == 200
    assert client.get("static/traces/..%2Froutes.py").status_code == 404


def test_a_file_needs_nothing_else() -> None:
    """The standalone page holds all panels, refers to nothing, and runs its own script only."""
    run = hostile_run()
    html = render_run(run, standalone=True)
    seen = Seen(html)
    assert seen.tags.count("script") == 1
    assert "img" not in seen.tags
    assert not [v for n, v in seen.attributes if n in {"src", "href"} and not v.startswith("#")
                and v != "data:,"]  # fmt: skip
    script = re.search(r"<script>(.*)</script>", html, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    stored = [value for name, value in seen.attributes if name == "data-name"]
    assert set(Story(run).panels) | {"rows/0"} == set(stored)
    assert "<article" in render_run(run, standalone=False)


@pytest.mark.parametrize(
    ("source", "linked"), [("http://a:1", True), ("javascript:alert(1)", False), (None, False)]
)
def test_a_trace_of_a_server_leads_there(source: str | None, linked: bool) -> None:
    """A run that can be rewound elsewhere links to that page, if its source is an address."""
    page = render_run(replace(long_run(1), source=source), standalone=False)
    assert ('href="http://a:1/traces?run=run_long"' in page) == linked
    assert "javascript:" not in page


def test_a_long_run_comes_in_pieces(client: TestClient) -> None:
    """The page of a run of 2,000 events holds no row; each piece holds a bounded number."""
    page = client.get("traces/runs/run_long").text
    assert 'data-count="500"' in page
    assert "data-row=" not in page
    piece = client.get("traces/runs/run_long/rows/4").text
    assert piece.count("data-row=") == CHUNK
    assert "data-row=" not in client.get("traces/runs/run_long/rows/5").text
    assert "text 499" in client.get("traces/runs/run_long/panels/steps/499").text


def test_what_is_not_there_is_a_404(client: TestClient) -> None:
    """Unknown traces, panels and bad filters are answered in the API's own shape."""
    for path in ("traces/runs/none", "traces/runs/run_long/panels/steps/500"):
        reply = client.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "trace_not_found")
    for query in ("status=odd", "min_ms=x", "cursor=x"):
        reply = client.get(f"traces/list?{query}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, query.split("=")[0])


def rows(count: int) -> list[dict[str, Any]]:
    """Rows of a journal, a second apart, the last the newest; every tenth failed."""
    found = []
    for number in range(count):
        failed = number % 10 == 0
        row = RunRow(
            id=f"run_{number:05}", program=f"p{number % 3}", program_hash="", graph={},
            fingerprint="", args={"topic": f"topic {number}"}, options={}, seed=1,
            background=False, caller="", trace_id="0" * 32,
            status="failed" if failed else "succeeded",
            created_at=1000.0 + number, finished_at=1000.0 + number + number % 7 / 10,
            result={"value": f"value {number}", "usage": {"generated": number}},
            error={"code": "key_error", "message": "no such key"} if failed else None,
        )  # fmt: skip
        found.append({name: getattr(row, name) for name in row.__slots__})
    return found


def test_ten_thousand_runs_are_paged_and_filtered() -> None:
    """A page holds fifty rows whatever the number of runs, and filters count what they find."""
    store = Store(None)
    store.write(lambda c: c.execute(insert(runs), rows(10_000)) and None).result()
    with TestClient(create_viewer(JournalReader(store))) as client:
        first = client.get("traces/list").text
        assert "10,000 traces" in first
        assert first.count("<tr data-open") == 50
        assert len(first) < 80_000
        older = re.search(r'rel="next" href="traces\?([^"]+)"', first)
        assert older is not None
        second = client.get(f"traces/list?{older[1].replace('&amp;', '&')}").text
        assert "run_09999" in first
        assert "run_09949" not in first
        assert "run_09949" in second
        assert "1,000 traces match" in client.get("traces/list?status=failed").text
        assert "334 traces match" in client.get("traces/list?error=KeyError&program=p0").text
        assert "1 trace match" in client.get("traces/list?q=topic+4711").text
        assert "No trace matches" in client.get("traces/list?min_ms=1000").text
        assert 0 < client.get("traces/list?min_ms=600").text.count("<tr data-open") <= 50
    store.close()


def test_a_server_shows_its_own_runs() -> None:
    """A run of the server is in its list, with its steps, its error and its variables."""
    backend = ScriptedBackend(["sea", "fail"])
    with serving(backend, [program]) as server:
        good = server.run("program", args={"topic": "water"}).json()["id"]
        bad = server.run("program", args={"topic": "fire"}).headers["x-run-id"]
        page = server.client.get("/traces/list").text
        assert page.count("<tr data-open") == 2
        assert "ValueError" in page
        step = server.client.get(f"/traces/runs/{good}/panels/steps/0").text
        assert "water: " in step
        assert 'data-seq="0"' in step
        error = server.client.get(f"/traces/runs/{bad}/panels/error").text
        assert "told to fail" in error
        assert "raise ValueError" in error
        assert 'class="here"' in error
        assert "fire" in error


def test_a_live_run_is_shown_as_far_as_it_is() -> None:
    """A run that goes on has a page with the steps so far, and no rewind."""

    @ph.function
    def waits(s: ph.State) -> None:
        s += "a" + ph.gen("first", max_tokens=2, temperature=0)
        s += "b" + ph.gen("second", max_tokens=3000, ignore_eos=True, temperature=0)

    with serving(tiny(), [waits]) as server:
        run = server.run("waits", background=True).json()["id"]
        until = time.monotonic() + 20
        while True:
            rows = server.client.get(f"/traces/runs/{run}/rows/0").text
            if "second" in rows:
                break
            assert time.monotonic() < until
            time.sleep(0.05)
        assert 'data-status="running"' in server.client.get(f"/traces/runs/{run}").text
        panel = server.client.get(f"/traces/runs/{run}/panels/steps/0").text
        assert "data-seq" not in panel
        server.client.post(f"/v1/runs/{run}/cancel", json={})


def test_keys_hold_for_traces(tmp_path: Path) -> None:
    """The shell is open and empty; everything else needs a key and shows that key's runs only."""
    file = tmp_path / "keys"
    file.write_text(hash_key("a", "ka") + "\n" + hash_key("b", "kb"))
    with serving(ScriptedBackend(["x"]), [program], api_key_file=file) as server:
        mine, other = ({"authorization": f"Bearer {key}"} for key in ("ka", "kb"))
        body = {"args": {"topic": "private"}}
        reply = server.client.post("/v1/programs/program/runs", json=body, headers=mine)
        run = reply.json()["id"]
        shell = server.client.get("/traces")
        assert shell.status_code == 200
        assert 'id="key"' in shell.text
        assert run not in shell.text
        paths = ["list", f"runs/{run}", f"runs/{run}/rows/0", f"runs/{run}/panels/run",
                 f"compare?old={run}&new={run}"]  # fmt: skip
        for path in paths:
            assert server.client.get(f"/traces/{path}").status_code == 401
        assert run in server.client.get("/traces/list", headers=mine).text
        assert run not in server.client.get("/traces/list", headers=other).text
        for path in paths[1:]:
            assert server.client.get(f"/traces/{path}", headers=mine).status_code == 200
            assert server.client.get(f"/traces/{path}", headers=other).status_code == 404


@ph.function
def asks(s: ph.State, topic: str) -> str:
    docs = ph.retrieve("docs", topic, k=2)
    s += docs[0].text + ": " + ph.gen("said")
    return s["said"]


def test_hits_as_the_page_shows_them_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON in a retrieval's form, changed and sent back, is what the new run works with."""
    retriever = FakeRetriever([Document("a", "old words of the sea")])
    monkeypatch.setitem(registry._made, "retriever", retriever)
    backend = ScriptedBackend(lambda prompt, *_: prompt[:9])
    with serving(backend, [asks]) as server:
        run = server.run("asks", args={"topic": "sea"}).json()
        assert run["value"] == "old words"
        panel = server.client.get(f"/traces/runs/{run['id']}/panels/steps/0").text
        form = re.search(r'data-seq="(\d+)".*?<textarea[^>]*>(.*?)</textarea>', panel, re.DOTALL)
        assert form is not None
        hits = json.loads(unescape(form[2]))
        hits[0]["text"] = "new words"
        body = {"path": "", "seq": int(form[1]), "set": hits}
        fresh = server.client.post(f"/v1/runs/{run['id']}/rewind", json=body).json()["id"]
        assert server.settled(fresh)["value"] == "new words"
        page = server.client.get(f"/traces/compare?old={run['id']}&new={fresh}").text
        assert re.search(r'<mark class="gone">\s*old</mark>', page)
        assert re.search(r'<mark class="came">\s*new</mark>', page)
        assert "Compare with the run" in server.client.get(f"/traces/runs/{fresh}").text
