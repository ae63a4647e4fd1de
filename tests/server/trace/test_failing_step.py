"""The step that fails, found again in the trace; and every source of traces tells the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from phloem.errors import ConfigError, JournalError, RetrievalUnavailable
from phloem.programs import registry
from phloem.retrieval.base import Hits, Query
from phloem.server.cli import main
from phloem.server.cli.app import app
from phloem.server.journal.store import Store
from phloem.server.trace.options import SinkSpec
from phloem.server.trace.reader import Facets, TraceFilter, TraceNotFound, TraceReader
from phloem.server.trace.readers.elastic import ElasticReader
from phloem.server.trace.readers.journal import JournalReader
from phloem.server.trace.readers.jsonl import JsonlReader
from phloem.server.trace.readers.opened import open_reader
from phloem.server.trace.readers.remote import RemoteReader
from phloem.server.trace.record import run_from_json, to_json
from phloem.server.trace.sinks.elastic import connect
from phloem.server.trace.steps import steps_of
from tests.retrieval.conftest import TestServer
from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS
from tests.server.trace.failing import helpdesk
from tests.server.trace.support import jsonl, proxying

LINE = 15
"""Of the retrieval in failing.py."""


class Unreachable:
    """A retriever that nobody answers."""

    async def search(self, query: Query) -> Hits:
        try:
            raise ConnectionRefusedError("port 9200 refused")
        except ConnectionRefusedError as error:
            raise RetrievalUnavailable(f"nobody answers for index {query.index}") from error

    async def aclose(self) -> None:
        pass


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path, str]]:
    """A server with a journal, a folder of traces and an Elasticsearch that saw the same runs:
    one that fails at its third step, one that forks, one that ends well."""
    folder = tmp_path_factory.mktemp("traces")
    search = TestServer(folder / "noida")
    registry.set_default("retriever", Unreachable())
    with serving(tiny(), [helpdesk, *PROGRAMS], journal=folder / "runs.db") as running:
        sinks = (jsonl(folder / "jsonl"), SinkSpec("es", search.url))
        settings = {"spool": folder / "spool"}
        with (
            proxying(running.url, *sinks, **settings) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            for program, args in (
                ("story", {"topic": "sea"}),
                ("branches", {"count": 2}),
                ("helpdesk", {"question": "Why é?", "api_token": "canary-args-1234"}),
            ):
                client.post(f"/v1/programs/{program}/runs", json={"args": args})
        connect(search.url).indices.refresh(index="phloem-traces-*")
        yield running, folder, search.url
    registry.reset("retriever")
    search.stop()


def readers(recorded: tuple[Running, Path, str]) -> dict[str, TraceReader]:
    running, folder, search = recorded
    return {
        "jsonl": JsonlReader(folder / "jsonl"),
        "elasticsearch": ElasticReader(search),
        "server": RemoteReader(running.url),
    }


def phloem(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", *arguments], env={"COLUMNS": "400"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_show_names_the_failing_step(recorded: tuple[Running, Path, str]) -> None:
    """Program, node, file and line with its source, the cause, and the variables."""
    _, folder, _ = recorded
    code, shown = phloem("show", str(folder / "jsonl"), "last")
    assert code == 0
    assert "failed" in shown
    assert "program: helpdesk" in shown
    assert "node: retrieve:found" in shown
    assert f"failing.py:{LINE}" in shown
    assert f">   {LINE}" in shown
    assert 'found = ph.retrieve("found"' in shown
    assert "RetrievalUnavailable: " in shown
    assert "cause: ConnectionRefusedError: port 9200 refused" in shown
    assert "tries: 8" in shown
    assert "question: Why é?" in shown
    lines = shown.splitlines()
    assert [line.split()[1] for line in lines if "── gen " in line or "── retrieve " in line] == [
        "gen", "gen", "retrieve"
    ]  # fmt: skip
    assert "canary-args-1234" not in shown


def test_the_trace_holds_the_state_machine(recorded: tuple[Running, Path, str]) -> None:
    """Each step has its node, its line, its prompt, and the variables before and after it."""
    _, folder, _ = recorded
    reader = JsonlReader(folder / "jsonl")
    [line] = reader.list(TraceFilter(program="helpdesk")).items
    run = reader.get(line.id)
    intent, wording, found = steps_of(run)
    assert (intent.name, intent.seq, wording.seq, found.seq) == ("intent", 0, 1, None)
    assert intent.before["question"] == "Why é?"
    assert "intent" not in intent.before
    assert intent.after["intent"] == intent.text == wording.before["intent"]
    assert wording.prompt.startswith(intent.prompt + intent.text)
    assert wording.reused_chars is not None
    assert 0 < wording.reused_chars < len(wording.prompt)
    assert found.error is not None
    assert found.error[0] == "RetrievalUnavailable"
    assert found.line == LINE
    assert run.error is not None
    assert run.error.cause == "ConnectionRefusedError: port 9200 refused"
    assert run.exchanges[0].program == "helpdesk"
    assert run.graph is not None
    assert run_from_json(json.loads(json.dumps(to_json(run)))) == run
    assert "canary-args-1234" not in json.dumps(to_json(run))


def test_branches_have_lanes_of_their_own(recorded: tuple[Running, Path, str]) -> None:
    """Steps of a fork know their branch, and begin with the trunk's text."""
    _, folder, _ = recorded
    reader = JsonlReader(folder / "jsonl")
    [line] = reader.list(TraceFilter(program="branches")).items
    steps = steps_of(reader.get(line.id))
    assert [step.path for step in sorted(steps, key=lambda one: one.path)] == ["0", "1"]
    assert all(step.prompt.startswith("Begin.") for step in steps)


