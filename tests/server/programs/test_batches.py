"""Batches: JSON lines in, JSON lines out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(tiny(), PROGRAMS, max_running=4) as running:
        yield running


def start(server: Running, program: str, lines: list[Any]) -> httpx.Response:
    content = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    return server.client.post(
        "/v1/batches", params={"program": program, "seed": 1}, content=content,
        headers={"content-type": "application/jsonl"},
    )  # fmt: skip


def finished(server: Running, batch: str) -> list[dict[str, Any]]:
    """The result lines once no run is under way."""
    until = time.monotonic() + 20
    while True:
        counts = server.client.get(f"/v1/batches/{batch}").json()["counts"]
        if not {"queued", "running"} & set(counts):
            break
        assert time.monotonic() < until, counts
        time.sleep(0.02)
    text = server.client.get(f"/v1/batches/{batch}/results").text
    return [json.loads(line) for line in text.splitlines()]


def test_lines_come_back_in_order_each_with_its_own_outcome(server: Running) -> None:
    """50 lines, two of them failing: results in order, failures in their own lines."""
    lines = [{"key": "known" if number % 25 else "bad"} for number in range(50)]
    reply = start(server, "broken", lines)
    assert reply.status_code == 202
    assert reply.json()["total"] == 50
    results = finished(server, reply.json()["id"])
    assert [one["line"] for one in results] == list(range(1, 51))
    assert [one["args"] for one in results] == lines
    failed = [one["line"] for one in results if one["status"] == "failed"]
    assert failed == [1, 26]
    assert results[0]["error"]["code"] == "key_error"
    assert {one["value"] for one in results if one["status"] == "succeeded"} == {"value"}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([{"key": "a"}, {"nope": 1}], "line 2: args"),
        ([{"key": "a"}, "not json\n"], "line 2: the body is not JSON"),
        (['{"key": "\\ud800"}\n'], "line 1: the body holds \\ud800"),
        (["[1]\n"], "line 1: it is not a JSON object"),
        ([], "1 to 10000 lines"),
    ],
)
def test_a_bad_line_refuses_the_batch(server: Running, lines: list[Any], says: str) -> None:
    """A line that can't be run is named, and nothing of the batch is started."""
    before = len(server.client.get("/v1/runs", params={"limit": 200}).json()["data"])
    reply = start(server, "broken", lines)
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]
    assert len(server.client.get("/v1/runs", params={"limit": 200}).json()["data"]) == before


def test_a_batch_can_be_cancelled_and_resumed(server: Running) -> None:
    """Cancelling ends running and waiting lines; resuming runs what did not succeed."""
    batch = start(server, "story", [{"topic": str(number)} for number in range(60)]).json()["id"]
    server.client.post(f"/v1/batches/{batch}/cancel")
    results = finished(server, batch)
    assert {one["status"] for one in results} <= {"succeeded", "cancelled"}
    assert "cancelled" in {one["status"] for one in results}
    server.client.post(f"/v1/batches/{batch}/resume")
    again = finished(server, batch)
    assert {one["status"] for one in again} == {"succeeded"}
    assert server.client.get("/v1/batches/nope").status_code == 404


def test_a_result_that_is_not_kept_is_told() -> None:
    """A batch that could not be kept whole is refused; of one whose runs were pushed out by later
    ones each line says so."""
    with serving(tiny(), PROGRAMS, keep_runs=3) as server:
        lines = [{"key": "known"}] * 3
        assert start(server, "broken", [*lines, {"key": "known"}]).status_code == 400
        first = start(server, "broken", lines).json()["id"]
        assert [one["status"] for one in finished(server, first)] == ["succeeded"] * 3
        finished(server, start(server, "broken", lines[:2]).json()["id"])
        results = finished(server, first)
        assert [one["line"] for one in results] == [1, 2, 3]
        assert sorted(one["status"] for one in results) == ["forgotten"] * 2 + ["succeeded"]
        counts = server.client.get(f"/v1/batches/{first}").json()["counts"]
        assert counts == {"succeeded": 1, "forgotten": 2}
