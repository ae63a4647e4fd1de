"""The recorder's process and the socket to it: traffic goes on, whatever happens there."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from phloem.server.trace.frames import FrameReader, Kind
from phloem.server.trace.readers.jsonl import JsonlReader
from phloem.server.trace.relay.tap import Tap
from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS
from tests.server.trace.support import everything, jsonl, proxying, until


@pytest.fixture(scope="module")
def phloem() -> Iterator[Running]:
    with serving(tiny(), PROGRAMS, api_key="key-for-the-recorder-test") as running:
        yield running


def test_a_recorder_that_dies_is_replaced(phloem: Running, tmp_path: Path) -> None:
    """Requests are answered while there is none, and recorded again by the next one."""
    with proxying(phloem.url, jsonl(tmp_path)) as url, httpx.Client(base_url=url) as client:
        [first] = [one for one in multiprocessing.active_children() if "recorder" in one.name]
        client.get("/health?before")
        until(lambda: list(tmp_path.glob("*.jsonl")))
        first.kill()
        first.join()
        assert client.get("/health?between").status_code == 200
        until(lambda: any("recorder" in one.name for one in multiprocessing.active_children()))
        # The new one listens from its start on, before it has imported anything.
        client.get("/health?after")
    paths = [one.path for trace in everything(JsonlReader(tmp_path)) for one in trace.exchanges]
    assert "/health?before" in paths
    assert "/health?after" in paths


def test_a_background_run_is_followed_with_its_caller_s_key(
    phloem: Running, tmp_path: Path
) -> None:
    """Its request is over at once; its events come when it has ended, and no key is kept."""
    key = {"authorization": "Bearer key-for-the-recorder-test"}
    with proxying(phloem.url, jsonl(tmp_path)) as url:
        body = {"args": {"topic": "sea"}, "background": True}
        reply = httpx.post(f"{url}/v1/programs/story/runs", json=body, headers=key)
        assert reply.status_code == 202
    run = JsonlReader(tmp_path).get(reply.json()["id"])
    assert run.status == "succeeded"
    assert [event["type"] for event in run.events][-1] == "run_finished"
    assert [effect["name"] for effect in run.effects] == ["title", "body"]
    assert run.exchanges[0].status == 202
    assert b"key-for-the-recorder" not in next(tmp_path.glob("*.jsonl")).read_bytes()


def test_bodies_off_keeps_places_and_numbers_of_a_run(phloem: Running, tmp_path: Path) -> None:
    """Without bodies a run has its steps, nodes and times, and no text."""
    key = {"authorization": "Bearer key-for-the-recorder-test"}
    with proxying(phloem.url, jsonl(tmp_path), bodies=0.0) as url:
        body = {"args": {"topic": "mysterious-topic"}}
        said = httpx.post(f"{url}/v1/programs/story/runs", json=body, headers=key, timeout=60)
    run = JsonlReader(tmp_path).get(said.json()["id"])
    kept = next(tmp_path.glob("*.jsonl")).read_text(encoding="utf-8")
    assert "mysterious-topic" not in kept
    finished = [event for event in run.events if event["type"] == "step_finished"]
    assert [event["node"] for event in finished] == ["gen:title", "gen:body"]
    assert finished[0]["usage"]["generated"] == 6
    assert all("text" not in event for event in run.events)


class Held(asyncio.WriteTransport):
    """A socket that nobody reads."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def get_write_buffer_size(self) -> int:
        return len(self.data)


async def test_a_slow_recorder_loses_whole_exchanges_and_counts_them() -> None:
    """Over its bound the tap says once that bytes are missing, and takes the connection up again
    with its next request."""
    tap, transport = Tap(max_waiting=200), Held()
    tap.connection_made(transport)
    tap.tell(Kind.HEAD, 1, b"first")
    tap.tell(Kind.RESPONSE, 1, b"x" * 300)
    tap.tell(Kind.RESPONSE, 1, b"lost")
    tap.tell(Kind.HEAD, 1, b"lost too")
    tap.flush()
    frames = list(FrameReader().feed(transport.data))
    assert [frame.kind for frame in frames] == [Kind.HEAD, Kind.RESPONSE, Kind.LOST]
    assert tap.lost == 2
    transport.data = b""
    tap.tell(Kind.RESPONSE, 1, b"of the lost one")
    tap.tell(Kind.HEAD, 1, b"next")
    tap.flush()
    frames = list(FrameReader().feed(transport.data))
    assert [frame.payload for frame in frames] == [b"next"]