def test_every_source_tells_the_same(recorded: tuple[Running, Path, str]) -> None:
    """Lists, filters, pages, facets and single traces of all readers agree."""
    filters = (
        (TraceFilter(), ["helpdesk", "branches", "story"]),
        (TraceFilter(program="story"), ["story"]),
        (TraceFilter(status="failed"), ["helpdesk"]),
        (TraceFilter(error_type="RetrievalUnavailable"), ["helpdesk"]),
        (TraceFilter(text="why"), ["helpdesk"]),
        (TraceFilter(min_ms=10_000_000), []),
        (TraceFilter(kind="conversation"), []),
    )
    for name, reader in readers(recorded).items():
        for wanted, programs in filters:
            wanted = replace(wanted, kind=wanted.kind or "run")
            found = [one.program for one in reader.list(wanted).items]
            assert found == programs, (name, wanted)
        first = reader.list(TraceFilter(kind="run"), limit=2)
        rest = reader.list(TraceFilter(kind="run"), limit=2, cursor=first.next)
        both = [one.program for one in (*first.items, *rest.items)]
        assert both == ["helpdesk", "branches", "story"], name
        assert rest.next is None
        facets = reader.facets()
        assert facets == Facets(
            ("branches", "helpdesk", "story"), ("failed", "succeeded"), facets.error_types
        )
        assert "RetrievalUnavailable" in facets.error_types
        run = reader.get(first.items[0].id)
        assert run.error is not None
        assert (run.error.node, run.error.line) == ("retrieve:found", LINE), name
        with pytest.raises(TraceNotFound):
            reader.get("run_00")
        with pytest.raises(ConfigError, match="cursor"):
            reader.list(TraceFilter(), cursor="x")


def test_the_journal_alone_is_a_source(recorded: tuple[Running, Path, str]) -> None:
    """The journal's file needs no proxy and no server."""
    _, folder, _ = recorded
    store = Store(folder / "runs.db")
    reader = JournalReader(store)
    page = reader.list(TraceFilter(text="é"))
    assert [one.program for one in page.items] == ["helpdesk"]
    assert page.total == 1
    run = reader.get(page.items[0].id)
    assert run.error is not None
    assert (run.error.type, run.error.line) == ("RetrievalUnavailable", LINE)
    assert [step.name for step in steps_of(run)] == ["intent", "wording", "found"]
    assert JournalReader(store, caller="somebody").list(TraceFilter()).items == ()
    store.close()


def test_list_diff_replay_and_export(recorded: tuple[Running, Path, str], tmp_path: Path) -> None:
    """The commands work on what was recorded; two runs that differ make exit code 1."""
    running, folder, _ = recorded
    source = str(folder / "jsonl")
    code, shown = phloem("list", source, "--status", "failed")
    assert code == 0
    assert shown.count("run_") == 1
    run = JsonlReader(folder / "jsonl").list(TraceFilter(program="story")).items[0].id
    code, shown = phloem("replay", source, run, "--upstream", running.url)
    assert code in {0, 1}
    assert shown.count("/v1/programs/story/runs") == 2
    code, shown = phloem("diff", source, run, run)
    assert code == 0
    assert [line[0] for line in shown.splitlines()] == ["=", "="]
    code, shown = phloem("diff", source, run, "last")
    assert code == 1
    assert "status: succeeded -> failed" in shown
    for name in ("trace.html", "trace.json"):
        code, _ = phloem("export", source, "last", "--out", str(tmp_path / name))
        assert code == 0
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "RetrievalUnavailable" in text
        assert "canary-args-1234" not in text
    with pytest.raises(ConfigError, match="neither"):
        phloem("export", source, "last", "--out", str(tmp_path / "trace.txt"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "list", "/no/such/place"],
        ["trace", "list", ".", "--status", "great"],
        ["trace-proxy", "--upstream", "nowhere", "--to", "stdout"],
        ["trace-proxy", "--upstream", "http://h", "--to", "printer"],
        ["trace-proxy", "--upstream", "http://h", "--to", "stdout", "--bodies", "2"],
        ["trace-proxy", "--upstream", "http://h", "--to", "stdout", "--listen", "h"],
    ],
)
def test_what_can_not_work_is_said(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong sources, sinks, addresses and shares end with code 2 and a message."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_sources_are_opened_by_their_kind(
    recorded: tuple[Running, Path, str], tmp_path: Path
) -> None:
    """A folder, a journal, a server and Elasticsearch are told apart."""
    running, folder, search = recorded
    assert isinstance(open_reader(str(folder / "jsonl"), {}), JsonlReader)
    assert isinstance(open_reader(running.url, {}), RemoteReader)
    assert isinstance(open_reader(search, {}), ElasticReader)
    assert isinstance(open_reader(f"es:{search}", {}), ElasticReader)
    (tmp_path / "bad.jsonl").write_text("no trace\n")
    with pytest.raises(JournalError, match="no trace"):
        open_reader(str(tmp_path), {}).list(TraceFilter())
