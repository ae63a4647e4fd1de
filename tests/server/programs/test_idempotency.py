"""Requests that are sent again with their key: one run, and one answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from phloem.programs.testing import ScriptedBackend
from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS
from tests.server.programs.test_runs import events


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(tiny(), PROGRAMS) as running:
        yield running


def test_an_idempotency_key_starts_one_run(server: Running) -> None:
    """The same key and body give the same run; the same key with another body is a 409."""
    headers = {"idempotency-key": "k1"}
    url = "/v1/programs/story/runs"
    body = {"args": {"topic": "sea"}}
    first = server.client.post(url, json=body, headers=headers).json()
    again = server.client.post(url, json=body, headers=headers).json()
    assert first == again
    other = server.client.post(url, json={"args": {"topic": "x"}}, headers=headers)
    assert other.status_code == 409
    assert "new key" in other.json()["error"]["hint"]


def test_a_key_goes_on_with_a_run_that_lost_its_client() -> None:
    """Who sends a request again whose connection broke gets that run, gone on with, and no other;
    a run that was cancelled on purpose stays so."""
    going = threading.Event()

    async def gate() -> None:
        await asyncio.to_thread(going.wait, 20)

    url, headers = "/v1/programs/story/runs", {"idempotency-key": "k"}
    body = {"args": {"topic": "sea"}}
    with serving(ScriptedBackend(lambda *_: "text", gate=gate), PROGRAMS) as server:
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(url, json=body, headers=headers, timeout=0.3)
        [lost] = server.client.get("/v1/runs").json()["data"]
        assert server.settled(lost["id"])["status"] == "cancelled"
        going.set()
        reply = server.client.post(url, json=body, headers=headers)
        assert (reply.status_code, reply.json()["status"]) == (200, "succeeded")
        assert (reply.json()["id"], reply.json()["attempt"]) == (lost["id"], 2)
        going.clear()
        headers = {"idempotency-key": "other"}
        asked = body | {"background": True}
        run = server.client.post(url, json=asked, headers=headers).json()["id"]
        server.client.post(f"/v1/runs/{run}/cancel")
        again = server.client.post(url, json=asked, headers=headers).json()
        going.set()
        assert (again["id"], again["status"], again["attempt"]) == (run, "cancelled", 1)


@pytest.mark.parametrize(
    ("program", "body", "status"),
    [
        ("broken", {"args": {"key": "x"}}, 422),
        ("endless", {"deadline_s": 0.2}, 504),
        ("growing", {"args": {"times": 9000}}, 400),
    ],
)
def test_a_key_repeats_an_error_with_its_status(
    server: Running, program: str, body: dict[str, Any], status: int
) -> None:
    """The second answer to a request that failed is the first."""
    url, headers = f"/v1/programs/{program}/runs", {"idempotency-key": f"error-{status}"}
    first, again = (server.client.post(url, json=body, headers=headers) for _ in range(2))
    assert first.status_code == again.status_code == status
    assert first.json()["error"]["code"] == again.json()["error"]["code"]
    assert first.headers["x-run-id"] == again.headers["x-run-id"]


def test_a_key_repeats_a_stream_too(server: Running) -> None:
    """Who asks for a stream again after its run is over gets the same events."""
    headers = {"idempotency-key": "k3"}
    body = {"args": {"topic": "sea"}, "stream": True}
    first, again = (
        server.client.post("/v1/programs/story/runs", json=body, headers=headers) for _ in range(2)
    )
    assert events(first.text) == events(again.text)
    assert events(again.text)[-1][1] == "done"


def test_requests_of_one_key_that_come_at_once_start_one_run(server: Running) -> None:
    """Of eight equal requests at once with one key, all get the same run."""

    def one(_: int) -> str:
        reply = server.client.post(
            "/v1/programs/story/runs",
            json={"args": {"topic": "sea"}},
            headers={"idempotency-key": "k2"},
        )
        return str(reply.json()["id"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(one, range(8)))) == 1


GRAPH = {"start": "say", "nodes": {"say": {"type": "append", "text": "a"}}}


def _rewind(server: Running) -> tuple[str, dict[str, Any], dict[str, Any]]:
    run = server.client.post("/v1/programs/story/runs", json={"args": {"topic": "sea"}}).json()
    path = f"/v1/runs/{run['id']}/rewind"
    return path, {"json": {"path": "", "seq": 0}}, {"json": {"path": "", "seq": 1}}


def _graph(server: Running) -> tuple[str, dict[str, Any], dict[str, Any]]:
    other = {"graph": GRAPH, "args": {"x": 1}}
    return "/v1/graphs/runs", {"json": {"graph": GRAPH}}, {"json": other}


def _batch(server: Running) -> tuple[str, dict[str, Any], dict[str, Any]]:
    lines = '{"topic": "sea"}\n{"topic": "sky"}\n'
    return "/v1/batches?program=story", {"content": lines}, {"content": lines[:17]}


@pytest.mark.parametrize("kind", [_rewind, _graph, _batch])
def test_whatever_begins_runs_does_so_once_for_a_key(server: Running, kind: Any) -> None:
    """Rewinds, graphs and batches that are sent again, or twice at once, begin once; a key that
    comes with something else is a 409, and without a key each request begins anew."""
    url, body, other = kind(server)
    headers = {"idempotency-key": f"once {kind.__name__}"}

    def send(_: int, headers: dict[str, str] = headers) -> str:
        reply = server.client.post(url, **body, headers=headers)
        assert reply.status_code in (200, 202), reply.text
        return str(reply.json()["id"])

    with ThreadPoolExecutor(4) as pool:
        first = set(pool.map(send, range(4)))
    assert len(first) == 1
    assert first == {send(0)}
    again = server.client.post(url, **other, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert len({send(0, {}), send(0, {})} | first) == 3
