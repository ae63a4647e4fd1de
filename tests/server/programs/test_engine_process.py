"""The engine's process is killed under a server, for real: what clients see of it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import phloem as ph
from phloem.programs import registry
from phloem.programs.api.tools import tool
from phloem.runtime.embedded import EmbeddedBackend
from phloem.runtime.host.backend import HostedBackend, Loader
from phloem.runtime.host.supervisor import Limits
from phloem.server.http import serve
from phloem.server.settings import load_settings
from tests.server.harness import Running, serving

NOTES: list[str] = []


@tool
def note(line: str) -> int:
    """Write a line down."""
    NOTES.append(line)
    return len(line)


@ph.function
def steady(s: ph.State, number: int) -> list[str]:
    """Three steps, a note after each."""
    for step in range(3):
        said = ph.gen(f"x{step}", max_tokens=60, temperature=0, ignore_eos=True)
        s += f"{number}.{step}: " + said
        note(f"{number}.{step}")
    return [s[f"x{step}"] for step in range(3)]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server on the tiny model in a child process."""
    limits = Limits(stuck_s=5.0, stable_s=0.0)
    backend = HostedBackend(Loader("phloem.runtime.model.tiny:tiny_model"), limits=limits)
    with serving(backend, [steady]) as running:
        yield running


