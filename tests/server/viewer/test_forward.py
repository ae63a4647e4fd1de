"""The viewer over a running server: rewinds are passed on to it, from its own pages only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import phloem as ph
from phloem.errors import ConfigError, JournalError
from phloem.server.cli import trace as cli
from phloem.server.cli.app import app
from phloem.server.http.keys import hash_key
from phloem.server.trace.readers.remote import RemoteReader
from phloem.server.viewer.app import create_viewer
from tests.server.harness import Running, serving, tiny


@ph.function
def two(s: ph.State, topic: str) -> str:
    """Two steps."""
    s += ph.user(topic) + ph.assistant(ph.gen("first", max_tokens=3, temperature=0))
    s += ph.user("\nGo <on>.") + ph.assistant(ph.gen("second", max_tokens=3, temperature=0))
    return s["second"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a key and a run."""
    file: Path = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(hash_key("a", "good-key"))
    with serving(tiny(), [two], api_key_file=file) as running:
        running.client.headers["authorization"] = "Bearer good-key"
        running.run("two", args={"topic": "sea"})
        yield running


def viewer(server: Running, host: str = "127.0.0.1", key: str = "good-key") -> TestClient:
    app = create_viewer(RemoteReader(server.url, key), host=host)
    return TestClient(app, base_url="http://127.0.0.1:8200")


def run_id(server: Running) -> str:
    found: str = server.client.get("/v1/runs").json()["data"][-1]["id"]
    return found


def test_a_prompt_is_edited_through_the_viewer(server: Running) -> None:
    """The panel offers the step's own texts as they are, what is sent runs on at the server, and
    both runs are shown side by side with what came from the record."""
    client, run = viewer(server), run_id(server)
    panel = client.get(f"traces/runs/{run}/panels/steps/1").text
    form = re.search(r'<textarea name="prompt"[^>]*>\n(.*?)</textarea>', panel, re.DOTALL)
    assert form is not None
    assert unescape(form[1]) == "\nGo <on>."
    reply = client.post(f"v1/runs/{run}/rewind", json={"path": "", "seq": 1, "prompt": ["Stop."]})
    assert reply.status_code == 202
    fresh = server.settled(reply.json()["id"])
    assert fresh["parent"] == run
    assert "Stop." in fresh["text"]
    page = client.get("traces/compare", params={"old": run, "new": fresh["id"]}).text
    assert page.count("from the record") == 1
    assert page.count("run anew") == 1
    assert re.search(r"<details open>.*?<mark class=\"came\">[^<]*Stop", page, re.DOTALL)
    assert "replayed" in client.get(f"traces/runs/{fresh['id']}/rows/0").text


def test_the_command_line_rewinds(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """`phloem trace rewind` changes a prompt or a value on the server and prints the new run; what
    the server refuses, and a source that is no server, are errors."""
    monkeypatch.setenv("PHLOEM_API_KEY", "good-key")
    here = ["trace", "rewind", server.url, run_id(server)]
    for change, told in (
        (["--seq", "1", "--prompt", "Halt."], "Halt."),
        (["--seq", "0", "--set", "word"], "word"),
    ):
        done = CliRunner().invoke(app, [*here, *change])
        assert done.exit_code == 0, done.output
        assert told in server.settled(done.stdout.strip())["text"]
    with pytest.raises(JournalError, match="changes nothing"):
        cli.rewind(server.url, run_id(server), 1, "", ["-"], None)


def test_kept_traces_are_not_rewound(tmp_path: Path) -> None:
    """A folder of traces has no server behind it."""
    with pytest.raises(ConfigError, match="kept"):
        cli.rewind(str(tmp_path), "last", 0, "", ["x"], None)


def test_a_program_is_run_again_through_the_viewer(server: Running) -> None:
    """Other arguments start a run there; what the server refuses is told as it says it."""
    client = viewer(server)
    reply = client.post("v1/programs/two/runs", json={"args": {"topic": "b"}, "background": True})
    assert server.settled(reply.json()["id"])["args"] == {"topic": "b"}
    refused = client.post(f"v1/runs/{run_id(server)}/rewind", json={"seq": 9})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_step")


def test_only_the_viewers_own_pages_rewind(server: Running) -> None:
    """Another site, another name of this address and a plain form are refused; no run is made."""
    client, path = viewer(server), f"v1/runs/{run_id(server)}/rewind"
    before = len(server.client.get("/v1/runs").json()["data"])
    for headers in (
        {"origin": "http://evil.example"},
        {"host": "evil.example:8200"},
        {"host": "evil.example:8200", "origin": "http://evil.example:8200"},
        {"content-type": "text/plain"},
    ):
        sent = {"content-type": "application/json", **headers}
        reply = client.post(path, content=b'{"seq": 1}', headers=sent)
        assert reply.status_code == 403, headers
    assert len(server.client.get("/v1/runs").json()["data"]) == before


def test_a_viewer_that_others_can_reach_does_not_rewind(server: Running) -> None:
    """Listening on more than the loopback address it passes nothing on, and shows the way."""
    client, run = viewer(server, host="0.0.0.0"), run_id(server)
    panel = client.get(f"traces/runs/{run}/panels/steps/1").text
    assert "<textarea" not in panel
    assert f'href="{server.url}/traces?run={run}"' in panel
    assert client.post(f"v1/runs/{run}/rewind", json={"seq": 1}).status_code == 404