def kill(server: Running, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the engine's process."""
    supervisor = server.state.engine.supervisor
    assert supervisor is not None
    with contextlib.suppress(ProcessLookupError):  # it is being replaced just now
        os.kill(supervisor.pid or 0x7FFFFFFF, how)


def wait(server: Running, ready: bool) -> dict[str, Any]:
    """Wait until /ready says so; the server answers all the while."""
    until = time.monotonic() + 60
    while True:
        reply = server.client.get("/ready")
        assert server.client.get("/health").status_code == 200
        if (reply.status_code == 200) == ready:
            found: dict[str, Any] = reply.json()
            return found
        assert time.monotonic() < until, reply.text
        time.sleep(0.01)


def computing(server: Running) -> None:
    """Wait until the engine has begun with a step."""
    supervisor = server.state.engine.supervisor
    assert supervisor is not None
    until = time.monotonic() + 60
    while not len(supervisor.inflight):
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.fixture(scope="module")
def expected(server: Running) -> list[list[str]]:
    """What undisturbed runs return."""
    return [server.settled(run, seconds=300)["value"] for run in begun(server, 6)]


def begun(server: Running, count: int) -> list[str]:
    """The ids of so many background runs; every sixth is the same."""
    bodies = [{"args": {"number": n % 6}, "background": True} for n in range(count)]
    return [server.run("steady", **body).json()["id"] for body in bodies]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def survive(server: Running, expected: list[list[str]], count: int, kills: int) -> None:
    """`count` background runs, `kills` kills at random moments: all end as if nothing had
    happened, and no tool is called twice."""
    NOTES.clear()
    draw = random.Random(kills)
    runs = begun(server, count)
    restarts = server.state.engine.supervisor.restarts
    for _ in range(kills):
        wait(server, True)
        time.sleep(draw.uniform(0.05, 0.4))
        noticed = restarts.total()
        kill(server)
        # Else the next kill may meet the same process, which is dead already.
        while restarts.total() == noticed:
            time.sleep(0.005)
    found = [server.settled(run, seconds=120) for run in runs]
    assert [one["status"] for one in found] == ["succeeded"] * count
    assert [one["value"] for one in found] == [expected[n % 6] for n in range(count)]
    assert Counter(NOTES) == Counter(f"{n % 6}.{step}" for n in range(count) for step in range(3))


def test_background_runs_survive_kills_of_the_engine(server, expected):
    """Results equal those of undisturbed runs, and each tool was called once."""
    before = server.metric("phloem_engine_process_restarts_total", reason="crashed")
    survive(server, expected, count=6, kills=2)
    after = server.metric("phloem_engine_process_restarts_total", reason="crashed")
    assert after == before + 2


@pytest.mark.slow
def test_40_runs_survive_10_kills_of_the_engine(server, expected):
    """The same with 40 runs and 10 kills."""
    survive(server, expected, count=40, kills=10)


@pytest.mark.slow
def test_runs_survive_an_engine_that_hangs(server, expected, pool):
    """A hung engine is noticed and replaced, and the run goes on."""
    before = server.metric("phloem_engine_process_restarts_total", reason="stuck")
    run = pool.submit(server.run, "steady", args={"number": 1})
    computing(server)
    kill(server, signal.SIGSTOP)
    assert run.result().json()["value"] == expected[1]
    assert server.metric("phloem_engine_process_restarts_total", reason="stuck") > before


def test_who_waits_is_answered_as_if_nothing_had_happened(server, expected, pool):
    """A run that is waited for is replayed; /ready says meanwhile that there is no engine, and
    requests that come then wait for the next."""
    runs = [pool.submit(server.run, "steady", args={"number": n}) for n in range(2)]
    computing(server)
    kill(server)
    assert wait(server, False)["model"] == "restarting"
    late = server.chat()
    assert late.status_code == 200
    wait(server, True)
    assert [run.result().json()["value"] for run in runs] == expected[:2]


@pytest.mark.slow
def test_a_run_that_loses_every_engine_fails(server, pool):
    """It may be what kills them, so it is not repeated for ever."""
    before = server.metric("phloem_engine_process_restarts_total", reason="crashed")
    run = pool.submit(server.run, "steady", args={"number": 1})
    while not run.done():
        if len(server.state.engine.supervisor.inflight):
            kill(server)
        time.sleep(0.01)
    assert run.result().json()["error"]["code"] == "engine_restarted"
    wait(server, True)
    after = server.metric("phloem_engine_process_restarts_total", reason="crashed")
    assert after == before + 3


def test_a_request_that_nothing_came_of_is_done_once_more(server, pool):
    """One whose engine dies before its first token is answered by the next engine."""
    quiet = server.chat(max_tokens=8).json()["choices"][0]["message"]
    kill(server, signal.SIGSTOP)
    waiting: Future[httpx.Response] = pool.submit(server.chat, max_tokens=8)
    computing(server)
    kill(server)
    assert waiting.result().json()["choices"][0]["message"] == quiet
    wait(server, True)


def test_requests_that_something_came_of_are_told_to_come_again(server, pool):
    """A chat request that had tokens is a 503 with Retry-After, or, streamed, an error event."""
    long = {"max_tokens": 3000, "ignore_eos": True}
    waiting: Future[httpx.Response] = pool.submit(server.chat, **long)
    body = server.chat_body(stream=True, **long)
    with server.client.stream("POST", "/v1/chat/completions", json=body) as stream:
        lines = stream.iter_lines()
        texts = (line for line in lines if '"content":"' in line and "role" not in line)
        for _ in range(20):
            next(texts)
        kill(server)
        rest = [line for line in lines if line.startswith("data: ")]
    assert json.loads(rest[-2][6:])["error"]["code"] == "engine_restarted"
    assert rest[-1] == "data: [DONE]"
    reply = waiting.result()
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "engine_restarted"
    assert int(reply.headers["retry-after"]) >= 1
    wait(server, True)
    assert server.chat().status_code == 200


def read_and_kill(server: Running, reply: httpx.Response) -> list[dict[str, str]]:
    """A stream's events. The engine is killed when the first token is here."""
    events: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    for line in reply.iter_lines():
        name, _, value = line.partition(": ")
        if name in {"id", "event", "data"}:
            fields[name] = value
        elif not line and fields:
            events.append(fields)
            if [one["event"] for one in events].count("token") == 1 and fields["event"] == "token":
                kill(server)
            fields = {}
    return events


def test_a_stream_that_has_told_text_ends_with_the_error(server, expected):
    """What was read can't be taken back: the stream ends with the error, and the run may be
    resumed."""
    body = {"args": {"number": 2}, "stream": True}
    with server.client.stream("POST", "/v1/programs/steady/runs", json=body) as reply:
        run = reply.headers["x-run-id"]
        events = read_and_kill(server, reply)
    names = [one["event"] for one in events]
    assert names[-2:] == ["error", "done"]
    assert json.loads(events[-2]["data"])["code"] == "engine_restarted"
    assert "restarted" not in names
    assert server.client.post(f"/v1/runs/{run}/resume", json={}).status_code == 202
    assert server.settled(run, seconds=120)["value"] == expected[2]


def test_a_reader_of_a_background_run_sees_the_new_attempt(server, expected):
    """Events of a run go on with "restarted" and the next attempt's, from its first."""
    run = server.run("steady", args={"number": 3}, background=True).json()["id"]
    with server.client.stream("GET", f"/v1/runs/{run}/events") as reply:
        events = read_and_kill(server, reply)
    names = [one["event"] for one in events]
    ids = [one["id"].split("-") for one in events]
    first = names.index("restarted")
    assert [one[0] for one in ids] == ["1"] * first + ["2"] * (len(ids) - first)
    assert [int(one[1]) for one in ids[first:]] == list(range(len(ids) - first))
    assert names[-1] == "done"
    assert server.settled(run, seconds=120)["value"] == expected[3]


def test_a_process_of_its_own_is_the_default(monkeypatch):
    """`phloem serve` makes the hosted engine unless told otherwise, and starts nothing yet."""
    for table in ("_makers", "_made"):
        monkeypatch.setattr(registry, table, {})
    backend = serve._backend(load_settings())
    assert isinstance(backend, HostedBackend)
    assert backend.supervisor.pid is None
    registry.reset("backend")
    assert isinstance(serve._backend(load_settings(engine_process=False)), EmbeddedBackend)
